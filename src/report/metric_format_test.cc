#include "report/metric_format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace headwise {
namespace {

TEST(FormatNumber, HasDigitsThatCarrySomething) {
  EXPECT_EQ(FormatNumber(0), "0");
  EXPECT_EQ(FormatNumber(1234.56), "1,235");
  EXPECT_EQ(FormatNumber(12.3456), "12.35");
  EXPECT_EQ(FormatNumber(-0.0123456), "−0.01235");
  EXPECT_EQ(FormatNumber(0.0000031, 2), "3.1×10⁻⁶");
  EXPECT_EQ(FormatNumber(2.5e12, 2), "2.5×10¹²");
  EXPECT_EQ(FormatNumber(1234567), "1,234,567");
  EXPECT_EQ(FormatNumber(std::nan("")), kDash);
  EXPECT_EQ(FormatNumber(std::numeric_limits<double>::infinity()), kDash);
}

TEST(FormatLength, SaysKOnlyWhereItIsExact) {
  EXPECT_EQ(FormatLength(32768), "32K");
  EXPECT_EQ(FormatLength(3600), "3,600");
  EXPECT_EQ(FormatLength(0), "0");
}

TEST(FormatTick, IsRound) {
  EXPECT_EQ(FormatTick(10000, 0), "10,000");
  EXPECT_EQ(FormatTick(-0.5, 1), "−0.5");
  EXPECT_EQ(FormatBytesTick(50e6), "50 MB");
  EXPECT_EQ(FormatBytesTick(2.5e9), "2.5 GB");
  EXPECT_EQ(FormatBytesTick(100e6), "100 MB");
  EXPECT_EQ(FormatBytesTick(0), "0 B");
}

TEST(FormatPValue, NeverIsZero) {
  EXPECT_EQ(FormatPValue(0.0000001), "<0.001");
  EXPECT_EQ(FormatPValue(0.0342), "0.034");
  EXPECT_EQ(FormatPValue(1), "1.000");
}

TEST(MetricFormat, RatesArePercentages) {
  const MetricFormat format({.name = "right", .label = "right answers", .unit = ""}, {});
  EXPECT_EQ(format.title(), "right answers, %");
  EXPECT_EQ(format.Value(0.85), "85.0");
  EXPECT_EQ(format.Difference(-0.031), "−3.1");
  EXPECT_EQ(format.Difference(0.5), "+50.0");
  EXPECT_EQ(format.Difference(1e-9), "0.0");
  EXPECT_EQ(format.Difference(-1e-9), "0.0");
  EXPECT_EQ(format.Range({0.781, 0.9}), "78.1 to 90.0");
}

TEST(MetricFormat, MeansShareTheirDecimals) {
  const MetricInfo nll = {.name = "nll", .label = "NLL", .unit = "nats", .kind = MetricInfo::Kind::kMean};
  const double close[] = {2.0, 12.5};
  const MetricFormat format(nll, close);
  EXPECT_EQ(format.title(), "NLL, nats");
  EXPECT_EQ(format.Value(2.0), "2.00");
  EXPECT_EQ(format.Value(12.5), "12.50");
  const double apart[] = {0.000012, 12.5};  // common decimals would show the first as zero
  EXPECT_EQ(MetricFormat(nll, apart).Value(0.000012), "1.200×10⁻⁵");
  EXPECT_EQ(MetricFormat(nll, apart).Value(12.5), "12.50");
}

TEST(MetricFormat, BytesHaveUnits) {
  const MetricInfo bytes = {.name = "kv_bytes", .label = "KV cache", .unit = "bytes", .kind = MetricInfo::Kind::kMean};
  const MetricFormat format(bytes, {});
  EXPECT_EQ(format.title(), "KV cache");
  EXPECT_EQ(format.Value(5079040), "5.08 MB");
  EXPECT_EQ(format.Difference(-5079040), "−5.08 MB");
  EXPECT_EQ(format.Value(1e300), kDash);
}

}  // namespace
}  // namespace headwise
