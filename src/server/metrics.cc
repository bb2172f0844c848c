#include "server/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace headwise {
namespace {

// Seconds: from what a small model takes for a token to what a book takes to be read.
constexpr double kFirstTokenBounds[] = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 1000};
constexpr double kPerTokenBounds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5};
constexpr double kLatencyBounds[] = {0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500};

constexpr std::array<const char*, 4> kFinishNames = {"stop", "length", "abort", "error"};

size_t FinishIndex(FinishReason finish) {
  switch (finish) {
    case FinishReason::kLength:
      return 1;
    case FinishReason::kCancelled:
      return 2;
    case FinishReason::kError:
      return 3;
    default:
      return 0;
  }
}

std::string EscapeLabel(const std::string& value) {
  std::string escaped;
  for (const char c : value) {
    if (c == '\\' || c == '"') escaped += '\\';
    escaped += c == '\n' ? ' ' : c;
  }
  return escaped;
}

void AppendHeading(std::string& text, const char* name, const char* type, const char* help) {
  text += fmt::format("# HELP headwise:{} {}\n# TYPE headwise:{} {}\n", name, help, name, type);
}

}  // namespace

void Histogram::Add(double value) {
  const auto bucket = std::ranges::lower_bound(bounds_, value) - bounds_.begin();
  ++counts_[static_cast<size_t>(bucket)];
  sum_ += value;
}

void Histogram::AppendTo(std::string& text, const std::string& name, const std::string& labels) const {
  int64_t count = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    count += counts_[i];
    const std::string bound = i < bounds_.size() ? fmt::format("{}", bounds_[i]) : "+Inf";
    text += fmt::format("{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bound, count);
  }
  text += fmt::format("{}_sum{{{}}} {}\n{}_count{{{}}} {}\n", name, labels, sum_, name, labels, count);
}

ModelMetrics::ModelMetrics() : first_token_(kFirstTokenBounds), per_token_(kPerTokenBounds), latency_(kLatencyBounds) {}

void ModelMetrics::AddAnswer(const AnswerTimes& times, FinishReason finish) {
  const std::lock_guard lock(mutex_);
  prompt_tokens_ += times.prompt_tokens;
  generation_tokens_ += times.new_tokens;
  ++num_finished_[FinishIndex(finish)];
  if (times.first_token_seconds > 0) first_token_.Add(times.first_token_seconds);
  if (times.new_tokens > 1) {
    per_token_.Add((times.last_token_seconds - times.first_token_seconds) / static_cast<double>(times.new_tokens - 1));
  }
  latency_.Add(times.total_seconds);
}

void MetricsPage::Add(const std::string& model, const ModelMetrics& metrics, const ServiceStats& stats,
                      const PrefixStats& prefixes) {
  rows_.push_back({fmt::format("model_name=\"{}\"", EscapeLabel(model)), &metrics, stats, prefixes});
}

void MetricsPage::AppendPrefixes(std::string& text) const {
  const auto lines = [&](const char* name, const char* type, const char* help, int64_t PrefixStats::*member) {
    AppendHeading(text, name, type, help);
    for (const Row& row : rows_) text += fmt::format("headwise:{}{{{}}} {}\n", name, row.labels, row.prefixes.*member);
  };
  lines("prefix_cache_queries_total", "counter", "Tokens of prompts that were looked for in the prefix cache.",
        &PrefixStats::query_tokens);
  lines("prefix_cache_hits_total", "counter", "Of these, found.", &PrefixStats::hit_tokens);
  lines("prefix_cache_hit_requests_total", "counter", "Prompts whose beginning was found.", &PrefixStats::num_hits);
  AppendHeading(text, "prefix_cache_miss_requests_total", "counter", "Prompts that were read whole, by reason.");
  for (const Row& row : rows_) {
    for (size_t i = 0; i < kNumPrefixMisses; ++i) {
      text += fmt::format("headwise:prefix_cache_miss_requests_total{{{},reason=\"{}\"}} {}\n", row.labels,
                          NameOf(static_cast<PrefixMiss>(i)), row.prefixes.num_misses[i]);
    }
  }
  lines("prefix_cache_wait_requests_total", "counter", "Prompts that waited for what another request was reading.",
        &PrefixStats::num_waits);
  lines("prefix_cache_wait_hit_requests_total", "counter", "Of these, those that went on from there.",
        &PrefixStats::num_wait_hits);
  lines("prefix_cache_evictions_total", "counter", "Texts that gave way to others or to requests.",
        &PrefixStats::num_evicted);
  lines("prefix_cache_entries", "gauge", "Texts that are kept.", &PrefixStats::num_entries);
  lines("prefix_cache_bytes", "gauge", "KV bytes of these, each counted as if it shared none.", &PrefixStats::bytes);
  lines("prefix_cache_budget_bytes", "gauge", "The most that they may come to; 0: none are kept.",
        &PrefixStats::budget_bytes);
  lines("prefix_dir_hit_requests_total", "counter", "Prompts whose beginning came from disk.",
        &PrefixStats::num_disk_hits);
  lines("prefix_dir_hits_total", "counter", "Tokens of these.", &PrefixStats::disk_hit_tokens);
  lines("prefix_dir_saved_total", "counter", "Texts that are on disk for certain.", &PrefixStats::num_disk_saved);
  lines("prefix_dir_failures_total", "counter", "Texts that could not be written.", &PrefixStats::num_disk_failed);
  lines("prefix_dir_entries", "gauge", "Texts on disk.", &PrefixStats::num_disk_entries);
  lines("prefix_dir_bytes", "gauge", "Bytes of their files.", &PrefixStats::disk_bytes);
}

