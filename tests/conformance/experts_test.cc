// Mixtures of experts on every backend that has them: `ref` against loops of this file, others against `ref`; what a
// token's choice may not depend on.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "support/backends.h"
#include "support/random_blocks.h"
#include "support/random_rows.h"
#include "tensor/blocks.h"

namespace headwise {
namespace {

ExpertRouting Choosing(int64_t num_chosen) {
  ExpertRouting routing;
  routing.num_chosen = num_chosen;
  return routing;
}

// Of one random call.
struct Case {
  int64_t num_rows = 1;
  int64_t model_dim = 32;
  int64_t ffn_dim = 32;
  int64_t num_experts = 4;
  ExpertRouting routing = {};
  bool has_selection_bias = false;
  bool has_bias = false;
  ActivateArgs::Kind activation = ActivateArgs::Kind::kGatedSilu;
  MatMulArgs::Write write = MatMulArgs::Write::kStore;
  DType format = DType::kF32;
  Compute compute = Compute::kF32;
};

Case RandomCase(Random& random) {
  constexpr ActivateArgs::Kind kActivations[] = {ActivateArgs::Kind::kGatedSilu, ActivateArgs::Kind::kGatedGeluTanh,
                                                 ActivateArgs::Kind::kGatedSiluClamped};
  Case drawn;
  drawn.num_rows = random.Coin() ? random.Between(1, 9) : random.Between(10, 300);
  drawn.model_dim = random.Between(1, 90);
  drawn.ffn_dim = random.Between(1, 70);
  drawn.num_experts = random.Coin() ? random.Between(1, 8) : random.Between(9, 70);
  drawn.routing.num_chosen = random.Between(1, std::min<int64_t>(drawn.num_experts, 9));
  drawn.routing.scores = random.Coin() ? ExpertRouting::Scores::kSoftmax : ExpertRouting::Scores::kSigmoid;
  drawn.routing.normalised = random.Coin();
  drawn.routing.scale = random.Coin() ? 1.0f : 2.5f;
  drawn.has_selection_bias = random.Coin();
  drawn.has_bias = random.Coin();
  drawn.activation = kActivations[random.Between(0, 2)];
  drawn.write = random.Coin() ? MatMulArgs::Write::kStore : MatMulArgs::Write::kAdd;
  drawn.format = random.Coin() ? DType::kF32 : random.Coin() ? DType::kBF16 : DType::kF16;
  return drawn;
}

// In host memory: inputs, and matrices in the case's format.
struct Values {
  Values(const Case& drawn, Random& random)
      : x(random.Normal(drawn.num_rows * drawn.model_dim)),
        logits(random.Normal(drawn.num_rows * drawn.num_experts)),
        selection_bias(random.Normal(drawn.num_experts)),
        out(random.Normal(drawn.num_rows * drawn.model_dim)) {
    for (int64_t i = 0; i < drawn.num_experts; ++i) {
      AddMatrix(drawn.format, {drawn.ffn_dim, drawn.model_dim}, random);
      AddMatrix(drawn.format, {drawn.ffn_dim, drawn.model_dim}, random);
      AddMatrix(drawn.format, {drawn.model_dim, drawn.ffn_dim}, random);
    }
  }
  void AddMatrix(DType format, const Shape& shape, Random& random) {
    std::vector<std::byte>& bytes = matrices.emplace_back(static_cast<size_t>(BytesOf(format, shape.num_elements())));
    if (IsBlockFormat(format)) {
      bytes = RandomBlocks(format, shape, random.rng());
    } else {
      // Outputs of size 1, so that the activation bends.
      Floats values = random.Normal(shape.num_elements());
      for (float& value : values) value /= std::sqrt(static_cast<float>(shape[1]));
      FromF32(format, values.data(), shape.num_elements(), bytes.data());
    }
    biases.push_back(random.Normal(shape[0]));
  }

