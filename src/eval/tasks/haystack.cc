#include "eval/tasks/haystack.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "data/fit_tokens.h"
#include "model/model_config.h"

namespace headwise {
namespace {

constexpr int64_t kSlackTokens = 96;

// Tokens of the longest prompt.
Result<int64_t> NumTokens(const TaskInput& input, const AskedText& text) {
  const AskedQuestion* longest = &text.questions.front();
  for (const AskedQuestion& question : text.questions) {
    if (question.text.size() > longest->text.size()) longest = &question;
  }
  HW_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                      EncodePrompt(input.engine, text.context + longest->text, {.bos = input.bos}));
  return static_cast<int64_t>(ids.size());
}

AskedCase CaseOf(int64_t length, const AskedText& text) {
  AskedCase asked{.length = length, .questions = {}};
  for (const AskedQuestion& question : text.questions) {
    asked.questions.push_back(
        {.prompt = text.context + question.text, .expected = question.expected, .tags = Json::object()});
  }
  return asked;
}

}  // namespace

Result<Haystack> ReadHaystack(const TaskInput& input, int64_t max_new_tokens) {
  const NamedOptions& options = input.options;
  Haystack haystack;
  std::vector<int64_t> lengths;
  const int64_t trained = input.engine.config().trained_length;
  for (int64_t length = 1024; length <= 8192; length *= 2) {
    if (trained <= 0 || length <= trained) lengths.push_back(length);
  }
  HW_ASSIGN_OR_RETURN(haystack.parts.lengths, ReadLengths(options, std::move(lengths), /*least=*/16));
  HW_ASSIGN_OR_RETURN(haystack.num_cases, options.IntOr("num-cases", 20, 1, 1'000'000));
  HW_ASSIGN_OR_RETURN(const int64_t seed, options.IntOr("seed", 0, 0, std::numeric_limits<int64_t>::max()));
  haystack.seed = static_cast<uint64_t>(seed);
  HW_ASSIGN_OR_RETURN(haystack.parts.batch, options.IntOr("batch", 1, 1, kMaxBatch));
  HW_ASSIGN_OR_RETURN(haystack.parts.limits.max_new_tokens,
                      options.IntOr("max-new-tokens", max_new_tokens, 1, 1'000'000));
  const std::string text = options.StringOr("text", "");
  if (!text.empty()) {
    HW_ASSIGN_OR_RETURN(haystack.source, TextSource::FromFile(text));
  }
  haystack.parts.identity["text"] = haystack.source.Hash();
  haystack.parts.bos = input.bos;
  return haystack;
}

Result<AskedCase> FitCase(const TaskInput& input, const Haystack& haystack, Rng& rng, int64_t length,
                          const std::function<AskedText(std::string_view filler)>& make) {
  auto filler =
      FitPassage(input.engine.tokenizer(), haystack.source, rng, length - haystack.parts.limits.max_new_tokens,
                 kSlackTokens, [&](std::string_view passage) { return NumTokens(input, make(passage)); });
  if (!filler.ok()) return std::move(filler).status().Annotate(fmt::format("a case of {} tokens", length));
  return CaseOf(length, make(*filler));
}

Result<AskedCase> FitRowsCase(const TaskInput& input, const Haystack& haystack, int64_t length, int64_t max_rows,
                              const std::function<AskedText(int64_t num_rows)>& make) {
  const Sizable sizable = {.max_size = max_rows - 1,
                           .num_tokens = [&](int64_t size) { return NumTokens(input, make(size + 1)); },
                           .what = "further rows"};
  auto size = FitSize(sizable, length - haystack.parts.limits.max_new_tokens, kSlackTokens);
  if (!size.ok()) return std::move(size).status().Annotate(fmt::format("a case of {} tokens", length));
  return CaseOf(length, make(*size + 1));
}

}  // namespace headwise
