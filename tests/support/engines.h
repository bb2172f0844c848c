// Engines for tests: every backend and instruction set of this machine.
#ifndef HEADWISE_TESTS_SUPPORT_ENGINES_H_
#define HEADWISE_TESTS_SUPPORT_ENGINES_H_

#include <gtest/gtest.h>
#include <headwise/engine.h>

#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/all_backends.h"
#include "backend/cpu/isa.h"
#include "engine/engine_impl.h"
#include "support/far_backend.h"
#include "support/test_device.h"

namespace headwise {

// Sanitizers look at the way through the code, not at numbers: whole-model tests, ten times slower with them, show the
// same with fewer cases.
inline constexpr bool kIsSanitized = HEADWISE_SANITIZED;

struct BackendChoice {
  std::string backend;
  std::string isa = "auto";
  std::string name() const { return backend == "cpu" ? isa : backend; }
};

// ref, then every instruction set that runs here; or the one that is asked for. The emulation of tile registers is the
// baseline but for bf16 products, which the suites of operations test, and takes as long: it is for who asks.
inline std::vector<BackendChoice> BackendChoices() {
  if (IsTestDevice("cuda")) return {{"cuda", "auto"}};
  if (IsTestDevice("amx_emulated")) return {{"cpu", "amx_emulated"}};
  std::vector<BackendChoice> choices{{"ref", "auto"}};
  for (const cpu::KernelTable* kernels : cpu::AvailableKernelTables()) {
    if (std::string_view(kernels->isa) != "amx_emulated") choices.push_back({"cpu", kernels->isa});
  }
  return choices;
}

// In f32 throughout, unless `options` says otherwise.
inline EngineOptions ExactOptions(const std::string& model, const BackendChoice& choice) {
  EngineOptions options;
  options.model = model;
  options.backend = choice.backend;
  options.isa = choice.isa;
  options.compute = "f32";
  options.kv_dtype = "f32";
  return options;
}

inline std::unique_ptr<Backend> FarIfAsked(std::unique_ptr<Backend> backend) {
  return IsTestDevice("far") ? std::make_unique<FarBackend>(std::move(backend)) : std::move(backend);
}

inline Result<std::unique_ptr<Engine>> CreateForTest(EngineOptions options) {
  if (IsTestDevice("cuda")) options.backend = "cuda";
  if (!IsTestDevice("far")) return Engine::Create(options);
  HW_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, MakeBackend({.name = options.backend,
                                                                     .isa = options.isa,
                                                                     .num_threads = options.num_threads,
                                                                     .batch_invariant = options.batch_invariant}));
  return CreateEngine(options, FarIfAsked(std::move(backend)));
}

inline std::unique_ptr<Engine> MustCreate(const EngineOptions& options) {
  auto engine = CreateForTest(options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return engine.ok() ? *std::move(engine) : nullptr;
}

// Logits [ids, V] and final hidden states [ids, E] at every position.
struct ForcedRows {
  std::vector<float> logits;
  std::vector<float> hidden;
};
inline ForcedRows MustRunForced(Engine& engine, std::span<const int32_t> ids, std::shared_ptr<const HeadPlan> plan = {},
                                int64_t prompt_tokens = -1, int64_t chunk_tokens = 0, int64_t decode_tokens = 1) {
  ForcedRows rows;
  ForcedRun run;
  run.plan = std::move(plan);
  run.ids = ids;
  run.prompt_tokens = prompt_tokens;
  run.chunk_tokens = chunk_tokens;
  run.decode_tokens = decode_tokens;
  run.rows = ForcedRun::Rows::kEvery;
  run.on_row = [&](int64_t, std::span<const float> logits, std::span<const float> hidden) {
    rows.logits.insert(rows.logits.end(), logits.begin(), logits.end());
    rows.hidden.insert(rows.hidden.end(), hidden.begin(), hidden.end());
    return true;
  };
  const Status status = engine.RunForced(run);
  EXPECT_TRUE(status.ok()) << status.message();
  return rows;
}

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_ENGINES_H_
