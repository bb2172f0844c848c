// Tokens drawn from logits: every backend the ids that tensor/token_draw.h says, bit for bit, and log-probabilities.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "support/backends.h"
#include "support/random_rows.h"
#include "tensor/logprobs.h"

namespace headwise {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

class DrawTokens : public testing::TestWithParam<size_t> {
 protected:
  Backend& backend() { return *backends_[GetParam()].backend; }

  // check(random) for so many seeds.
  template <typename Check>
  static void ForSeeds(uint32_t count, const Check& check) {
    for (uint32_t seed = 0; seed < count && !HasFatalFailure(); ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed);
      Random random(seed);
      check(random);
    }
  }

 private:
  std::vector<NamedBackend> backends_ = AllBackends();
};

struct Drawn {
  std::vector<int32_t> ids;
  int64_t num_top = -1;          // N
  Floats logprobs;               // [R, 1 + N]
  std::vector<int32_t> top_ids;  // [R, N]
};

std::vector<int32_t> AsIds(const Floats& floats) {
  std::vector<int32_t> ids(floats.size());
  std::memcpy(ids.data(), floats.data(), ids.size() * sizeof(int32_t));
  return ids;
}

Drawn Draw(Backend& backend, const Shape& shape, const Floats& logits, const std::vector<TokenDraw>& draws) {
  Drawn drawn;
  for (const TokenDraw& draw : draws) drawn.num_top = std::max(drawn.num_top, draw.num_top);
  const Held held(backend, shape, logits);
  const Held ids = Held::Poisoned(backend, {shape[0]});
  const Held logprobs = Held::Poisoned(backend, {shape[0], 1 + std::max<int64_t>(drawn.num_top, 0)});
  const Held top_ids = Held::Poisoned(backend, {shape[0], std::max<int64_t>(drawn.num_top, 1)});
  DrawTokensArgs args{.logits = held.view(), .draws = draws, .ids = ids.view()};
  args.ids.dtype = DType::kI32;
  if (drawn.num_top >= 0) args.logprobs = logprobs.view();
  if (drawn.num_top > 0) args.top_ids = top_ids.view();
  args.top_ids.dtype = DType::kI32;
  std::vector<int32_t> arrived(static_cast<size_t>(shape[0]), -2);
  void* const arriving = backend.device().Arriving(arrived.data(), arrived.size() * sizeof(int32_t));
  args.arriving_ids = {.data = arriving, .dtype = DType::kI32, .shape = {shape[0]}};
  backend.DrawTokens(args);
  drawn.ids = AsIds(ids.Read());
  if (arriving != nullptr) {
    EXPECT_EQ(arrived, drawn.ids);
  }
  drawn.logprobs = logprobs.Read();
  drawn.top_ids = AsIds(top_ids.Read());
  return drawn;
}

// Few values, so that many are equal: the first counts.
TEST_P(DrawTokens, GreedyIsTheFirstOfTheHighest) {
  ForSeeds(30, [&](Random& random) {
    const Shape shape{random.NumRows(), random.Between(1, 5000)};
    Floats x(static_cast<size_t>(shape.num_elements()));
    const int64_t num_values = random.Between(1, 3000);
    for (float& value : x) value = static_cast<float>(random.Between(-num_values, num_values));
    const std::vector<TokenDraw> draws(static_cast<size_t>(shape[0]));
    const std::vector<int32_t> found = Draw(backend(), shape, x, draws).ids;
    for (size_t row = 0; row < found.size(); ++row) {
      const auto begin = x.begin() + static_cast<std::ptrdiff_t>(row) * shape[1];
      ASSERT_EQ(found[row], std::max_element(begin, begin + shape[1]) - begin) << "row " << row;
    }
  });
}

// Rows that hold something else than finite numbers have none, wherever it stands, however they are drawn from.
TEST_P(DrawTokens, NoneOfWhatIsNoNumber) {
  ForSeeds(20, [&](Random& random) {
    const Shape shape{random.Between(3, 6), random.Between(1, 3000)};
    Floats x = random.Normal(shape.num_elements());
    for (int64_t row = 0; row < 3; ++row) {
      x[static_cast<size_t>(row * shape[1] + random.Between(0, shape[1] - 1))] = row == 0   ? kNan
                                                                                 : row == 1 ? kInf
                                                                                            : -kInf;
    }
    const TokenDraw draw{.temperature = static_cast<float>(random.Between(0, 1)), .num_top = 0};
    const std::vector<TokenDraw> draws(static_cast<size_t>(shape[0]), draw);
    const std::vector<int32_t> found = Draw(backend(), shape, x, draws).ids;
    for (size_t row = 0; row < found.size(); ++row) ASSERT_EQ(found[row] < 0, row < 3) << "row " << row;
  });
}

std::vector<LogitEdit> SomeEdits(Random& random, int64_t num_ids) {
  std::vector<LogitEdit> edits;
  for (int64_t id = random.Between(0, 20); id < num_ids; id += random.Between(1, 40)) {
    LogitEdit edit{.id = static_cast<int32_t>(id)};
    if (random.Between(0, 2) == 0) edit.bias = static_cast<float>(random.Between(-50, 50)) / 7;
    if (random.Between(0, 9) == 0) edit.bias = -kInf;
    if (random.Between(0, 1) == 0) edit.penalty = static_cast<float>(random.Between(1, 30)) / 9;
    if (random.Between(0, 1) == 0) edit.minus = static_cast<float>(random.Between(-20, 20)) / 3;
    edits.push_back(edit);
  }
  return edits;
}

