#include "bench/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/rng.h"
#include "bench/fill_cache.h"
#include "engine/sequence.h"
#include "model/model_config.h"

namespace headwise {
namespace {

using Clock = std::chrono::steady_clock;

// Short prompts are timed again until this much time has gone into them.
constexpr double kMinPrefillSeconds = 1.0;
constexpr int64_t kMaxPrefillRounds = 10;

constexpr int64_t kMinSteps = 5;  // fewer have no spread
// Ahead of those that are timed: the first one reads the first tokens, all that was to be made ready. Where steps are
// replayed the host makes a graph of the first ones that are alike and is late for a step that is done by then: the
// interval behind it would be less than a step.
constexpr int64_t kFirstSteps = 1, kFirstReplayedSteps = 6;
constexpr int64_t kMaxTokens = int64_t{1} << 24;
constexpr int64_t kMaxBatch = 4096;

// Of mixed steps: how often they are timed, how many steps of decoding go before each, and how many tokens sequences
// decode, which is enough for all of them.
constexpr int64_t kMixedRounds = 5;
constexpr int64_t kStepsBetween = 4;
constexpr int64_t kMixedTokens = 64;

// More than a page and not a multiple of anything.
constexpr int64_t kVerifiedTokens = 67;
// bf16 products keep 8 bits; noise grows over the layers. Wrong keys give a difference of about 1.
constexpr double kMaxPrefillDifference = 0.1;

double Seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

bool AllFinite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
}

std::vector<int32_t> RandomIds(int64_t count, int64_t vocab_size, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(rng.Below(static_cast<uint64_t>(vocab_size)));
  return ids;
}

// Logits of the last of `ids`, of which the first `prompt_tokens` are a prompt.
Result<std::vector<float>> LastLogits(Engine& engine, const BenchOptions& options, std::span<const int32_t> ids,
                                      int64_t prompt_tokens) {
  std::vector<float> last;
  const int64_t position = static_cast<int64_t>(ids.size()) - 1;
  ForcedRun run;
  run.plan = options.plan;
  run.ids = ids;
  run.prompt_tokens = prompt_tokens;
  run.positions = {&position, 1};
  run.on_row = [&](int64_t, std::span<const float> logits, std::span<const float>) {
    last.assign(logits.begin(), logits.end());
    return true;
  };
  HW_RETURN_IF_ERROR(engine.RunForced(run));
  return last;
}

Status NotFinite(const char* where) {
  return Status::InvalidInput(fmt::format("{}: a logit is not a finite number, so its speed means nothing", where));
}

Result<Verification> Verify(Engine& engine, const BenchOptions& options) {
  const std::vector<int32_t> ids = RandomIds(kVerifiedTokens, engine.config().vocab_size, options.seed);
  HW_ASSIGN_OR_RETURN(const std::vector<float> decoded, LastLogits(engine, options, ids, kVerifiedTokens - 1));
  HW_ASSIGN_OR_RETURN(const std::vector<float> again, LastLogits(engine, options, ids, kVerifiedTokens - 1));
  HW_ASSIGN_OR_RETURN(const std::vector<float> prefilled, LastLogits(engine, options, ids, kVerifiedTokens));
  if (!AllFinite(decoded) || !AllFinite(prefilled)) return NotFinite("verification");
  Verification verification;
  verification.repeats = decoded == again;
  if (!verification.repeats) return Status::InvalidInput("verification: two equal runs gave different logits");
  double distance = 0;
  double norm = 0;
  for (size_t i = 0; i < decoded.size(); ++i) {
    distance += std::pow(static_cast<double>(decoded[i]) - static_cast<double>(prefilled[i]), 2);
    norm += std::pow(static_cast<double>(decoded[i]), 2);
  }
  verification.prefill_difference = norm > 0 ? std::sqrt(distance / norm) : 0.0;
  // Rules that hold from the end of the prompt make the two differ by intent.
  if (options.plan == nullptr && verification.prefill_difference > kMaxPrefillDifference) {
    return Status::InvalidInput(
        fmt::format("verification: a decode step and a prefill of the same token differ by {:.3f} of their size, "
                    "expected at most {}",
                    verification.prefill_difference, kMaxPrefillDifference));
  }
  return verification;
}

// One prompt into an empty cache; seconds to the last token's logits.
Result<double> TimePrefill(Engine& engine, const std::shared_ptr<Sequence>& sequence, std::span<const int32_t> ids,
                           const std::function<void(int64_t)>& on_progress) {
  const int64_t last = static_cast<int64_t>(ids.size()) - 1;
  bool finite = true;
  Clock::time_point end;
  ForcedRun run;
  run.sequence = sequence;
  run.ids = ids;
  run.positions = {&last, 1};
  run.on_row = [&](int64_t, std::span<const float> logits, std::span<const float>) {
    end = Clock::now();
    finite = AllFinite(logits);
    return true;
  };
  run.on_progress = on_progress;
  const Clock::time_point start = Clock::now();
  HW_RETURN_IF_ERROR(engine.RunForced(run));
  if (!finite) return NotFinite("prefill");
  return Seconds(end - start);
}

struct StepTimes {
  std::vector<double> seconds;
  std::vector<double> host_seconds;  // in which the host did not wait for a device
};

// Greedy steps of one sequence, or of several together: each lasts until the host has its tokens.
Result<StepTimes> TimeSteps(Engine& engine, std::span<const std::shared_ptr<Sequence>> sequences,
                            std::span<const int32_t> firsts, int64_t num_steps) {
  const Device& device = sequences.front()->memory()->backend->device();
  const int64_t num_first = device.Replays() ? kFirstReplayedSteps : kFirstSteps;
  std::vector<RequestId> ids;
  for (size_t i = 0; i < sequences.size(); ++i) {
    Request request;
    request.prompt = {firsts[i % firsts.size()]};
    request.sequence = sequences[i];
    request.max_new_tokens = num_first + num_steps;
    request.eos = EosMode::kIgnore;
    request.output = Request::Output::kStreamOnly;
    HW_ASSIGN_OR_RETURN(const RequestId id, engine.Submit(std::move(request)));
    ids.push_back(id);
  }
  StepTimes times;
  for (bool goes_on = true; goes_on;) {
    const double waited = device.SecondsWaited();
    const Clock::time_point start = Clock::now();
    HW_ASSIGN_OR_RETURN(goes_on, engine.Step());
    times.seconds.push_back(Seconds(Clock::now() - start));
    times.host_seconds.push_back(times.seconds.back() - (device.SecondsWaited() - waited));
  }
  for (const RequestId id : ids) {
    HW_ASSIGN_OR_RETURN(RequestResult result, engine.Take(id));
    if (result.finish == FinishReason::kError) return std::move(result.status).Annotate("decode");
  }
  HW_CHECK(static_cast<int64_t>(times.seconds.size()) > num_first, "{} steps", times.seconds.size());
  for (std::vector<double>* each : {&times.seconds, &times.host_seconds}) {
    each->erase(each->begin(), each->begin() + num_first);
  }
  if (device.SecondsWaited() == 0) times.host_seconds.clear();
  return times;
}

bool IsRunning(const Engine& engine, RequestId id) {
  const RequestResult* result = engine.Peek(id);
  return result != nullptr && result->finish == FinishReason::kRunning;
}

// Seconds of the longest step until a prompt is read, and its first token drawn: of the only one, where it is read in
// one.
Result<double> TimeChunk(Engine& engine, const SequenceOptions& options, std::span<const int32_t> ids) {
  Request request;
  request.prompt.assign(ids.begin(), ids.end());
  HW_ASSIGN_OR_RETURN(request.sequence, engine.NewSequence(options));
  request.max_new_tokens = 1;
  request.eos = EosMode::kIgnore;
  HW_ASSIGN_OR_RETURN(const RequestId id, engine.Submit(std::move(request)));
  double longest = 0;
  while (IsRunning(engine, id)) {
    const Clock::time_point start = Clock::now();
    HW_RETURN_IF_ERROR(engine.Step().status());
    longest = std::max(longest, Seconds(Clock::now() - start));
  }
  HW_ASSIGN_OR_RETURN(RequestResult result, engine.Take(id));
  if (result.finish == FinishReason::kError) return std::move(result.status).Annotate("mixed step");
  return longest;
}

class Bench {
 public:
  Bench(Engine& engine, const BenchOptions& options) : engine_(engine), options_(options) {
    prefills_.insert(options.prefills.begin(), options.prefills.end());
    depths_.insert(options.depths.begin(), options.depths.end());
    // A depth that a prefill leads to is that prefill, timed once.
    if (PrefillLeads()) prefills_.insert(options.depths.begin(), options.depths.end());
    prefills_.erase(0);
    for (const int64_t length : prefills_) total_ += length;
    const int64_t longest = prefills_.empty() ? 0 : *prefills_.rbegin();
    ids_ = RandomIds(longest + options.num_steps, engine.config().vocab_size, options.seed + 1);
  }

