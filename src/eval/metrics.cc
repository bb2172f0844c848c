#include "eval/metrics.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "text/utf8.h"

namespace headwise {
namespace {

constexpr std::string_view kDigits = "0123456789";

// Answers of a model may end inside a character or hold bytes of none: each such byte is a code of its own, above all
// that Unicode has.
std::u32string CodePoints(std::string_view text) {
  constexpr char32_t kFirstBadByte = 0x110000;
  std::u32string codes;
  while (!text.empty()) {
    size_t size_bytes = 1;
    if (StepUtf8(text).kind == Utf8Step::Kind::kCharacter) {
      const Utf8Character character = FirstCharacter(text);
      codes.push_back(character.code);
      size_bytes = character.size_bytes;
    } else {
      codes.push_back(kFirstBadByte + static_cast<unsigned char>(text[0]));
    }
    text.remove_prefix(size_bytes);
  }
  return codes;
}

std::vector<std::string_view> SplitWords(std::string_view text) {
  std::vector<std::string_view> words;
  size_t begin = 0;
  const auto finish = [&](size_t end) {
    if (end > begin) words.push_back(text.substr(begin, end - begin));
  };
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = StepUtf8(text.substr(at));
    if (step.kind == Utf8Step::Kind::kCharacter && IsWhitespace(FirstCharacter(text.substr(at)).code)) {
      finish(at);
      begin = at + step.size_bytes;
    }
    at += step.size_bytes;
  }
  finish(text.size());
  return words;
}

// Runs of ASCII digits.
std::vector<std::string_view> Numbers(std::string_view text) {
  std::vector<std::string_view> numbers;
  size_t begin = text.find_first_of(kDigits);
  while (begin != std::string_view::npos) {
    const size_t end = std::min(text.find_first_not_of(kDigits, begin), text.size());
    numbers.push_back(text.substr(begin, end - begin));
    begin = text.find_first_of(kDigits, end);
  }
  return numbers;
}

// The harmonic mean of shared / size_a and shared / size_b, without dividing by 0; two empty ones are equal.
double F1(int64_t shared, size_t size_a, size_t size_b) {
  if (size_a + size_b == 0) return 1;
  return 2 * static_cast<double>(shared) / static_cast<double>(size_a + size_b);
}

// The length of the longest common subsequence. One row of the table lives at a time, as long as the shorter text.
int64_t CommonLength(std::u32string_view a, std::u32string_view b) {
  if (a.size() < b.size()) std::swap(a, b);
  std::vector<int64_t> row(b.size() + 1, 0);  // row[j]: of what was read of `a` and the first j of `b`
  for (const char32_t code : a) {
    int64_t above_left = 0;
    for (size_t j = 0; j < b.size(); ++j) {
      const int64_t above = row[j + 1];
      row[j + 1] = code == b[j] ? above_left + 1 : std::max(above, row[j]);
      above_left = above;
    }
  }
  return row.back();
}

std::string_view FirstCodeLine(std::string_view text) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    const std::string_view shown = line.substr(std::min(line.find_first_not_of(" \t\r\v\f"), line.size()));
    if (!shown.empty() && !shown.starts_with("//") && !shown.starts_with('#') && !shown.starts_with("```")) return line;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return {};
}

bool IsDigit(char32_t code) {
  return code >= U'0' && code <= U'9';
}

// A letter or digit of a script that puts spaces between words. The first that does not, Thai, begins at U+0E00, and
// those of East Asia come behind it; a number between their letters stands alone. Latin and Greek have one more block
// further up. The underscore is no letter here: it may be emphasis.
bool IsWordCode(char32_t code) {
  const bool is_spaced_script = code < 0x0E00 || (code >= 0x1E00 && code < 0x2000);
  return is_spaced_script && code != U'_' && IsWord(code);
}

// What stands on one side of a match, from its edge outwards; 0 past the end of the text.
struct Side {
  char32_t edge;    // the match's own first or last character
  char32_t next;    // beside it
  char32_t beyond;  // beside that
};

// Does the word or number at the edge go on? True where in doubt.
bool GoesOn(const Side& side) {
  constexpr std::u32string_view kJoints = U"-_.,";
  if (IsWordCode(side.next)) return IsWordCode(side.edge) || kJoints.find(side.edge) != kJoints.npos;
  if (!IsWordCode(side.edge)) return false;
  if (side.next == U'-' || side.next == U'_') return IsWordCode(side.beyond);
  return (side.next == U'.' || side.next == U',') && IsDigit(side.edge) && IsDigit(side.beyond);
}

