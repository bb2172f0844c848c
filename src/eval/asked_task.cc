#include "eval/asked_task.h"

#include <fmt/format.h>

#include <utility>

#include "eval/judge.h"
#include "eval/task_run.h"

namespace headwise {
namespace {

class AskedTask : public Task {
 public:
  explicit AskedTask(AskedTaskParts parts) : parts_(std::move(parts)) {
    std::map<int64_t, int64_t> num_of_length;
    for (const AskedCase& each : parts_.cases) case_idx_.push_back(num_of_length[each.length]++);
  }

  const std::vector<int64_t>& lengths() const override { return parts_.lengths; }
  Json Identity() const override { return parts_.identity; }
  int64_t NumResults() const override {
    size_t num_questions = 0;
    for (const AskedCase& each : parts_.cases) num_questions += each.questions.size();
    return static_cast<int64_t>(num_questions);
  }
  std::vector<CaseText> Cases() const override;
  Status Run(TaskRun& run) override;

 private:
  bool IsDone(const TaskRun& run, size_t case_idx) const;
  // One more prompt of the group.
  Status Encode(const Engine& engine, const AskedCase& asked, const std::string& prompt, AskGroup& group) const;
  CaseResult ResultOf(const AskedAnswer& answer) const;

  AskedTaskParts parts_;
  std::vector<int64_t> case_idx_;  // of parts_.cases, within their length
};

std::vector<CaseText> AskedTask::Cases() const {
  std::vector<CaseText> texts;
  for (size_t i = 0; i < parts_.cases.size(); ++i) {
    int64_t question_idx = 0;
    for (const AskedCase::Question& question : parts_.cases[i].questions) {
      texts.push_back({.length = parts_.cases[i].length,
                       .case_idx = case_idx_[i],
                       .question_idx = question_idx++,
                       .prompt = question.prompt,
                       .expected = question.expected});
    }
  }
  return texts;
}

CaseResult AskedTask::ResultOf(const AskedAnswer& answer) const {
  const auto case_idx = static_cast<size_t>(answer.group_idx);
  const AskedCase::Question& question = parts_.cases[case_idx].questions[answer.prompt_idx];
  CaseResult result;
  result.length = parts_.cases[case_idx].length;
  result.case_idx = case_idx_[case_idx];
  result.question_idx = static_cast<int64_t>(answer.prompt_idx);
  result.scores = parts_.judge(answer.text, question);
  result.tags = question.tags;
  result.answer = answer.text;
  result.prompt_tokens = answer.metrics.prompt_tokens;
  result.new_tokens = answer.metrics.new_tokens;
  result.seconds = answer.metrics.prefill_seconds + answer.metrics.decode_seconds;
  result.kv_bytes = answer.metrics.kv_bytes;
  result.kv_peak_bytes = answer.metrics.kv_peak_bytes;
  return result;
}

Status AskedTask::Encode(const Engine& engine, const AskedCase& asked, const std::string& prompt,
                         AskGroup& group) const {
  const bool begins = parts_.turns != Turns::kNext || group.prompts.empty();
  const size_t text_bytes = parts_.turns == Turns::kLater ? asked.text_bytes : 0;
  std::vector<int32_t> ids;
  if (text_bytes > 0) {
    // Turns are encoded one by one, as in a conversation.
    HW_ASSIGN_OR_RETURN(ids, EncodePrompt(engine, prompt.substr(0, text_bytes), {.bos = parts_.bos}));
    group.text_tokens = static_cast<int64_t>(ids.size());
  }
  const Bos bos = begins && text_bytes == 0 ? parts_.bos : Bos::kNever;
  HW_ASSIGN_OR_RETURN(const std::vector<int32_t> rest, EncodePrompt(engine, prompt.substr(text_bytes), {.bos = bos}));
  ids.insert(ids.end(), rest.begin(), rest.end());
  group.prompts.push_back(std::move(ids));
  return Status::Ok();
}

bool AskedTask::IsDone(const TaskRun& run, size_t case_idx) const {
  const AskedCase& asked = parts_.cases[case_idx];
  for (const Subject& subject : run.subjects()) {
    for (size_t i = 0; i < asked.questions.size(); ++i) {
      if (!run.Has(subject, asked.length, case_idx_[case_idx], static_cast<int64_t>(i))) return false;
    }
  }
  return true;
}

Status AskedTask::Run(TaskRun& run) {
  AskOptions options;
  options.num_groups = static_cast<int64_t>(parts_.cases.size());
  options.batch = parts_.batch;
  options.group = [&](int64_t group_idx) -> Result<AskGroup> {
    const AskedCase& asked = parts_.cases[static_cast<size_t>(group_idx)];
    AskGroup group;
    if (IsDone(run, static_cast<size_t>(group_idx))) return group;  // nothing to encode
    group.turns = parts_.turns;
    for (const AskedCase::Question& question : asked.questions) {
      HW_RETURN_IF_ERROR(Encode(run.engine(), asked, question.prompt, group));
    }
    const AnswerLimits& limits = asked.limits ? *asked.limits : parts_.limits;
    group.stop = limits.stop;
    group.max_new_tokens = limits.max_new_tokens;
    for (const Subject& subject : run.subjects()) group.plans.push_back(subject.At(asked.length));
    return group;
  };
  options.wants = [&](int64_t group_idx, size_t prompt_idx, size_t plan_idx) {
    const auto case_idx = static_cast<size_t>(group_idx);
    return !run.Has(run.subjects()[plan_idx], parts_.cases[case_idx].length, case_idx_[case_idx],
                    static_cast<int64_t>(prompt_idx));
  };
  options.on_answer = [&](const AskedAnswer& answer) {
    return run.Add(run.subjects()[answer.plan_idx], ResultOf(answer));
  };
  return AskAll(run.engine(), options);
}

}  // namespace

std::unique_ptr<Task> MakeAskedTask(AskedTaskParts parts) {
  return std::make_unique<AskedTask>(std::move(parts));
}

Judge RecallJudge(std::function<bool(std::string_view)> is_candidate) {
  return
      [is_candidate = std::move(is_candidate)](std::string_view answer, const AskedCase::Question& question) -> Scores {
        const double recall = Recall(answer, question.expected, is_candidate);
        return {{"accuracy", recall == 1.0 ? 1.0 : 0.0}, {"recall", recall}};
      };
}

std::vector<MetricInfo> AccuracyMetrics() {
  return {{.name = "accuracy", .label = "right answers", .unit = ""},
          {.name = "recall", .label = "share of the answer", .unit = "", .kind = MetricInfo::Kind::kMean}};
}

}  // namespace headwise
