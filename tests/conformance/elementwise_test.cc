// What works on rows alone, on every backend and instruction set against `ref`: embeddings, norms, rotations,
// activations, clamps, gathers. Random shapes, most of them multiples of nothing; outputs are poisoned before.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "support/backends.h"
#include "support/random_blocks.h"
#include "support/random_rows.h"
#include "support/tolerance.h"

namespace headwise {
namespace {

enum class Place { kApart, kInPlace };

// Every test draws its cases for each backend anew, from the same seeds.
class Elementwise : public testing::TestWithParam<size_t> {
 protected:
  Backend& backend() { return *backend_.backend; }
  Backend& ref() { return *ref_; }

  // check(random) for so many seeds.
  template <typename Check>
  void ForSeeds(uint32_t num_seeds, const Check& check) {
    for (uint32_t seed = 0; seed < num_seeds && !HasFatalFailure(); ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      Random random(seed);
      check(random);
    }
  }

 private:
  NamedBackend backend_ = std::move(AllBackends()[GetParam()]);
  std::unique_ptr<Backend> ref_ = MakeRefBackend();
};

struct NormCase {
  NormArgs::Kind kind;
  int64_t num_rows, dim;
  int64_t num_weights;
  Floats x, weight;
  std::optional<Floats> bias;
  float eps;
  Place place;
  std::optional<Floats> added_to;
};

Floats RunNorm(Backend& backend, const NormCase& norm) {
  const Shape shape{norm.num_rows, norm.dim};
  const Held x(backend, shape, norm.x);
  const Shape weight_shape = norm.num_weights == 1 ? Shape{norm.dim} : Shape{norm.num_weights, norm.dim};
  const Held weight(backend, weight_shape, norm.weight);
  std::optional<Held> bias;
  if (norm.bias) bias.emplace(backend, weight_shape, *norm.bias);
  const Held apart = norm.added_to ? Held(backend, shape, *norm.added_to) : Held::Poisoned(backend, shape);
  const Held& out = norm.place == Place::kInPlace ? x : apart;
  backend.Norm({.kind = norm.kind,
                .x = x.view(),
                .weight = weight.view(),
                .bias = bias ? ConstTensorView(bias->view()) : ConstTensorView(),
                .eps = norm.eps,
                .out = out.view(),
                .write = norm.added_to ? NormArgs::Write::kAdd : NormArgs::Write::kStore});
  return out.Read();
}

TEST_P(Elementwise, Norm) {
  ForSeeds(60, [&](Random& random) {
    NormCase norm;
    norm.kind = random.Coin() ? NormArgs::Kind::kRms : NormArgs::Kind::kLayer;
    norm.num_weights = backend().Has(Feature::kNormsByHead) && random.Coin() ? random.Between(2, 5) : 1;
    norm.num_rows = random.NumRows() * norm.num_weights;
    norm.dim = random.Dim();
    norm.x = random.Normal(norm.num_rows * norm.dim);
    // Rows of all sizes, one of zeros, and a mean that is not zero.
    for (int64_t row = 0; row < norm.num_rows; ++row) {
      const float size = row == 1 ? 0.0f : std::exp2(static_cast<float>(random.Between(-8, 8)));
      for (int64_t i = 0; i < norm.dim; ++i) {
        float& x = norm.x[static_cast<size_t>(row * norm.dim + i)];
        x = size * (x + 0.5f);
      }
    }
    norm.weight = random.Normal(norm.num_weights * norm.dim);
    if (random.Coin()) norm.bias = random.Normal(norm.num_weights * norm.dim);
    norm.eps = random.Coin() ? 1e-5f : 1e-6f;
    norm.place = random.Coin() ? Place::kInPlace : Place::kApart;
    if (norm.place == Place::kApart && backend().Has(Feature::kNormAdded) && random.Coin()) {
      norm.added_to = random.Normal(norm.num_rows * norm.dim);
    }
    const Floats expected = RunNorm(ref(), norm);
    const auto dim = static_cast<size_t>(norm.dim);
    ExpectNear(RunNorm(backend(), norm), expected, [&](size_t i) {
      const size_t row = i / dim;
      const size_t in_weights = row % static_cast<size_t>(norm.num_weights) * dim + i % dim;
      // Of a sum its parts round, too.
      const double size = std::abs(expected[i]) + (norm.added_to ? 2 * std::abs((*norm.added_to)[i]) : 0);
      return NormTolerance(norm.kind, std::span(norm.x).subspan(row * dim, dim), norm.eps) *
                 std::abs(norm.weight[in_weights]) +
             kElementwiseRounding * size;
    });
  });
}

struct RopeCase {
  int64_t num_rows, num_heads, head_dim, rotary_dims, rows_per_token;
  int64_t num_angle_rows;
  Floats x, angles;
  std::vector<int32_t> rows;
  Place place;
};

Floats RunRope(Backend& backend, const RopeCase& rope) {
  const Shape shape{rope.num_rows, rope.num_heads * rope.head_dim};
  const Held x(backend, shape, rope.x);
  const Held angles(backend, {rope.num_angle_rows, rope.rotary_dims / 2, 2}, rope.angles);
  const Held apart = Held::Poisoned(backend, shape);
  const Held& out = rope.place == Place::kInPlace ? x : apart;
  backend.Rope({.x = x.view(),
                .out = out.view(),
                .angles = angles.view(),
                .rows = rope.rows,
                .rows_per_token = rope.rows_per_token,
                .num_heads = rope.num_heads,
                .head_dim = rope.head_dim});
  return out.Read();
}

TEST_P(Elementwise, Rope) {
  ForSeeds(60, [&](Random& random) {
    RopeCase rope;
    rope.num_rows = random.NumRows();
    rope.rows_per_token = random.Coin() ? 1 : random.Between(2, 4);
    rope.num_heads = rope.rows_per_token * random.Between(1, 3);
    rope.head_dim = random.Between(2, 70);
    rope.rotary_dims = 2 * (random.Coin() ? rope.head_dim / 2 : random.Between(1, rope.head_dim / 2));
    rope.num_angle_rows = random.Between(1, 2 * rope.num_rows);
    rope.x = random.Normal(rope.num_rows * rope.num_heads * rope.head_dim);
    rope.rows = random.Indices(rope.num_rows * rope.rows_per_token, rope.num_angle_rows);
    // Angles that no token asks for are poison.
    const auto half = static_cast<size_t>(rope.rotary_dims / 2);
    rope.angles.resize(static_cast<size_t>(rope.num_angle_rows) * half * 2, kNan);
    for (const int32_t row : rope.rows) {
      for (size_t i = 0; i < half; ++i) {
        const double angle = 0.7 * row + 3.1 * static_cast<double>(i);
        const size_t at = (static_cast<size_t>(row) * half + i) * 2;
        rope.angles[at] = static_cast<float>(std::cos(angle));
        rope.angles[at + 1] = static_cast<float>(std::sin(angle));
      }
    }
    rope.place = random.Coin() ? Place::kInPlace : Place::kApart;
    const auto dim = static_cast<size_t>(rope.head_dim);
    ExpectNear(RunRope(backend(), rope), RunRope(ref(), rope), [&](size_t i) {
      const size_t in_head = i % dim;
      if (in_head >= 2 * half) return 0.0;  // copied
      const size_t other = in_head < half ? i + half : i - half;
      return kElementwiseRounding * (std::abs(rope.x[i]) + std::abs(rope.x[other]));
    });
  });
}

Floats RunActivate(Backend& backend, ActivateArgs::Kind kind, const Shape& shape, const Floats& gate, const Floats& x) {
  const bool is_gated = IsGated(kind);
  const Held held_gate(backend, shape, gate);
  const Held held_x(backend, shape, x);
  backend.Activate(
      {.kind = kind, .gate = is_gated ? ConstTensorView(held_gate.view()) : ConstTensorView(), .x = held_x.view()});
  if (is_gated) ExpectSameBits(held_gate.Read(), gate);
  return held_x.Read();
}

TEST_P(Elementwise, Activate) {
  using Kind = ActivateArgs::Kind;
  for (const auto kind : {Kind::kGatedSilu, Kind::kGatedGeluTanh, Kind::kGelu, Kind::kGeluTanh}) {
    if (kind == Kind::kGatedGeluTanh && !backend().Has(Feature::kGatedGelu)) continue;
    const bool is_gated = IsGated(kind);
    SCOPED_TRACE("kind " + std::to_string(static_cast<int>(kind)));
    ForSeeds(30, [&](Random& random) {
      const Shape shape{random.NumRows(), random.Dim()};
      // From where they bend to where e^x is beyond f32.
      const float most = random.Coin() ? 6.0f : 120.0f;
      const Floats gate = random.Uniform(shape.num_elements(), most);
      const Floats x = is_gated ? random.Normal(shape.num_elements()) : random.Uniform(shape.num_elements(), most);
      const Floats expected = RunActivate(ref(), kind, shape, gate, x);
      ExpectNear(RunActivate(backend(), kind, shape, gate, x), expected, [&](size_t i) {
        if (kind == Kind::kGatedGeluTanh) return kElementwiseRounding * std::abs(double{gate[i]} * x[i]);
        return ActivateTolerance(kind, is_gated ? gate[i] : x[i], expected[i]);
      });
    });
  }
}

Floats RunClamp(Backend& backend, const Shape& shape, const Floats& x, float limit) {
  const Held held(backend, shape, x);
  backend.Clamp({.x = held.view(), .limit = limit});
  return held.Read();
}

// A value that is no number stays so: an oracle that made it one would hide where it came from.
TEST_P(Elementwise, Clamp) {
  ForSeeds(30, [&](Random& random) {
    const Shape shape{random.NumRows(), random.Dim()};
    Floats x = random.Normal(shape.num_elements());
    const float limit = 0.25f * static_cast<float>(random.Between(1, 8));
    const auto last = static_cast<int64_t>(x.size()) - 1;
    for (const float special : {kNan, -kNan, std::numeric_limits<float>::infinity(),
                                -std::numeric_limits<float>::infinity(), limit, -limit, -0.0f}) {
      x[static_cast<size_t>(random.Between(0, last))] = special;
    }
    const Floats found = RunClamp(backend(), shape, x, limit);
    const Floats expected = RunClamp(ref(), shape, x, limit);
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(found[i]), std::bit_cast<uint32_t>(expected[i])) << "element " << i;
      ASSERT_EQ(std::isnan(found[i]), std::isnan(x[i])) << "element " << i;
      ASSERT_FALSE(std::abs(found[i]) > limit) << "element " << i;
    }
  });
}