// Does a number that begins at the edge have a sign or a decimal point in front?
bool HasNumberPrefix(const Side& side) {
  constexpr char32_t kMinusSign = 0x2212;
  if (!IsDigit(side.edge)) return false;
  if (side.next == U'-' || side.next == kMinusSign) return true;
  // ".5" is 0.5, but the point of "it is...5" and of "No.5" belongs to what is before it.
  return side.next == U'.' && side.beyond != U'.' && !IsWordCode(side.beyond);
}

}  // namespace

std::vector<std::string> NormalisedWords(std::string_view text) {
  std::string plain;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80 && IsPunctuation(byte)) continue;
    plain.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c);
  }
  std::vector<std::string> words;
  for (const std::string_view word : SplitWords(plain)) {
    if (word != "a" && word != "an" && word != "the") words.emplace_back(word);
  }
  return words;
}

double TokenF1(std::string_view answer, std::string_view reference) {
  const std::vector<std::string> answer_words = NormalisedWords(answer);
  const std::vector<std::string> reference_words = NormalisedWords(reference);
  std::map<std::string_view, int64_t> unmatched;
  for (const std::string& word : reference_words) ++unmatched[word];
  int64_t shared = 0;
  for (const std::string& word : answer_words) {
    const auto it = unmatched.find(word);
    if (it == unmatched.end() || it->second == 0) continue;
    --it->second;
    ++shared;
  }
  return F1(shared, answer_words.size(), reference_words.size());
}

double ExactMatch(std::string_view answer, std::string_view reference) {
  return NormalisedWords(answer) == NormalisedWords(reference) ? 1 : 0;
}

double RougeL(std::string_view answer, std::string_view reference) {
  std::unordered_map<std::string_view, char32_t> codes;  // a number for every word, so that texts compare as codes
  const auto encode = [&](std::string_view text) {
    std::u32string encoded;
    for (const std::string_view word : SplitWords(text)) {
      encoded.push_back(codes.try_emplace(word, static_cast<char32_t>(codes.size())).first->second);
    }
    return encoded;
  };
  const std::u32string a = encode(answer);
  const std::u32string b = encode(reference);
  return F1(CommonLength(a, b), a.size(), b.size());
}

double EditSimilarity(std::string_view answer, std::string_view reference) {
  const std::u32string a = CodePoints(answer);
  const std::u32string b = CodePoints(reference);
  // All that is not common is deleted or inserted: distance = |a| + |b| - 2 common.
  return F1(CommonLength(a, b), a.size(), b.size());
}

double CodeSimilarity(std::string_view answer, std::string_view reference) {
  return EditSimilarity(FirstCodeLine(answer), reference);
}

double CountScore(std::string_view answer, std::string_view reference) {
  const std::vector<std::string_view> numbers = Numbers(answer);
  const std::vector<std::string_view> expected = Numbers(reference);
  if (numbers.empty() || expected.empty()) return 0;
  return static_cast<double>(std::ranges::count(numbers, expected[0])) / static_cast<double>(numbers.size());
}

double ClassScore(std::string_view answer, std::string_view reference, std::span<const std::string> all_classes) {
  int64_t num_named = 0;
  bool is_reference_named = false;
  for (const std::string& name : all_classes) {
    if (answer.find(name) == answer.npos) continue;
    if (name == reference) is_reference_named = true;
    if (name == reference || reference.find(name) == reference.npos) ++num_named;
  }
  return is_reference_named ? 1 / static_cast<double>(num_named) : 0;
}

bool HoldsWhole(std::string_view answer, std::string_view expected) {
  const std::u32string text = CodePoints(answer);
  const std::u32string wanted = CodePoints(expected);
  if (std::ranges::all_of(wanted, IsWhitespace)) return false;
  const auto code_at = [&](size_t at) { return at < text.size() ? text[at] : U'\0'; };
  for (size_t begin = text.find(wanted); begin != text.npos; begin = text.find(wanted, begin + 1)) {
    // Below 0 `at` wraps round to beyond the end.
    const Side left = {.edge = text[begin], .next = code_at(begin - 1), .beyond = code_at(begin - 2)};
    const size_t last = begin + wanted.size() - 1;
    const Side right = {.edge = text[last], .next = code_at(last + 1), .beyond = code_at(last + 2)};
    if (!GoesOn(left) && !HasNumberPrefix(left) && !GoesOn(right)) return true;
  }
  return false;
}

}  // namespace headwise
