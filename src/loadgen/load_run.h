// A load run: requests begin as a schedule has it, and what comes back is written down.
#ifndef HEADWISE_LOADGEN_LOAD_RUN_H_
#define HEADWISE_LOADGEN_LOAD_RUN_H_

#include <headwise/status.h>

#include <functional>
#include <span>
#include <vector>

#include "base/json.h"
#include "loadgen/http_client.h"
#include "loadgen/load_prompts.h"
#include "loadgen/load_record.h"
#include "loadgen/load_schedule.h"

namespace headwise {

struct LoadRunOptions {
  // Of every request, beside "prompt", "max_tokens" and "stream": the model, temperature and so on.
  Json body = Json::object();
  // Asked for each request as it begins.
  std::function<LoadPrompt(int64_t request)> prompt;
  // Called after each request with all that have ended so far, in the order of their ends. It holds the run up: it has
  // to be quick.
  std::function<void(std::span<const LoadRecord> records)> on_record = {};
  // Can be read once the run is to end early; what is under way then is dropped. -1: never.
  int stop_fd = -1;
};

struct LoadRunResult {
  std::vector<LoadRecord> records;  // in the order of their ends
  bool is_stopped = false;          // by stop_fd
};

// Returns when all is over. Requests that fail are records, no errors.
LoadRunResult RunLoad(HttpClient& client, LoadSchedule schedule, const LoadRunOptions& options);

}  // namespace headwise

#endif  // HEADWISE_LOADGEN_LOAD_RUN_H_