Floats RunSoftCap(Backend& backend, const Shape& shape, const Floats& x, float cap) {
  const Held held(backend, shape, x);
  backend.SoftCap({.x = held.view(), .cap = cap});
  return held.Read();
}

// What is no number stays so.
TEST_P(Elementwise, SoftCap) {
  if (!backend().Has(Feature::kSoftCaps)) GTEST_SKIP() << "the backend has none";
  ForSeeds(30, [&](Random& random) {
    const Shape shape{random.NumRows(), random.Between(1, 9000)};
    Floats x = random.Uniform(shape.num_elements(), random.Coin() ? 40.0f : 1e4f);
    const auto nan_at = static_cast<size_t>(random.Between(0, static_cast<int64_t>(x.size()) - 1));
    x[nan_at] = kNan;
    const float cap = random.Coin() ? 30.0f : 2.5f;
    const Floats expected = RunSoftCap(ref(), shape, x, cap);
    const Floats found = RunSoftCap(backend(), shape, x, cap);
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(std::isnan(found[i]), i == nan_at) << "element " << i;
      if (i == nan_at) continue;
      ASSERT_NEAR(found[i], expected[i], 4 * kElementwiseRounding * cap) << "element " << i;
    }
  });
}

Floats RunGather(Backend& backend, const Shape& shape, const Floats& x, std::span<const int32_t> rows) {
  const Held held(backend, shape, x);
  const Held out = Held::Poisoned(backend, {static_cast<int64_t>(rows.size()), shape[1]});
  backend.GatherRows({.x = held.view(), .rows = rows, .out = out.view()});
  return out.Read();
}

