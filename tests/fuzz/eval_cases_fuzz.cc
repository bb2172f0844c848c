// Any bytes as an evaluation's own cases: documents, prompt tables, choices, LongEval lines. An error, or cases that
// keep what their parser promises.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "data/choices.h"
#include "data/documents.h"
#include "data/lines.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto choices = headwise::ParseChoices(text, "fuzz"); choices.ok()) {
    for (const auto& choice : *choices) HW_CHECK(choice.answer_idx < choice.options.size());
  }
  if (const auto documents = headwise::ParseDocuments(text, "fuzz"); documents.ok()) {
    for (const auto& document : *documents) HW_CHECK(!document.answers.empty());
  }
  if (const auto prompts = headwise::ParsePromptTable(text, "fuzz"); prompts.ok()) {
    for (const auto& [name, prompt] : *prompts) HW_CHECK(prompt.max_new_tokens >= 1);
  }
  if (const auto lines = headwise::ParseLineCases(text, "fuzz"); lines.ok()) {
    for (const auto& line : *lines) HW_CHECK(!line.prompt.empty() && line.expected_number >= 0);
  }
  return 0;
}
