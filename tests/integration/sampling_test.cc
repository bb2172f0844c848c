// With a temperature and a seed a request draws from the distribution that it has alone, whatever shares its steps,
// wherever its cache comes from, and whether or not it gave way to others on the way.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "backend/all_backends.h"
#include "engine/engine_impl.h"
#include "server/prefix_store.h"
#include "support/engines.h"
#include "support/golden.h"
#include "support/requests.h"

namespace headwise {
namespace {

constexpr int64_t kTokenBytes = 1024;  // of the tiny model, every head full, f32
constexpr float kTemperature = 0.9F;
constexpr size_t kNumBins = 16;
// Of chi-square with 15 degrees of freedom: a draw as far off comes once in a million.
constexpr double kMostChiSquare = 58;

EngineOptions Options() {
  EngineOptions options = ExactOptions(SourcePath("tests/golden/tiny/llama-gqa"), {"cpu"});
  options.page_tokens = 16;
  options.chunk_tokens = 64;
  return options;
}

Request Drawn(std::vector<int32_t> prompt, uint64_t seed, int64_t max_new_tokens) {
  Request request = RequestOf(std::move(prompt), max_new_tokens);
  request.sampling.temperature = kTemperature;
  request.sampling.seed = seed;
  return request;
}

struct Answer {
  Request request;
  RequestResult result;
};

// Where in the distribution of its place each token fell: drawn rightly, that is equally likely anywhere in [0, 1),
// whatever the text before it. So draws of all texts and places are counted together.
class Draws {
 public:
  Draws() : alone_(MustCreate(Options())) {}

  void Add(const Answer& answer) {
    const std::vector<int32_t>& tokens = answer.result.tokens;
    ASSERT_EQ(answer.result.finish, FinishReason::kLength) << answer.result.status.message();
    std::vector<int32_t> ids = answer.request.prompt;
    ids.insert(ids.end(), tokens.begin(), tokens.end() - 1);
    const ForcedRows rows = MustRunForced(*alone_, ids);
    const size_t vocab_size = rows.logits.size() / ids.size();
    for (size_t i = 0; i < tokens.size(); ++i) {
      const size_t row = answer.request.prompt.size() - 1 + i;
      Add(std::span(rows.logits).subspan(row * vocab_size, vocab_size), tokens[i]);
    }
    // The same request alone draws the same, but where a draw falls onto the last digits of a boundary.
    ++num_answers_;
    auto expected = alone_->Run(answer.request);
    ASSERT_TRUE(expected.ok());
    const auto [own, alone] = std::ranges::mismatch(tokens, expected->tokens);
    num_same_ += own == tokens.end() ? 1 : 0;
    if (own == tokens.end()) return;
    const size_t row = answer.request.prompt.size() - 1 + static_cast<size_t>(own - tokens.begin());
    const double between = WeightBetween(std::span(rows.logits).subspan(row * vocab_size, vocab_size), *own, *alone);
    EXPECT_LT(between, 1e-4) << "token " << own - tokens.begin() << " is no neighbour of the one that is drawn alone";
  }

  void ExpectRight(int64_t least_draws) const {
    EXPECT_GE(num_draws_, least_draws);
    const double expected = static_cast<double>(num_draws_) / kNumBins;
    double chi_square = 0;
    for (const int64_t num : bins_) {
      const double off = static_cast<double>(num) - expected;
      chi_square += off * off / expected;
    }
    EXPECT_LT(chi_square, kMostChiSquare);
    // Which draws fall onto a boundary is chance, anew with every order of sums: one answer may be such a one.
    EXPECT_LE(num_answers_ - num_same_, std::max<int64_t>(1, num_answers_ / 50))
        << num_same_ << " of " << num_answers_ << " are what they are alone";
  }

 private:
  // The share of the tokens whose ids are between two others.
  static double WeightBetween(std::span<const float> logits, int32_t a, int32_t b) {
    const double highest = *std::ranges::max_element(logits);
    double total = 0;
    double between = 0;
    for (size_t id = 0; id < logits.size(); ++id) {
      const double weight = std::exp((logits[id] - highest) / kTemperature);
      total += weight;
      if (static_cast<int32_t>(id) > std::min(a, b) && static_cast<int32_t>(id) < std::max(a, b)) between += weight;
    }
    return between / total;
  }
  void Add(std::span<const float> logits, int32_t token) {
    const double highest = *std::ranges::max_element(logits);
    double total = 0;
    double below = 0;
    double own = 0;
    for (size_t id = 0; id < logits.size(); ++id) {
      const double weight = std::exp((logits[id] - highest) / kTemperature);
      total += weight;
      if (static_cast<int32_t>(id) < token) below += weight;
      if (static_cast<int32_t>(id) == token) own = weight;
    }
    const double within = std::uniform_real_distribution<double>()(rng_);
    const double place = (below + within * own) / total;
    ++bins_[std::min(kNumBins - 1, static_cast<size_t>(place * kNumBins))];
    ++num_draws_;
  }

