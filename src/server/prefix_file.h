// A kept text as a file: whose it is, its ids, its KV pages, and a hash of all of that. Layout (numbers least
// significant byte first, texts and lists with their bytes in 8 bytes before them):
//
//   16 bytes   "headwise-prefix\n"
//    4 + 8     version; bytes of the head
//   head       identity, plan, reading, bytes of what lies between the head's hash and the last, ids (4 bytes each)
//   64         SHA-256 of all this, hexadecimal
//   text       limits, rope frequencies, what each head holds (kv/kv_snapshot_bytes.h)
//   pages      as they are in memory
//   64         SHA-256 of the whole file so far
#ifndef HEADWISE_SERVER_PREFIX_FILE_H_
#define HEADWISE_SERVER_PREFIX_FILE_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <headwise/head_plan.h>
#include <headwise/status.h>

#include "engine/prefix_cache.h"

namespace headwise {

// What can be known of a file without reading its pages.
struct PrefixFileHead {
  std::string identity;       // of weights and arithmetic: pages of another mean something else
  std::string plan;           // HashOfPlan
  std::string reading;        // HashOfReading
  int64_t payload_bytes = 0;  // of text and pages
  std::vector<int32_t> ids;   // of the text
};

// Of the rules alone: plans of other names and origins that say the same have the same. 64 hexadecimal digits.
std::string HashOfPlan(const HeadPlan& plan);
// Of what the lengths of a request made of them: two texts of the same ids can be read otherwise. 64 digits.
std::string HashOfReading(const SequenceFrequencies& rope_frequencies, const std::vector<ResolvedRule>& rules);

// The file's name: the same text under the same plan has the same. 64 hexadecimal digits.
std::string PrefixFileName(std::string_view identity, std::string_view plan, std::span<const int32_t> ids);

// The bytes that such a file has.
int64_t PrefixFileBytes(const PrefixFileHead& head);

// As head.payload_bytes has it.
int64_t PayloadBytes(const SavedText& text);

// Returns once the file is on its disk, under its name; where that fails there is none, or the one before. Requires:
// the head is of this text.
Status WritePrefixFile(const std::filesystem::path& path, const PrefixFileHead& head, const SavedText& text);

// kUnsupported: of another version. kInvalidInput: torn, or something else altogether. kIo: it cannot be read.
Result<PrefixFileHead> ReadPrefixFileHead(const std::filesystem::path& path);
// The same errors; every byte is checked. Nothing is known of whether it fits a model.
Result<std::shared_ptr<const SavedText>> ReadPrefixFile(const std::filesystem::path& path);
// The same of a file's bytes; `path` is for the words of an error.
Result<std::shared_ptr<const SavedText>> ParsePrefixFile(std::string_view file, const std::filesystem::path& path);

// What is between the two hashes, which have been checked. kInvalidInput where it is no text.
Result<std::shared_ptr<const SavedText>> ParsePrefixPayload(std::string_view payload, std::vector<int32_t> ids);

}  // namespace headwise

#endif  // HEADWISE_SERVER_PREFIX_FILE_H_
