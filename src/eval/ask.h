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

// Where a text's questions stand in a conversation, and so where rules "from the end of the prompt" begin to hold.
enum class Turns {
  kOne,    // each in one turn with the text: behind the question
  kLater,  // each in a turn of its own behind the text: before the question, which the cut does not know
  kNext,   // the first in one turn with the text, each other in a turn behind the answer before: behind the first
};

// Prompts that begin alike: one text and several questions on it. Each is whole, the question included; of kNext each
// but the first is what its turn adds.
struct AskGroup {
  Turns turns = Turns::kOne;
  int64_t text_tokens = 0;                             // kLater: so many of each prompt are the text
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
