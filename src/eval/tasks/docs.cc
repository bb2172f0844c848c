// headwise eval docs: questions on long documents, LongBench's or any in its form, scored by each dataset's metric. The
// data is the user's; prompts come from a table that a user can replace.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "base/file.h"
#include "base/sha256.h"
#include "data/documents.h"
#include "data/filler.h"
#include "data/fit_tokens.h"
#include "eval/asked_task.h"
#include "eval/metrics.h"
#include "eval/tasks/tasks.h"
#include "model/model_config.h"

namespace headwise {
namespace {

constexpr int64_t kSlackTokens = 64;  // by which a cut prompt may be too short

using Metric = double (*)(std::string_view answer, std::string_view reference,
                          std::span<const std::string> all_classes);

template <double (*kScore)(std::string_view, std::string_view)>
double Plain(std::string_view answer, std::string_view reference, std::span<const std::string>) {
  return kScore(answer, reference);
}

const std::map<std::string, Metric>& Metrics() {
  static const std::map<std::string, Metric> kMetrics = {{"f1", Plain<TokenF1>},
                                                         {"exact", Plain<ExactMatch>},
                                                         {"rouge_l", Plain<RougeL>},
                                                         {"edit", Plain<EditSimilarity>},
                                                         {"code", Plain<CodeSimilarity>},
                                                         {"count", Plain<CountScore>},
                                                         {"class", ClassScore}};
  return kMetrics;
}

// The first line that is not blank.
std::string_view FirstLine(std::string_view text) {
  const size_t begin = text.find_first_not_of("\n\r");
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find('\n', begin) - begin);
}

struct DocumentQuestion {
  const DocumentCase* document = nullptr;
  const DocumentPrompt* prompt = nullptr;
  std::string dataset;
};

std::string PromptOf(const DocumentQuestion& question, std::string_view context) {
  return fmt::format("{}{}{}{}{}", question.prompt->before, context, question.prompt->between, question.document->input,
                     question.prompt->after);
}

// The document whole, or its beginning and its end with the middle cut out, as LongBench does: instructions and
// conclusions stand there.
Result<std::string> FitPrompt(const TaskInput& input, const DocumentQuestion& question, int64_t num_tokens) {
  const std::string& context = question.document->context;
  const auto num_chars = static_cast<int64_t>(context.size());
  const auto cut = [&](int64_t size) {
    const std::string_view text = context;
    const size_t head = BoundaryBefore(text, static_cast<size_t>(size - size / 2), TextBoundary::kWord);
    const size_t tail =
        std::max(head, BoundaryBefore(text, static_cast<size_t>(num_chars - size / 2), TextBoundary::kWord));
    return size >= num_chars ? context : std::string(text.substr(0, head)) + std::string(text.substr(tail));
  };
  const auto tokens_of = [&](int64_t size) -> Result<int64_t> {
    HW_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                        EncodePrompt(input.engine, PromptOf(question, cut(size)), {.bos = input.bos}));
    return static_cast<int64_t>(ids.size());
  };
  HW_ASSIGN_OR_RETURN(const int64_t whole, tokens_of(num_chars));
  if (whole <= num_tokens) return PromptOf(question, context);
  HW_ASSIGN_OR_RETURN(const int64_t size, FitSize({.max_size = num_chars, .num_tokens = tokens_of, .what = "bytes"},
                                                  num_tokens, kSlackTokens));
  return PromptOf(question, cut(size));
}

struct Documents {
  std::vector<DocumentCase> cases;
  std::map<std::string, DocumentPrompt> prompts;
  Json identity = Json::object();
};

