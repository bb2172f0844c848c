// Products with the norm before and the activation behind them, on every backend: what one call gives is what the
// operations give one behind the other on `ref`.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "support/backends.h"
#include "support/random_rows.h"

namespace headwise {
namespace {

// Of one random call.
struct Case {
  int64_t num_rows = 1;
  int64_t depth = 1;
  std::vector<int64_t> num_outputs = {};  // of its parts
  bool has_norm = false;
  bool has_bias = false;
  std::optional<ActivateArgs::Kind> activation = std::nullopt;
  int64_t num_then = 0;  // outputs of the product behind the activation; 0: there is none
  MatMulArgs::Write write = MatMulArgs::Write::kStore;
  DType weight_type = DType::kBF16;
  Compute compute = Compute::kF32;
};

Case RandomCase(Random& random) {
  Case drawn;
  drawn.num_rows = random.Coin() ? random.Between(1, 3) : random.Between(4, 40);
  // What kernels for few rows take, and what they do not; more than a round of their warps at times.
  drawn.depth = random.Coin() ? 32 * random.Between(1, 70) : random.Between(1, 300);
  drawn.has_norm = random.Coin();
  drawn.has_bias = random.Coin();
  const int64_t kind = random.Between(0, 3);
  if (kind == 0) {
    drawn.num_outputs.assign(2, random.Between(1, 100));
    drawn.activation = ActivateArgs::Kind::kGatedSilu;
  } else if (kind == 1) {
    drawn.num_outputs = {random.Between(1, 100)};
    drawn.activation = random.Coin() ? ActivateArgs::Kind::kGelu : ActivateArgs::Kind::kGeluTanh;
  } else {
    for (int64_t i = random.Between(1, 3); i > 0; --i) drawn.num_outputs.push_back(random.Between(1, 100));
    if (random.Coin()) drawn.write = MatMulArgs::Write::kAdd;
  }
  if (drawn.activation && random.Coin()) drawn.num_then = random.Between(1, 100);
  if (random.Coin()) drawn.weight_type = random.Coin() ? DType::kF32 : DType::kF16;
  if (random.Coin()) drawn.compute = Compute::kBF16;
  return drawn;
}

struct Values {
  Floats x, norm_weight, then_weight, then_out;
  std::vector<Floats> weights, biases, outs;
};

Values RandomValues(const Case& drawn, Random& random) {
  Values values{.x = random.Normal(drawn.num_rows * drawn.depth),
                .norm_weight = random.Normal(drawn.depth),
                .then_weight = random.Normal(drawn.num_then * drawn.num_outputs.back()),
                .then_out = random.Normal(drawn.num_rows * drawn.num_then),
                .weights = {},
                .biases = {},
                .outs = {}};
  for (const int64_t num_outputs : drawn.num_outputs) {
    values.weights.push_back(random.Normal(num_outputs * drawn.depth));
    values.biases.push_back(random.Normal(num_outputs));
    values.outs.push_back(random.Normal(drawn.num_rows * num_outputs));
  }
  return values;
}

// The last product's outputs of rows [first_row, first_row + num_rows).
Floats OutputsOf(Backend& backend, const Case& drawn, const Values& values, int64_t first_row, int64_t num_rows) {
  const auto rows = [&](const Floats& all, int64_t width) {
    return Floats(all.begin() + first_row * width, all.begin() + (first_row + num_rows) * width);
  };
  const Held x(backend, {num_rows, drawn.depth}, rows(values.x, drawn.depth));
  const Held norm_weight(backend, {drawn.depth}, values.norm_weight);
  const Held normed = Held::Poisoned(backend, {num_rows, drawn.depth});
  std::vector<Held> outs, biases;
  std::vector<MatMulPart> parts;
  for (size_t i = 0; i < drawn.num_outputs.size(); ++i) {
    const int64_t num_outputs = drawn.num_outputs[i];
    const bool adds = drawn.write == MatMulArgs::Write::kAdd;
    outs.push_back(adds ? Held(backend, {num_rows, num_outputs}, rows(values.outs[i], num_outputs))
                        : Held::Poisoned(backend, {num_rows, num_outputs}));
    biases.push_back(Held(backend, {num_outputs}, values.biases[i]));
    parts.push_back({.weight = AdoptedMatrix(backend, drawn.weight_type, values.weights[i], drawn.depth),
                     .bias = drawn.has_bias ? biases[i].view() : TensorView{},
                     .out = outs[i].view()});
  }
  LinearArgs args{.product = {.x = drawn.has_norm ? normed.view() : x.view(),
                              .parts = parts,
                              .write = drawn.write,
                              .compute = drawn.compute}};
  if (drawn.has_norm)
    args.norm = NormArgs{.x = x.view(), .weight = norm_weight.view(), .bias = {}, .out = normed.view()};
  if (drawn.activation) {
    args.activation = ActivateArgs{
        .kind = *drawn.activation, .gate = parts.size() == 2 ? parts[0].out : TensorView{}, .x = parts.back().out};
  }
  if (drawn.num_then == 0) {
    backend.Linear(args);
    return outs.back().Read();
  }
  const Held then_out(backend, {num_rows, drawn.num_then}, rows(values.then_out, drawn.num_then));
  const MatMulPart then{
      .weight = AdoptedMatrix(backend, drawn.weight_type, values.then_weight, drawn.num_outputs.back()),
      .bias = {},
      .out = then_out.view()};
  args.then = MatMulArgs{
      .x = parts.back().out, .parts = {&then, 1}, .write = MatMulArgs::Write::kAdd, .compute = drawn.compute};
  backend.Linear(args);
  return then_out.Read();
}

class Linear : public testing::TestWithParam<size_t> {
 protected:
  NamedBackend backend_ = std::move(AllBackends()[GetParam()]);
  std::unique_ptr<Backend> ref_ = MakeRefBackend();
};

// Sums so long, of so many outputs, that a device may divide both among its processors.
std::vector<Case> LongCases() {
  std::vector<Case> cases;
  for (const Compute compute : {Compute::kBF16, Compute::kF32}) {
    cases.push_back({.num_rows = 32, .depth = 4096, .num_outputs = {600, 30}, .compute = compute});
    cases.push_back({.num_rows = 10, .depth = 4224, .num_outputs = {16, 1000}, .has_norm = true, .compute = compute});
    cases.push_back({.num_rows = 17, .depth = 2080, .num_outputs = {4300}, .has_bias = true, .compute = compute});
    cases.push_back(
        {.num_rows = 5, .depth = 14368, .num_outputs = {90}, .write = MatMulArgs::Write::kAdd, .compute = compute});
  }
  return cases;
}

// More rows than those of few, of which a device may have kernels of their own: whole slices of K and others, tiles
// that do not divide among its processors, outputs that do not fill tiles.
std::vector<Case> CasesOfSomeRows() {
  constexpr Compute kBF16 = Compute::kBF16;
  constexpr auto kAdd = MatMulArgs::Write::kAdd;
  return {{.num_rows = 33, .depth = 4096, .num_outputs = {600, 30, 70}, .has_bias = true, .compute = kBF16},
          {.num_rows = 50, .depth = 64, .num_outputs = {1000}, .write = kAdd, .compute = kBF16},
          {.num_rows = 64, .depth = 14336, .num_outputs = {300}, .write = kAdd, .compute = kBF16},
          {.num_rows = 63, .depth = 1088, .num_outputs = {17000}, .compute = kBF16},
          {.num_rows = 65, .depth = 2048, .num_outputs = {520, 1}, .has_bias = true, .write = kAdd, .compute = kBF16},
          {.num_rows = 128, .depth = 640, .num_outputs = {700}, .has_norm = true, .compute = kBF16},
          {.num_rows = 40, .depth = 96, .num_outputs = {700}, .compute = kBF16},
          {.num_rows = 61,
           .depth = 512,
           .num_outputs = {1280, 1280},
           .has_norm = true,
           .activation = ActivateArgs::Kind::kGatedSilu,
           .num_then = 90,
           .compute = kBF16},
          {.num_rows = 34,
           .depth = 256,
           .num_outputs = {72, 72},
           .has_bias = true,
           .activation = ActivateArgs::Kind::kGatedGeluTanh,
           .num_then = 90,
           .compute = kBF16},
          {.num_rows = 61,
           .depth = 512,
           .num_outputs = {1280, 1280},
           .has_norm = true,
           .activation = ActivateArgs::Kind::kGatedSilu,
           .num_then = 96,
           .weight_type = DType::kQ8_0,
           .compute = kBF16},
          {.num_rows = 100,
           .depth = 1024,
           .num_outputs = {768, 768},
           .has_bias = true,
           .activation = ActivateArgs::Kind::kGatedGeluTanh,
           .num_then = 300,
           .weight_type = DType::kQ4_0,
           .compute = kBF16}};
}

void ExpectAsRef(Backend& backend, Backend& ref, const Case& drawn, Random& random) {
  const Values values = RandomValues(drawn, random);
  const Floats expected = OutputsOf(ref, drawn, values, 0, drawn.num_rows);
  const Floats found = OutputsOf(backend, drawn, values, 0, drawn.num_rows);
  // Numbers of size 1, of which sums have the root of K; two of them are multiplied behind a gate.
  const double scale = std::sqrt(static_cast<double>(drawn.depth));
  const bool is_gated = drawn.activation && drawn.num_outputs.size() == 2;
  const double size = is_gated ? 4 * scale : 1;
  const double precision = drawn.compute == Compute::kBF16 ? 0.04 : 2e-5;
  const double then = drawn.num_then == 0 ? 1 : std::sqrt(static_cast<double>(drawn.num_outputs.back())) + 1;
  ExpectNear(found, expected, [&](size_t) { return precision * (scale + 1) * (size + 1) * then; });
}

TEST_P(Linear, IsItsPartsOneBehindTheOther) {
  for (uint32_t seed = 0; seed < 60 && !HasFatalFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const Case drawn = RandomCase(random);
    ExpectAsRef(*backend_.backend, *ref_, drawn, random);
  }
}

TEST_P(Linear, LongSumsAreTheirParts) {
  Random random(1);
  for (const Case& drawn : LongCases()) {
    SCOPED_TRACE("depth " + std::to_string(drawn.depth));
    ExpectAsRef(*backend_.backend, *ref_, drawn, random);
  }
}

TEST_P(Linear, OfSomeRowsIsAsRef) {
  Random random(3);
  for (const Case& drawn : CasesOfSomeRows()) {
    SCOPED_TRACE("rows " + std::to_string(drawn.num_rows) + ", depth " + std::to_string(drawn.depth));
    ExpectAsRef(*backend_.backend, *ref_, drawn, random);
  }
}

// A gate and what it gates are of size 1 here, so that another activation, or a bias left out, is far from it.
TEST_P(Linear, GatesOfSomeRowsAreAsRef) {
  struct {
    int64_t num_rows;
    DType format;
    ActivateArgs::Kind activation;
  } const kCases[] = {
      {61, DType::kQ8_0, ActivateArgs::Kind::kGatedSilu},      {90, DType::kQ8_0, ActivateArgs::Kind::kGatedSilu},
      {96, DType::kQ4_K, ActivateArgs::Kind::kGatedGeluTanh},  {100, DType::kQ4_0, ActivateArgs::Kind::kGatedGeluTanh},
      {150, DType::kQ8_0, ActivateArgs::Kind::kGatedGeluTanh}, {50, DType::kBF16, ActivateArgs::Kind::kGatedSilu}};
  Random random(5);
  for (const auto& [num_rows, format, activation] : kCases) {
    SCOPED_TRACE("rows " + std::to_string(num_rows));
    const Case drawn{.num_rows = num_rows,
                     .depth = 512,
                     .num_outputs = {768, 768},
                     .has_bias = true,
                     .activation = activation,
                     .num_then = 96,
                     .weight_type = format,
                     .compute = Compute::kBF16};
    Values values = RandomValues(drawn, random);
    for (Floats& weights : values.weights) {
      for (float& weight : weights) weight /= std::sqrt(static_cast<float>(drawn.depth));
    }
    const Floats expected = OutputsOf(*ref_, drawn, values, 0, num_rows);
    const Floats found = OutputsOf(*backend_.backend, drawn, values, 0, num_rows);
    double squares = 0, errors = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      squares += static_cast<double>(expected[i]) * expected[i];
      errors += std::pow(static_cast<double>(found[i]) - expected[i], 2);
    }
    // Rows and weights are rounded to 8 bits, and what is gated again: each some 0.1 % of the root mean square.
    EXPECT_LT(std::sqrt(errors / squares), 0.01);
  }
}

void ExpectRowsAlone(Backend& backend, const Case& drawn, Random& random) {
  const Values values = RandomValues(drawn, random);
  const Floats together = OutputsOf(backend, drawn, values, 0, drawn.num_rows);
  Floats alone;
  for (int64_t row = 0; row < drawn.num_rows; ++row) {
    const Floats one = OutputsOf(backend, drawn, values, row, 1);
    alone.insert(alone.end(), one.begin(), one.end());
  }
  ExpectSameBits(together, alone);
}

// What is promised for the GPU (matmul_few_rows.cu).
TEST_P(Linear, ARowDoesNotDependOnThoseBesideIt) {
  if (backend_.backend->name() != "cuda") GTEST_SKIP() << "promised for bf16 weights on a GPU";
  Random long_random(2);
  for (const Case& drawn : LongCases()) {
    SCOPED_TRACE("depth " + std::to_string(drawn.depth));
    ExpectRowsAlone(*backend_.backend, drawn, long_random);
  }
  for (uint32_t seed = 0; seed < 20 && !HasFatalFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    Case drawn = RandomCase(random);
    drawn.weight_type = DType::kBF16;
    drawn.num_rows = random.Between(2, 32);
    drawn.depth = 32 * random.Between(1, 70);
    drawn.num_then = 0;  // its sums may be of any length
    ExpectRowsAlone(*backend_.backend, drawn, random);
  }
}

// The same of the GPU's kernel for some rows, whose sums have an order of their own (matmul_some_rows.cu).
TEST_P(Linear, ARowOfSomeDoesNotDependOnHowMany) {
  if (backend_.backend->name() != "cuda") GTEST_SKIP() << "promised for bf16 weights on a GPU";
  Random random(4);
  for (const int64_t depth : {640, 4096}) {
    const Case drawn{.num_rows = 64, .depth = depth, .num_outputs = {700, 500}, .compute = Compute::kBF16};
    const Values values = RandomValues(drawn, random);
    const Floats all = OutputsOf(*backend_.backend, drawn, values, 0, drawn.num_rows);
    const Floats some = OutputsOf(*backend_.backend, drawn, values, 0, 37);
    ExpectSameBits(Floats(all.begin(), all.begin() + static_cast<int64_t>(some.size())), some);
    ExpectSameBits(OutputsOf(*backend_.backend, drawn, values, 0, drawn.num_rows), all);
  }
}

// A product that is added to a stream, and behind it another of the stream, normed.
struct Stream {
  Case first, second;
  Floats x, into, weight, norm_weight, next_weight;
};
Stream RandomStream(Random& random) {
  const int64_t num_rows = random.Coin() ? random.Between(1, 3) : random.Between(4, 33);
  const int64_t first_depth = 32 * random.Between(1, 40);
  const int64_t dim = 64 * random.Between(1, 20);
  const Compute compute = random.Coin() ? Compute::kBF16 : Compute::kF32;
  const DType type = random.Between(0, 3) == 0 ? DType::kF16 : DType::kBF16;
  Stream stream{.first = {.num_rows = num_rows, .depth = first_depth, .weight_type = type, .compute = compute},
                .second = {.num_rows = num_rows, .depth = dim, .num_outputs = {random.Between(1, 100)}},
                .x = random.Normal(num_rows * first_depth),
                .into = random.Normal(num_rows * dim),
                .weight = random.Normal(dim * first_depth),
                .norm_weight = random.Normal(dim),
                .next_weight = {}};
  stream.next_weight = random.Normal(stream.second.num_outputs[0] * dim);
  return stream;
}

// What is found each time when it is done so often with the same weights.
std::vector<Floats> RunStream(Backend& backend, const Stream& stream, int times) {
  const int64_t num_rows = stream.first.num_rows;
  const int64_t dim = stream.second.depth;
  const int64_t num_outputs = stream.second.num_outputs[0];
  const WeightMatrix weight = AdoptedMatrix(backend, stream.first.weight_type, stream.weight, stream.first.depth);
  const WeightMatrix next_weight = AdoptedMatrix(backend, stream.first.weight_type, stream.next_weight, dim);
  const Held norm_weight(backend, {dim}, stream.norm_weight);
  const Held x(backend, {num_rows, stream.first.depth}, stream.x);
  std::vector<Floats> found;
  for (int i = 0; i < times; ++i) {
    const Held into(backend, {num_rows, dim}, stream.into);
    const Held normed = Held::Poisoned(backend, {num_rows, dim});
    const Held out = Held::Poisoned(backend, {num_rows, num_outputs});
    const MatMulPart part{.weight = weight, .bias = {}, .out = into.view()};
    backend.MatMul(
        {.x = x.view(), .parts = {&part, 1}, .write = MatMulArgs::Write::kAdd, .compute = stream.first.compute});
    const MatMulPart next{.weight = next_weight, .bias = {}, .out = out.view()};
    backend.Linear({.norm = NormArgs{.x = into.view(), .weight = norm_weight.view(), .bias = {}, .out = normed.view()},
                    .product = {.x = normed.view(), .parts = {&next, 1}, .compute = stream.first.compute}});
    found.push_back(out.Read());
  }
  return found;
}

// A backend may come to know what is behind a product, and leave it what it wants: nothing of that shows.
TEST_P(Linear, WhatIsLeftForANormIsAsIfItHadMadeIt) {
  for (uint32_t seed = 0; seed < 30 && !HasFatalFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const Stream stream = RandomStream(random);
    const Floats expected = RunStream(*ref_, stream, 1).front();
    const std::vector<Floats> found = RunStream(*backend_.backend, stream, 3);
    const double precision = stream.first.compute == Compute::kBF16 ? 0.04 : 2e-5;
    const double scale = std::sqrt(static_cast<double>(stream.second.depth)) + 1;
    ExpectNear(found[0], expected, [&](size_t) { return precision * scale * 4; });
    ExpectSameBits(found[0], found[1]);
    ExpectSameBits(found[0], found[2]);
  }
}

// Whichever way products go: few rows, some and many, in f32, bf16, int8 and bytes, a gate and what it gates in other
// formats.
TEST(LinearOnCpu, WhatLiesBetweenProductsIsTheSameBitsOnTheWay) {
  using Kind = ActivateArgs::Kind;
  struct {
    int64_t num_rows, ffn_dim;
    DType gate, x, then;
    Compute compute;
    Kind kind;
    bool leaves_bytes = false;  // on tile registers
  } const kCases[] = {{3, 50, DType::kF32, DType::kF32, DType::kF32, Compute::kF32, Kind::kGatedSilu},
                      {40, 200, DType::kF16, DType::kBF16, DType::kF16, Compute::kF32, Kind::kGatedGeluTanh},
                      {300, 300, DType::kBF16, DType::kBF16, DType::kBF16, Compute::kBF16, Kind::kGatedSiluClamped},
                      {40, 333, DType::kF32, DType::kF32, DType::kF32, Compute::kBF16, Kind::kGelu},
                      {300, 70, DType::kQ8_0, DType::kQ8_0, DType::kF16, Compute::kInt8, Kind::kGeluTanh},
                      {20, 333, DType::kQ4_0, DType::kQ8_0, DType::kF32, Compute::kInt8, Kind::kGatedSilu},
                      {20, 333, DType::kQ8_0, DType::kQ8_0, DType::kF16, Compute::kW8A8, Kind::kGatedSilu},
                      {5, 608, DType::kQ8_0, DType::kQ4_0, DType::kQ8_0, Compute::kInt8, Kind::kGatedSilu},
                      {20, 352, DType::kQ4_0, DType::kQ8_0, DType::kQ4_0, Compute::kInt8, Kind::kGatedSilu},
                      {20, 100, DType::kQ8_0, DType::kF32, DType::kF32, Compute::kInt8, Kind::kGatedSilu},
                      {550, 333, DType::kQ8_0, DType::kQ4_0, DType::kBF16, Compute::kInt8, Kind::kGatedSilu},
                      {20, 352, DType::kQ8_0, DType::kQ8_0, DType::kQ8_0, Compute::kW8A8, Kind::kGatedSilu},
                      {20, 352, DType::kQ8_0, DType::kQ4_0, DType::kQ4_0, Compute::kW8A8, Kind::kGatedSilu},
                      {550, 608, DType::kQ8_0, DType::kQ4_0, DType::kQ8_0, Compute::kW8A8, Kind::kGatedGeluTanh},
                      {257, 96, DType::kQ8_0, DType::kBF16, DType::kQ8_0, Compute::kW8A8, Kind::kGatedSilu},
                      // Bytes for the last product as soon as there is a group of them.
                      {290, 640, DType::kQ8_0, DType::kQ8_0, DType::kQ8_0, Compute::kW8A8, Kind::kGatedGeluTanh, true},
                      {270, 1056, DType::kQ8_0, DType::kQ8_0, DType::kQ4_0, Compute::kW8A8, Kind::kGatedSilu, true},
                      {257, 1024, DType::kQ8_0, DType::kQ8_0, DType::kQ8_0, Compute::kW8A8, Kind::kGatedSilu, true},
                      {130, 576, DType::kQ8_0, DType::kQ8_0, DType::kQ8_0, Compute::kW8A8, Kind::kGelu, true},
                      {300, 333, DType::kQ8_0, DType::kQ8_0, DType::kF16, Compute::kW8A8, Kind::kGatedSilu}};
  constexpr int64_t kDim = 192;
  std::vector<NamedBackend> backends = CpuBackends();
  const size_t num_fastest = backends.size();
  for (NamedBackend& each : CpuBackends(/*batch_invariant=*/true)) backends.push_back(std::move(each));
  for (size_t i = 0; i < backends.size(); ++i) {
    const auto& [name, backend] = backends[i];
    const bool has_tiles = i < num_fastest && CanMultiplyIn(Compute::kW8A8, *backend).ok();
    Random random(7);
    for (const auto& drawn : kCases) {
      SCOPED_TRACE(name + ", " + std::to_string(drawn.num_rows) + " rows, " + std::to_string(drawn.ffn_dim));
      const Shape outer = {drawn.num_rows, kDim}, inner = {drawn.num_rows, drawn.ffn_dim};
      const Held x(*backend, outer, random.Normal(drawn.num_rows * kDim));
      const Held norm_weight(*backend, {kDim}, random.Normal(kDim));
      const Held bias(*backend, {drawn.ffn_dim}, random.Normal(drawn.ffn_dim));
      const Held normed = Held::Poisoned(*backend, outer), out = Held::Poisoned(*backend, outer);
      const Held gate = Held::Poisoned(*backend, inner), up = Held::Poisoned(*backend, inner);
      const auto weight_of = [&](DType format, int64_t num_outputs, int64_t depth) {
        WeightMatrix weight = AdoptedMatrix(*backend, format, random.Normal(num_outputs * depth), depth);
        if (drawn.compute == Compute::kW8A8 && CanMultiplyIn(Compute::kW8A8, *backend).ok()) {
          EXPECT_TRUE(backend->PrepareProducts(weight, Compute::kW8A8).ok());
        }
        return weight;
      };
      std::vector<MatMulPart> parts;
      const auto add_part = [&](DType format, const Held& to) {
        const WeightMatrix weight = weight_of(format, drawn.ffn_dim, kDim);
        parts.push_back({.weight = weight, .bias = bias.view(), .out = to.view()});
      };
      const bool is_gated = IsGated(drawn.kind);
      if (is_gated) add_part(drawn.gate, gate);
      add_part(drawn.x, up);
      const MatMulPart down{.weight = weight_of(drawn.then, kDim, drawn.ffn_dim), .bias = {}, .out = out.view()};
      const LinearArgs linear = {
          .norm = NormArgs{.x = x.view(), .weight = norm_weight.view(), .bias = {}, .out = normed.view()},
          .product = {.x = normed.view(), .parts = parts, .compute = drawn.compute},
          .activation = ActivateArgs{.kind = drawn.kind, .gate = is_gated ? gate.view() : TensorView{}, .x = up.view()},
          .then = MatMulArgs{.x = up.view(), .parts = {&down, 1}, .compute = drawn.compute}};
      backend->Linear(linear);
      const Floats found = out.Read();
      // Poison, where what lies between is not written.
      EXPECT_EQ(std::isnan(up.Read().front()), has_tiles && drawn.leaves_bytes);
      backend->Norm(*linear.norm);
      backend->MatMul(linear.product);
      backend->Activate(*linear.activation);
      const Floats activated = up.Read();
      backend->MatMul(*linear.then);
      EXPECT_EQ(found, out.Read());
      backend->Linear({.norm = linear.norm, .product = linear.product, .activation = linear.activation});
      EXPECT_EQ(activated, up.Read());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, Linear, testing::Range<size_t>(0, AllBackends().size()),
                         [](const auto& param) { return AllBackends()[param.param].name; });

}  // namespace
}  // namespace headwise
