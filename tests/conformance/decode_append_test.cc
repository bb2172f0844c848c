// A decoding step as a layer has it, a product that makes queries, keys and values, their rotation, appending and
// attention, on every backend: a backend may do some of it at once, and must give the same bits as one behind the
// other, now and when later tokens read what was appended.
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <vector>

#include "support/backends.h"
#include "support/random_attention.h"
#include "support/random_rows.h"
#include "support/tolerance.h"

namespace headwise {
namespace {

constexpr int64_t kDepth = 96;
// Enough that a backend which replays steps it knows does.
constexpr int64_t kNumSteps = 6;

// Random texts that decode together.
struct Batch {
  AttentionCase layer;               // num_tokens is not used
  std::vector<int64_t> lengths;      // before the first step
  std::vector<Floats> keys, values;  // [length, Hkv D] of each
  Floats x;                          // [steps, B, kDepth]
  std::vector<Floats> weights;       // of q, k and v, [heads D, kDepth]

  int64_t num_rows() const { return std::ssize(lengths); }
};

Batch RandomBatch(Random& random) {
  Batch batch;
  AttentionCase& layer = batch.layer;
  constexpr int64_t kDims[] = {64, 128, 128, 32, 256};
  layer.head_dim = kDims[random.Between(0, 4)];
  layer.num_kv_heads = random.Between(1, 3);
  layer.num_q_heads = layer.num_kv_heads * random.Between(1, 8);
  layer.page_tokens = random.Coin() ? 32 : 64;
  const KvFormat format = random.Coin() ? KvFormat::kBF16 : KvFormat::kF16;
  layer.kv_formats = {format, random.Between(0, 4) == 0 ? KvFormat::kQ8 : format};
  layer.compute = random.Coin() ? Compute::kBF16 : Compute::kF32;
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
  batch.x = random.Normal(kNumSteps * batch.num_rows() * kDepth);
  for (const int64_t num_heads : {layer.num_q_heads, layer.num_kv_heads, layer.num_kv_heads}) {
    batch.weights.push_back(random.Uniform(num_heads * layer.head_dim * kDepth, 0.17f));  // outputs of 1, nearly
  }
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
  Floats queries;    // as attention of the last step left them
};

// `is_apart`: another operation stands between the product and the rotation.
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
  for (const Floats& values : batch.weights) weights.push_back(AdoptedMatrix(backend, DType::kBF16, values, kDepth));
  const std::vector<double> frequencies = AttentionData(layer).frequencies;
  const Held x = Held::Poisoned(backend, {num_rows, kDepth});
  const Held q = Held::Poisoned(backend, {num_rows, q_dim});
  const Held k = Held::Poisoned(backend, {num_rows, kv_dim});
  const Held v = Held::Poisoned(backend, {num_rows, kv_dim});
  const Held out = Held::Poisoned(backend, {num_rows, q_dim});
  const Held angle_table = Held::Poisoned(backend, {num_rows, layer.head_dim / 2, 2});
  CacheStep step(backend, pools.pools());
  Outputs outputs;
  for (int64_t i = 0; i < kNumSteps; ++i) {
    const auto* row = batch.x.data() + i * num_rows * kDepth;
    x.Write(Floats(row, row + num_rows * kDepth));
    for (const Held* written : {&q, &k, &v, &out}) written->Poison();
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
    backend.Linear({.product = {.x = x.view(), .parts = parts, .compute = Compute::kF32}});
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
    step.Finish();
    const Floats read = out.Read();
    outputs.attention.insert(outputs.attention.end(), read.begin(), read.end());
    outputs.queries = q.Read();
  }
  return outputs;
}

TEST(DecodeAppend, IsTheSameOnTheWayAndApart) {
  Random random(5);
  const auto ref = MakeRefBackend();
  for (int i = 0; i < 40; ++i) {
    SCOPED_TRACE(i);
    const Batch batch = RandomBatch(random);
    const Outputs expected = Decode(*ref, batch, true);
    for (const NamedBackend& named : AllBackends()) {
      SCOPED_TRACE(named.name);
      const Outputs together = Decode(*named.backend, batch, false);
      const Outputs apart = Decode(*named.backend, batch, true);
      ASSERT_NO_FATAL_FAILURE(ExpectSameBits(together.attention, apart.attention));
      // Three times what attention may differ by alone: queries, keys and values come from a product here.
      const double tolerance = 3 * AttentionTolerance(batch.layer.kv_formats, batch.layer.compute);
      ASSERT_NO_FATAL_FAILURE(ExpectNear(together.attention, expected.attention, [&](size_t) { return tolerance; }));
    }
  }
}

// Without which the test above would compare a thing with itself.
TEST(DecodeAppend, OnAGpuAttentionDoesItOnTheWay) {
  if (!IsTestDevice("cuda")) GTEST_SKIP() << "for HEADWISE_TEST_DEVICE=cuda";
  Random random(6);
  Batch batch = RandomBatch(random);
  while (batch.layer.head_dim != 128 || batch.layer.kv_formats.bounded == KvFormat::kQ8) batch = RandomBatch(random);
  const NamedBackend named = std::move(AllBackends()[0]);
  const Outputs together = Decode(*named.backend, batch, false);
  const Outputs apart = Decode(*named.backend, batch, true);
  EXPECT_NE(together.queries, apart.queries) << "rotated queries were written";
}

}  // namespace
}  // namespace headwise
