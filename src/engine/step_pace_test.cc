#include "engine/step_pace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace headwise {
namespace {

// A machine whose steps take what this says, in seconds.
struct Machine {
  double begin = 2e-3;
  double row = 1e-3;
  double token = 1e-4;
  double decode_gigabyte = 0.1;
  double prefill_terabyte = 0.05;

  double SecondsOf(const StepWork& work) const {
    return begin + row * work.decode_rows + token * work.prefill_tokens + decode_gigabyte * work.decode_reads / 1e9 +
           prefill_terabyte * work.prefill_reads / 1e12;
  }
};

constexpr double kTokenBytes = 1e5;

StepWork WorkOf(double rows, double row_tokens, double prefill_tokens, double prefill_from) {
  return {.decode_rows = rows,
          .prefill_tokens = prefill_tokens,
          .decode_reads = rows * row_tokens * kTokenBytes,
          .prefill_reads = prefill_tokens * (prefill_from + prefill_tokens / 2) * kTokenBytes};
}

TEST(StepPredictor, FindsWhatAStepCosts) {
  const Machine machine;
  StepPredictor predictor;
  EXPECT_EQ(predictor.Predict(WorkOf(3, 100, 512, 0)), 0);
  std::mt19937 rng(1);
  std::uniform_real_distribution<double> uniform;
  const auto any = [&] {
    return WorkOf(1 + 30 * uniform(rng), 4000 * uniform(rng), 512 * uniform(rng), 30000 * uniform(rng));
  };
  for (int i = 0; i < 200; ++i) {
    const StepWork work = any();
    predictor.Learn(work, machine.SecondsOf(work));
  }
  for (int i = 0; i < 50; ++i) {
    const StepWork work = any();
    EXPECT_NEAR(predictor.Predict(work) / machine.SecondsOf(work), 1, 0.02);
  }
}

// As a server has it: one text after the other gets longer, and now and then something else runs for a moment.
TEST(StepPredictor, NoiseChangesLittle) {
  const Machine machine;
  StepPredictor predictor;
  std::mt19937 rng(2);
  std::normal_distribution<double> normal;
  for (int i = 0; i < 300; ++i) {
    const StepWork work = WorkOf(8, 1000 + i, 32 * (1 + i % 10), 100 * i);
    const double noise = i % 20 == 19 ? 30 : std::max(0.5, 1 + 0.1 * normal(rng));
    predictor.Learn(work, machine.SecondsOf(work) * noise);
  }
  for (const double num_tokens : {64, 128, 256}) {
    const StepWork work = WorkOf(8, 1300, num_tokens, 30000);
    EXPECT_NEAR(predictor.Predict(work) / machine.SecondsOf(work), 1.05, 0.25) << num_tokens;
  }
}

TEST(StepPredictor, FollowsAMachineThatStaysSlow) {
  const Machine fast;
  StepPredictor predictor;
  const StepWork work = WorkOf(4, 500, 256, 1000);
  for (int i = 0; i < 100; ++i) predictor.Learn(work, fast.SecondsOf(work));
  for (int i = 0; i < 60; ++i) predictor.Learn(work, 10 * fast.SecondsOf(work));
  EXPECT_GT(predictor.Predict(work), 5 * fast.SecondsOf(work));
  for (int i = 0; i < 100; ++i) predictor.Learn(work, fast.SecondsOf(work));
  EXPECT_LT(predictor.Predict(work), 2 * fast.SecondsOf(work));
}

// An answer of many tokens must not make it forget what a prompt costs.
TEST(StepPredictor, RemembersPromptsOverLongAnswers) {
  const Machine machine;
  StepPredictor predictor;
  for (int i = 0; i < 60; ++i) {
    const StepWork work = WorkOf(2, 100, 64 * (1 + i % 8), 200 * i);
    predictor.Learn(work, machine.SecondsOf(work));
  }
  const StepWork prompt = WorkOf(2, 100, 512, 10000);
  const double before = predictor.Predict(prompt);
  for (int i = 0; i < 5000; ++i) {
    const StepWork work = WorkOf(2, 100 + i, 0, 0);
    predictor.Learn(work, machine.SecondsOf(work));
  }
  EXPECT_NEAR(predictor.Predict(prompt) / before, 1, 0.2);
}

TEST(PrefillWithin, TakesWhatFitsAndALeastShareInAnyCase) {
  const Machine machine;
  StepPredictor predictor;
  std::mt19937 rng(3);
  std::uniform_real_distribution<double> uniform;
  for (int i = 0; i < 200; ++i) {
    const StepWork work = WorkOf(8 * uniform(rng), 4000 * uniform(rng), 4096 * uniform(rng), 30000 * uniform(rng));
    predictor.Learn(work, machine.SecondsOf(work));
  }
  const auto budget = [&](double seconds, int64_t most, double rows, double from) {
    return PrefillWithin(seconds, most, predictor,
                         [&](int64_t num) { return WorkOf(rows, 100, static_cast<double>(num), from); });
  };
  EXPECT_EQ(budget(10, 512, 4, 0), 512) << "the chunk is the most";
  const int64_t within = budget(0.1, 4096, 4, 0);
  EXPECT_LE(machine.SecondsOf(WorkOf(4, 100, static_cast<double>(within), 0)), 0.105);
  EXPECT_GE(machine.SecondsOf(WorkOf(4, 100, static_cast<double>(within + 2 * kLeastPrefill), 0)), 0.1);
  EXPECT_LT(budget(0.1, 4096, 4, 60000), within) << "more to attend to";
  EXPECT_LT(budget(0.1, 4096, 40, 0), within) << "more rows";
  EXPECT_EQ(budget(1e-6, 4096, 4, 0), kLeastPrefill);
  EXPECT_EQ(budget(1e-6, 16, 4, 0), 16);
}

// Nobody knows yet what a prompt costs: it begins with little and doubles.
TEST(PrefillWithin, GropesItsWay) {
  const Machine machine;
  StepPredictor predictor;
  int64_t before = 0;
  for (int i = 0; i < 12; ++i) {
    const auto work_of = [&](int64_t num) { return WorkOf(4, 100, static_cast<double>(num), 100.0 * i); };
    const int64_t budget = PrefillWithin(0.1, 65536, predictor, work_of);
    EXPECT_LE(budget, std::max(kLeastPrefill, 2 * before));
    EXPECT_LE(machine.SecondsOf(work_of(budget)), 0.11);
    predictor.Learn(work_of(budget), machine.SecondsOf(work_of(budget)));
    before = std::max(before, budget);
  }
  EXPECT_GT(before, 500);
}

}  // namespace
}  // namespace headwise
