// headwise eval choice: short multiple choice by log-likelihood. Nothing is generated: the option whose text the model
// thinks likeliest after the question is its answer.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/file.h"
#include "base/sha256.h"
#include "data/choices.h"
#include "engine/sequence.h"
#include "eval/perplexity.h"
#include "eval/task_run.h"
#include "eval/tasks/tasks.h"

namespace headwise {
namespace {

// Prompts from here on would rather be long-document questions.
constexpr int64_t kMaxTokens = int64_t{1} << 20;

struct EncodedChoice {
  std::vector<int32_t> prompt;                // of the question, what all its options begin with
  std::vector<std::vector<int32_t>> options;  // each after the prompt, at least one token
};

class ChoiceTask : public Task {
 public:
  ChoiceTask(std::vector<ChoiceCase> cases, std::vector<EncodedChoice> encoded, std::string hash)
      : cases_(std::move(cases)), encoded_(std::move(encoded)), hash_(std::move(hash)) {
    int64_t longest = 0;
    for (const EncodedChoice& each : encoded_) longest = std::max(longest, NumTokens(each));
    lengths_ = {longest};
  }

  const std::vector<int64_t>& lengths() const override { return lengths_; }
  Json Identity() const override { return {{"cases", hash_}}; }
  int64_t NumResults() const override { return static_cast<int64_t>(cases_.size()); }
  std::vector<CaseText> Cases() const override;
  Status Run(TaskRun& run) override;

 private:
  static int64_t NumTokens(const EncodedChoice& choice) {
    size_t longest = 0;
    for (const auto& option : choice.options) longest = std::max(longest, option.size());
    return static_cast<int64_t>(choice.prompt.size() + longest);
  }
  Result<CaseResult> Choose(Engine& engine, size_t case_idx, const std::shared_ptr<const HeadPlan>& plan) const;

