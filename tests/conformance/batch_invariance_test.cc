// Backends that promise it: the bits of a row do not depend on how many rows it is computed with.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <string>
#include <utility>

#include "support/backends.h"
#include "support/random_attention.h"
#include "support/random_blocks.h"
#include "tensor/blocks.h"

namespace headwise {
namespace {

std::vector<NamedBackend> InvariantBackends() {
  std::vector<NamedBackend> backends = CpuBackends(/*batch_invariant=*/true);
  backends.insert(backends.begin(), NamedBackend{"ref", MakeRefBackend()});
  return backends;
}

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

std::vector<float> Normal(int64_t count, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(rng);
  return values;
}

// ---- products -------------------------------------------------------------------------------------------------------

// One call's weights in host memory, a matrix for each part.
struct Weights {
  Weights(const std::vector<DType>& formats, int64_t num_outputs, int64_t depth, std::mt19937& rng) {
    for (const DType format : formats) {
      const Shape shape{num_outputs, depth};
      if (IsBlockFormat(format)) {
        bytes.push_back(RandomBlocks(format, shape, rng));
      } else {
        const std::vector<float> values = Normal(shape.num_elements(), rng);
        bytes.emplace_back(static_cast<size_t>(BytesOf(format, shape.num_elements())));
        FromF32(format, values.data(), shape.num_elements(), bytes.back().data());
      }
      matrices.emplace_back(ConstTensorView(bytes.back().data(), format, shape));
      biases.push_back(Normal(num_outputs, rng));
    }
  }
  std::deque<std::vector<std::byte>> bytes;
  std::vector<WeightMatrix> matrices;
  std::vector<std::vector<float>> biases;
};

struct ProductCase {
  std::vector<DType> formats;
  int64_t num_outputs;
  int64_t depth;
  Compute compute;
  MatMulArgs::Write write = MatMulArgs::Write::kStore;
};

// Rows [begin, end) of x times the weights: [parts][rows, outputs], all behind each other.
std::vector<float> Products(Backend& backend, const ProductCase& drawn, const std::vector<WeightMatrix>& adopted,
                            const Weights& weights, const std::vector<float>& x, int64_t begin, int64_t end) {
  const int64_t part_floats = (end - begin) * drawn.num_outputs;
  std::vector<float> out(drawn.formats.size() * static_cast<size_t>(part_floats), 0.25f);
  std::vector<MatMulPart> parts;
  for (size_t i = 0; i < adopted.size(); ++i) {
    parts.push_back({.weight = adopted[i],
                     .bias = ConstTensorView(weights.biases[i].data(), DType::kF32, {drawn.num_outputs}),
                     .out = {.data = out.data() + static_cast<int64_t>(i) * part_floats,
                             .dtype = DType::kF32,
                             .shape = {end - begin, drawn.num_outputs}}});
  }
  backend.MatMul({.x = ConstTensorView(x.data() + begin * drawn.depth, DType::kF32, {end - begin, drawn.depth}),
                  .parts = parts,
                  .write = drawn.write,
                  .compute = drawn.compute});
  EXPECT_TRUE(backend.device().Wait().ok());
  return out;
}

// Whether all of 110 rows have the bits of steps of fewer.
bool RowsAreAlike(Backend& backend, const ProductCase& drawn, std::mt19937& rng) {
  constexpr int64_t kRows = 110;
  const Weights weights(drawn.formats, drawn.num_outputs, drawn.depth, rng);
  std::vector<WeightMatrix> adopted;
  for (const WeightMatrix& matrix : weights.matrices) adopted.push_back(*backend.AdoptWeights(matrix));
  const std::vector<float> x = Normal(kRows * drawn.depth, rng);
  const std::vector<float> all = Products(backend, drawn, adopted, weights, x, 0, kRows);
  int64_t begin = 0;
  for (const int64_t num_rows : {1, 2, 1, 8, 9, 3, 33, 13, 40}) {
    const std::vector<float> some = Products(backend, drawn, adopted, weights, x, begin, begin + num_rows);
    for (size_t part = 0; part < adopted.size(); ++part) {
      const auto rows_of = [&](const std::vector<float>& out, int64_t first_row, int64_t rows) {
        return std::span(out).subspan(
            static_cast<size_t>((static_cast<int64_t>(part) * rows + first_row) * drawn.num_outputs),
            static_cast<size_t>(num_rows * drawn.num_outputs));
      };
      if (!SameBits(rows_of(some, 0, num_rows), rows_of(all, begin, kRows))) return false;
    }
    begin += num_rows;
  }
  EXPECT_EQ(begin, kRows);
  return true;
}

std::vector<DType> AllFormats() {
  std::vector<DType> formats(std::begin(kBlockFormats), std::end(kBlockFormats));
  for (const DType plain : {DType::kF32, DType::kF16, DType::kBF16}) formats.push_back(plain);
  return formats;
}

TEST(BatchInvariance, ProductsOfFewAndOfManyRows) {
  for (const NamedBackend& named : InvariantBackends()) {
    ASSERT_TRUE(named.backend->is_batch_invariant());
    std::mt19937 rng(1);
    for (const DType format : AllFormats()) {
      for (const Compute compute : ComputesOf(*named.backend)) {
        // Longer and shorter than the blocks of K, and not whole ones; a tile of outputs, and what is left of one.
        for (const int64_t depth : {256, 2304}) {
          if (named.name == "ref" && depth > 256) continue;
          const auto write = depth == 256 ? MatMulArgs::Write::kStore : MatMulArgs::Write::kAdd;
          EXPECT_TRUE(RowsAreAlike(*named.backend, {{format}, 85, depth, compute, write}, rng))
              << named.name << " " << NameOf(format) << " " << NameOf(compute) << " K " << depth;
        }
      }
    }
  }
}

// A .gguf file may have both in one layer.
TEST(BatchInvariance, ProductsOfPlainAndBlockFormatsInOneCall) {
  for (const NamedBackend& named : InvariantBackends()) {
    std::mt19937 rng(2);
    for (const Compute compute : ComputesOf(*named.backend)) {
      EXPECT_TRUE(RowsAreAlike(*named.backend, {{DType::kQ8_0, DType::kF16, DType::kQ6_K}, 40, 256, compute}, rng))
          << named.name << " " << NameOf(compute);
    }
  }
}

// Each of the tests here can fail: backends that promise nothing differ.
TEST(BatchInvariance, OthersTakeWhatIsFastest) {
  for (const NamedBackend& named : CpuBackends()) {
    EXPECT_FALSE(named.backend->is_batch_invariant());
    std::mt19937 rng(3);
    for (const DType format : AllFormats()) {
      EXPECT_FALSE(RowsAreAlike(*named.backend, {{format}, 85, 2304, Compute::kF32}, rng))
          << named.name << " " << NameOf(format);
    }
  }
}

// ---- attention ------------------------------------------------------------------------------------------------------

std::vector<float> Attended(Backend& backend, const AttentionCase& test_case, const std::vector<int64_t>& chunks) {
  const AttentionData data(test_case);
  return RunAttention(backend, test_case, data, chunks, [](const KvCache&, const KvPools&) {});
}

// Token by token, but for the ends of prompts.
std::vector<int64_t> SingleTokens(const AttentionCase& test_case) {
  return std::vector<int64_t>(static_cast<size_t>(test_case.num_tokens), 1);
}

AttentionCase RandomCase(std::mt19937_64& rng, int64_t num_tokens) {
  AttentionCase test_case;
  test_case.num_tokens = num_tokens;
  test_case.seed = rng();
  constexpr KvFormat kFormats[] = {KvFormat::kF32, KvFormat::kF16, KvFormat::kBF16, KvFormat::kQ8};
  test_case.kv_formats = {kFormats[rng() % 4], kFormats[rng() % 4]};
  constexpr Compute kComputes[] = {Compute::kF32, Compute::kBF16, Compute::kInt8};
  test_case.compute = kComputes[rng() % 3];
  test_case.head_dim = rng() % 3 == 0 ? 40 : 64;
  test_case.num_q_heads = test_case.num_kv_heads * (1 + static_cast<int64_t>(rng() % 5));
  test_case.alibi = rng() % 4 == 0;
  test_case.sink_logits = rng() % 3 == 0;
  test_case.score_cap = !test_case.alibi && rng() % 4 == 0 ? 3.0f : 0.0f;
  for (int64_t h = 0; h < test_case.num_kv_heads; ++h) test_case.rules.push_back(RandomRule(rng, num_tokens));
  test_case.poisons_pages = std::ranges::all_of(
      test_case.rules, [](const ResolvedRule& rule) { return rule.holds_from == 0 && !rule.compensate; });
  return test_case;
}

TEST(BatchInvariance, AttentionOfTokensAndOfChunks) {
  std::mt19937_64 rng(4);
  for (int i = 0; i < 30; ++i) {
    const AttentionCase test_case = RandomCase(rng, 30 + static_cast<int64_t>(rng() % 300));
    for (const NamedBackend& named : InvariantBackends()) {
      if (named.name == "ref" && i % 5 != 0) continue;
      const std::vector<float> single = Attended(*named.backend, test_case, SingleTokens(test_case));
      for (const int64_t max_chunk : {3, 70, 400}) {
        ASSERT_TRUE(SameBits(Attended(*named.backend, test_case, RandomChunks(rng, test_case, max_chunk)), single))
            << named.name << " case " << i << " chunks up to " << max_chunk;
      }
    }
  }
}

// Texts of several pieces, windows around the length of one, sinks of several groups and of several pieces.
TEST(BatchInvariance, AttentionOverSeveralPieces) {
  constexpr int64_t kTokens = 2600;
  ResolvedRule wide, narrow, long_sinks, cached;
  wide.recent = 1500;
  wide.sink = 20;
  narrow.recent = 1000;
  narrow.sink = 24;
  long_sinks.recent = 100;
  long_sinks.sink = 1100;
  cached.recent = 700;
  cached.sink = 64;
  cached.positions = Positions::kCache;
  cached.compensate = true;
  for (const KvFormat format : {KvFormat::kF16, KvFormat::kQ8}) {
    AttentionCase test_case;
    test_case.num_tokens = kTokens;
    test_case.num_kv_heads = 5;
    test_case.num_q_heads = 5;
    test_case.head_dim = 16;
    test_case.kv_formats = {format, format};
    test_case.rules = {ResolvedRule{}, wide, narrow, long_sinks, cached};
    for (const NamedBackend& named : CpuBackends(/*batch_invariant=*/true)) {
      const std::vector<float> single = Attended(*named.backend, test_case, SingleTokens(test_case));
      for (const std::vector<int64_t>& chunks : {std::vector<int64_t>{2600}, std::vector<int64_t>{1000, 7, 1, 1592},
                                                 std::vector<int64_t>{1024, 1024, 552}}) {
        EXPECT_TRUE(SameBits(Attended(*named.backend, test_case, chunks), single))
            << named.name << " " << NameOf(format) << " chunks from " << chunks.front();
      }
    }
  }
}

TEST(BatchInvariance, OthersAttendAsIsFastest) {
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kF16, KvFormat::kQ8}) {
    AttentionCase test_case;
    test_case.num_tokens = 200;
    test_case.kv_formats = {format, format};
    test_case.rules = {ResolvedRule{}, ResolvedRule{}};
    for (const NamedBackend& named : CpuBackends()) {
      EXPECT_FALSE(SameBits(Attended(*named.backend, test_case, {200}),
                            Attended(*named.backend, test_case, SingleTokens(test_case))))
          << named.name << " " << NameOf(format);
    }
  }
}

// ---- what cannot ----------------------------------------------------------------------------------------------------

TEST(BatchInvariance, BackendsThatCannotAreRefused) {
  const auto cuda = MakeBackend({.name = "cuda", .batch_invariant = true});
  ASSERT_FALSE(cuda.ok());
  EXPECT_NE(cuda.status().message().find("cuda: cannot be batch-invariant"), std::string::npos);
  const auto any = MakeBackend({.name = "auto", .batch_invariant = true});
  ASSERT_TRUE(any.ok()) << any.status().message();
  EXPECT_EQ((*any)->name(), "cpu");
}

}  // namespace
}  // namespace headwise
