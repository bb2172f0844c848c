// A decoding step as a layer has it, a product that makes queries, keys and values, their rotation, appending,
// attention and the product of its outputs, on every backend: a backend may do some of it at once, and must give the
// same bits as one behind the other, now and when later tokens read what was appended.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "support/backends.h"
#include "support/random_attention.h"
#include "support/random_blocks.h"
#include "support/random_rows.h"
#include "support/tolerance.h"
#include "tensor/blocks.h"

namespace headwise {
namespace {

// Outputs of the product behind attention.
constexpr int64_t kDim = 600;
// Enough that a backend which replays steps it knows does.
constexpr int64_t kNumSteps = 6;

// Random texts that decode together.
struct Batch {
  AttentionCase layer;               // num_tokens is not used
  std::vector<int64_t> lengths;      // before the first step
  std::vector<Floats> keys, values;  // [length, Hkv D] of each
  int64_t depth = 96;
  Compute products = Compute::kF32;
  Floats x;                     // [steps, B, depth]
  std::vector<Floats> weights;  // of q, k and v, [heads D, depth], and of the product behind, [kDim, Hq D]
  DType format_behind = DType::kBF16;
  std::vector<std::byte> blocks;  // in place of the last one, where its format is one of blocks

  int64_t num_rows() const { return std::ssize(lengths); }
};

// The numbers that weights of the product behind attention hold.
Floats WeightsBehind(const Batch& batch) {
  const Floats& values = batch.weights[3];
  const auto size = static_cast<int64_t>(values.size());
  std::vector<std::byte> bytes = batch.blocks;
  if (bytes.empty()) {
    bytes.resize(BytesOf(batch.format_behind, size));
    FromF32(batch.format_behind, values.data(), size, bytes.data());
  }
  Floats held(values.size());
  ToF32(batch.format_behind, bytes.data(), size, held.data());
  return held;
}

// What the products read.
void DrawRows(Batch& batch, Random& random) {
  const AttentionCase& layer = batch.layer;
  batch.x = random.Normal(kNumSteps * batch.num_rows() * batch.depth);
  for (const int64_t num_heads : {layer.num_q_heads, layer.num_kv_heads, layer.num_kv_heads}) {
    batch.weights.push_back(random.Uniform(num_heads * layer.head_dim * batch.depth,
                                           std::sqrt(3.0f / static_cast<float>(batch.depth))));  // outputs of 1, nearly
  }
  batch.weights.push_back(random.Uniform(kDim * layer.num_q_heads * layer.head_dim, 0.1f));
}

// Products with weights in block formats: rows of x, 32 numbers at a time, as bytes.
Batch RandomBatch(Random& random, bool are_bytes = false) {
  Batch batch;
  AttentionCase& layer = batch.layer;
  constexpr int64_t kDims[] = {64, 128, 128, 32, 256};
  layer.head_dim = kDims[random.Between(0, 4)];
  layer.num_kv_heads = random.Between(1, 3);
  layer.num_q_heads = layer.num_kv_heads * random.Between(1, 8);
  layer.page_tokens = random.Coin() ? 32 : 64;
  constexpr KvFormat kKvFormats[] = {KvFormat::kBF16, KvFormat::kF16, KvFormat::kQ8, KvFormat::kQ4};
  const KvFormat format = kKvFormats[random.Between(0, 3)];
  layer.kv_formats = {format, random.Between(0, 4) == 0 ? kKvFormats[random.Between(0, 3)] : format};
  layer.compute = random.Coin() ? Compute::kBF16 : Compute::kF32;
  if (are_bytes) {
    layer.compute = batch.products = Compute::kInt8;
    if (random.Between(0, 2) > 0) {
      layer.num_kv_heads = 4;
      layer.num_q_heads = 4 * random.Between(1, 4);
    }
    const bool has_large_blocks = layer.num_q_heads * layer.head_dim % 256 == 0;
    constexpr DType kFormats[] = {DType::kQ8_0, DType::kQ4_0, DType::kQ4_K, DType::kQ6_K};
    batch.format_behind = kFormats[random.Between(0, has_large_blocks ? 3 : 1)];
    batch.blocks = RandomBlocks(batch.format_behind, {kDim, layer.num_q_heads * layer.head_dim}, random.rng());
  }
  for (int64_t i = 0; i < layer.num_kv_heads; ++i) {
    const bool is_full = random.Coin();
    layer.rules.push_back(
        ResolveRule(is_full ? HeadRule::Full() : HeadRule::Stream(random.Between(0, 80), random.Between(1, 90)), {}));
  }
  const int64_t kv_dim = layer.num_kv_heads * layer.head_dim;
  for (int64_t i = random.Between(1, 9); i > 0; --i) {
    // Nothing, a page's end, or so much that a head is cut.
    const int64_t kind = random.Between(0, 3);
    batch.lengths.push_back(kind == 0   ? 0
                            : kind == 1 ? 64 * random.Between(1, 4) - random.Between(0, 2)
                                        : random.Between(1, kind == 2 ? 100 : 2500));
    batch.keys.push_back(random.Normal(batch.lengths.back() * kv_dim));
    batch.values.push_back(random.Normal(batch.lengths.back() * kv_dim));
  }
  DrawRows(batch, random);
  return batch;
}

struct ManySizes {
  int64_t num_rows = 0;
  int64_t head_dim = 128;
  int64_t num_kv_heads = 4;
  int64_t group = 4;      // query heads of a KV head
  int64_t longest = 200;  // text before the first step, in tokens
  KvFormats formats = {KvFormat::kBF16, KvFormat::kBF16};
};
// So many that a device may have kernels of their own for their products, whose tiles its processors share, in a layer
// as such kernels want it.
Batch ManySequences(const ManySizes& sizes, Random& random, bool are_bytes = false) {
  Batch batch;
  batch.depth = 512;
  batch.products = Compute::kBF16;
  AttentionCase& layer = batch.layer;
  layer.head_dim = sizes.head_dim;
  layer.num_kv_heads = sizes.num_kv_heads;
  layer.num_q_heads = sizes.num_kv_heads * sizes.group;
  layer.page_tokens = 64;
  layer.kv_formats = sizes.formats;
  layer.compute = Compute::kBF16;
  if (are_bytes) {
    layer.compute = batch.products = Compute::kInt8;
    batch.format_behind = DType::kQ8_0;
    batch.blocks = RandomBlocks(DType::kQ8_0, {kDim, layer.num_q_heads * sizes.head_dim}, random.rng());
  }
  for (int64_t i = 0; i < layer.num_kv_heads; ++i) {
    layer.rules.push_back(ResolveRule(i % 2 == 0 ? HeadRule::Full() : HeadRule::Stream(4, 40), {}));
  }
  const int64_t kv_dim = layer.num_kv_heads * sizes.head_dim;
  for (int64_t i = 0; i < sizes.num_rows; ++i) {
    batch.lengths.push_back(random.Between(1, sizes.longest));
    batch.keys.push_back(random.Normal(batch.lengths.back() * kv_dim));
    batch.values.push_back(random.Normal(batch.lengths.back() * kv_dim));
  }
  DrawRows(batch, random);
  return batch;
}

void ReadText(Backend& backend, const KvPools& pools, const Batch& batch, size_t i, KvCache& cache) {
  if (batch.lengths[i] == 0) return;
  const Shape shape{batch.lengths[i], batch.layer.num_kv_heads * batch.layer.head_dim};
  const Held k(backend, shape, batch.keys[i]);
  const Held v(backend, shape, batch.values[i]);
  CacheStep step(backend, pools);
  ASSERT_TRUE(cache.PlanStep(batch.lengths[i]).ok());
  step.Add(cache);
  step.Begin();
  CacheLayerArgs args;
  args.k = k.view();
  args.v = v.view();
  step.RunLayer(0, args);
  step.Finish();
  ASSERT_TRUE(backend.device().Wait().ok());
}

struct Outputs {
  Floats attention;  // [steps, B, Hq D]
  Floats behind;     // [steps, B, kDim]
  Floats queries;    // as attention of the last step left them
};

// `is_apart`: another operation stands between a product and the rotation, and between attention and a product.
Outputs Decode(Backend& backend, const Batch& batch, bool is_apart) {
  const AttentionCase& layer = batch.layer;
  const int64_t num_rows = batch.num_rows();
  const int64_t q_dim = layer.num_q_heads * layer.head_dim;
  const int64_t kv_dim = layer.num_kv_heads * layer.head_dim;
  const KvPoolSet pools(backend,
                        {.head_dim = layer.head_dim, .page_tokens = layer.page_tokens, .formats = layer.kv_formats});
  std::deque<KvCache> caches;
  for (size_t i = 0; i < batch.lengths.size(); ++i) {
    ReadText(backend, pools.pools(), batch, i, caches.emplace_back(pools.pools(), layer.num_kv_heads, layer.rules));
  }
  std::vector<WeightMatrix> weights;
  for (size_t i = 0; i < batch.weights.size(); ++i) {
    weights.push_back(AdoptedMatrix(backend, DType::kBF16, batch.weights[i], i < 3 ? batch.depth : q_dim));
  }
  if (!batch.blocks.empty()) {
    weights[3] = backend.AdoptWeights(ConstTensorView(batch.blocks.data(), batch.format_behind, {kDim, q_dim})).value();
  }
  const std::vector<double> frequencies = AttentionData(layer).frequencies;
  const Held x = Held::Poisoned(backend, {num_rows, batch.depth});
  const Held q = Held::Poisoned(backend, {num_rows, q_dim});
  const Held k = Held::Poisoned(backend, {num_rows, kv_dim});
  const Held v = Held::Poisoned(backend, {num_rows, kv_dim});
  const Held out = Held::Poisoned(backend, {num_rows, q_dim});
  const Held behind = Held::Poisoned(backend, {num_rows, kDim});
  const Held angle_table = Held::Poisoned(backend, {num_rows, layer.head_dim / 2, 2});
  CacheStep step(backend, pools.pools());
  Outputs outputs;
  for (int64_t i = 0; i < kNumSteps; ++i) {
    const auto* row = batch.x.data() + i * num_rows * batch.depth;
    x.Write(Floats(row, row + num_rows * batch.depth));
    for (const Held* written : {&q, &k, &v, &out, &behind}) written->Poison();
    Floats angles;
    std::vector<int32_t> angle_rows;
    for (const int64_t length : batch.lengths) {
      angle_rows.push_back(static_cast<int32_t>(angle_rows.size()));
      AppendRopeAngles(frequencies, 1.0, length + i, angles);
    }
    angle_table.Write(angles);
    for (KvCache& cache : caches) {
      EXPECT_TRUE(cache.PlanStep(1).ok());
      step.Add(cache);
    }
    step.Begin();
    const MatMulPart parts[] = {{.weight = weights[0], .bias = {}, .out = q.view()},
                                {.weight = weights[1], .bias = {}, .out = k.view()},
                                {.weight = weights[2], .bias = {}, .out = v.view()}};
    backend.Linear({.product = {.x = x.view(), .parts = parts, .compute = batch.products}});
    if (is_apart) backend.Clamp({.x = v.view(), .limit = 1e30f});
    RopeArgs of_q{.x = q.view(), .out = q.view(), .angles = angle_table.view(), .rows = angle_rows};
    of_q.num_heads = layer.num_q_heads;
    of_q.head_dim = layer.head_dim;
    RopeArgs of_k = of_q;
    of_k.x = of_k.out = k.view();
    of_k.num_heads = layer.num_kv_heads;
    const RopeArgs ropes[] = {of_q, of_k};
    CacheLayerArgs args;
    args.k = k.view();
    args.v = v.view();
    args.ropes = ropes;
    args.q = q.view();
    args.out = out.view();
    args.num_q_heads = layer.num_q_heads;
    args.scale = 1.0f / std::sqrt(static_cast<float>(layer.head_dim));
    args.compute = layer.compute;
    step.RunLayer(0, args);
    if (is_apart) backend.Clamp({.x = out.view(), .limit = 1e30f});
    const MatMulPart of_outputs{.weight = weights[3], .bias = {}, .out = behind.view()};
    backend.Linear({.product = {.x = out.view(), .parts = {&of_outputs, 1}, .compute = batch.products}});
    step.Finish();
    Floats read = out.Read();
    outputs.attention.insert(outputs.attention.end(), read.begin(), read.end());
    read = behind.Read();
    outputs.behind.insert(outputs.behind.end(), read.begin(), read.end());
    outputs.queries = q.Read();
  }
  return outputs;
}

// Of the last step, which a backend that replays steps has replayed: the product behind attention is what float64 makes
// of the attention that was found.
void ExpectProductsOfAttention(const Batch& batch, const Outputs& found) {
  const auto depth = static_cast<size_t>(batch.layer.num_q_heads * batch.layer.head_dim);
  const auto num_rows = static_cast<size_t>(batch.num_rows());
  const Floats weight = WeightsBehind(batch);
  const auto x = std::span(found.attention).last(num_rows * depth);
  const auto behind = std::span(found.behind).last(num_rows * kDim);
  // Of each term: x is rounded to 8 bits where that is asked for, and sums lose a bit of f32 at every addition, at
  // worst. Of bytes a step is 1/127 of the largest of 32 numbers, and formats with minima add and take away terms of up
  // to 16 times the weight.
  const bool are_bytes = IsBlockFormat(batch.format_behind);
  const double share =
      (batch.products == Compute::kBF16 ? 0x1p-9 : 0) + (are_bytes ? 16 : 1) * static_cast<double>(depth) * 0x1p-23;
  std::vector<double> half_steps(x.size(), 0);
  for (size_t run = 0; are_bytes && run < x.size(); run += 32) {
    float largest = 0;
    for (const float number : x.subspan(run, 32)) largest = std::max(largest, std::abs(number));
    std::fill_n(half_steps.begin() + static_cast<int64_t>(run), 32, static_cast<double>(largest) / 254);
  }
  for (size_t row = 0; row < num_rows; ++row) {
    for (size_t output = 0; output < kDim; ++output) {
      double expected = 0, magnitudes = 0, rounding = 0;
      for (size_t k = 0; k < depth; ++k) {
        const double term = static_cast<double>(x[row * depth + k]) * static_cast<double>(weight[output * depth + k]);
        expected += term;
        magnitudes += std::abs(term);
        rounding += half_steps[row * depth + k] * std::abs(static_cast<double>(weight[output * depth + k]));
      }
      ASSERT_NEAR(behind[row * kDim + output], expected, share * magnitudes + 1.001 * rounding)
          << "row " << row << " output " << output;
    }
  }
}

void ExpectTheSameOnTheWayAndApart(const Batch& batch) {
  const Outputs expected = Decode(*MakeRefBackend(), batch, true);
  for (const NamedBackend& named : AllBackends()) {
    SCOPED_TRACE(named.name);
    const Outputs together = Decode(*named.backend, batch, false);
    const Outputs apart = Decode(*named.backend, batch, true);
    ASSERT_NO_FATAL_FAILURE(ExpectSameBits(together.attention, apart.attention));
    ASSERT_NO_FATAL_FAILURE(ExpectSameBits(together.behind, apart.behind));
    // Three times what attention may differ by alone: queries, keys and values come from a product here.
    const Compute products = batch.layer.compute == Compute::kF32 ? Compute::kF32 : Compute::kBF16;
    const double tolerance = 3 * AttentionTolerance(batch.layer.kv_formats, products);
    ASSERT_NO_FATAL_FAILURE(ExpectNear(together.attention, expected.attention, [&](size_t) { return tolerance; }));
    ASSERT_NO_FATAL_FAILURE(ExpectProductsOfAttention(batch, together));
  }
}

TEST(DecodeAppend, IsTheSameOnTheWayAndApart) {
  Random random(5);
  for (int i = 0; i < 40 && !testing::Test::HasFatalFailure(); ++i) {
    SCOPED_TRACE(i);
    ExpectTheSameOnTheWayAndApart(RandomBatch(random));
  }
}

TEST(DecodeAppend, IsTheSameBeforeWeightsInBlocks) {
  Random random(8);
  for (int i = 0; i < 40 && !testing::Test::HasFatalFailure(); ++i) {
    SCOPED_TRACE(i);
    ExpectTheSameOnTheWayAndApart(RandomBatch(random, /*are_bytes=*/true));
  }
}

TEST(DecodeAppend, IsTheSameOfManySequences) {
  Random random(7);
  for (const int64_t num_rows : {33, 64}) {
    SCOPED_TRACE(num_rows);
    ExpectTheSameOnTheWayAndApart(ManySequences({.num_rows = num_rows, .head_dim = num_rows == 33 ? 64 : 128}, random));
  }
  ExpectTheSameOnTheWayAndApart(ManySequences({.num_rows = 40, .head_dim = 64}, random, /*are_bytes=*/true));
}

// Of which each processor of a device has several, one behind the other.
TEST(DecodeAppend, IsTheSameOfManyShortHeads) {
  Random random(9);
  for (const KvFormat full : {KvFormat::kF16, KvFormat::kQ8, KvFormat::kQ4}) {
    SCOPED_TRACE(NameOf(full));
    const KvFormat bounded = full == KvFormat::kF16 ? full : KvFormat::kQ8;
    ExpectTheSameOnTheWayAndApart(ManySequences(
        {.num_rows = 64, .head_dim = 64, .num_kv_heads = 16, .group = 1, .longest = 70, .formats = {full, bounded}},
        random));
  }
}

// Rows of zeros, rows whose scale is a number of few bits in f16, and rows whose scale is none there.
TEST(DecodeAppend, IsTheSameOfRowsWithoutCodes) {
  Random random(10);
  Batch batch = ManySequences({.num_rows = 3, .group = 1, .formats = {KvFormat::kQ8, KvFormat::kQ8}}, random);
  const int64_t head_numbers = batch.layer.head_dim * batch.depth;
  const auto scale_head = [&](Floats& weights, int64_t head, float factor) {
    for (float& weight :
         std::span(weights).subspan(static_cast<size_t>(head * head_numbers), static_cast<size_t>(head_numbers))) {
      weight *= factor;
    }
  };
  Floats& keys = batch.weights[1];
  Floats& values = batch.weights[2];
  scale_head(keys, 0, 0.0f);
  scale_head(values, 1, 0.0f);
  scale_head(values, 2, 1e-5f);
  scale_head(values, 3, 1e9f);
  for (const NamedBackend& named : AllBackends()) {
    SCOPED_TRACE(named.name);
    const Floats together = Decode(*named.backend, batch, false).attention;
    const Floats apart = Decode(*named.backend, batch, true).attention;
    ASSERT_EQ(together.size(), apart.size());
    bool has_nan = false;
    for (size_t i = 0; i < apart.size(); ++i) {
      has_nan = has_nan || std::isnan(apart[i]);
      if (std::isnan(apart[i]) && std::isnan(together[i])) continue;
      ASSERT_EQ(std::bit_cast<uint32_t>(together[i]), std::bit_cast<uint32_t>(apart[i])) << "number " << i;
    }
    EXPECT_TRUE(has_nan) << "the largest values were to have no scale";
  }
}

// Without which the tests above would compare a thing with itself.
TEST(DecodeAppend, OnAGpuAttentionDoesItOnTheWay) {
  if (!IsTestDevice("cuda")) GTEST_SKIP() << "for HEADWISE_TEST_DEVICE=cuda";
  Random random(6);
  const NamedBackend named = std::move(AllBackends()[0]);
  for (const KvFormats& formats : {KvFormats{KvFormat::kF16, KvFormat::kF16}, KvFormats{KvFormat::kQ8, KvFormat::kQ8},
                                   KvFormats{KvFormat::kQ4, KvFormat::kBF16}}) {
    for (const int64_t head_dim : {64, 128}) {
      Batch batch = RandomBatch(random);
      while (batch.layer.head_dim != head_dim) batch = RandomBatch(random);
      batch.layer.kv_formats = formats;
      const Outputs together = Decode(*named.backend, batch, false);
      const Outputs apart = Decode(*named.backend, batch, true);
      EXPECT_NE(together.queries, apart.queries) << "rotated queries were written";
    }
  }
}

}  // namespace
}  // namespace headwise
