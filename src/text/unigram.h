// The Unigram model of a tokenizer.json: every piece has a score, and a word becomes the pieces whose scores add up to
// the most.
#ifndef HEADWISE_TEXT_UNIGRAM_H_
#define HEADWISE_TEXT_UNIGRAM_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include <headwise/status.h>

#include "base/json.h"
#include "text/vocabulary.h"
#include "text/word_encoder.h"

namespace headwise {

class UnigramModel final : public WordEncoder {
 public:
  // `model` is the "model" object of a tokenizer.json. `reserved` are tokens that ordinary text must never become.
  static Result<UnigramModel> FromJson(const JsonObject& model, const std::unordered_set<std::string>& reserved);

  const std::vector<Vocabulary::Entry>& entries() const { return entries_; }

  // Appends the ids of one word; its length times that of the longest piece, which is bounded. An error if a character
  // has no piece and the model no token for unknown ones. Requires: word is valid UTF-8.
  Status Encode(std::string_view word, std::vector<int32_t>& ids) const override;

 private:
  static constexpr int32_t kNone = -1;
  // Nodes stand in the order of their depth, the children of one side by side and sorted by label.
  struct Node {
    uint32_t first_child = 0;
    uint32_t num_children = 0;
    int32_t id = kNone;
    unsigned char label = 0;
  };
  // The best way to a place of the word ends with this piece.
  struct Best {
    double score = 0;
    uint32_t size_bytes = 0;  // 0: no way leads here yet
    int32_t id = kNone;
  };

  UnigramModel() = default;
  Status ReadPieces(const Json& vocab);
  Status ReadUnknown(const JsonObject& model);
  void BuildTrie(const std::unordered_set<std::string>& reserved);
  // Null where a node has none of that label.
  const Node* ChildOf(const Node& node, unsigned char label) const;
  std::optional<int32_t> Find(std::string_view piece) const;
  // The best way to every end of a piece in the word, and past characters that are none.
  Status FindBest(std::string_view word, std::vector<Best>& best) const;
  // Text that is no piece: one id, or one for each byte.
  void AppendUnknown(std::string_view text, std::vector<int32_t>& ids) const;

  std::vector<Vocabulary::Entry> entries_;  // all tokens of the file
  std::vector<double> scores_;              // by id
  std::vector<Node> nodes_;                 // of the pieces that text may become
  double unknown_score_ = 0;
  std::optional<int32_t> unknown_id_;
  std::vector<int32_t> byte_ids_;  // 256 ids; empty unless every byte can fall back
  std::string origin_;
};

}  // namespace headwise

#endif  // HEADWISE_TEXT_UNIGRAM_H_
