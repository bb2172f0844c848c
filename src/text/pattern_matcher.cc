#include "text/pattern_matcher.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace headwise {
namespace {

constexpr uint32_t kRoot = 0;

unsigned char FromEnd(const std::string& pattern, size_t depth) {
  return static_cast<unsigned char>(pattern[pattern.size() - 1 - depth]);
}

bool IsLessBackwards(const std::string& a, const std::string& b) {
  return std::lexicographical_compare(a.rbegin(), a.rend(), b.rbegin(), b.rend(), [](char x, char y) {
    return static_cast<unsigned char>(x) < static_cast<unsigned char>(y);
  });
}

}  // namespace

PatternMatcher::PatternMatcher(const std::vector<std::string>& patterns) {
  HW_CHECK(patterns.size() < (size_t{1} << 31));
  std::vector<int32_t> order(patterns.size());
  std::iota(order.begin(), order.end(), 0);
  const auto pattern_at = [&](size_t i) -> const std::string& { return patterns[static_cast<size_t>(order[i])]; };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return IsLessBackwards(patterns[static_cast<size_t>(a)], patterns[static_cast<size_t>(b)]);
  });
  // A node is the range of patterns that end alike, as far as it is deep.
  struct Range {
    size_t begin;
    size_t end;
    size_t depth;
  };
  std::vector<Range> ranges{{0, order.size(), 0}};
  nodes_.emplace_back();
  for (size_t i = 0; i < ranges.size(); ++i) {
    Range range = ranges[i];
    // The shortest come first: those that are all of what the range shares.
    while (range.begin < range.end && pattern_at(range.begin).size() == range.depth) {
      if (nodes_[i].longest == kNone && range.depth > 0) nodes_[i].longest = order[range.begin];
      ++range.begin;
    }
    nodes_[i].first_child = static_cast<uint32_t>(nodes_.size());
    for (size_t begin = range.begin; begin < range.end;) {
      const unsigned char label = FromEnd(pattern_at(begin), range.depth);
      size_t end = begin + 1;
      while (end < range.end && FromEnd(pattern_at(end), range.depth) == label) ++end;
      HW_CHECK(nodes_.size() < (size_t{1} << 32) - 1);
      nodes_.push_back({.label = label});
      ranges.push_back({begin, end, range.depth + 1});
      begin = end;
    }
    nodes_[i].num_children = static_cast<uint32_t>(nodes_.size()) - nodes_[i].first_child;
    longest_bytes_ = std::max(longest_bytes_, range.depth);
  }
  for (unsigned label = 0; label < of_root_.size(); ++label) {
    of_root_[label] = ChildOf(kRoot, static_cast<unsigned char>(label));
  }
  // From the root down, so that what a node falls back to, which is less deep, is complete.
  for (uint32_t parent = 0; parent < nodes_.size(); ++parent) {
    for (uint32_t i = 0; i < nodes_[parent].num_children; ++i) {
      Node& child = nodes_[nodes_[parent].first_child + i];
      if (parent != kRoot) child.fallback = Next(nodes_[parent].fallback, child.label);
      if (child.longest == kNone) child.longest = nodes_[child.fallback].longest;
    }
  }
}

uint32_t PatternMatcher::ChildOf(uint32_t node, unsigned char label) const {
  const Node* begin = nodes_.data() + nodes_[node].first_child;
  const Node* end = begin + nodes_[node].num_children;
  const Node* child = std::lower_bound(begin, end, label, [](const Node& n, unsigned char l) { return n.label < l; });
  return child != end && child->label == label ? static_cast<uint32_t>(child - nodes_.data()) : kRoot;
}

uint32_t PatternMatcher::Next(uint32_t node, unsigned char label) const {
  while (node != kRoot) {
    if (const uint32_t child = ChildOf(node, label); child != kRoot) return child;
    node = nodes_[node].fallback;
  }
  return of_root_[label];
}

void PatternMatcher::FindAll(std::string_view text, size_t begin, size_t end, std::vector<int32_t>& longest) const {
  longest.resize(end - begin);
  uint32_t node = kRoot;
  for (size_t at = std::min(text.size(), end + longest_bytes_); at-- > begin;) {
    node = Next(node, static_cast<unsigned char>(text[at]));
    if (at < end) longest[at - begin] = nodes_[node].longest;
  }
}

size_t PatternMatcher::block_bytes() const {
  constexpr size_t kLeast = size_t{64} << 10;
  return std::max(kLeast, longest_bytes_);
}

}  // namespace headwise
