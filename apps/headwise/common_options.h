// What every command that runs a model shares: its options, its plans, its warnings, its figures.
#ifndef HEADWISE_APPS_COMMON_OPTIONS_H_
#define HEADWISE_APPS_COMMON_OPTIONS_H_

#include <headwise/engine.h>
#include <headwise/status.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/format_bytes.h"
#include "base/json.h"
#include "engine/prompt.h"
#include "engine/read_plan.h"
#include "output.h"

namespace headwise {

// --model, --backend, --isa, --compute, --batch-invariant, --kv-dtype, --kv-limit-bytes, --threads, --chunk-tokens,
// --page-tokens. The values in `options` are the defaults that --help shows. Warnings go to the log.
void AddEngineOptions(CLI::App& command, EngineOptions& options);
// What EngineOptions::on_warning and PlannerInput::on_warning are told, in the log.
void LogWarning(std::string_view message);

struct SamplingFlags {
  SamplingOptions sampling;  // but for the seed and the biases
  std::optional<uint64_t> seed;
  std::vector<std::string> logit_bias;  // TOKEN_ID=BIAS, which the parser has looked at
};
void AddSamplingOptions(CLI::App& command, SamplingFlags& flags);
// Where something is to be drawn and no seed was given, draws one and says on standard error which. `draws`: whether
// something is, where flags.sampling.temperature does not say.
SamplingOptions SamplingOf(const SamplingFlags& flags, std::optional<bool> draws = std::nullopt);

// The plan in the file `path`, checked against the engine's model; null, which is every head full, for "" and
// kFullPlan. A plan that was made on other weights of this shape is used, with a warning.
Result<std::shared_ptr<const HeadPlan>> LoadPlan(const std::string& path, const Engine& engine);

// The whole of standard input.
Result<std::string> ReadStdin();

// A JSON list of token ids. `origin` opens the message.
Result<std::vector<int32_t>> ParseIds(std::string_view text, const std::string& origin);

// As many open files as the system lets this process have: most begin with 1024, and every connection is one.
void RaiseFileLimit();

// Of one request.
Json RequestMetricsJson(const RequestMetrics& metrics);
// The process's memory too.
Json MetricsJson(const RequestMetrics& metrics);
// Lines for people: speeds, KV bytes by head class, resident memory.
std::string FormatMetrics(const RequestMetrics& metrics, const Engine& engine);

}  // namespace headwise

#endif  // HEADWISE_APPS_COMMON_OPTIONS_H_