TEST_P(Elementwise, GatherRows) {
  ForSeeds(30, [&](Random& random) {
    const Shape shape{random.NumRows(), random.Dim()};
    const Floats x = random.Normal(shape.num_elements());
    const std::vector<int32_t> rows = random.Indices(random.NumRows(), shape[0]);
    ExpectSameBits(RunGather(backend(), shape, x, rows), RunGather(ref(), shape, x, rows));
  });
}

// What operations of one step are given may be more than a device has room for at once.
TEST_P(Elementwise, WhatIsLentStaysUntilItIsWaitedFor) {
  constexpr int64_t kLent = 1000;
  constexpr int64_t kRows = int64_t{1} << 18;
  Random random(7);
  const Floats x = random.Normal(kLent);
  const Held own(backend(), {kLent, 1}, x);
  const Held out = Held::Poisoned(backend(), {kRows, 1});
  const std::vector<int32_t> few = random.Indices(100, kLent);
  const Held few_out = Held::Poisoned(backend(), {100, 1});
  const void* const lent = backend().device().Lend(x.data(), x.size() * sizeof(float));
  const ConstTensorView view = lent != nullptr ? ConstTensorView(lent, DType::kF32, {kLent, 1}) : own.view();
  std::vector<int32_t> rows = random.Indices(kRows, kLent);
  for (int i = 0; i < 20; ++i) {
    rows[0] = i;
    backend().GatherRows({.x = view, .rows = rows, .out = out.view()});
  }
  backend().GatherRows({.x = view, .rows = few, .out = few_out.view()});
  const auto expect_taken = [&](const Held& held, const std::vector<int32_t>& taken) {
    const Floats found = held.Read();
    for (size_t i = 0; i < taken.size(); ++i) {
      ASSERT_EQ(found[i], x[static_cast<size_t>(taken[i])]) << "row " << i << " of " << taken.size();
    }
  };
  expect_taken(out, rows);
  expect_taken(few_out, few);
}

