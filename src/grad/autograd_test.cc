// Gradients against autograd in float64 (tests/golden/README.md), and against themselves in other numbers and on other
// numbers of threads.
#include <gtest/gtest.h>

#include "base/json.h"
#include "base/rng.h"
#include "grad/grad_test_support.h"
#include "support/golden.h"
#include "support/tolerance.h"

namespace headwise {
namespace {

// ---- DuoAttention's gates ----

template <typename Real>
void CheckGateGradient(double tolerance, Compute compute = Compute::kF32, const cpu::KernelTable* kernels = nullptr) {
  const LoadedModel loaded(BundledModel());
  const Json json = *ReadJsonFile(SourcePath("tests/golden/duo/gradient.json"));
  const auto ids = json.at("ids").get<std::vector<int32_t>>();
  std::vector<double> gates;
  std::vector<double> expected;
  for (const Json& row : json.at("alpha")) gates.insert(gates.end(), row.begin(), row.end());
  for (const Json& row : json.at("grad_distill_wrt_alpha")) expected.insert(expected.end(), row.begin(), row.end());
  const auto wanted = LastPositions(static_cast<int64_t>(ids.size()), json.at("last_positions").get<int64_t>());

  ThreadPool pool(2);
  GradDecoder<Real> decoder(*loaded.model, pool, compute, kernels);
  using Forward = typename GradDecoder<Real>::ForwardArgs;
  std::vector<Real> teacher;
  std::vector<Real> student;
  decoder.Forward({.ids = ids, .wanted = wanted, .on_attention = {}}, teacher);
  const HeadGates head_gates{
      .values = gates, .bounded = HeadRule::Stream(json.at("sink").get<int64_t>(), json.at("recent").get<int64_t>())};
  decoder.Forward(
      {.ids = ids, .wanted = wanted, .gates = &head_gates, .keep = Forward::Keep::kForBackward, .on_attention = {}},
      student);
  double loss = 0;
  std::vector<Real> d_hidden(student.size());
  for (size_t i = 0; i < student.size(); ++i) {
    const Real difference = student[i] - teacher[i];
    loss += static_cast<double>(difference * difference) / static_cast<double>(student.size());
    d_hidden[i] = 2 * difference / static_cast<Real>(student.size());
  }
  EXPECT_NEAR(loss / json.at("distill_loss").get<double>(), 1.0, tolerance * 10);
  std::vector<double> d_gates(gates.size());
  decoder.Backward({.d_hidden = d_hidden, .d_gates = d_gates, .influence = {}});
  EXPECT_LE(MaxDifference(d_gates, expected) / MaxMagnitude(expected), tolerance);
}

TEST(GateGradient, MatchesAutogradInF32) {
  CheckGateGradient<float>(3e-5);
}
TEST(GateGradient, MatchesAutogradInF64) {
  CheckGateGradient<double>(1e-6);
}
// Of the largest gradient a few hundredths: a bf16 has eight bits, and the way there and back is eight layers long.
TEST(GateGradient, InBF16IsAutogradsRounded) {
  CheckGateGradient<float>(5e-2, Compute::kBF16);
}

// ---- MoA's influence ----

template <typename Real>
void CheckInfluence(double tolerance) {
  const LoadedModel loaded(BundledModel());
  const Json json = *ReadJsonFile(SourcePath("tests/golden/moa/influence.json"));
  const auto ids = json.at("ids").get<std::vector<int32_t>>();
  const GoldenTensors golden(SourcePath("tests/golden/moa/influence.safetensors"));
  const std::vector<double> expected = Widened(golden.F32("block_sums"));
  double loss = 0;
  const auto influence = ComputeInfluence<Real>(*loaded.model, ids, json.at("last_positions").get<int64_t>(),
                                                Influence::By::kBlock, json.at("block").get<int64_t>(), &loss);
  EXPECT_NEAR(loss, json.at("loss").get<double>(), tolerance);
  std::vector<double> sums;
  for (const Influence& layer : influence) sums.insert(sums.end(), layer.sums.begin(), layer.sums.end());
  EXPECT_LE(MaxDifference(sums, expected) / MaxMagnitude(expected), tolerance);
}

TEST(Influence, MatchesAutogradInF32) {
  CheckInfluence<float>(3e-4);
}
TEST(Influence, MatchesAutogradInF64) {
  CheckInfluence<double>(1e-6);
}

// With blocks of one token both ways of summing show single entries: distances are the sums of diagonals.
TEST(Influence, DistancesAreTheDiagonalsOfItsEntries) {
  const LoadedModel loaded(BundledModel());
  Rng rng(3);
  std::vector<int32_t> ids(301);
  for (int32_t& id : ids) id = static_cast<int32_t>(rng.Below(static_cast<uint64_t>(loaded.model->config.vocab_size)));
  double loss = 0;
  const auto entries = ComputeInfluence<double>(*loaded.model, ids, 40, Influence::By::kBlock, 1, &loss);
  const auto distances = ComputeInfluence<double>(*loaded.model, ids, 40, Influence::By::kDistance, 64, &loss);
  const int64_t num_tokens = 300;
  for (size_t layer = 0; layer < entries.size(); ++layer) {
    const Influence& found = distances[layer];
    std::vector<double> expected(found.sums.size());
    for (int64_t head = 0; head < loaded.model->config.num_q_heads; ++head) {
      for (int64_t query = 0; query < num_tokens; ++query) {
        for (int64_t key = 64; key <= query; ++key) {
          expected[static_cast<size_t>(head * found.num_blocks + (query - key) / 64)] +=
              entries[layer].sums[static_cast<size_t>((head * num_tokens + query) * num_tokens + key)];
        }
      }
    }
    EXPECT_LE(MaxDifference(found.sums, expected), 1e-12 + 1e-9 * MaxMagnitude(expected)) << layer;
  }
}

// In float as in double even where a head is all but certain: scaled-up queries and keys make one entry of a row 1 but
// for the last digits.
TEST(Influence, CertainAttentionKeepsItsDigits) {
  constexpr int64_t kTokens = 96;
  constexpr int64_t kDim = 16;
  const auto run = [&]<typename Real>(Real) {
    Rng rng(8);
    const auto random = [&](double scale) {
      std::vector<Real> values(static_cast<size_t>(kTokens * kDim));
      for (Real& value : values) value = static_cast<Real>(static_cast<float>(scale * (2 * rng.Uniform() - 1)));
      return values;
    };
    std::vector<Real> q = random(4), k = random(4), v = random(1), d_out = random(1);
    std::copy_n(k.begin(), kDim, k.begin() + kDim);  // row 1: two entries of a half each
    ThreadPool pool(2);
    AttentionShape<Real> shape{.num_tokens = kTokens,
                               .num_q_heads = 1,
                               .num_kv_heads = 1,
                               .head_dim = kDim,
                               .alibi_slopes = {},
                               .sink_logits = {},
                               .rule = {},
                               .active = {}};
    std::vector<Real> out(q.size()), lse(kTokens), other(kTokens), delta(kTokens);
    AttentionForward(AttentionForwardArgs<Real>{.shape = shape,
                                                .q = q.data(),
                                                .k = k.data(),
                                                .v = v.data(),
                                                .out = out.data(),
                                                .lse = lse.data(),
                                                .other_mass = other.data()},
                     pool);
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t d = 0; d < kDim; ++d) {
        delta[static_cast<size_t>(t)] +=
            d_out[static_cast<size_t>(t * kDim + d)] * out[static_cast<size_t>(t * kDim + d)];
      }
    }
    std::vector<Real> d_q(q.size()), d_k(q.size()), d_v(q.size()), scratch;
    Influence influence = Influence::For(Influence::By::kBlock, kTokens, 1, 1);
    AttentionBackward(AttentionBackwardArgs<Real>{.shape = shape,
                                                  .q = q.data(),
                                                  .k = k.data(),
                                                  .v = v.data(),
                                                  .lse = lse.data(),
                                                  .delta = delta.data(),
                                                  .d_out = d_out.data(),
                                                  .other_mass = other.data(),
                                                  .d_q = d_q.data(),
                                                  .d_k = d_k.data(),
                                                  .d_v = d_v.data(),
                                                  .scratch = &scratch,
                                                  .influence = &influence},
                      pool);
    EXPECT_LT(*std::ranges::min_element(other.begin() + 1, other.end()), Real(1e-9));
    return influence.sums;
  };
  const std::vector<double> exact = run(double{});
  EXPECT_LE(MaxDifference(run(float{}), exact), 1e-3 * MaxMagnitude(exact));
}

