#include "loadgen/load_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/file.h"

namespace headwise {
namespace {

// In milliseconds with three decimals: what a clock says of a network is not better, and files stay small.
double Milliseconds(double seconds) {
  return std::round(seconds * 1e6) / 1e3;
}

void AddDistribution(Json& json, const char* name, const Distribution& distribution) {
  const auto add = [&](const char* what, double seconds) {
    json[fmt::format("{}_{}_ms", what, name)] = Milliseconds(seconds);
  };
  add("mean", distribution.mean);
  add("median", distribution.median);
  add("std", distribution.std);
  add("min", distribution.min);
  add("max", distribution.max);
  add("p50", distribution.p50);
  add("p90", distribution.p90);
  add("p95", distribution.p95);
  add("p99", distribution.p99);
}

const char* NameOf(LoadState state) {
  switch (state) {
    case LoadState::kRunning:
      return "running";
    case LoadState::kStopped:
      return "stopped";
    case LoadState::kFinished:
      break;
  }
  return "finished";
}

// Of "token_counts": who counted.
const char* CountedBy(const LoadSummary& summary) {
  if (summary.num_counted == summary.completed) return "usage";
  return summary.num_counted == 0 ? "pieces" : "usage and pieces";
}

Json RecordJson(const LoadRecord& record) {
  Json json = {{"request", record.request},
               {"arrival_ms", Milliseconds(record.arrival)},
               {"start_ms", Milliseconds(record.start)},
               {"e2el_ms", Milliseconds(record.end - record.start)},
               {"input_tokens", record.prompt_tokens},
               {"cached_tokens", record.cached_tokens},
               {"output_tokens", record.output_tokens},
               {"status", record.status}};
  if (record.connected > 0) json["connect_ms"] = Milliseconds(record.connected - record.start);
  if (!record.pieces.empty()) json["ttft_ms"] = Milliseconds(record.pieces.front() - record.start);
  Json gaps = Json::array();
  for (size_t i = 1; i < record.pieces.size(); ++i) {
    gaps.push_back(Milliseconds(record.pieces[i] - record.pieces[i - 1]));
  }
  json["itl_ms"] = std::move(gaps);
  if (!record.ok()) {
    json["failure"] = record.failure;
    json["message"] = record.message;
  }
  return json;
}

}  // namespace

Json LoadSummaryJson(const LoadSummary& summary) {
  Json json = {{"completed", summary.completed},
               {"failed", summary.failed},
               {"failures", summary.failures},
               {"duration", summary.duration},
               {"total_input_tokens", summary.input_tokens},
               {"total_cached_tokens", summary.cached_tokens},
               {"total_output_tokens", summary.output_tokens},
               {"token_counts", CountedBy(summary)},
               {"short_answers", summary.num_short},
               {"request_throughput", summary.request_throughput},
               {"input_throughput", summary.input_throughput},
               {"output_throughput", summary.output_throughput},
               {"total_token_throughput", summary.total_throughput},
               {"max_concurrent_requests", summary.peak_concurrency}};
  AddDistribution(json, "ttft", summary.ttft);
  AddDistribution(json, "tpot", summary.tpot);
  AddDistribution(json, "itl", summary.itl);
  AddDistribution(json, "longest_itl", summary.longest_gap);
  AddDistribution(json, "e2el", summary.e2el);
  AddDistribution(json, "connect", summary.connect);
  AddDistribution(json, "start_delay", summary.delay);
  return json;
}

Json LoadJson(const Json& config, std::span<const LoadRecord> records, LoadState state) {
  Json json = LoadSummaryJson(Summarise(records));
  json["state"] = NameOf(state);
  json["config"] = config;
  std::vector<const LoadRecord*> ordered;
  for (const LoadRecord& record : records) ordered.push_back(&record);
  std::ranges::sort(ordered, {}, &LoadRecord::request);
  Json& requests = json["requests"] = Json::array();
  for (const LoadRecord* record : ordered) requests.push_back(RecordJson(*record));
  return json;
}

Result<std::unique_ptr<LoadResultFile>> LoadResultFile::Create(const std::string& path, Json config) {
  std::unique_ptr<LoadResultFile> file(new LoadResultFile(path, std::move(config)));
  HW_RETURN_IF_ERROR(file->Write({}, LoadState::kRunning));
  file->next_ = Clock::now() + kLeastPause;
  file->thread_ = std::thread([raw = file.get()] { raw->Loop(); });
  return file;
}

LoadResultFile::~LoadResultFile() {
  Stop();
}

void LoadResultFile::Stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

Status LoadResultFile::Write(std::span<const LoadRecord> records, LoadState state) const {
  const Json json = LoadJson(config_, records, state);
  return WriteFileAtomically(path_, json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

void LoadResultFile::Offer(std::span<const LoadRecord> records) {
  const std::lock_guard lock(mutex_);
  if (is_writing_ || wanted_ || Clock::now() < next_) return;
  wanted_.emplace(records.begin(), records.end());
  changed_.notify_all();
}

void LoadResultFile::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return is_stopping_ || wanted_; });
    if (is_stopping_) return;
    const std::vector<LoadRecord> records = *std::exchange(wanted_, std::nullopt);
    is_writing_ = true;
    lock.unlock();
    const Clock::time_point begin = Clock::now();
    const Status ignored = Write(records, LoadState::kRunning);  // the last time tells
    const Clock::time_point end = Clock::now();
    lock.lock();
    is_writing_ = false;
    next_ = end + std::max<Clock::duration>(kLeastPause, 20 * (end - begin));
  }
}

Status LoadResultFile::Finish(std::span<const LoadRecord> records, LoadState state) {
  Stop();
  return Write(records, state);
}

}  // namespace headwise
