// headwise logits: the model's raw output for given ids, for comparing with other implementations.
#include <utility>
#include <vector>

#include "base/file.h"
#include "commands.h"
#include "common_options.h"
#include "model/model_config.h"
#include "option_checks.h"
#include "weights/safetensors.h"

namespace headwise {
namespace {

struct LogitsOptions {
  EngineOptions engine;
  std::string plan;
  std::string ids_file;
  std::vector<int64_t> positions;
  int64_t prompt_tokens = -1;
  std::string out;
};

Status RunLogits(const LogitsOptions& options) {
  HW_RETURN_IF_ERROR(CheckWritable(options.out));
  HW_RETURN_IF_ERROR(CheckRange("--prompt-tokens", options.prompt_tokens, -1, kMaxSequenceTokens));
  HW_ASSIGN_OR_RETURN(const std::string ids_text, ReadFile(options.ids_file));
  HW_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ParseIds(ids_text, options.ids_file));
  HW_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::Create(options.engine));
  ForcedRun run;
  HW_ASSIGN_OR_RETURN(run.plan, LoadPlan(options.plan, *engine));
  WarnBeyondTrainedLength(*engine, static_cast<int64_t>(ids.size()));

  std::vector<float> logits;
  std::vector<float> hidden;
  int64_t num_rows = 0;
  run.ids = ids;
  run.prompt_tokens = options.prompt_tokens;
  run.positions = options.positions;
  run.rows = options.positions.empty() ? ForcedRun::Rows::kEvery : ForcedRun::Rows::kListed;
  run.on_row = [&](int64_t, std::span<const float> row_logits, std::span<const float> row_hidden) {
    logits.insert(logits.end(), row_logits.begin(), row_logits.end());
    hidden.insert(hidden.end(), row_hidden.begin(), row_hidden.end());
    ++num_rows;
    return true;
  };
  HW_RETURN_IF_ERROR(engine->RunForced(run));
  const ModelConfig& config = engine->config();
  const NamedTensor tensors[] = {
      {.name = "logits", .view = {logits.data(), DType::kF32, Shape{num_rows, config.vocab_size}}},
      {.name = "hidden", .view = {hidden.data(), DType::kF32, Shape{num_rows, config.model_dim}}},
  };
  return WriteSafetensors(options.out, tensors);
}

}  // namespace

void AddLogitsCommand(CommandLine& line) {
  auto options = std::make_shared<LogitsOptions>();
  // Comparisons want the numbers, not the speed.
  options->engine.compute = "f32";
  options->engine.kv_dtype = "f32";
  CLI::App& command = *line.app.add_subcommand("logits", "Write logits and final hidden states for given token ids");
  AddEngineOptions(command, options->engine);
  command.add_option("--plan", options->plan, "Head plan; every head full without one");
  command.add_option("--ids", options->ids_file, "File with a JSON list of token ids")->required();
  command.add_option("--positions", options->positions, "Positions wanted, ascending: 0,15,127; all without it")
      ->delimiter(',');
  command.add_option("--prompt-tokens", options->prompt_tokens, "Ids read as the prompt, the rest one by one; -1: all")
      ->capture_default_str();
  command.add_option("--out", options->out, "Safetensors file: logits [positions, V], hidden [positions, E]")
      ->required();
  OnChosen(line, command, std::move(options), RunLogits);
}

}  // namespace headwise
