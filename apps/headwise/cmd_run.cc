// headwise run: continues one prompt.
#include <fmt/format.h>
#include <headwise/chat.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "base/file.h"
#include "commands.h"
#include "common_options.h"
#include "engine/prompt.h"
#include "generate.h"
#include "model/model_config.h"
#include "option_checks.h"

namespace headwise {
namespace {

struct RunOptions {
  EngineOptions engine;
  SamplingFlags sampling;
  std::string plan;
  std::optional<std::string> prompt;
  std::optional<std::string> prompt_file;
  std::string stdin_mark;
  int64_t max_new_tokens = 256;
  int64_t max_context = 0;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  bool chat = false;
  std::string chat_form;
  bool special = false;
  bool no_bos = false;
  bool stats = false;
  bool json = false;
};

Result<std::string> ReadPrompt(const RunOptions& options) {
  if (options.prompt) return *options.prompt;
  if (options.prompt_file) return ReadFile(*options.prompt_file);
  return ReadStdin();
}

// What stands alone on the command line.
std::string StdinMarkError(const std::string& text) {
  return text == "-" ? "" : fmt::format("found \"{}\", expected - for standard input, or --prompt in front", text);
}

Status FillPrompt(const RunOptions& options, const Engine& engine, Request& request) {
  HW_ASSIGN_OR_RETURN(const std::string text, ReadPrompt(options));
  if (options.chat) {
    if (text.empty()) return Status::InvalidInput("message: is empty, expected at least one character");
    const ChatMessage messages[] = {{.role = "user", .content = text}};
    HW_ASSIGN_OR_RETURN(ChatIds ids, EncodeChat(engine, messages, options.chat_form));
    request.prompt = std::move(ids.prompt);
    request.stop_tokens = std::move(ids.stop_tokens);
    return Status::Ok();
  }
  HW_ASSIGN_OR_RETURN(request.prompt,
                      EncodePrompt(engine, text,
                                   {.bos = options.no_bos ? Bos::kNever : Bos::kAuto,
                                    .special = options.special ? SpecialText::kParse : SpecialText::kAsText}));
  return Status::Ok();
}

// --max-context bounds prompt and answer together; without a number of new tokens it is the only bound.
Result<int64_t> MaxNewTokens(const RunOptions& options, const Engine& engine, int64_t prompt_tokens) {
  const bool is_unlimited = options.max_new_tokens < 0;
  int64_t max_context = options.max_context;
  if (max_context == 0 && is_unlimited) max_context = engine.config().trained_length;
  if (max_context == 0) return options.max_new_tokens;
  if (prompt_tokens >= max_context) {
    return Status::InvalidInput(
        fmt::format("the prompt has {} tokens, expected less than --max-context {}", prompt_tokens, max_context));
  }
  const int64_t room = max_context - prompt_tokens;
  return is_unlimited ? room : std::min(options.max_new_tokens, room);
}

Status PrintRunJson(const RequestResult& result, const SamplingOptions& sampling, const Engine& engine) {
  Json json = MetricsJson(result.metrics);
  json["text"] = result.text;
  json["tokens"] = result.tokens;
  json["finish"] = FinishName(result.finish);
  if (sampling.temperature > 0) json["seed"] = sampling.seed;
  json["backend"] = engine.backend_description();
  return PrintJson(json);
}

Status RunRun(const RunOptions& options) {
  HW_RETURN_IF_ERROR(CheckRange("--max-new-tokens", options.max_new_tokens, -1, kMaxSequenceTokens));
  HW_RETURN_IF_ERROR(CheckRange("--max-context", options.max_context, 0, kMaxSequenceTokens));
  HW_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::Create(options.engine));
  Request request;
  HW_ASSIGN_OR_RETURN(request.plan, LoadPlan(options.plan, *engine));
  HW_RETURN_IF_ERROR(FillPrompt(options, *engine, request));
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  WarnBeyondTrainedLength(*engine, prompt_tokens);
  HW_ASSIGN_OR_RETURN(request.max_new_tokens, MaxNewTokens(options, *engine, prompt_tokens));
  request.sampling = SamplingOf(options.sampling);
  const SamplingOptions sampling = request.sampling;
  request.stop = options.stop;
  request.eos = options.ignore_eos ? EosMode::kIgnore : EosMode::kStop;
  if (!options.json) {
    request.on_text = WriteOutput;
    request.output = Request::Output::kStreamOnly;
  }

  HW_ASSIGN_OR_RETURN(const RequestResult result, Generate(*engine, std::move(request)));
  if (!options.json) WriteOutput("\n");
  if (options.stats) fmt::print(stderr, "{}", FormatMetrics(result.metrics, *engine));
  HW_RETURN_IF_ERROR(options.json ? PrintRunJson(result, sampling, *engine) : CheckOutput());
  if (result.finish == FinishReason::kCancelled) return Status::Cancelled("interrupted");
  return Status::Ok();
}

}  // namespace

void AddRunCommand(CommandLine& line) {
  auto options = std::make_shared<RunOptions>();
  CLI::App& command = *line.app.add_subcommand("run", "Continue a prompt");
  AddEngineOptions(command, options->engine);
  AddSamplingOptions(command, options->sampling);
  command.add_option("--plan", options->plan, "Head plan; every head full without one");
  CLI::Option_group& source = *command.add_option_group("prompt", "Where the prompt comes from");
  source.add_option("--prompt,-p", options->prompt, "The prompt itself");
  source.add_option("--prompt-file", options->prompt_file, "A file, taken as it is");
  source.add_option("stdin", options->stdin_mark, "-: standard input")
      ->check(CLI::Validator([](std::string& text) { return StdinMarkError(text); }, ""));
  source.require_option(1);
  command.add_option("--max-new-tokens,-n", options->max_new_tokens, "-1: as many as --max-context allows")
      ->capture_default_str();
  command.add_option("--max-context", options->max_context,
                     "Most tokens of prompt and answer together; 0: the trained length where nothing else limits");
  command.add_option("--stop", options->stop, "End before this text; may be repeated")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  command.add_flag("--ignore-eos", options->ignore_eos, "Go on after end-of-text tokens");
  command.add_flag("--chat", options->chat, "The prompt is a user's message: put it into the model's chat form");
  command.add_option(
      "--chat-form", options->chat_form,
      "With --chat: chatml, llama-2, llama-3, mistral, mistral-v3 or vicuna; default: what the files say");
  command.add_flag("--special", options->special, "Read <|...|> in the prompt as special tokens, not as text");
  command.add_flag("--no-bos", options->no_bos, "No beginning-of-text token in front");
  command.add_flag("--stats", options->stats, "Speeds, KV bytes and memory on standard error");
  command.add_flag("--json", options->json, "One JSON object on standard output");
  OnChosen(line, command, std::move(options), RunRun);
}

}  // namespace headwise
