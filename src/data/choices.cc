#include "data/choices.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/json_lines.h"

namespace headwise {
namespace {

Result<std::vector<std::string>> OptionsOf(const JsonObject& object) {
  const Json list = object.Has("options") ? object.At("options") : Json();
  std::vector<std::string> options;
  for (const Json& option : list) {
    if (option.is_string() && !option.get<std::string>().empty()) options.push_back(option.get<std::string>());
  }
  if (!list.is_array() || options.size() != list.size() || options.size() < 2) {
    return Status::InvalidInput(
        fmt::format("{}: \"options\" is {}, expected a list of two texts or more", object.origin(), list.dump()));
  }
  return options;
}

Result<size_t> AnswerOf(const JsonObject& object, const std::vector<std::string>& options) {
  const Json answer = object.Has("answer") ? object.At("answer") : Json();
  if (answer.is_number_integer() && answer >= 0 && answer < options.size()) return answer.get<size_t>();
  if (answer.is_string()) {
    const auto found = std::ranges::find(options, answer.get<std::string>());
    if (found != options.end()) return static_cast<size_t>(found - options.begin());
  }
  return Status::InvalidInput(
      fmt::format("{}: \"answer\" is {}, expected one of the options, or its number from 0 to {}", object.origin(),
                  answer.dump(), options.size() - 1));
}

}  // namespace

Result<std::vector<ChoiceCase>> ParseChoices(std::string_view text, const std::string& origin) {
  std::vector<ChoiceCase> cases;
  HW_RETURN_IF_ERROR(ForEachJsonLine(text, origin, [&](const JsonObject& object) -> Status {
    ChoiceCase choice;
    HW_ASSIGN_OR_RETURN(choice.question, object.String("question"));
    if (choice.question.empty()) {
      return Status::InvalidInput(fmt::format("{}: \"question\" is empty, expected a text", object.origin()));
    }
    HW_ASSIGN_OR_RETURN(choice.options, OptionsOf(object));
    HW_ASSIGN_OR_RETURN(choice.answer_idx, AnswerOf(object, choice.options));
    cases.push_back(std::move(choice));
    return Status::Ok();
  }));
  if (cases.empty()) {
    return Status::InvalidInput(fmt::format("{}: no questions, expected one JSON object per line", origin));
  }
  return cases;
}

}  // namespace headwise