  Floats x, logits, selection_bias, out;
  std::deque<std::vector<std::byte>> matrices;  // gate, up and down of each expert
  std::deque<Floats> biases;
};

// The matrices of all experts, adopted once, or by who is chosen.
struct Adopted {
  Adopted(Backend& backend, const Case& drawn, const Values& values, const std::function<void()>& release) {
    const Shape up{drawn.ffn_dim, drawn.model_dim}, down{drawn.model_dim, drawn.ffn_dim};
    const auto rows = [&](size_t idx, const Shape& shape) {
      held.emplace_back(backend, Shape{shape[0]}, values.biases[idx]);
      return LinearWeights{ConstTensorView(values.matrices[idx].data(), drawn.format, shape),
                           drawn.has_bias ? held.back().view() : TensorView{}};
    };
    for (size_t i = 0; i < values.matrices.size(); i += 3) {
      experts.push_back({rows(i, up), rows(i + 1, up), rows(i + 2, down)});
      EXPECT_TRUE(backend.DeferExpert(experts.back(), release));
    }
  }
  Adopted(Backend& backend, const Case& drawn, const Values& values) {
    const Shape up{drawn.ffn_dim, drawn.model_dim}, down{drawn.model_dim, drawn.ffn_dim};
    const auto adopt = [&](size_t idx, const Shape& shape) {
      const WeightMatrix host(ConstTensorView(values.matrices[idx].data(), drawn.format, shape));
      held.emplace_back(backend, Shape{shape[0]}, values.biases[idx]);
      return LinearWeights{backend.AdoptWeights(host).value(), drawn.has_bias ? held.back().view() : TensorView{}};
    };
    for (size_t i = 0; i < values.matrices.size(); i += 3) {
      experts.push_back({adopt(i, up), adopt(i + 1, up), adopt(i + 2, down)});
    }
  }
  std::deque<Held> held;
  std::vector<ExpertWeights> experts;
};

// Rows [first, first + count) of the call.
Floats OutputsOf(Backend& backend, const Case& drawn, const Values& values, const Adopted& adopted, int64_t first,
                 int64_t count) {
  const auto rows = [&](const Floats& all, int64_t width) {
    return Held(backend, {count, width}, Floats(all.begin() + first * width, all.begin() + (first + count) * width));
  };
  const Held x = rows(values.x, drawn.model_dim), logits = rows(values.logits, drawn.num_experts);
  const Held bias(backend, {drawn.num_experts}, values.selection_bias);
  const Held out = drawn.write == MatMulArgs::Write::kAdd ? rows(values.out, drawn.model_dim)
                                                          : Held::Poisoned(backend, {count, drawn.model_dim});
  ExpertsArgs args{.x = x.view(),
                   .logits = logits.view(),
                   .routing = drawn.routing,
                   .activation = drawn.activation,
                   .experts = adopted.experts,
                   .out = out.view(),
                   .write = drawn.write,
                   .compute = drawn.compute};
  if (drawn.has_selection_bias) args.routing.selection_bias = bias.view();
  backend.Experts(args);
  return out.Read();
}

Floats OutputsOf(Backend& backend, const Case& drawn, const Values& values) {
  return OutputsOf(backend, drawn, values, Adopted(backend, drawn, values), 0, drawn.num_rows);
}

double Activated(ActivateArgs::Kind kind, double gate, double up) {
  if (kind == ActivateArgs::Kind::kGatedSilu) return gate / (1 + std::exp(-gate)) * up;
  if (kind == ActivateArgs::Kind::kGatedGeluTanh) {
    return 0.5 * gate * (1 + std::tanh(std::sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate))) * up;
  }
  const double limited = std::min(gate, 7.0);
  return (std::clamp(up, -7.0, 7.0) + 1) * limited / (1 + std::exp(-1.702 * limited));
}

// The definition once more: all scores, sorted; every expert's output.
Floats InDouble(const Case& drawn, const Values& values) {
  Floats out = values.out;
  const auto matrix = [&](size_t idx, int64_t size) {
    Floats numbers(static_cast<size_t>(size));
    ToF32(drawn.format, values.matrices[idx].data(), size, numbers.data());
    return numbers;
  };
  const auto product = [&](size_t idx, const std::vector<double>& x, int64_t num_outputs) {
    const Floats weights = matrix(idx, num_outputs * static_cast<int64_t>(x.size()));
    std::vector<double> y(static_cast<size_t>(num_outputs));
    for (size_t n = 0; n < y.size(); ++n) {
      y[n] = drawn.has_bias ? values.biases[idx][n] : 0;
      for (size_t k = 0; k < x.size(); ++k) y[n] += x[k] * weights[n * x.size() + k];
    }
    return y;
  };
  for (int64_t t = 0; t < drawn.num_rows; ++t) {
    const float* const logits = values.logits.data() + t * drawn.num_experts;
    std::vector<double> scores;
    double sum = 0;
    for (int64_t i = 0; i < drawn.num_experts; ++i) {
      const bool is_softmax = drawn.routing.scores == ExpertRouting::Scores::kSoftmax;
      scores.push_back(is_softmax ? std::exp(logits[i]) : 1 / (1 + std::exp(-logits[i])));
      sum += is_softmax ? scores.back() : 0;
    }
    if (sum > 0) {
      for (double& score : scores) score /= sum;
    }
    std::vector<std::pair<double, size_t>> order;
    for (size_t i = 0; i < scores.size(); ++i) {
      order.emplace_back(scores[i] + (drawn.has_selection_bias ? values.selection_bias[i] : 0), i);
    }
    std::sort(order.rbegin(), order.rend());
    order.resize(static_cast<size_t>(drawn.routing.num_chosen));
    double total = 0;
    for (const auto& [score, i] : order) total += scores[i];
    const std::vector<double> x(values.x.begin() + t * drawn.model_dim, values.x.begin() + (t + 1) * drawn.model_dim);
    std::vector<double> sums(static_cast<size_t>(drawn.model_dim));
    for (const auto& [score, i] : order) {
      const std::vector<double> gate = product(3 * i, x, drawn.ffn_dim);
      std::vector<double> up = product(3 * i + 1, x, drawn.ffn_dim);
      for (size_t f = 0; f < up.size(); ++f) up[f] = Activated(drawn.activation, gate[f], up[f]);
      const std::vector<double> down = product(3 * i + 2, up, drawn.model_dim);
      const double weight = scores[i] / (drawn.routing.normalised ? total : 1) * drawn.routing.scale;
      for (size_t e = 0; e < sums.size(); ++e) sums[e] += weight * down[e];
    }
    for (size_t e = 0; e < sums.size(); ++e) {
      float& target = out[static_cast<size_t>(t * drawn.model_dim) + e];
      target = static_cast<float>((drawn.write == MatMulArgs::Write::kAdd ? target : 0) + sums[e]);
    }
  }
  return out;
}

TEST(Experts, RefIsTheDefinition) {
  const auto ref = MakeRefBackend();
  for (uint32_t seed = 0; seed < 60 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const Case drawn = RandomCase(random);
    const Values values(drawn, random);
    ExpectNear(OutputsOf(*ref, drawn, values), InDouble(drawn, values), [](size_t) { return 5e-5; });
  }
}

class ExpertsOfBackend : public testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    if (!backend_.backend->Has(Feature::kExperts)) GTEST_SKIP() << "no mixtures of experts on this backend";
  }
  bool HasFormat(DType format) const {
    const auto has = BlockFormatsOf(backend_.backend->name());
    return !IsBlockFormat(format) || std::find(has.begin(), has.end(), format) != has.end();
  }
  void ExpectAsRef(const Case& drawn, const Values& values, double tolerance) {
    ExpectNear(OutputsOf(*backend_.backend, drawn, values), OutputsOf(*ref_, drawn, values),
               [&](size_t) { return tolerance; });
  }

  // Whatever the size of outputs. Rounded inputs differ from what they are by up to 2^-9 (bf16) or 2^-8 of the largest
  // of 32 (int8), each product's and with them its activation's: a few of these on outputs of a few units.
  void ExpectNearRef(const Case& drawn, const Values& values) {
    const Floats expected = OutputsOf(*ref_, drawn, values);
    double squares = 0;
    for (const float number : expected) squares += number * number;
    const double deviation = std::sqrt(squares / static_cast<double>(expected.size()));
    ExpectNear(OutputsOf(*backend_.backend, drawn, values), expected,
               [&](size_t) { return (drawn.compute == Compute::kF32 ? 1e-4 : 0.15) * deviation; });
  }

  NamedBackend backend_ = std::move(AllBackends()[GetParam()]);
  std::unique_ptr<Backend> ref_ = MakeRefBackend();
};

