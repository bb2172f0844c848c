#include "loadgen/load_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace headwise {
namespace {

using testing::Each;
using testing::ElementsAre;

TEST(ArrivalTimes, AreAPoissonProcess) {
  constexpr int64_t kCount = 20'000;
  constexpr double kRate = 50;
  const std::vector<double> times = ArrivalTimes(kCount, kRate, 3);
  ASSERT_EQ(times.size(), static_cast<size_t>(kCount));
  EXPECT_EQ(times.front(), 0);
  EXPECT_TRUE(std::ranges::is_sorted(times));
  // Gaps are exponential: mean and deviation 1 / rate, and a share of exp(-1) is longer than the mean. Four standard
  // errors of each are 3 %, 6 % and 0.014.
  double sum = 0;
  double squares = 0;
  int64_t num_long = 0;
  for (size_t i = 1; i < times.size(); ++i) {
    const double gap = times[i] - times[i - 1];
    sum += gap;
    squares += gap * gap;
    num_long += gap > 1 / kRate ? 1 : 0;
  }
  const double count = kCount - 1;
  EXPECT_NEAR(sum / count * kRate, 1, 0.03);
  EXPECT_NEAR(std::sqrt(squares / count - sum / count * sum / count) * kRate, 1, 0.06);
  EXPECT_NEAR(static_cast<double>(num_long) / count, std::exp(-1), 0.014);
}

TEST(ArrivalTimes, ComeFromTheSeedAndScaleWithTheRate) {
  EXPECT_EQ(ArrivalTimes(10, 4, 1), ArrivalTimes(10, 4, 1));
  EXPECT_NE(ArrivalTimes(10, 4, 1), ArrivalTimes(10, 4, 2));
  const std::vector<double> slow = ArrivalTimes(10, 1, 1);
  const std::vector<double> fast = ArrivalTimes(10, 8, 1);
  for (size_t i = 0; i < slow.size(); ++i) EXPECT_DOUBLE_EQ(slow[i], 8 * fast[i]);
  EXPECT_THAT(ArrivalTimes(5, std::numeric_limits<double>::infinity(), 1), Each(0.0));
  EXPECT_THAT(ArrivalTimes(0, 1, 1), ElementsAre());
}

TEST(LoadSchedule, BeginsNoneBeforeItsArrival) {
  LoadSchedule schedule({0, 1, 1, 5}, 0);
  EXPECT_EQ(schedule.TakeDue(0), 0u);
  EXPECT_EQ(schedule.TakeDue(0.999), std::nullopt);
  EXPECT_EQ(schedule.NextTime(), 1.0);
  EXPECT_EQ(schedule.TakeDue(1), 1u);
  EXPECT_EQ(schedule.TakeDue(1), 2u);
  EXPECT_EQ(schedule.TakeDue(1), std::nullopt);
  for (int i = 0; i < 3; ++i) schedule.OnEnd();
  EXPECT_FALSE(schedule.is_done());
  EXPECT_EQ(schedule.TakeDue(7), 3u);
  EXPECT_EQ(schedule.NextTime(), std::nullopt);
  EXPECT_FALSE(schedule.is_done());
  schedule.OnEnd();
  EXPECT_TRUE(schedule.is_done());
}

TEST(LoadSchedule, KeepsToItsConcurrency) {
  LoadSchedule schedule(std::vector<double>(5, 0.0), 2);
  EXPECT_EQ(schedule.TakeDue(0), 0u);
  EXPECT_EQ(schedule.TakeDue(0), 1u);
  EXPECT_EQ(schedule.TakeDue(0), std::nullopt);
  EXPECT_EQ(schedule.NextTime(), std::nullopt);  // an end is waited for, no time
  EXPECT_EQ(schedule.num_running(), 2);
  schedule.OnEnd();
  EXPECT_EQ(schedule.NextTime(), 0.0);
  EXPECT_EQ(schedule.TakeDue(9), 2u);
  EXPECT_EQ(schedule.TakeDue(9), std::nullopt);
}

// A server of one request at a time and a second for each, in virtual time: a closed loop of two keeps one waiting.
TEST(LoadSchedule, RunsAClosedLoop) {
  LoadSchedule schedule(std::vector<double>(4, 0.0), 2);
  double now = 0;
  double server_is_free = 0;
  std::vector<double> starts;
  std::vector<double> ends;
  while (!schedule.is_done()) {
    while (schedule.TakeDue(now)) {
      starts.push_back(now);
      server_is_free = std::max(server_is_free, now) + 1;
      ends.push_back(server_is_free);
    }
    now = ends[starts.size() - static_cast<size_t>(schedule.num_running())];
    schedule.OnEnd();
  }
  EXPECT_THAT(starts, ElementsAre(0, 0, 1, 2));
  EXPECT_THAT(ends, ElementsAre(1, 2, 3, 4));
}

}  // namespace
}  // namespace headwise