TokenDraw SomeDraw(Random& random, int64_t num_ids, const std::vector<LogitEdit>& edits) {
  TokenDraw draw;
  if (random.Between(0, 6) > 0) draw.temperature = std::exp2(static_cast<float>(random.Between(-5, 4)));
  if (random.Between(0, 1) == 0) draw.top_k = random.Between(1, random.Between(0, 1) == 0 ? 50 : num_ids + 2);
  if (random.Between(0, 1) == 0) draw.top_p = static_cast<float>(random.Between(1, 1000)) / 1001;
  if (random.Between(0, 2) == 0) draw.min_p = static_cast<float>(random.Between(0, 1000)) / 1000;
  for (int i = 0; i < 4; ++i) draw.word = draw.word << 16 | static_cast<uint64_t>(random.Between(0, 65535));
  if (random.Between(0, 2) == 0) draw.edits = edits;
  if (random.Between(0, 1) == 0) draw.num_top = random.Between(-1, std::min(num_ids, kMaxDrawnTop));
  return draw;
}

// A row's log-probabilities are those of its logits as they came; the ids are the best ones, in order.
void ExpectLogprobs(const Drawn& drawn, size_t row, std::span<const float> logits, int64_t num_top) {
  Floats expected(static_cast<size_t>(1 + num_top));
  std::vector<int32_t> expected_ids(static_cast<size_t>(num_top));
  LogprobsOf(logits, drawn.ids[row], expected, expected_ids);
  const float* const logprobs = &drawn.logprobs[row * static_cast<size_t>(1 + drawn.num_top)];
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(logprobs[i], expected[i], 2e-6 * std::max(1.0F, std::abs(expected[i]))) << "row " << row << " at " << i;
  }
  for (size_t i = 0; i < expected_ids.size(); ++i) {
    ASSERT_EQ(drawn.top_ids[row * static_cast<size_t>(drawn.num_top) + i], expected_ids[i])
        << "row " << row << " at " << i;
  }
}

TEST_P(DrawTokens, DrawsWhatIsDefined) {
  ForSeeds(300, [&](Random& random) {
    const Shape shape{random.Between(1, 6),
                      random.Between(0, 3) > 0 ? random.Between(1, 3000) : random.Between(1, 140000)};
    Floats x = random.Normal(shape.num_elements());
    const float spread = std::exp2(static_cast<float>(random.Between(-3, 6)));
    const bool has_ties = random.Between(0, 2) == 0;
    for (float& value : x) value = has_ties ? std::round(spread * value) : spread * value;
    std::vector<std::vector<LogitEdit>> edits;
    for (int64_t row = 0; row < shape[0]; ++row) edits.push_back(SomeEdits(random, shape[1]));
    std::vector<TokenDraw> draws;
    for (const auto& each : edits) draws.push_back(SomeDraw(random, shape[1], each));
    const Drawn drawn = Draw(backend(), shape, x, draws);
    for (size_t row = 0; row < draws.size(); ++row) {
      const auto begin = x.begin() + static_cast<std::ptrdiff_t>(row) * shape[1];
      Floats edited(begin, begin + shape[1]);
      if (draws[row].num_top >= 0) ExpectLogprobs(drawn, row, edited, draws[row].num_top);
      EditLogits(edited, draws[row].edits);
      ASSERT_EQ(drawn.ids[row], DrawToken(edited, draws[row]))
          << "row " << row << " of " << shape.ToString() << ", temperature " << draws[row].temperature << ", top_k "
          << draws[row].top_k << ", top_p " << draws[row].top_p << ", min_p " << draws[row].min_p;
    }
  });
}

// Ids that are forbidden, forced, or all but one: what is infinite may come of an edit.
TEST_P(DrawTokens, EditsMayBeInfinite) {
  const Floats x = Random(5).Normal(3 * 2000);
  std::vector<LogitEdit> forced{{.id = 1500, .bias = kInf}, {.id = 70, .bias = kInf}};
  std::vector<LogitEdit> one_left, none_left;
  for (int32_t id = 0; id < 2000; ++id) {
    none_left.push_back({.id = id, .bias = -kInf});
    if (id != 1234) one_left.push_back({.id = id, .bias = -kInf});
  }
  for (const float temperature : {0.0F, 1.0F}) {
    const std::vector<TokenDraw> draws{{.temperature = temperature, .word = 77, .edits = forced},
                                       {.temperature = temperature, .word = 77, .edits = one_left},
                                       {.temperature = temperature, .word = 77, .edits = none_left}};
    EXPECT_EQ(Draw(backend(), {3, 2000}, x, draws).ids, (std::vector<int32_t>{70, 1234, 0}));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, DrawTokens, testing::Range(size_t{0}, AllBackends().size()),
                         [](const auto& param) { return AllBackends()[param.param].name; });

}  // namespace
}  // namespace headwise