TEST_P(ExpertsOfBackend, AreThoseOfRef) {
  for (uint32_t seed = 100; seed < 160 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const Case drawn = RandomCase(random);
    ExpectAsRef(drawn, Values(drawn, random), 2e-4);
  }
}

TEST_P(ExpertsOfBackend, InOtherNumbersAreNearThoseOfRef) {
  for (const DType format : {DType::kBF16, DType::kQ8_0, DType::kQ4_K, DType::kIQ4_NL, DType::kMXFP4, DType::kU4,
                             DType::kF8E4M3, DType::kNF4}) {
    if (!HasFormat(format)) continue;
    for (const int64_t num_rows : {5, 90}) {
      for (const Compute compute : ComputesOf(*backend_.backend)) {
        SCOPED_TRACE(std::string(NameOf(format)) + " " + std::string(NameOf(compute)) + " rows " +
                     std::to_string(num_rows));
        Random random(7);
        const Case drawn{.num_rows = num_rows,
                         .model_dim = 256,
                         .ffn_dim = 256,
                         .num_experts = 6,
                         .routing = Choosing(3),
                         .format = format,
                         .compute = compute};
        ExpectNearRef(drawn, Values(drawn, random));
      }
    }
  }
}

TEST_P(ExpertsOfBackend, OneMayBeChosenByAllAndOthersByNone) {
  for (const int64_t num_rows : {1, 8, 9, 24, 131}) {
    Random random(3);
    const Case drawn{.num_rows = num_rows, .num_experts = 5, .routing = Choosing(2)};
    Values values(drawn, random);
    for (int64_t row = 0; row < num_rows; ++row) {
      values.logits[static_cast<size_t>(row * 5 + 3)] = 50;
      values.logits[static_cast<size_t>(row * 5 + 1)] = -50;
    }
    ExpectAsRef(drawn, values, 1e-4);
    // What is not chosen is not read.
    const Floats expected = OutputsOf(*backend_.backend, drawn, values);
    for (size_t matrix = 3; matrix < 6; ++matrix) {
      std::fill(values.matrices[matrix].begin(), values.matrices[matrix].end(), std::byte{0xff});
    }
    ExpectSameBits(OutputsOf(*backend_.backend, drawn, values), expected);
  }
}