  std::vector<ChoiceCase> cases_;
  std::vector<EncodedChoice> encoded_;
  std::string hash_;
  std::vector<int64_t> lengths_;
};

std::vector<CaseText> ChoiceTask::Cases() const {
  std::vector<CaseText> texts;
  for (size_t i = 0; i < cases_.size(); ++i) {
    texts.push_back({.length = lengths_.front(),
                     .case_idx = static_cast<int64_t>(i),
                     .question_idx = 0,
                     .prompt = cases_[i].question,
                     .expected = {cases_[i].options[cases_[i].answer_idx]}});
  }
  return texts;
}

// The question is read once; every option goes on from a fork of it.
Result<CaseResult> ChoiceTask::Choose(Engine& engine, size_t case_idx,
                                      const std::shared_ptr<const HeadPlan>& plan) const {
  const auto start = std::chrono::steady_clock::now();
  const ChoiceCase& choice = cases_[case_idx];
  const EncodedChoice& encoded = encoded_[case_idx];
  HW_ASSIGN_OR_RETURN(const std::shared_ptr<Sequence> question,
                      engine.NewSequence({.plan = plan,
                                          .prompt_tokens = static_cast<int64_t>(encoded.prompt.size()),
                                          .max_tokens = NumTokens(encoded)}));
  std::vector<float> after_question;
  const int64_t last = static_cast<int64_t>(encoded.prompt.size()) - 1;
  ForcedRun run;
  run.sequence = question;
  run.ids = encoded.prompt;
  run.positions = {&last, 1};
  run.on_row = [&](int64_t, std::span<const float> logits, std::span<const float>) {
    after_question.assign(logits.begin(), logits.end());
    return true;
  };
  HW_RETURN_IF_ERROR(engine.RunForced(run));

  std::vector<double> likelihoods;
  for (const std::vector<int32_t>& option : encoded.options) {
    double likelihood = -NegativeLogLikelihood(after_question, option.front());
    if (option.size() > 1) {
      ForcedRun rest;
      HW_ASSIGN_OR_RETURN(rest.sequence, engine.Fork(*question));
      rest.ids = std::span(option).first(option.size() - 1);
      rest.rows = ForcedRun::Rows::kEvery;
      rest.on_row = [&](int64_t position, std::span<const float> logits, std::span<const float>) {
        likelihood -= NegativeLogLikelihood(logits, option[static_cast<size_t>(position) + 1]);
        return true;
      };
      HW_RETURN_IF_ERROR(engine.RunForced(rest));
    }
    likelihoods.push_back(likelihood);
  }
  // The same per byte, so that long options are not at a disadvantage.
  std::vector<double> by_byte;
  for (size_t i = 0; i < likelihoods.size(); ++i) {
    by_byte.push_back(likelihoods[i] / static_cast<double>(choice.options[i].size()));
  }
  const auto best_of = [](const std::vector<double>& values) {
    return static_cast<size_t>(std::ranges::max_element(values) - values.begin());
  };
  CaseResult result;
  result.length = lengths_.front();
  result.case_idx = static_cast<int64_t>(case_idx);
  result.scores = {{"accuracy", best_of(likelihoods) == choice.answer_idx ? 1.0 : 0.0},
                   {"accuracy_by_byte", best_of(by_byte) == choice.answer_idx ? 1.0 : 0.0}};
  result.answer = choice.options[best_of(likelihoods)];
  result.log_likelihoods = std::move(likelihoods);
  result.prompt_tokens = static_cast<int64_t>(encoded.prompt.size());
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result.kv_bytes = Engine::KvBytes(*question);
  result.kv_peak_bytes = question->cache->PeakBytes();
  return result;
}

Status ChoiceTask::Run(TaskRun& run) {
  for (size_t i = 0; i < cases_.size(); ++i) {
    for (const Subject& subject : run.subjects()) {
      if (run.Has(subject, lengths_.front(), static_cast<int64_t>(i), 0)) continue;
      HW_ASSIGN_OR_RETURN(CaseResult result, Choose(run.engine(), i, subject.At(lengths_.front())));
      HW_RETURN_IF_ERROR(run.Add(subject, std::move(result)));
    }
  }
  return Status::Ok();
}

// Encoded as one text with each option, because a tokenizer may join across the border; what all of them begin with is
// the question.
Result<EncodedChoice> Encode(const TaskInput& input, const ChoiceCase& choice, const std::string& joint) {
  std::vector<std::vector<int32_t>> whole;
  for (const std::string& option : choice.options) {
    HW_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                        EncodePrompt(input.engine, choice.question + joint + option, {.bos = input.bos}));
    if (static_cast<int64_t>(ids.size()) > kMaxTokens) {
      return Status::InvalidInput(fmt::format("{} tokens, expected at most {}", ids.size(), kMaxTokens));
    }
    whole.push_back(std::move(ids));
  }
  const std::vector<std::span<const int32_t>> prompts(whole.begin(), whole.end());
  const int64_t common = SharedTokens(prompts);
  if (common == 0) return Status::InvalidInput("the question has no token of its own, expected a longer one");
  EncodedChoice encoded;
  encoded.prompt.assign(whole.front().begin(), whole.front().begin() + common);
  for (const std::vector<int32_t>& ids : whole) encoded.options.emplace_back(ids.begin() + common, ids.end());
  return encoded;
}

Result<std::unique_ptr<Task>> MakeChoice(const TaskInput& input) {
  HW_ASSIGN_OR_RETURN(const std::string path, input.options.Required("cases"));
  HW_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  HW_ASSIGN_OR_RETURN(std::vector<ChoiceCase> cases, ParseChoices(text, path));
  const auto num_cases = static_cast<int64_t>(cases.size());
  HW_ASSIGN_OR_RETURN(const int64_t limit, input.options.IntOr("num-cases", num_cases, 1, 1'000'000'000));
  cases.resize(static_cast<size_t>(std::min(limit, num_cases)));
  const std::string joint = input.options.StringOr("joint", "\nAnswer: ");
  std::vector<EncodedChoice> encoded;
  for (size_t i = 0; i < cases.size(); ++i) {
    auto each = Encode(input, cases[i], joint);
    if (!each.ok()) return std::move(each).status().Annotate(fmt::format("{}: question {}", path, i + 1));
    encoded.push_back(*std::move(each));
  }
  return std::unique_ptr<Task>(std::make_unique<ChoiceTask>(std::move(cases), std::move(encoded), Sha256Hex(text)));
}

}  // namespace

const TaskMethod kChoiceTask = {
    .name = "choice",
    .title = "Multiple choice",
    .description = "short multiple choice by log-likelihood, from JSONL of question, options, answer",
    .options = {{"cases", "JSONL of {\"question\", \"options\", \"answer\"}"},
                {"num-cases", "The first N questions; by default all"},
                {"joint", "Text between the question and an option"}},
    .metrics = {{.name = "accuracy", .label = "right answers", .unit = ""},
                {.name = "accuracy_by_byte", .label = "right answers, by likelihood per byte", .unit = ""}},
    .make = MakeChoice,
};

}  // namespace headwise
