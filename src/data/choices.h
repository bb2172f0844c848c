// Multiple choice: questions with options, one of them right, from JSONL.
#ifndef HEADWISE_DATA_CHOICES_H_
#define HEADWISE_DATA_CHOICES_H_

#include <headwise/status.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace headwise {

struct ChoiceCase {
  std::string question;
  std::vector<std::string> options;  // at least two
  size_t answer_idx = 0;             // of the right one
};

// One JSON object per line: "question", "options" (a list of texts), "answer" (the number of the right option, from 0,
// or its text); other fields are ignored, empty lines skipped. Errors name the origin and the line.
Result<std::vector<ChoiceCase>> ParseChoices(std::string_view text, const std::string& origin);

}  // namespace headwise

#endif  // HEADWISE_DATA_CHOICES_H_