Result<Documents> ReadDocuments(const NamedOptions& options) {
  Documents documents;
  HW_ASSIGN_OR_RETURN(const std::string path, options.Required("cases"));
  HW_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  HW_ASSIGN_OR_RETURN(documents.cases, ParseDocuments(text, path));
  documents.identity["cases"] = Sha256Hex(text);
  const auto num_cases = static_cast<int64_t>(documents.cases.size());
  HW_ASSIGN_OR_RETURN(const int64_t limit, options.IntOr("num-cases", num_cases, 1, 1'000'000'000));
  documents.cases.resize(static_cast<size_t>(std::min(limit, num_cases)));
  documents.prompts = BuiltInPrompts();
  const std::string prompts = options.StringOr("prompts", "");
  if (prompts.empty()) return documents;
  HW_ASSIGN_OR_RETURN(const std::string table, ReadFile(prompts));
  HW_ASSIGN_OR_RETURN(documents.prompts, ParsePromptTable(table, prompts));
  documents.identity["prompts"] = Sha256Hex(table);
  for (const auto& [name, prompt] : documents.prompts) {
    if (Metrics().contains(prompt.metric)) continue;
    std::string known;
    for (const auto& [metric, score] : Metrics()) known += fmt::format("{}{}", known.empty() ? "" : ", ", metric);
    return Status::InvalidInput(
        fmt::format("{}: {}: \"metric\" is \"{}\", expected one of: {}", prompts, name, prompt.metric, known));
  }
  return documents;
}

// The dataset's prompt, or the one for all others.
Result<DocumentQuestion> QuestionFor(const Documents& documents, const DocumentCase& document,
                                     const std::string& forced) {
  std::string name = forced.empty() ? document.dataset : forced;
  if (forced.empty() && !documents.prompts.contains(name)) name = "default";
  const auto found = documents.prompts.find(name);
  if (found == documents.prompts.end()) {
    std::string known;
    for (const auto& [each, prompt] : documents.prompts) known += fmt::format("{}{}", known.empty() ? "" : ", ", each);
    if (!forced.empty()) {
      return Status::InvalidInput(
          fmt::format("--prompt: no prompt is called \"{}\", expected one of: {}", forced, known));
    }
    return Status::InvalidInput(fmt::format("no prompt is called \"{}\", and none \"default\" for all others; found {}",
                                            document.dataset, known));
  }
  return DocumentQuestion{
      .document = &document, .prompt = &found->second, .dataset = document.dataset.empty() ? name : document.dataset};
}

// The best of the references counts.
double ScoreOf(const DocumentQuestion& question, std::string_view answer) {
  if (question.prompt->only_first_line) answer = FirstLine(answer);
  double best = 0;
  for (const std::string& reference : question.document->answers) {
    best = std::max(best, Metrics().at(question.prompt->metric)(answer, reference, question.document->all_classes));
  }
  return best;
}

Result<std::unique_ptr<Task>> MakeDocs(const TaskInput& input) {
  HW_ASSIGN_OR_RETURN(Documents read, ReadDocuments(input.options));
  // Shared with the judge, which outlives this function.
  const auto documents = std::make_shared<const Documents>(std::move(read));
  AskedTaskParts parts;
  parts.bos = input.bos;
  parts.identity = documents->identity;
  const int64_t trained = input.engine.config().trained_length;
  HW_ASSIGN_OR_RETURN(parts.lengths, ReadLengths(input.options, {trained > 0 ? trained : 4096}, /*least=*/64));
  HW_ASSIGN_OR_RETURN(parts.batch, input.options.IntOr("batch", 1, 1, kMaxBatch));
  const std::string forced = input.options.StringOr("prompt", "");
  for (const int64_t length : parts.lengths) {
    for (size_t i = 0; i < documents->cases.size(); ++i) {
      HW_ASSIGN_OR_RETURN(const DocumentQuestion question, QuestionFor(*documents, documents->cases[i], forced));
      const int64_t max_new_tokens = question.prompt->max_new_tokens;
      auto prompt = FitPrompt(input, question, length - max_new_tokens);
      if (!prompt.ok()) return std::move(prompt).status().Annotate(fmt::format("document {}", i + 1));
      parts.cases.push_back({.length = length,
                             .questions = {{.prompt = *std::move(prompt),
                                            .expected = question.document->answers,
                                            .tags = {{"dataset", question.dataset}, {"document", i}}}},
                             .limits = AnswerLimits{.max_new_tokens = max_new_tokens, .stop = {}}});
    }
  }
  parts.judge = [documents, forced](std::string_view answer, const AskedCase::Question& question) -> Scores {
    const DocumentCase& document = documents->cases[question.tags.at("document").get<size_t>()];
    return {{"score", ScoreOf(*QuestionFor(*documents, document, forced), answer)}};
  };
  return MakeAskedTask(std::move(parts));
}

}  // namespace

const TaskMethod kDocsTask = {
    .name = "docs",
    .title = "Questions on long documents",
    .description = "questions on long documents from JSONL in LongBench's form, scored by each dataset's metric",
    .options = {{"cases", "JSONL of {\"input\", \"context\", \"answers\", \"all_classes\", \"dataset\"}"},
                {"num-cases", "The first N; by default all"},
                {"prompts", "JSON table of prompts by dataset, in place of the built-in ones"},
                {"prompt", "Use this prompt of the table for every case"},
                {"lengths", "Tokens of prompt and answer at most: the middle of longer documents is cut out"},
                kBatchOption},
    .metrics = {{.name = "score", .label = "score", .unit = "", .kind = MetricInfo::Kind::kMean}},
    .make = MakeDocs,
};

}  // namespace headwise