Floats RunEmbed(Backend& backend, const ConstTensorView& host_table, std::span<const int32_t> ids) {
  const Result<WeightMatrix> table = backend.AdoptWeights(host_table);
  EXPECT_TRUE(table.ok()) << table.status().message();
  const Held out = Held::Poisoned(backend, {static_cast<int64_t>(ids.size()), host_table.shape[1]});
  backend.Embed({.table = *table, .ids = ids, .out = out.view()});
  return out.Read();
}

// A row stands for the same numbers everywhere.
TEST_P(Elementwise, EmbedOfPlainFormats) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    SCOPED_TRACE(NameOf(dtype));
    ForSeeds(20, [&](Random& random) {
      const Shape shape{random.Between(1, 60), random.Dim()};
      const Floats values = random.Normal(shape.num_elements());
      std::vector<std::byte> table(static_cast<size_t>(BytesOf(dtype, shape.num_elements())));
      for (size_t i = 0; i < values.size(); ++i) StoreF32As(dtype, table.data(), static_cast<int64_t>(i), values[i]);
      const ConstTensorView view(table.data(), dtype, shape);
      const std::vector<int32_t> ids = random.Indices(random.NumRows(), shape[0]);
      ExpectSameBits(RunEmbed(backend(), view, ids), RunEmbed(ref(), view, ids));
    });
  }
}