  Result<BenchResult> Run() {
    BenchResult result;
    HW_ASSIGN_OR_RETURN(result.verification, Verify(engine_, options_));
    if (PrefillLeads() && depths_.contains(0)) {
      HW_ASSIGN_OR_RETURN(const std::shared_ptr<Sequence> empty, SequenceAt(0));
      HW_RETURN_IF_ERROR(MeasureSteps({&empty, 1}, 0, result));
    }
    for (const int64_t length : prefills_) {
      HW_ASSIGN_OR_RETURN(const std::shared_ptr<Sequence> sequence, MeasurePrefill(length, result));
      num_read_ += length;
      if (PrefillLeads() && depths_.contains(length)) HW_RETURN_IF_ERROR(MeasureSteps({&sequence, 1}, length, result));
    }
    if (PrefillLeads()) return result;
    for (const int64_t depth : depths_) {
      std::vector<std::shared_ptr<Sequence>> sequences(static_cast<size_t>(options_.batch));
      for (std::shared_ptr<Sequence>& sequence : sequences) {
        HW_ASSIGN_OR_RETURN(sequence, SequenceAt(depth));
      }
      HW_RETURN_IF_ERROR(MeasureSteps(sequences, depth, result));
      if (options_.mixed > 0) HW_RETURN_IF_ERROR(MeasureMixed(depth, result));
    }
    return result;
  }