TEST_P(ExpertsOfBackend, NumbersThatAreNoneStaySo) {
  Random random(4);
  const Case drawn{.num_rows = 3, .routing = Choosing(2), .activation = ActivateArgs::Kind::kGatedSiluClamped};
  Values values(drawn, random);
  values.logits[5] = kNan;      // of row 1
  values.x[2 * 32 + 7] = kNan;  // of row 2
  const Floats found = OutputsOf(*backend_.backend, drawn, values);
  for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(std::isnan(found[i]), i >= 32) << i;
}

TEST_P(ExpertsOfBackend, WhatAllTokensGoThroughIsGatedRowByRow) {
  Random random(10);
  for (const int64_t num_rows : {1, 7, 40}) {
    constexpr int64_t kDim = 50;
    const Floats x = random.Normal(num_rows * kDim), gate = random.Normal(num_rows);
    const Held gates(*backend_.backend, {num_rows, 1}, gate);
    const Held rows(*backend_.backend, {num_rows, kDim}, x);
    backend_.backend->GateRows({.gate = gates.view(), .x = rows.view()});
    Floats expected = x;
    for (size_t i = 0; i < x.size(); ++i) {
      expected[i] = static_cast<float>(x[i] / (1 + std::exp(-static_cast<double>(gate[i / kDim]))));
    }
    ExpectNear(rows.Read(), expected, [](size_t) { return 1e-6; });
  }
}

TEST_P(ExpertsOfBackend, TheClampedActivationIsTheDefinition) {
  Random random(11);
  Floats gate = random.Normal(700), x = random.Normal(700);
  for (float& value : gate) value *= 6;  // beyond both ends
  for (float& value : x) value *= 6;
  const Held gates(*backend_.backend, {10, 70}, gate);
  const Held rows(*backend_.backend, {10, 70}, x);
  constexpr ActivateArgs::Kind kKind = ActivateArgs::Kind::kGatedSiluClamped;
  backend_.backend->Activate({.kind = kKind, .gate = gates.view(), .x = rows.view()});
  Floats expected = x;
  for (size_t i = 0; i < x.size(); ++i) expected[i] = static_cast<float>(Activated(kKind, gate[i], x[i]));
  ExpectNear(rows.Read(), expected, [&](size_t i) { return 1e-5 * std::max(1.0f, std::abs(expected[i])); });
}

