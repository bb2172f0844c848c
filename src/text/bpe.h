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

// What a BPE model is made of, whichever file it comes from.
struct BpeParts {
  // Two tokens that become one: the lowest rank in a word first, and of equal ranks the leftmost.
  struct Merge {
    std::string_view left;
    std::string_view right;
    uint32_t rank = 0;
  };

  std::string origin;                      // opens error messages
  std::vector<Vocabulary::Entry> entries;  // all tokens of the file
  // Tokens that ordinary text must never become, not even by a merge: what is left to Encode is text that was not
  // recognised as a special token, or must not be.
  std::unordered_set<std::string> reserved;
  std::vector<Merge> merges;  // views of what outlives the call
  std::optional<int32_t> unknown_id;
  bool byte_fallback = false;  // unknown characters become tokens like <0x0A>, one per byte
  bool fuse_unknown = false;
  bool ignore_merges = false;  // a word that is a token needs no merges
  std::string continuing_prefix;
  std::string end_of_word_suffix;
};

// The form that files write merges in: "left right". `text` must outlive the merge.
Result<BpeParts::Merge> CutMerge(std::string_view text, uint32_t rank, std::string_view origin);

class BpeModel final : public WordEncoder {
 public:
  // An error if a merge needs a token that is not among the entries.
  static Result<BpeModel> FromParts(BpeParts parts);
  // `model` is the "model" object of a tokenizer.json.
  static Result<BpeModel> FromJson(const JsonObject& model, std::unordered_set<std::string> reserved);

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
  // `all` has the reserved tokens too.
  Status AddMerge(const BpeParts::Merge& merge, const Vocabulary& all);

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
