#include "eval/retrieval.h"

#include <fmt/format.h>

#include <map>
#include <utility>
#include <vector>

namespace headwise {
namespace {

Result<RequestId> SubmitCase(Engine& engine, const RetrievalOptions& options, int64_t case_idx) {
  const LineCase& line_case = options.cases[static_cast<size_t>(case_idx)];
  HW_ASSIGN_OR_RETURN(std::vector<int32_t> prompt, EncodePrompt(engine, line_case.prompt, {.bos = options.bos}));
  Request request;
  request.prompt = std::move(prompt);
  request.plan = options.plan;
  request.max_new_tokens = options.max_new_tokens;
  request.stop = {"\n"};
  return engine.Submit(std::move(request));
}

// Hands over every case that is done and forgets it.
Status TakeFinished(Engine& engine, const RetrievalOptions& options, std::map<RequestId, int64_t>& in_flight) {
  for (auto it = in_flight.begin(); it != in_flight.end();) {
    const auto [id, case_idx] = *it;
    if (engine.Peek(id).finish == FinishReason::kRunning) {
      ++it;
      continue;
    }
    RequestResult result = engine.Take(id);
    it = in_flight.erase(it);
    const bool correct = IsRightNumber(result.text, options.cases[static_cast<size_t>(case_idx)].expected_number);
    HW_RETURN_IF_ERROR(options.on_outcome(
        {.case_idx = case_idx, .answer = std::move(result.text), .correct = correct, .metrics = result.metrics}));
  }
  return Status::Ok();
}

Status RunCases(Engine& engine, const RetrievalOptions& options, std::map<RequestId, int64_t>& in_flight) {
  const auto num_cases = static_cast<int64_t>(options.cases.size());
  int64_t next_case = 0;
  while (true) {
    while (next_case < num_cases && static_cast<int64_t>(in_flight.size()) < options.batch) {
      const int64_t case_idx = next_case++;
      if (options.skip.contains(case_idx)) continue;
      auto id = SubmitCase(engine, options, case_idx);
      if (!id.ok()) return std::move(id).status().Annotate(fmt::format("case {}", case_idx));
      in_flight.emplace(*id, case_idx);
    }
    if (in_flight.empty()) return Status::Ok();
    HW_ASSIGN_OR_RETURN([[maybe_unused]] const bool has_more, engine.Step());
    HW_RETURN_IF_ERROR(TakeFinished(engine, options, in_flight));
  }
}

}  // namespace

Status RunRetrieval(Engine& engine, const RetrievalOptions& options) {
  if (options.batch < 1) {
    return Status::InvalidInput(fmt::format("batch is {}, expected at least 1", options.batch));
  }
  std::map<RequestId, int64_t> in_flight;
  Status status = RunCases(engine, options, in_flight);
  for (const auto& [id, case_idx] : in_flight) engine.Take(id);  // after an error: give their memory back
  return status;
}

}  // namespace headwise