 private:
  bool PrefillLeads() const { return options_.fill == BenchOptions::Fill::kPrefill; }

  // Tokens of a sequence whose steps are timed: the one that is read first, those that are drawn, timed or not.
  int64_t RoomForSteps() const { return kFirstReplayedSteps + options_.num_steps + 1; }

  // A sequence of `depth` tokens, by random values.
  Result<std::shared_ptr<Sequence>> SequenceAt(int64_t depth) {
    HW_ASSIGN_OR_RETURN(
        std::shared_ptr<Sequence> sequence,
        engine_.NewSequence({.plan = options_.plan, .prompt_tokens = depth, .max_tokens = depth + RoomForSteps()}));
    HW_RETURN_IF_ERROR(FillCache(*sequence, depth, options_.seed));
    return sequence;
  }

  // The prompt in a cache of its own, or behind prefill_depth random tokens; the sequence it leaves.
  Result<std::shared_ptr<Sequence>> MeasurePrefill(int64_t length, BenchResult& result) {
    const int64_t depth = options_.prefill_depth;
    const auto prompt = std::span<const int32_t>(ids_).first(static_cast<size_t>(length));
    const SequenceOptions whole = {
        .plan = options_.plan, .prompt_tokens = depth + length, .max_tokens = depth + length + RoomForSteps()};
    std::shared_ptr<Sequence> before;
    if (depth > 0) {
      HW_ASSIGN_OR_RETURN(before, engine_.NewSequence(whole));
      HW_RETURN_IF_ERROR(FillCache(*before, depth, options_.seed));
    }
    std::shared_ptr<Sequence> sequence;
    std::vector<double> prefill_seconds;
    double spent = 0;
    do {
      sequence.reset();  // its pages first
      if (before != nullptr) {
        HW_ASSIGN_OR_RETURN(sequence, engine_.Fork(*before));
      } else {
        HW_ASSIGN_OR_RETURN(sequence, engine_.NewSequence(whole));
      }
      HW_ASSIGN_OR_RETURN(const double seconds, TimePrefill(engine_, sequence, prompt, [&](int64_t num_read) {
                            if (options_.on_progress) options_.on_progress(num_read_ + num_read, total_);
                          }));
      prefill_seconds.push_back(seconds);
      spent += seconds;
    } while (spent < kMinPrefillSeconds && static_cast<int64_t>(prefill_seconds.size()) < kMaxPrefillRounds);
    result.prefill.push_back({.num_tokens = length,
                              .depth = depth,
                              .timing = TimingOf(std::move(prefill_seconds)),
                              .kv_bytes = sequence->cache->Bytes().total(),
                              .kv_peak_bytes = sequence->cache->PeakBytes()});
    return sequence;
  }

