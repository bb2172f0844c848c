// Many texts looked for at once, in a time that depends on neither their number nor their lengths.
#ifndef HEADWISE_TEXT_PATTERN_MATCHER_H_
#define HEADWISE_TEXT_PATTERN_MATCHER_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headwise {

// The automaton of Aho and Corasick over the patterns read backwards. Where it stands after a text was read backwards
// down to some place tells the longest pattern that begins at this place.
class PatternMatcher {
 public:
  static constexpr int32_t kNone = -1;

  PatternMatcher() = default;
  // Of patterns that are the same the first counts; empty ones are never found.
  explicit PatternMatcher(const std::vector<std::string>& patterns);

  bool empty() const { return nodes_.size() <= 1; }
  // For each place of text [begin, end) the longest pattern that begins there, or kNone. Patterns may reach beyond
  // `end`. Requires: begin <= end <= text.size(); not empty().
  void FindAll(std::string_view text, size_t begin, size_t end, std::vector<int32_t>& longest) const;
  // How much text is looked at together with one call: no fewer bytes than the longest pattern has, so that what
  // reaches beyond costs no more than what is asked.
  size_t block_bytes() const;

 private:
  // Nodes stand in the order of their depth, the children of one side by side and sorted by label.
  struct Node {
    uint32_t first_child = 0;
    uint32_t num_children = 0;
    uint32_t fallback = 0;  // of the longest proper suffix that is a node
    int32_t longest = kNone;
    unsigned char label = 0;
  };
  uint32_t ChildOf(uint32_t node, unsigned char label) const;
  uint32_t Next(uint32_t node, unsigned char label) const;

  std::vector<Node> nodes_;
  std::array<uint32_t, 256> of_root_{};  // the root itself where it has no child of the label
  size_t longest_bytes_ = 0;
};

}  // namespace headwise

#endif  // HEADWISE_TEXT_PATTERN_MATCHER_H_
