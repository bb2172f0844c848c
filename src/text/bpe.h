// Byte-pair encoding of one word, both kinds: byte-level (every word consists of known characters) and
// SentencePiece-style (unknown characters fall back to byte tokens, and a word may be a whole book).
#ifndef HEADWISE_TEXT_BPE_H_
#define HEADWISE_TEXT_BPE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <headwise/status.h>

#include "base/json.h"
#include "text/vocabulary.h"
#include "text/word_encoder.h"

namespace headwise {

class BpeModel final : public WordEncoder {
 public:
  // `model` is the "model" object of a tokenizer.json. `reserved` are tokens that ordinary text must never become, not
  // even by a merge: what is left to Encode is text that was not recognised as a special token, or must not be.
  static Result<BpeModel> FromJson(const JsonObject& model, const std::unordered_set<std::string>& reserved);

  const std::vector<Vocabulary::Entry>& entries() const { return entries_; }

  // Appends the ids of one word; n log n in its length. An error if a character has no token and there is none for
  // unknown ones. Requires: word is valid UTF-8.
  Status Encode(std::string_view word, std::vector<int32_t>& ids) const override;

 private:
  struct Merge {
    uint32_t rank;
    int32_t id;
  };
  // A piece of the word being merged: a doubly linked list inside a vector. A merged-away symbol has id -1.
  struct Symbol {
    int32_t id;
    int32_t previous;
    int32_t next;
  };
  struct Candidate;

  BpeModel() = default;
  Status ReadVocabulary(const JsonObject& model, const std::unordered_set<std::string>& reserved);
  Status ReadOptions(const JsonObject& model);
  Status ReadMerges(const JsonObject& model);
  Status AddMerge(std::string_view left, std::string_view right, uint32_t rank);

  Status SplitIntoSymbols(std::string_view word, std::vector<Symbol>& symbols) const;
  void MergeSymbols(std::vector<Symbol>& symbols) const;
  const Merge* FindMerge(int32_t left, int32_t right) const;

  std::vector<Vocabulary::Entry> entries_;  // all tokens of the file
  Vocabulary text_vocabulary_;              // those that text may become
  std::unordered_map<uint64_t, Merge> merges_;
  std::optional<int32_t> unknown_id_;
  std::vector<int32_t> byte_ids_;  // 256 ids, -1 where a byte has none; empty without byte fallback
  std::string continuing_prefix_;
  std::string end_of_word_suffix_;
  bool fuse_unknown_ = false;
  bool ignore_merges_ = false;
  std::string origin_;
};

}  // namespace headwise

#endif  // HEADWISE_TEXT_BPE_H_
