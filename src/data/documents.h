// Questions on long documents, from JSONL in LongBench's fields [arXiv 2308.14508], and the prompts that put them.
#ifndef HEADWISE_DATA_DOCUMENTS_H_
#define HEADWISE_DATA_DOCUMENTS_H_

#include <headwise/status.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace headwise {

struct DocumentCase {
  std::string input;                     // the question; may be empty (summaries)
  std::string context;                   // the document
  std::vector<std::string> answers;      // references, at least one: the best counts
  std::vector<std::string> all_classes;  // of a classification; empty elsewhere
  std::string dataset;                   // names the prompt; empty where the file does not say
};

// One JSON object per line with "input", "context", "answers" and, where they apply, "all_classes" and "dataset"; other
// fields are ignored, empty lines skipped. Errors name the origin and the line.
Result<std::vector<DocumentCase>> ParseDocuments(std::string_view text, const std::string& origin);

// How the questions of a dataset are put and scored.
struct DocumentPrompt {
  std::string before;   // the document
  std::string between;  // document and question
  std::string after;    // the question
  std::string metric;   // eval/tasks/docs.cc has the list
  int64_t max_new_tokens = 0;
  bool only_first_line = false;  // of the answer
};

// Ours, in our own words, for LongBench's datasets by name; "default" for all others.
std::map<std::string, DocumentPrompt> BuiltInPrompts();

// {"name": {"prompt": "...{context}...{input}...", "metric": "f1", "max_new_tokens": 64, "only_first_line": false}}:
// {context} once, {input} at most once and after it. Errors name the origin and the prompt.
Result<std::map<std::string, DocumentPrompt>> ParsePromptTable(std::string_view json, const std::string& origin);

}  // namespace headwise

#endif  // HEADWISE_DATA_DOCUMENTS_H_
