#include "eval/judge.h"

#include <algorithm>

#include "base/check.h"

namespace headwise {
namespace {

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

bool IsWordChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || IsDigit(c) || c == '_';
}

}  // namespace

std::vector<std::string_view> SplitWords(std::string_view text) {
  std::vector<std::string_view> words;
  for (size_t begin = 0; begin < text.size();) {
    if (!IsWordChar(text[begin])) {
      ++begin;
      continue;
    }
    size_t end = begin;
    while (end < text.size()) {
      const bool joins = text[end] == '-' || text[end] == '.' || text[end] == ',';
      const bool is_inside = joins && end + 1 < text.size() && IsWordChar(text[end + 1]);
      if (!IsWordChar(text[end]) && !is_inside) break;
      ++end;
    }
    words.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return words;
}

bool IsNumber(std::string_view word) {
  return !word.empty() && std::ranges::all_of(word, IsDigit);
}

double Recall(std::string_view answer, std::span<const std::string> expected, const IsCandidate& is_candidate) {
  HW_CHECK(!expected.empty());
  std::vector<std::string_view> named;
  for (const std::string_view word : SplitWords(answer)) {
    if (named.size() == expected.size()) break;
    if (is_candidate(word) && std::ranges::find(named, word) == named.end()) named.push_back(word);
  }
  const auto num_right = std::ranges::count_if(
      expected, [&](const std::string& each) { return std::ranges::find(named, each) != named.end(); });
  return static_cast<double>(num_right) / static_cast<double>(expected.size());
}

}  // namespace headwise