  std::unique_ptr<Engine> alone_;
  std::mt19937_64 rng_{7};
  std::array<int64_t, kNumBins> bins_{};
  int64_t num_draws_ = 0;
  int64_t num_answers_ = 0;
  int64_t num_same_ = 0;
};

// All at once, to their ends.
std::vector<Answer> RunAll(Engine& engine, std::vector<Request> requests) {
  std::vector<RequestId> ids;
  for (const Request& request : requests) ids.push_back(*engine.Submit(request));
  while (*engine.Step()) {
  }
  std::vector<Answer> answers;
  for (size_t i = 0; i < ids.size(); ++i) {
    answers.push_back({.request = std::move(requests[i]), .result = *engine.Take(ids[i])});
  }
  return answers;
}

TEST(SampledDistribution, OfARequestAlone) {
  const auto engine = MustCreate(Options());
  Draws draws;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    for (const Answer& answer : RunAll(*engine, {Drawn(IdsOf(seed % 5, 12), seed, 40)})) draws.Add(answer);
  }
  draws.ExpectRight(4000);
}

TEST(SampledDistribution, OfAFullBatch) {
  const auto engine = MustCreate(Options());
  Draws draws;
  for (uint64_t batch = 0; batch < 2; ++batch) {
    std::vector<Request> requests;
    for (uint64_t i = 0; i < 64; ++i) requests.push_back(Drawn(IdsOf(i % 7, 5 + i % 30), 64 * batch + i, 40));
    for (const Answer& answer : RunAll(*engine, std::move(requests))) draws.Add(answer);
  }
  draws.ExpectRight(5000);
}

// By host memory, and by reading texts again.
TEST(SampledDistribution, OfRequestsThatGaveWay) {
  for (const int64_t host_tokens : {4000, 0}) {
    SCOPED_TRACE(host_tokens);
    EngineOptions options = Options();
    options.kv_admission = EngineOptions::KvAdmission::kLikely;
    options.kv_limit_bytes = 1100 * kTokenBytes;  // three of 440 tokens come in and do not find room in the end
    options.host_kv_bytes = host_tokens * kTokenBytes;
    Draws draws;
    int64_t num_preempted = 0;
    for (uint64_t batch = 0; batch < 6; ++batch) {
      // Anew each time: it would learn how long answers are.
      const auto engine = MustCreate(options);
      std::vector<Request> requests;
      for (uint64_t i = 0; i < 3; ++i) requests.push_back(Drawn(IdsOf(i, 40), 3 * batch + i, 440));
      for (const Answer& answer : RunAll(*engine, std::move(requests))) {
        num_preempted += answer.result.metrics.num_preemptions > 0 ? 1 : 0;
        draws.Add(answer);
      }
    }
    EXPECT_GE(num_preempted, 6);
    draws.ExpectRight(7000);
  }
}

TEST(SampledDistribution, OfRequestsOnAKeptPrefix) {
  EngineImpl::Parts parts;
  parts.options = Options();
  const auto memory = parts.memory = std::make_shared<KvMemory>();
  memory->backend = FarIfAsked(*MakeBackend({.name = "cpu", .num_threads = 1}));
  memory->formats = {KvFormat::kF32, KvFormat::kF32};
  parts.model = *LoadModel(parts.options.model, *memory->backend);
  memory->page_pools.emplace(
      *memory->backend,
      KvPoolSet::Options{.head_dim = parts.model->config.head_dim, .page_tokens = 16, .formats = memory->formats});
  auto impl = std::make_unique<EngineImpl>(std::move(parts));
  const auto store = std::make_shared<PrefixStore>(int64_t{1} << 30, nullptr, PrefixStore::Sharing::kReadAlike);
  impl->prefixes().SetCache(store);
  {
    Engine engine(std::move(impl));
    Draws draws;
    const std::vector<int32_t> prompt = IdsOf(1, 200);
    int64_t num_hits = 0;
    for (uint64_t batch = 0; batch < 12; ++batch) {
      std::vector<Request> requests;
      for (uint64_t i = 0; i < 10; ++i) {
        requests.push_back(Drawn(prompt, 10 * batch + i, 40));
        requests.back().reuse_prefix = true;
      }
      for (const Answer& answer : RunAll(engine, std::move(requests))) {
        num_hits += answer.result.metrics.reused_tokens > 190 ? 1 : 0;
        draws.Add(answer);
      }
    }
    EXPECT_GE(num_hits, 100);
    draws.ExpectRight(4800);
    store->Clear();
  }
}

}  // namespace
}  // namespace headwise
