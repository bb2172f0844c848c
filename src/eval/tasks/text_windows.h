// Windows of a user's text as token ids, for tasks that predict text instead of answering.
#ifndef HEADWISE_EVAL_TASKS_TEXT_WINDOWS_H_
#define HEADWISE_EVAL_TASKS_TEXT_WINDOWS_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "eval/task.h"

namespace headwise {

inline constexpr std::array kWindowOptions = {
    TaskOption{"text", "UTF-8 text file"}, kLengthsOption, TaskOption{"tokens", "One length: the same as --lengths"},
    TaskOption{"num-cases", "Windows, at even distances; 1: the first tokens of the text"}};

struct TextWindow {
  int64_t length = 0;
  int64_t case_idx = 0;      // within its length
  std::vector<int32_t> ids;  // [length], the beginning-of-text token counted in
  std::string text;          // what they say, for people
};

struct TextWindows {
  std::vector<int64_t> lengths;
  std::vector<TextWindow> windows;
  std::string path;  // opens error messages
  std::string hash;  // of the text
};

// Windows do not overlap: an error where the text is too short for that.
Result<TextWindows> ReadTextWindows(const TaskInput& input, int64_t default_tokens);

// Opens error messages: "emma.txt, window 2 of 4096 tokens: duo".
std::string WhereOf(const TextWindows& text, const TextWindow& window, const std::string& plan);

// The windows for people: nothing is asked of them, and every token is to be expected.
std::vector<CaseText> CasesOf(const TextWindows& text);

}  // namespace headwise

#endif  // HEADWISE_EVAL_TASKS_TEXT_WINDOWS_H_
