#include "backend/cpu/compute_rates.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/isa.h"

namespace headwise::cpu {
namespace {

// Figures of one core, in operations per second.
TEST(ComputeRates, DotProductsPayWhereTheyAreClearlyFaster) {
  EXPECT_FALSE(Bf16Pays({.f32_flops = 187e9, .bf16_dot_flops = 86e9}));   // a Xeon: 375 and 171 on two cores
  EXPECT_TRUE(Bf16Pays({.f32_flops = 125e9, .bf16_dot_flops = 250e9}));   // a Zen 5
  EXPECT_FALSE(Bf16Pays({.f32_flops = 125e9, .bf16_dot_flops = 125e9}));  // nothing gained, digits lost
  EXPECT_FALSE(Bf16Pays({.f32_flops = 125e9, .bf16_dot_flops = 140e9}));  // within the noise
  EXPECT_FALSE(Bf16Pays({.f32_flops = 125e9, .bf16_dot_flops = 0}));      // none
  EXPECT_FALSE(Bf16Pays({}));                                             // a clock that stood still
}

TEST(ComputeRates, WhatIsMeasuredIsWhatThereIs) {
  for (const KernelTable* kernels : AvailableKernelTables()) {
    const ComputeRates rates = MeasureComputeRates(*kernels);
    EXPECT_GT(rates.f32_flops, 1e8) << kernels->isa;
    EXPECT_EQ(rates.bf16_dot_flops > 0, kernels->matmul.has_bf16_dot) << kernels->isa;
  }
}

// A neighbour that comes after a while, and stays, slows both loops.
TEST(ComputeRates, ANeighbourDoesNotDecide) {
  static int num_calls;
  num_calls = 0;
  // As long as asked for, whatever the machine is like.
  const auto loop = [](double operations) {
    const auto time = std::chrono::microseconds(num_calls++ < 8 ? 40 : 160);
    const auto start = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - start < time) {
    }
    return operations;
  };
  static const auto run = loop;
  KernelTable kernels = *AvailableKernelTables().front();
  kernels.matmul.has_bf16_dot = true;
  kernels.peak.f32_multiply_add = [](int64_t, float*) { return run(1e6); };
  kernels.peak.bf16_dot = [](int64_t, float*) { return run(2e6); };
  EXPECT_TRUE(Bf16Pays(MeasureComputeRates(kernels)));
  num_calls = 0;
  kernels.peak.bf16_dot = [](int64_t, float*) { return run(1e6); };
  EXPECT_FALSE(Bf16Pays(MeasureComputeRates(kernels)));
}

// However busy the machine is when which engine is made.
TEST(ComputeRates, TheAnswerStaysTheSameWithinAProcess) {
  for (const KernelTable* kernels : AvailableKernelTables()) {
    const bool first = HasFastBf16(*kernels);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int n = 0; n < 100; ++n) EXPECT_EQ(HasFastBf16(*kernels), first) << kernels->isa;
      });
    }
    for (std::thread& thread : threads) thread.join();
    const auto backend = MakeCpuBackend({.isa = kernels->isa, .num_threads = 1});
    ASSERT_TRUE(backend.ok());
    EXPECT_EQ((*backend)->IsFast(Compute::kBF16), first) << kernels->isa;
  }
}

}  // namespace
}  // namespace headwise::cpu
