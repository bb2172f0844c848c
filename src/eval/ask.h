// Puts prompts to a model under several plans and hands over its answers. What can be read once is read once: the
// tokens that the questions of a group have in common, and a dense prompt under all plans that only cut it afterwards.
#ifndef HEADWISE_EVAL_ASK_H_
#define HEADWISE_EVAL_ASK_H_

#include <headwise/engine.h>
#include <headwise/status.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace headwise {

// Prompts that begin alike: one text and several questions on it. Each is a prompt of its own, question included: rules
// "from the end of the prompt" hold after the question.
struct AskGroup {
  std::vector<std::vector<int32_t>> prompts;           // token ids, at least one each
  std::vector<std::shared_ptr<const HeadPlan>> plans;  // null: every head full
  std::vector<std::string> stop;
  int64_t max_new_tokens = 0;
};

struct AskedAnswer {
  int64_t group_idx = 0;
  size_t prompt_idx = 0;
  size_t plan_idx = 0;
  std::string text;
  // Those of the prompt as if it had been read alone, but for the seconds: of what it did not share.
  RequestMetrics metrics;
};

struct AskOptions {
  int64_t num_groups = 0;
  // Made when their turn comes, in order; without prompts where nothing is left to ask.
  std::function<Result<AskGroup>(int64_t group_idx)> group;
  // Whether an answer is still needed.
  std::function<bool(int64_t group_idx, size_t prompt_idx, size_t plan_idx)> wants;
  std::function<Status(const AskedAnswer&)> on_answer;  // in the order in which they finish; an error ends the run
  int64_t batch = 1;                                    // groups at a time
};

// Greedy. With limits that follow from a text's length (elastic rules from the first token), the questions of a group
// have those of the longest. Requires: engine.has_tokenizer().
Status AskAll(Engine& engine, const AskOptions& options);

}  // namespace headwise

#endif  // HEADWISE_EVAL_ASK_H_
