// Runs prompts whose answer is a number and judges the answers; several at once where memory allows.
#ifndef HEADWISE_EVAL_RETRIEVAL_H_
#define HEADWISE_EVAL_RETRIEVAL_H_

#include <headwise/engine.h>
#include <headwise/status.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>

#include "engine/prompt.h"
#include "data/lines.h"

namespace headwise {

struct RetrievalOutcome {
  int64_t case_idx = 0;
  std::string answer;
  bool correct = false;
  RequestMetrics metrics;
};

struct RetrievalOptions {
  std::shared_ptr<const HeadPlan> plan;  // null: every head full
  std::span<const LineCase> cases;
  std::set<int64_t> skip;  // indices of cases that an earlier run finished
  Bos bos = Bos::kAuto;
  int64_t batch = 1;            // cases in flight
  int64_t max_new_tokens = 48;  // models repeat the question's words before the number
  // Called with every finished case, in the order in which they finish; an error ends the run.
  std::function<Status(const RetrievalOutcome&)> on_outcome;
};

// Greedy; an answer ends with its line. Requires: engine.has_tokenizer().
Status RunRetrieval(Engine& engine, const RetrievalOptions& options);

}  // namespace headwise

#endif  // HEADWISE_EVAL_RETRIEVAL_H_
