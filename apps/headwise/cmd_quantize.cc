// headwise quantize: a Hugging Face folder to a .gguf file with smaller numbers.
#include <fmt/format.h>

#include <utility>

#include "base/format_bytes.h"
#include "base/json.h"
#include "base/progress.h"
#include "commands.h"
#include "common_options.h"
#include "engine/quantize.h"
#include "terminal_line.h"

namespace headwise {
namespace {

struct QuantizeCommandOptions {
  QuantizeOptions quantize;
  std::string type = "q8_0";
  bool json = false;
};

Status RunQuantize(const QuantizeCommandOptions& options) {
  QuantizeOptions quantize = options.quantize;
  quantize.type = DTypeByName(options.type).value();  // one of those that the option takes
  TerminalLine line;
  ProgressBar progress(&line, "quantize", 1000);
  quantize.on_progress = [&](int64_t num_bytes, int64_t total) { progress.Update(num_bytes * 1000 / total); };
  HW_ASSIGN_OR_RETURN(const QuantizeResult result, QuantizeModel(quantize));
  if (options.json) {
    Json matrices = Json::object();
    for (const auto& [type, count] : result.num_matrices) matrices[std::string(NameOf(type))] = count;
    return PrintJson(
        {{"source_bytes", result.source_bytes}, {"file_bytes", result.file_bytes}, {"matrices", matrices}});
  }
  std::string matrices;
  for (const auto& [type, count] : result.num_matrices) {
    matrices += fmt::format("{}{} in {}", matrices.empty() ? "" : ", ", count, NameOf(type));
  }
  Print("{}: {} of tensors, {} before; matrices: {}\n", quantize.out, FormatBytes(result.file_bytes),
        FormatBytes(result.source_bytes), matrices);
  return CheckOutput();
}

}  // namespace

void AddQuantizeCommand(CommandLine& line) {
  auto options = std::make_shared<QuantizeCommandOptions>();
  CLI::App& command =
      *line.app.add_subcommand("quantize", "A Hugging Face folder to a .gguf file with smaller numbers");
  command.add_option("--model,-m", options->quantize.model, "Model: a Hugging Face folder")->required();
  command.add_option("--out", options->quantize.out, "The .gguf file")->required();
  command.add_option("--type", options->type, "Of the matrices: f32, f16, bf16, q8_0, q4_0, q4_k, q6_k or mxfp4")
      ->check(CLI::IsMember(std::vector<std::string>{"f32", "f16", "bf16", "q8_0", "q4_0", "q4_k", "q6_k", "mxfp4"}))
      ->capture_default_str();
  command.add_option("--threads", options->quantize.num_threads, "Threads; 0: one per core")->capture_default_str();
  command.add_flag("--json", options->json, "One JSON object on standard output");
  OnChosen(line, command, std::move(options), RunQuantize);
}

}  // namespace headwise