  Result<double> MeasureRead() const { return options_.measure_read ? options_.measure_read() : 0.0; }

  Status MeasureSteps(std::span<const std::shared_ptr<Sequence>> sequences, int64_t depth, BenchResult& result) {
    HW_ASSIGN_OR_RETURN(const double read_before, MeasureRead());
    HW_ASSIGN_OR_RETURN(StepTimes times, TimeSteps(engine_, sequences, ids_, options_.num_steps));
    const bool has_host = !times.host_seconds.empty();
    HW_ASSIGN_OR_RETURN(const double read_after, MeasureRead());
    DecodeTiming timing{.depth = depth,
                        .batch = static_cast<int64_t>(sequences.size()),
                        .timing = TimingOf(std::move(times.seconds)),
                        .host_seconds = has_host ? TimingOf(std::move(times.host_seconds)).median : 0.0,
                        .read_bytes_per_second = std::max(read_before, read_after)};
    for (const auto& sequence : sequences) {
      const KvCacheBytes bytes = sequence->cache->Bytes();
      timing.kv_bytes_full += bytes.full;
      timing.kv_bytes_bounded += bytes.bounded;
      timing.kv_peak_bytes += sequence->cache->PeakBytes();
    }
    result.decode.push_back(timing);
    return Status::Ok();
  }

  // Behind MeasureSteps of the same depth.
  Status MeasureMixed(int64_t depth, BenchResult& result) {
    const SequenceOptions prompt = {
        .plan = options_.plan, .prompt_tokens = options_.mixed, .max_tokens = options_.mixed + 1};
    const std::vector<int32_t> ids = RandomIds(options_.mixed, engine_.config().vocab_size, options_.seed + 2);
    std::vector<double> alone, both;
    for (int64_t round = 0; round <= kMixedRounds; ++round) {
      HW_ASSIGN_OR_RETURN(const double seconds, TimeChunk(engine_, prompt, ids));
      if (round > 0) alone.push_back(seconds);  // the first makes everything ready
    }
    std::vector<RequestId> decoding;
    for (int64_t i = 0; i < options_.batch; ++i) {
      Request request;
      request.prompt = {ids_[static_cast<size_t>(i) % ids_.size()]};
      HW_ASSIGN_OR_RETURN(
          request.sequence,
          engine_.NewSequence({.plan = options_.plan, .prompt_tokens = depth, .max_tokens = depth + kMixedTokens + 2}));
      HW_RETURN_IF_ERROR(FillCache(*request.sequence, depth, options_.seed));
      request.max_new_tokens = kMixedTokens;
      request.eos = EosMode::kIgnore;
      request.output = Request::Output::kStreamOnly;
      HW_ASSIGN_OR_RETURN(const RequestId id, engine_.Submit(std::move(request)));
      decoding.push_back(id);
    }
    for (int64_t round = 0; round <= kMixedRounds; ++round) {
      // As many steps apart as show that decoding goes on.
      for (int64_t step = 0; step < kStepsBetween; ++step) HW_RETURN_IF_ERROR(engine_.Step().status());
      HW_ASSIGN_OR_RETURN(const double seconds, TimeChunk(engine_, prompt, ids));
      if (round > 0) both.push_back(seconds);
    }
    for (const RequestId id : decoding) {
      HW_CHECK(IsRunning(engine_, id), "a sequence ended before the last mixed step");
      HW_RETURN_IF_ERROR(engine_.Take(id).status());
    }
    result.mixed.push_back({.depth = depth,
                            .batch = options_.batch,
                            .chunk_tokens = options_.mixed,
                            .chunk = TimingOf(std::move(alone)),
                            .decode = result.decode.back().timing,
                            .both = TimingOf(std::move(both))});
    return Status::Ok();
  }

