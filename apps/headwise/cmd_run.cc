// headwise run: continues a prompt, or each of a file of them.
#include <fmt/format.h>

#include <cstdio>
#include <utility>

#include "base/file.h"
#include "commands.h"
#include "common_options.h"
#include "engine/prompt.h"
#include "generate.h"
#include "option_checks.h"
#include "preset_options.h"
#include "run_lines.h"
#include "run_request.h"

namespace headwise {
namespace {

// Of requests that run at once; each has a KV cache of its own.
constexpr int64_t kMaxBatch = 4096;

Result<std::string> ReadPrompt(const RunOptions& options) {
  if (options.prompt) return *options.prompt;
  if (options.prompt_file) return ReadFile(*options.prompt_file);
  return ReadStdin();
}

// What stands alone on the command line.
std::string StdinMarkError(const std::string& text) {
  return text == "-" ? "" : fmt::format("found \"{}\", expected - for standard input, or --prompt in front", text);
}

Status PrintRunJson(const RequestResult& result, const SamplingOptions& sampling, const Engine& engine) {
  Json json = MetricsJson(result.metrics);
  AddAnswer(result, sampling, engine, json);
  json["backend"] = engine.backend_description();
  return PrintJson(json);
}

Status RunOne(const RunOptions& options) {
  HW_ASSIGN_OR_RETURN(const ChatSetup setup, ReadChatSetup(options.chat_flags));
  HW_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::Create(options.engine));
  Request request;
  HW_ASSIGN_OR_RETURN(request.plan, LoadPlan(options.plan, *engine));
  HW_ASSIGN_OR_RETURN(const std::string text, ReadPrompt(options));
  if (options.chat) {
    HW_ASSIGN_OR_RETURN(const ChatFormat format, FindFormat(setup, *engine));
    HW_RETURN_IF_ERROR(FillMessage(format, text, setup.inputs, request));
  } else {
    HW_RETURN_IF_ERROR(FillPrompt(options, *engine, text, request));
  }
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  WarnBeyondTrainedLength(*engine, prompt_tokens);
  HW_ASSIGN_OR_RETURN(request.max_new_tokens, NewTokensWithin(options, *engine, options.max_new_tokens, prompt_tokens));
  request.sampling = SamplingOf(options.sampling);
  const SamplingOptions sampling = request.sampling;
  request.stop = options.stop;
  HW_ASSIGN_OR_RETURN(request.constraint, ReadConstraint(options, *engine));
  request.logprobs = options.logprobs;
  request.eos = options.ignore_eos ? EosMode::kIgnore : EosMode::kStop;
  if (!options.json) {
    request.on_text = WriteOutput;
    request.output = Request::Output::kStreamOnly;
  }

  const InterruptGuard guard;
  HW_ASSIGN_OR_RETURN(const RequestResult result, Generate(*engine, std::move(request), guard));
  if (!options.json) WriteOutput("\n");
  if (options.stats) fmt::print(stderr, "{}", FormatMetrics(result.metrics, *engine));
  HW_RETURN_IF_ERROR(options.json ? PrintRunJson(result, sampling, *engine) : CheckOutput());
  if (result.finish == FinishReason::kCancelled) return Status::Cancelled("interrupted");
  return Status::Ok();
}

Status RunRun(const RunOptions& options) {
  HW_RETURN_IF_ERROR(CheckRange("--max-new-tokens", options.max_new_tokens, -1, kMaxSequenceTokens));
  HW_RETURN_IF_ERROR(CheckRange("--max-context", options.max_context, 0, kMaxSequenceTokens));
  HW_RETURN_IF_ERROR(CheckRange("--batch", options.batch, 1, kMaxBatch));
  if (options.logprobs) {
    HW_RETURN_IF_ERROR(CheckRange("--logprobs", *options.logprobs, 0, kMaxLogprobs));
    if (!options.json && !options.prompts) {
      return Status::InvalidInput("--logprobs: found neither --json nor --prompts, whose output has them");
    }
  }
  if (options.chat_flags.Given() != nullptr && !options.chat && !options.prompts) {
    return Status::InvalidInput(
        fmt::format("{}: found neither --chat nor --prompts, which it is for", options.chat_flags.Given()));
  }
  if (!options.preset) return options.prompts ? RunLines(options) : RunOne(options);
  RunOptions chosen = options;
  HW_ASSIGN_OR_RETURN(const AppliedPreset applied, ApplyPreset(options.preset,
                                                               {.plan = options.plan,
                                                                .num_texts = options.prompts ? options.batch : 1,
                                                                .max_context = options.max_context},
                                                               chosen.engine));
  chosen.plan = applied.plan;
  if (options.max_new_tokens < 0) chosen.max_context = applied.max_context;  // as long as it can be
  return chosen.prompts ? RunLines(chosen) : RunOne(chosen);
}

}  // namespace