// Published shapes, cut: a row has many slices of K and an expert many tiles of outputs.
TEST_P(ExpertsOfBackend, OfManyOutputsAndLongRowsAreThoseOfRef) {
  if (backend_.backend->name() != "cuda") GTEST_SKIP() << "of a GPU's kernels; those of a CPU go through it above";
  for (const DType format : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0}) {
    for (const Compute compute : {Compute::kF32, Compute::kBF16}) {
      for (const int64_t num_rows : {1, 9, 32, 90}) {
        const bool is_clamped = num_rows % 2 == 0;
        const Case drawn{
            .num_rows = num_rows,
            .model_dim = 736,
            .ffn_dim = 160,
            .num_experts = 9,
            .routing = Choosing(4),
            .has_bias = is_clamped,
            .activation = is_clamped ? ActivateArgs::Kind::kGatedSiluClamped : ActivateArgs::Kind::kGatedSilu,
            .write = num_rows == 9 ? MatMulArgs::Write::kAdd : MatMulArgs::Write::kStore,
            .format = format,
            .compute = compute};
        SCOPED_TRACE(std::string(NameOf(format)) + " " + std::string(NameOf(compute)) + " rows " +
                     std::to_string(num_rows));
        Random random(8);
        ExpectNearRef(drawn, Values(drawn, random));
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(ExpertsOfBackend, OfFewRowsOneDoesNotDependOnThoseBesideIt) {
  if (backend_.backend->name() != "cuda") GTEST_SKIP() << "promised for a GPU; of a CPU what is below tells";
  for (const DType format : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_K}) {
    for (const Compute compute : {Compute::kF32, Compute::kBF16, Compute::kInt8}) {
      const Case drawn{.num_rows = 32,
                       .model_dim = 1280,
                       .ffn_dim = 256,
                       .num_experts = 7,
                       .routing = Choosing(2),
                       .has_bias = true,
                       .format = format,
                       .compute = compute};
      SCOPED_TRACE(std::string(NameOf(format)) + " " + std::string(NameOf(compute)));
      Random random(9);
      const Values values(drawn, random);
      const Adopted adopted(*backend_.backend, drawn, values);
      const Floats all = OutputsOf(*backend_.backend, drawn, values, adopted, 0, drawn.num_rows);
      ExpectSameBits(OutputsOf(*backend_.backend, drawn, values, adopted, 0, drawn.num_rows), all);
      Floats in_parts;
      for (const int64_t count : {1, 2, 1, 8, 9, 3, 7, 1}) {
        const auto first = static_cast<int64_t>(in_parts.size()) / drawn.model_dim;
        const Floats some = OutputsOf(*backend_.backend, drawn, values, adopted, first, count);
        in_parts.insert(in_parts.end(), some.begin(), some.end());
      }
      ExpectSameBits(in_parts, all);
      if (HasFailure()) return;
    }
  }
}

// Logits that are equal, of all rows and in every way of choosing: the outputs tell who was chosen.
TEST_P(ExpertsOfBackend, OfEqualScoresThoseOfRefAreChosen) {
  for (uint32_t seed = 0; seed < 40 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    Case drawn = RandomCase(random);
    drawn.num_experts = seed % 4 == 0 ? 130 : random.Between(2, 40);
    drawn.routing.num_chosen = random.Between(1, std::min<int64_t>(drawn.num_experts, seed % 3 == 0 ? 24 : 8));
    drawn.num_rows = seed % 2 == 0 ? random.Between(1, 32) : random.Between(33, 70);
    drawn.has_selection_bias = false;
    Values values(drawn, random);
    for (float& logit : values.logits) logit = static_cast<float>(random.Between(0, 3));
    ExpectAsRef(drawn, values, 2e-4);
  }
}

INSTANTIATE_TEST_SUITE_P(, ExpertsOfBackend, testing::Range<size_t>(0, AllBackends().size()),
                         [](const auto& param) { return AllBackends()[param.param].name; });

// ---- the same bits --------------------------------------------------------------------------------------------------

std::vector<Case> CasesOfAllWays(Backend& backend) {
  std::vector<Case> cases;
  for (const DType format : {DType::kF32, DType::kBF16, DType::kQ8_0, DType::kQ4_K}) {
    for (const Compute compute : ComputesOf(backend)) {
      // Experts of 1 to 9 rows, and of dozens: where more is multiplied otherwise, of more than a hundred.
      for (const int64_t num_experts : {3, 24}) {
        cases.push_back({.num_rows = compute == Compute::kW8A8 ? 180 : 90,
                         .model_dim = format == DType::kQ4_K ? 256 : 96,
                         .ffn_dim = format == DType::kQ4_K ? 256 : 64,
                         .num_experts = num_experts,
                         .routing = Choosing(2),
                         .has_bias = true,
                         .format = format,
                         .compute = compute});
      }
    }
  }
  return cases;
}

std::string NameOfCase(const Case& drawn) {
  return std::string(NameOf(drawn.format)) + " " + std::string(NameOf(drawn.compute)) + " experts " +
         std::to_string(drawn.num_experts);
}

TEST(ExpertsBatchInvariance, ARowDoesNotDependOnThoseBesideIt) {
  for (const NamedBackend& named : CpuBackends(/*batch_invariant=*/true)) {
    for (const Case& drawn : CasesOfAllWays(*named.backend)) {
      SCOPED_TRACE(named.name + " " + NameOfCase(drawn));
      Random random(5);
      const Values values(drawn, random);
      const Adopted adopted(*named.backend, drawn, values);
      const Floats all = OutputsOf(*named.backend, drawn, values, adopted, 0, drawn.num_rows);
      Floats in_parts;
      for (const int64_t count : std::vector<int64_t>{1, 2, 1, 8, 9, 3, 33, drawn.num_rows - 57}) {
        const auto first = static_cast<int64_t>(in_parts.size()) / drawn.model_dim;
        const Floats some = OutputsOf(*named.backend, drawn, values, adopted, first, count);
        in_parts.insert(in_parts.end(), some.begin(), some.end());
      }
      ExpectSameBits(in_parts, all);
    }
  }
}

TEST(ExpertsThreads, AnyNumberGivesTheSameBits) {
  for (const cpu::KernelTable* kernels : cpu::AvailableKernelTables()) {
    const auto any = MakeCpuBackend({.isa = kernels->isa, .num_threads = 1}).value();
    for (const Case& drawn : CasesOfAllWays(*any)) {
      SCOPED_TRACE(std::string(kernels->isa) + " " + NameOfCase(drawn));
      Random random(6);
      const Values values(drawn, random);
      Floats expected;
      for (const int num_threads : {1, 2, 5}) {
        const auto backend = MakeCpuBackend({.isa = kernels->isa, .num_threads = num_threads}).value();
        const Floats found = OutputsOf(*backend, drawn, values);
        if (expected.empty()) expected = found;
        ExpectSameBits(found, expected);
      }
    }
  }
}

// Places for some experts, which are packed when they are chosen.
TEST(ExpertsOnDemand, AnyNumberInMemoryGivesTheSameBits) {
  for (const cpu::KernelTable* kernels : cpu::AvailableKernelTables()) {
    const auto all = MakeCpuBackend({.isa = kernels->isa, .num_threads = 2}).value();
    for (const Case& drawn : CasesOfAllWays(*all)) {
      if (!IsBlockFormat(drawn.format)) continue;
      SCOPED_TRACE(std::string(kernels->isa) + " " + NameOfCase(drawn));
      Random random(8);
      const Values values(drawn, random);
      const Adopted adopted(*all, drawn, values);
      const Floats expected = OutputsOf(*all, drawn, values, adopted, 0, drawn.num_rows);
      const int64_t expert_bytes = 3 * BytesOf(drawn.format, drawn.model_dim * drawn.ffn_dim) * 5 / 4;
      for (const int64_t num_places : {1, 2, 7}) {
        const auto some =
            MakeCpuBackend({.isa = kernels->isa, .num_threads = 2, .expert_bytes = num_places * expert_bytes}).value();
        int64_t num_released = 0;
        Adopted deferred(*some, drawn, values, [&] { ++num_released; });
        ASSERT_TRUE(some->ReserveExperts().ok());
        ExpectSameBits(OutputsOf(*some, drawn, values, deferred, 0, drawn.num_rows), expected);
        // In another order, so that some are there already.
        ExpectSameBits(OutputsOf(*some, drawn, values, deferred, 40, 9),
                       OutputsOf(*all, drawn, values, adopted, 40, 9));
        const ExpertMemory memory = some->expert_memory();
        EXPECT_GT(memory.resident_bytes, 0);
        EXPECT_LE(memory.resident_bytes, num_places * expert_bytes);
        EXPECT_EQ(memory.num_read, num_released);
        EXPECT_LE(memory.num_read, memory.num_chosen);
      }
    }
  }
}

// The one that nobody chose for longest gives way.
TEST(ExpertsOnDemand, WhatWasChosenLastStays) {
  const Case drawn{
      .num_rows = 1, .model_dim = 64, .ffn_dim = 64, .num_experts = 4, .routing = Choosing(1), .format = DType::kQ8_0};
  Random random(9);
  Values values(drawn, random);
  const int64_t expert_bytes = 3 * BytesOf(drawn.format, drawn.model_dim * drawn.ffn_dim);
  const auto backend = MakeCpuBackend({.num_threads = 1, .expert_bytes = 2 * expert_bytes}).value();
  const Adopted deferred(*backend, drawn, values, [] {});
  ASSERT_TRUE(backend->ReserveExperts().ok());
  EXPECT_EQ(backend->expert_memory().total_bytes, 4 * expert_bytes);
  EXPECT_EQ(backend->expert_memory().resident_bytes, 0);
  std::vector<int64_t> num_read;
  for (const int expert : {0, 1, 0, 2, 0, 1, 1, 3}) {
    std::fill(values.logits.begin(), values.logits.end(), 0.0f);
    values.logits[static_cast<size_t>(expert)] = 9;
    OutputsOf(*backend, drawn, values, deferred, 0, 1);
    num_read.push_back(backend->expert_memory().num_read);
  }
  EXPECT_EQ(num_read, (std::vector<int64_t>{1, 2, 2, 3, 3, 4, 4, 5}));
  EXPECT_EQ(backend->expert_memory().num_chosen, 8);
  EXPECT_EQ(backend->expert_memory().resident_bytes, 2 * expert_bytes);
}

// Layers may have other formats: a place is for any of them.
TEST(ExpertsOnDemand, APlaceHoldsTheLargest) {
  const Case large{
      .num_rows = 9, .model_dim = 64, .ffn_dim = 64, .num_experts = 4, .routing = Choosing(2), .format = DType::kQ8_0};
  Case small = large;
  small.format = DType::kQ4_0;
  Random random(10);
  const Values of_large(large, random), of_small(small, random);
  const int64_t limit_bytes = 2 * 3 * BytesOf(large.format, large.model_dim * large.ffn_dim);
  const auto all = MakeCpuBackend({.num_threads = 1}).value();
  const auto some = MakeCpuBackend({.num_threads = 1, .expert_bytes = limit_bytes}).value();
  const Adopted deferred_large(*some, large, of_large, [] {});
  const Adopted deferred_small(*some, small, of_small, [] {});
  ASSERT_TRUE(some->ReserveExperts().ok());
  const Floats expected_large = OutputsOf(*all, large, of_large);
  const Floats expected_small = OutputsOf(*all, small, of_small);
  for (int round = 0; round < 2; ++round) {
    ExpectSameBits(OutputsOf(*some, large, of_large, deferred_large, 0, 9), expected_large);
    ExpectSameBits(OutputsOf(*some, small, of_small, deferred_small, 0, 9), expected_small);
    EXPECT_LE(some->expert_memory().resident_bytes, limit_bytes);
  }
}

// A matrix in plain numbers is read where it lies, and so are the others of its expert.
TEST(ExpertsOnDemand, OneThatIsNotAllInBlocksIsNotPutOff) {
  const std::vector<std::byte> bytes(64 * 64 * sizeof(float));
  const auto backend = MakeCpuBackend({.num_threads = 1, .expert_bytes = 1 << 20}).value();
  for (LinearWeights ExpertWeights::*plain : {&ExpertWeights::gate, &ExpertWeights::up, &ExpertWeights::down}) {
    ExpertWeights expert;
    for (LinearWeights ExpertWeights::*each : {&ExpertWeights::gate, &ExpertWeights::up, &ExpertWeights::down}) {
      expert.*
          each = {ConstTensorView(bytes.data(), each == plain ? DType::kF32 : DType::kQ8_0, {64, 64}), TensorView{}};
    }
    EXPECT_FALSE(backend->DeferExpert(expert, [] {}));
    EXPECT_EQ(backend->expert_memory().total_bytes, 0);
  }
}

}  // namespace
}  // namespace headwise