std::string MetricsPage::Text() const {
  std::string text;
  const auto stat = [&](const char* name, const char* type, const char* help, int64_t ServiceStats::*member) {
    AppendHeading(text, name, type, help);
    for (const Row& row : rows_) text += fmt::format("headwise:{}{{{}}} {}\n", name, row.labels, row.stats.*member);
  };
  const auto gauge = [&](const char* name, const char* help, int64_t ServiceStats::*member) {
    stat(name, "gauge", help, member);
  };
  gauge("num_requests_running", "Requests in the engine's steps.", &ServiceStats::num_running);
  gauge("num_requests_waiting", "Requests that wait for memory or a step.", &ServiceStats::num_waiting);
  AppendHeading(text, "kv_cache_bytes", "gauge",
                "KV bytes held now, in heads that keep every token (full) and in heads that drop some (bounded).");
  for (const Row& row : rows_) {
    text += fmt::format("headwise:kv_cache_bytes{{{},head_class=\"full\"}} {}\n", row.labels, row.stats.kv_bytes_full);
    text += fmt::format("headwise:kv_cache_bytes{{{},head_class=\"bounded\"}} {}\n", row.labels,
                        row.stats.kv_bytes_bounded);
  }
  gauge("kv_cache_peak_bytes", "The most KV bytes held at once.", &ServiceStats::kv_peak_bytes);
  gauge("kv_reserved_bytes", "KV bytes promised to admitted requests; 0 without a limit.",
        &ServiceStats::kv_reserved_bytes);
  gauge("kv_limit_bytes", "Hard limit on KV bytes; 0: none.", &ServiceStats::kv_limit_bytes);
  stat("num_preemptions_total", "counter", "How often a request gave its memory to older ones.",
       &ServiceStats::num_preemptions);
  gauge("kv_host_bytes", "KV bytes of these in host memory, or promised room there.", &ServiceStats::kv_host_bytes);

  const auto counter = [&](const char* name, const char* help, int64_t ModelMetrics::*member) {
    AppendHeading(text, name, "counter", help);
    for (const Row& row : rows_) {
      const std::lock_guard lock(row.metrics->mutex_);
      text += fmt::format("headwise:{}{{{}}} {}\n", name, row.labels, row.metrics->*member);
    }
  };
  counter("prompt_tokens_total", "Tokens of prompts, read or found in the prefix cache.",
          &ModelMetrics::prompt_tokens_);
  counter("generation_tokens_total", "Tokens that were generated.", &ModelMetrics::generation_tokens_);
  AppendHeading(text, "request_success_total", "counter", "Answers that are over, by how they ended.");
  for (const Row& row : rows_) {
    const std::lock_guard lock(row.metrics->mutex_);
    for (size_t i = 0; i < kFinishNames.size(); ++i) {
      text += fmt::format("headwise:request_success_total{{{},finished_reason=\"{}\"}} {}\n", row.labels,
                          kFinishNames[i], row.metrics->num_finished_[i]);
    }
  }

  AppendPrefixes(text);

  const auto histogram = [&](const char* name, const char* help, Histogram ModelMetrics::*member) {
    AppendHeading(text, name, "histogram", help);
    for (const Row& row : rows_) {
      const std::lock_guard lock(row.metrics->mutex_);
      (row.metrics->*member).AppendTo(text, fmt::format("headwise:{}", name), row.labels);
    }
  };
  histogram("time_to_first_token_seconds", "From a request to the first token of an answer.",
            &ModelMetrics::first_token_);
  histogram("time_per_output_token_seconds", "Between the tokens of an answer, on average.", &ModelMetrics::per_token_);
  histogram("e2e_request_latency_seconds", "From a request to the end of an answer.", &ModelMetrics::latency_);
  return text;
}

}  // namespace headwise
