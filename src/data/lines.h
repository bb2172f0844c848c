// Line retrieval, as in LongEval: a record of "line <name>: REGISTER_CONTENT is <number>" and a question for one of the
// numbers. Cases come from LongEval's JSONL files or from our own generator, in the same form.
#ifndef HEADWISE_DATA_LINES_H_
#define HEADWISE_DATA_LINES_H_

#include <headwise/status.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"

namespace headwise {

struct LineCase {
  std::string prompt;
  int64_t expected_number = 0;
};

struct LineGeneratorOptions {
  int64_t num_lines = 200;  // at most kMaxLines
  int64_t num_cases = 10;
  uint64_t seed = 0;
};

// Different names that the word lists can make.
extern const int64_t kMaxLines;

// LongEval's numbers are 1 to this.
inline constexpr int64_t kMaxLineNumber = 50000;

// The parts of a record, for texts made of the same lines. Names are of two words, "amber-anchor". Requires: id <
// kMaxLines.
std::string LineName(uint64_t id);
// What is to be done with the lines, and when the question comes: "At the end of the record".
std::string LineOpening(std::string_view when);
// "line <name>: REGISTER_CONTENT is <<number>>", and the end of the line.
std::string LineText(std::string_view name, int64_t number);
// Ends with a space, as LongEval's does.
std::string LineQuestion(std::string_view name);
// In the form that models give it; eval/judge.h tells right from wrong.
std::string LineAnswer(std::string_view name, int64_t number);

// Different names in random order. Requires: 0 <= count <= kMaxLines.
std::vector<std::string> DrawLineNames(Rng& rng, int64_t count);

struct LineRecord {
  std::vector<std::string> names;
  std::vector<int64_t> numbers;  // of the same length, all different
};

// Requires: 1 <= num_lines <= kMaxLines.
LineRecord DrawLineRecord(Rng& rng, int64_t num_lines);

// The first lines of `record`, and the question for line `asked_idx`. Requires: 0 <= asked_idx < num_lines <= lines
// drawn.
LineCase MakeLineCase(const LineRecord& record, int64_t num_lines, int64_t asked_idx);

// The same options give the same cases on every machine. Names and numbers within a case are all different, so that a
// right answer cannot come from a wrong line; the line asked for is anywhere with equal probability. An error if an
// option is out of range.
Result<std::vector<LineCase>> MakeLineCases(const LineGeneratorOptions& options);

// One JSON object per line with "prompt" and "expected_number"; other fields are ignored, empty lines skipped. Errors
// name the file and the line.
Result<std::vector<LineCase>> ParseLineCases(std::string_view text, const std::string& origin);

}  // namespace headwise

#endif  // HEADWISE_DATA_LINES_H_
