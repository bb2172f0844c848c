#include "data/documents.h"

#include <fmt/format.h>

#include <utility>

#include "base/json_lines.h"

namespace headwise {
namespace {

constexpr std::string_view kContext = "{context}";
constexpr std::string_view kInput = "{input}";

// Absent, null and an empty list are the same.
Result<std::vector<std::string>> TextsOf(const JsonObject& object, const char* key) {
  std::vector<std::string> texts;
  if (!object.Has(key)) return texts;
  const Json& list = object.At(key);
  for (const Json& text : list) {
    if (text.is_string()) texts.push_back(text.get<std::string>());
  }
  if (list.is_array() && texts.size() == list.size()) return texts;
  return Status::InvalidInput(
      fmt::format("{}: \"{}\" is {}, expected a list of texts", object.origin(), key, list.dump()));
}

// The places of the document and the question in a template.
Result<DocumentPrompt> SplitTemplate(std::string_view text, const std::string& where) {
  const size_t context = text.find(kContext);
  const size_t input = text.find(kInput);
  const bool has_input = input != std::string_view::npos;
  const bool is_right = context != std::string_view::npos &&
                        text.find(kContext, context + kContext.size()) == std::string_view::npos &&
                        (!has_input || (input > context && text.find(kInput, input + 1) == std::string_view::npos));
  if (!is_right) {
    return Status::InvalidInput(fmt::format(
        "{}: \"prompt\" is \"{}\", expected {{context}} once and {{input}} at most once, after it", where, text));
  }
  const size_t after_context = context + kContext.size();
  DocumentPrompt prompt;
  prompt.before = text.substr(0, context);
  prompt.between = has_input ? text.substr(after_context, input - after_context) : text.substr(after_context);
  if (has_input) prompt.after = text.substr(input + kInput.size());
  return prompt;
}

struct BuiltIn {
  std::string_view names;  // separated by spaces
  std::string_view text;
  std::string_view metric;
  int64_t max_new_tokens = 0;
  bool only_first_line = false;
};

constexpr BuiltIn kBuiltIns[] = {
    {"default narrativeqa qasper multifieldqa_en multifieldqa_zh",
     "Read the following text and answer the question about it as briefly as you can.\n\n{context}\n\nQuestion: "
     "{input}\nAnswer:",
     "f1", 64, false},
    {"hotpotqa 2wikimqa musique dureader triviaqa",
     "Here are several passages. The answer to the question below needs one or more of them.\n\n{context}\n\nQuestion: "
     "{input}\nAnswer in a few words:",
     "f1", 32, true},
    {"gov_report qmsum multi_news vcsum",
     "Here is a long text.\n\n{context}\n\nSummarise it in a few paragraphs. {input}\nSummary:", "rouge_l", 512, false},
    {"samsum", "Here are conversations and their summaries.\n\n{context}\n\n{input}", "rouge_l", 128, true},
    {"trec lsht", "Here are examples of texts and their classes.\n\n{context}\n{input}", "class", 64, true},
    {"passage_retrieval_en passage_retrieval_zh",
     "Here are numbered paragraphs.\n\n{context}\n\nWhich of them is summed up here? {input}\nThe number of the "
     "paragraph is",
     "count", 32, false},
    {"passage_count",
     "Some of the following paragraphs are repeated.\n\n{context}\n\nHow many different paragraphs are there? "
     "{input}\nThe number is",
     "count", 32, false},
    {"lcc repobench-p", "Complete the code.\n{context}{input}", "code", 64, false},
};

}  // namespace

Result<std::vector<DocumentCase>> ParseDocuments(std::string_view text, const std::string& origin) {
  std::vector<DocumentCase> cases;
  HW_RETURN_IF_ERROR(ForEachJsonLine(text, origin, [&](const JsonObject& object) -> Status {
    DocumentCase document;
    HW_ASSIGN_OR_RETURN(document.input, object.String("input"));
    HW_ASSIGN_OR_RETURN(document.context, object.String("context"));
    HW_ASSIGN_OR_RETURN(document.answers, TextsOf(object, "answers"));
    HW_ASSIGN_OR_RETURN(document.all_classes, TextsOf(object, "all_classes"));
    HW_ASSIGN_OR_RETURN(document.dataset, object.StringOr("dataset", ""));
    if (document.answers.empty()) {
      return Status::InvalidInput(fmt::format("{}: \"answers\" has none, expected at least one", object.origin()));
    }
    if (document.context.empty() && document.input.empty()) {
      return Status::InvalidInput(
          fmt::format("{}: \"context\" and \"input\" are empty, expected a text", object.origin()));
    }
    cases.push_back(std::move(document));
    return Status::Ok();
  }));
  if (cases.empty()) {
    return Status::InvalidInput(fmt::format("{}: no cases, expected one JSON object per line", origin));
  }
  return cases;
}

std::map<std::string, DocumentPrompt> BuiltInPrompts() {
  std::map<std::string, DocumentPrompt> prompts;
  for (const BuiltIn& row : kBuiltIns) {
    DocumentPrompt prompt = *SplitTemplate(row.text, "built in");
    prompt.metric = row.metric;
    prompt.max_new_tokens = row.max_new_tokens;
    prompt.only_first_line = row.only_first_line;
    for (std::string_view names = row.names; !names.empty();) {
      const size_t space = names.find(' ');
      prompts[std::string(names.substr(0, space))] = prompt;
      names.remove_prefix(space == std::string_view::npos ? names.size() : space + 1);
    }
  }
  return prompts;
}

Result<std::map<std::string, DocumentPrompt>> ParsePromptTable(std::string_view json, const std::string& origin) {
  HW_ASSIGN_OR_RETURN(const Json root, ParseJsonUniqueKeys(json, origin));
  HW_ASSIGN_OR_RETURN([[maybe_unused]] const JsonObject table, JsonObject::Of(root, origin));
  std::map<std::string, DocumentPrompt> prompts;
  for (const auto& [name, entry] : root.items()) {
    const std::string where = fmt::format("{}: {}", origin, name);
    HW_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(entry, where));
    HW_ASSIGN_OR_RETURN(const std::string text, object.String("prompt"));
    HW_ASSIGN_OR_RETURN(DocumentPrompt prompt, SplitTemplate(text, where));
    HW_ASSIGN_OR_RETURN(prompt.metric, object.String("metric"));
    HW_ASSIGN_OR_RETURN(prompt.max_new_tokens, object.IntOr("max_new_tokens", 64));
    HW_ASSIGN_OR_RETURN(prompt.only_first_line, object.BoolOr("only_first_line", false));
    if (prompt.max_new_tokens < 1) {
      return Status::InvalidInput(
          fmt::format("{}: \"max_new_tokens\" is {}, expected at least 1", where, prompt.max_new_tokens));
    }
    prompts[name] = std::move(prompt);
  }
  return prompts;
}

}  // namespace headwise