void AddRunCommand(CommandLine& line) {
  auto options = std::make_shared<RunOptions>();
  CLI::App& command = *line.app.add_subcommand("run", "Continue a prompt, or each of a file of them");
  AddEngineOptions(command, options->engine);
  AddSamplingOptions(command, options->sampling);
  command.add_option("--plan", options->plan, "Head plan; every head full without one");
  AddPresetOptions(command, options->preset);
  CLI::Option_group& source = *command.add_option_group("prompt", "Where the prompt comes from");
  source.add_option("--prompt,-p", options->prompt, "The prompt itself");
  source.add_option("--prompt-file", options->prompt_file, "A file, taken as it is");
  CLI::Option* prompts =
      source.add_option("--prompts", options->prompts,
                        "A file of JSON lines with \"prompt\" or \"messages\", and \"id\", "
                        "\"max_tokens\", \"stop\", \"temperature\", ... in place of the options here; "
                        "-: standard input. One JSON line for each, in the same order");
  source.add_option("stdin", options->stdin_mark, "-: standard input")
      ->check(CLI::Validator([](std::string& text) { return StdinMarkError(text); }, ""));
  source.require_option(1);
  command.add_option("--batch", options->batch, "Prompts of --prompts that are answered at once")
      ->needs(prompts)
      ->capture_default_str();
  command.add_option("--out", options->out, "With --prompts: file for the lines, in place of standard output")
      ->needs(prompts);
  command.add_option("--max-new-tokens,-n", options->max_new_tokens, "-1: as many as --max-context allows")
      ->capture_default_str();
  command.add_option("--max-context", options->max_context,
                     "Most tokens of prompt and answer together; 0: the trained length where nothing else limits");
  command.add_option("--stop", options->stop, "End before this text; may be repeated")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  command.add_option(
      "--logprobs", options->logprobs,
      "In the JSON: the log-probability of every token, and of so many of the most probable in its place; "
      "of the model's own logits, before penalties, biases and temperature");
  CLI::Option* json_schema = command.add_option("--json-schema", options->json_schema,
                                                "A file with a JSON schema: answers are JSON that it accepts");
  CLI::Option* grammar = command.add_option("--grammar", options->grammar,
                                            "A file with a grammar in the notation of llama.cpp: answers are of it");
  CLI::Option* ignore_eos = command.add_flag("--ignore-eos", options->ignore_eos, "Go on after end-of-text tokens");
  grammar->excludes(json_schema)->excludes(ignore_eos);
  json_schema->excludes(ignore_eos);
  command.add_flag("--chat", options->chat,
                   "The prompt is a user's message: encode it as the model's chat template or form has it");
  AddChatFormatOptions(command, options->chat_flags);
  AddChatInputOptions(command, options->chat_flags);
  command.add_flag("--special", options->special, "Read <|...|> in the prompt as special tokens, not as text");
  command.add_flag("--no-bos", options->no_bos, "No beginning-of-text token in front");
  command.add_flag("--stats", options->stats, "Speeds, KV bytes and memory on standard error");
  command.add_flag("--json", options->json, "One JSON object on standard output")->excludes(prompts);
  OnChosen(line, command, std::move(options), RunRun);
}

}  // namespace headwise
