// A load run as JSON: figures under the names that vLLM's `bench serve` gives them, times in milliseconds, and every
// request.
#ifndef HEADWISE_LOADGEN_LOAD_JSON_H_
#define HEADWISE_LOADGEN_LOAD_JSON_H_

#include <headwise/status.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/json.h"
#include "loadgen/load_record.h"
#include "loadgen/load_summary.h"

namespace headwise {

enum class LoadState { kRunning, kFinished, kStopped };

// Figures alone: "completed", "mean_ttft_ms" and so on.
Json LoadSummaryJson(const LoadSummary& summary);
// All of it: {"state", "config", figures, "requests"}, requests in their order.
Json LoadJson(const Json& config, std::span<const LoadRecord> records, LoadState state);

// The file of --out. While the run goes on it is written anew now and then, on a thread of its own, so that what is
// measured does not wait for a disk; each time in one step. A run that is killed leaves what was last written.
class LoadResultFile {
 public:
  // Not before so long after the last time, and twenty times as long as that took.
  static constexpr std::chrono::seconds kLeastPause{2};

  // Writes it once, without requests: a path that cannot be written is an error before anything is measured.
  static Result<std::unique_ptr<LoadResultFile>> Create(const std::string& path, Json config);
  LoadResultFile(const LoadResultFile&) = delete;
  ~LoadResultFile();

  // Copies the records where it is time to write them.
  void Offer(std::span<const LoadRecord> records);
  // The last of it, on this thread. An error of writing it; errors before it are forgotten.
  Status Finish(std::span<const LoadRecord> records, LoadState state);

 private:
  using Clock = std::chrono::steady_clock;

  LoadResultFile(std::string path, Json config) : path_(std::move(path)), config_(std::move(config)) {}
  void Loop();
  void Stop();
  Status Write(std::span<const LoadRecord> records, LoadState state) const;

  const std::string path_;
  const Json config_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::vector<LoadRecord>> wanted_;
  bool is_writing_ = false;
  bool is_stopping_ = false;
  Clock::time_point next_;
  std::thread thread_;
};

}  // namespace headwise

#endif  // HEADWISE_LOADGEN_LOAD_JSON_H_