// ---- threads ----

TEST(GradDecoder, AnyNumberOfThreadsGivesTheSameBits) {
  const LoadedModel loaded(BundledModel());
  const int64_t num_heads = loaded.model->config.num_layers * loaded.model->config.num_kv_heads;
  Rng rng(3);
  std::vector<int32_t> ids{0};
  while (ids.size() < 700) ids.push_back(static_cast<int32_t>(4 + rng.Below(8000)));
  const auto wanted = LastPositions(699, 40);
  std::vector<double> gates(static_cast<size_t>(num_heads));
  for (double& gate : gates) gate = rng.Uniform();
  gates[5] = 0;
  gates[6] = 1;
  std::vector<double> first;
  for (const int num_threads : {1, 2, 3}) {
    ThreadPool pool(num_threads);
    GradDecoder<float> decoder(*loaded.model, pool);
    const HeadGates head_gates{.values = gates, .bounded = HeadRule::Stream(16, 64)};
    std::vector<float> hidden;
    decoder.Forward({.ids = std::span(ids).first(699),
                     .wanted = wanted,
                     .gates = &head_gates,
                     .keep = GradDecoder<float>::ForwardArgs::Keep::kForBackward,
                     .on_attention = {}},
                    hidden);
    std::vector<float> d_hidden;
    std::vector<double> d_gates(gates.size());
    decoder.NllLoss(hidden, std::span<const int32_t>(ids).last(40), d_hidden);
    decoder.Backward({.d_hidden = d_hidden, .d_gates = d_gates, .influence = {}});
    if (first.empty()) first = d_gates;
    EXPECT_EQ(d_gates, first) << num_threads << " threads";
  }
}

}  // namespace
}  // namespace headwise