// Ids that lie on the device; what is none of the vocabulary is read as the first row.
TEST_P(Elementwise, EmbedOfChosenIds) {
  const Floats values = Random(3).Normal(int64_t{7} * 64);
  const ConstTensorView table(values.data(), DType::kF32, {7, 64});
  const std::vector<int32_t> chosen{5, -1, 2, 7};
  const Result<DeviceBuffer> lying = DeviceBuffer::Make(backend().device(), chosen.size() * sizeof(int32_t));
  ASSERT_TRUE(lying.ok());
  backend().device().CopyFromHost(lying->data(), chosen.data(), lying->size_bytes());
  const std::vector<int32_t> places{2, 0, 1, 0, 3};
  const Held out = Held::Poisoned(backend(), {5, 64});
  backend().Embed({.table = backend().AdoptWeights(WeightMatrix(table)).value(),
                   .ids = places,
                   .out = out.view(),
                   .chosen = {lying->data(), DType::kI32, Shape{4}}});
  ExpectSameBits(out.Read(), RunEmbed(ref(), table, std::vector<int32_t>{2, 5, 0, 5, 0}));
}

// Scaled, and with a learned position each.
TEST_P(Elementwise, EmbedWithPositions) {
  if (!backend().Has(Feature::kLearnedPositions)) GTEST_SKIP() << "the backend has none";
  ForSeeds(20, [&](Random& random) {
    const int64_t dim = 32 * random.Between(1, 3);
    const Floats values = random.Normal(random.Between(1, 60) * dim);
    const Shape shape{static_cast<int64_t>(values.size()) / dim, dim};
    const ConstTensorView host_table(values.data(), DType::kF32, shape);
    const std::vector<std::byte> places = RandomBlocks(DType::kQ8_0, {random.Between(1, 40), dim}, random.rng());
    const ConstTensorView host_places(places.data(), DType::kQ8_0,
                                      {static_cast<int64_t>(places.size()) / BytesOf(DType::kQ8_0, dim), dim});
    const int64_t num_rows = random.NumRows();
    const std::vector<int32_t> ids = random.Indices(num_rows, shape[0]);
    const std::vector<int32_t> positions = random.Indices(num_rows, host_places.shape[0]);
    const Held out = Held::Poisoned(backend(), {num_rows, dim});
    backend().Embed({.table = backend().AdoptWeights(host_table).value(),
                     .ids = ids,
                     .out = out.view(),
                     .scale = 5.5f,
                     .positions = backend().AdoptWeights(host_places).value(),
                     .position_ids = positions});
    const Floats at_positions = RunEmbed(backend(), host_places, positions);  // of blocks as the backend unpacks them
    const Floats found = out.Read();
    for (size_t i = 0; i < found.size(); ++i) {
      const auto row = i / static_cast<size_t>(dim);
      const float token = values[static_cast<size_t>(ids[row] * dim) + i % static_cast<size_t>(dim)];
      ASSERT_NEAR(found[i], 5.5f * token + at_positions[i], 1e-5) << "element " << i;
    }
  });
}

// To the last digit; packing does not keep the sign of a zero.
TEST_P(Elementwise, EmbedOfBlockFormats) {
  for (const DType dtype : BlockFormatsOf(backend().name())) {
    SCOPED_TRACE(NameOf(dtype));
    ForSeeds(6, [&](Random& random) {
      const Shape shape{random.Between(1, 40), BlockElements(dtype) * random.Between(1, 3)};
      const std::vector<std::byte> table = RandomBlocks(dtype, shape, random.rng());
      const ConstTensorView view(table.data(), dtype, shape);
      const std::vector<int32_t> ids = random.Indices(random.NumRows(), shape[0]);
      const Floats expected = RunEmbed(ref(), view, ids);
      ExpectNear(RunEmbed(backend(), view, ids), expected, [](size_t) { return 0.0; });
    });
  }
}

// `ref` against itself shows no more than that the cases are sound: it is the first.
INSTANTIATE_TEST_SUITE_P(Backends, Elementwise, testing::Range(size_t{0}, AllBackends().size()),
                         [](const auto& param) { return AllBackends()[param.param].name; });

}  // namespace
}  // namespace headwise
