// What a server counts for GET /metrics, in the text format of Prometheus.
#ifndef HEADWISE_SERVER_METRICS_H_
#define HEADWISE_SERVER_METRICS_H_

#include <headwise/engine.h>
#include <headwise/service.h>

#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "server/prefix_store.h"

namespace headwise {

// Thread-safety: guarded by its owner.
class Histogram {
 public:
  // Upper bounds, ascending; the last bucket has none.
  explicit Histogram(std::span<const double> bounds) : bounds_(bounds), counts_(bounds.size() + 1) {}

  void Add(double value);
  // Lines of one metric. `labels` without braces.
  void AppendTo(std::string& text, const std::string& name, const std::string& labels) const;

 private:
  std::span<const double> bounds_;
  std::vector<int64_t> counts_;
  double sum_ = 0;
};

// Of one answer that is over.
struct AnswerTimes {
  double first_token_seconds = 0;  // since the request came; 0 where there was no token
  double last_token_seconds = 0;
  double total_seconds = 0;
  int64_t prompt_tokens = 0;
  int64_t new_tokens = 0;
};

// Of one model. From any thread.
class ModelMetrics {
 public:
  ModelMetrics();

  void AddAnswer(const AnswerTimes& times, FinishReason finish);

 private:
  friend class MetricsPage;

  mutable std::mutex mutex_;
  Histogram first_token_, per_token_, latency_;
  int64_t prompt_tokens_ = 0;
  int64_t generation_tokens_ = 0;
  std::array<int64_t, 4> num_finished_{};  // in the order of kFinishNames
};

// All models' lines under one heading per metric, as the format wants them.
class MetricsPage {
 public:
  void Add(const std::string& model, const ModelMetrics& metrics, const ServiceStats& stats,
           const PrefixStats& prefixes = {});
  std::string Text() const;

 private:
  struct Row {
    std::string labels;
    const ModelMetrics* metrics;
    ServiceStats stats;
    PrefixStats prefixes;
  };
  void AppendPrefixes(std::string& text) const;

  std::vector<Row> rows_;
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_METRICS_H_
