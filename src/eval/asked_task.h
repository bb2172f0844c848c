// Tasks whose cases are a text, questions on it, and answers that a function judges: most of them. The making of cases
// is each task's own.
#ifndef HEADWISE_EVAL_ASKED_TASK_H_
#define HEADWISE_EVAL_ASKED_TASK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "eval/ask.h"
#include "eval/task.h"

namespace headwise {

struct AnswerLimits {
  int64_t max_new_tokens = 48;
  std::vector<std::string> stop = {"\n"};
};

struct AskedCase {
  struct Question {
    std::string prompt;  // whole; the questions of a case begin alike. Of Turns::kNext each but the first is its turn
    std::vector<std::string> expected;
    Json tags = Json::object();
  };
  int64_t length = 0;
  size_t text_bytes = 0;  // Turns::kLater: so much of each prompt is the text
  std::vector<Question> questions;
  std::optional<AnswerLimits> limits = {};  // none: the task's
};

using Scores = std::map<std::string, double>;  // by MetricInfo::name
using Judge = std::function<Scores(std::string_view answer, const AskedCase::Question& question)>;

struct AskedTaskParts {
  std::vector<int64_t> lengths;  // ascending
  std::vector<AskedCase> cases;  // in the order of the lengths
  Judge judge;
  Json identity = Json::object();
  Bos bos = Bos::kAuto;
  AnswerLimits limits;
  int64_t batch = 1;
  Turns turns = Turns::kOne;
};

std::unique_ptr<Task> MakeAskedTask(AskedTaskParts parts);

// "recall" and, of all or nothing, "accuracy", of the candidates in an answer (eval/judge.h).
Judge RecallJudge(std::function<bool(std::string_view)> is_candidate);
// The metrics that it gives.
std::vector<MetricInfo> AccuracyMetrics();

}  // namespace headwise

#endif  // HEADWISE_EVAL_ASKED_TASK_H_