  Engine& engine_;
  const BenchOptions& options_;
  std::set<int64_t> prefills_;
  std::set<int64_t> depths_;
  std::vector<int32_t> ids_;
  int64_t num_read_ = 0;
  int64_t total_ = 0;
};

}  // namespace

Status CheckBench(const BenchOptions& options) {
  if (options.num_steps < kMinSteps || options.num_steps > kMaxTokens) {
    return Status::InvalidInput(
        fmt::format("number of timed steps is {}, expected {} to {}", options.num_steps, kMinSteps, kMaxTokens));
  }
  if (options.batch < 1 || options.batch > kMaxBatch ||
      (options.batch > 1 && options.fill == BenchOptions::Fill::kPrefill)) {
    return Status::InvalidInput(
        fmt::format("batch is {}, expected 1 to {}, and 1 where the cache is not filled with random values",
                    options.batch, kMaxBatch));
  }
  if (options.mixed < 0 || options.mixed > kMaxTokens ||
      (options.mixed > 0 && options.fill == BenchOptions::Fill::kPrefill)) {
    return Status::InvalidInput(
        fmt::format("a prompt beside decoding is {} tokens, expected 0 to {}, and 0 where the cache is not filled with "
                    "random values",
                    options.mixed, kMaxTokens));
  }
  for (const int64_t depth : options.depths) {
    if (depth < 0 || depth > kMaxTokens) {
      return Status::InvalidInput(fmt::format("depth is {}, expected 0 to {}", depth, kMaxTokens));
    }
  }
  if (options.prefill_depth < 0 || options.prefill_depth > kMaxTokens ||
      (options.prefill_depth > 0 && options.fill == BenchOptions::Fill::kPrefill)) {
    return Status::InvalidInput(
        fmt::format("prefill depth is {}, expected 0 to {}, and 0 where the cache is not filled with random values",
                    options.prefill_depth, kMaxTokens));
  }
  for (const int64_t prefill : options.prefills) {
    if (prefill < 1 || prefill > kMaxTokens) {
      return Status::InvalidInput(fmt::format("prefill is {} tokens, expected 1 to {}", prefill, kMaxTokens));
    }
  }
  return Status::Ok();
}

Timing TimingOf(std::vector<double> seconds) {
  HW_CHECK(!seconds.empty());
  std::sort(seconds.begin(), seconds.end());
  const size_t half = seconds.size() / 2;
  return {.median = seconds.size() % 2 == 1 ? seconds[half] : (seconds[half - 1] + seconds[half]) / 2,
          .min = seconds.front(),
          .max = seconds.back(),
          .count = static_cast<int64_t>(seconds.size())};
}

Result<BenchResult> RunBench(Engine& engine, const BenchOptions& options) {
  HW_RETURN_IF_ERROR(CheckBench(options));
  return Bench(engine, options).Run();
}

}  // namespace headwise
