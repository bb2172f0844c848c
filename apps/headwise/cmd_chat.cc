// headwise chat: a conversation in the terminal. The KV cache lives on from turn to turn: nothing is read twice.
#include <fmt/format.h>

#include <cstdio>
#include <utility>

#include "base/file.h"
#include "chat_commands.h"
#include "chat_options.h"
#include "commands.h"
#include "common_options.h"
#include "conversation.h"
#include "engine/prompt.h"
#include "generate.h"
#include "message_reader.h"
#include "model/model_config.h"
#include "option_checks.h"
#include "preset_options.h"
#include "text/utf8.h"

namespace headwise {
namespace {

// More than anyone types or any model writes; far from the end of int64.
constexpr int64_t kForEver = int64_t{1} << 40;

struct ChatOptions {
  EngineOptions engine;
  PresetFlags preset;
  SamplingFlags sampling;
  std::string plan;
  int64_t max_new_tokens = 512;
  int64_t max_context = 0;
  ChatFlags chat_flags;
  std::string system;
  std::string system_file;
  bool stats = false;
};

// True if no head grows without end (or counts positions up to some end, as those do that select by score), all being
// streams with numbers or bounded by their layers' own windows, and the model knows every position that comes.
bool RunsForEver(const HeadPlan* plan, const ModelConfig& config) {
  if (config.positions == PositionKind::kLearned) return false;
  const LayerWindows windows = LayerWindowsOf(config);
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    const bool has_window = windows.At(layer_idx) < kNoLimit;
    for (int64_t kv_head = 0; kv_head < config.num_kv_heads; ++kv_head) {
      const HeadRule rule = plan == nullptr ? HeadRule::Full() : plan->At(layer_idx, kv_head);
      const bool is_bounded = (rule.kind == HeadRule::Kind::kStream && !rule.HasSelector()) ||
                              (rule.kind == HeadRule::Kind::kFull && has_window);
      if (!is_bounded) return false;
    }
  }
  return true;
}

// The system prompt that the options give; empty where they give none.
Result<std::string> SystemOf(const ChatOptions& options) {
  std::string system = options.system;
  if (!options.system_file.empty()) {
    HW_ASSIGN_OR_RETURN(system, ReadFile(options.system_file));
    if (system.empty()) {
      return Status::InvalidInput(fmt::format("{}: is empty, expected a system prompt", options.system_file));
    }
  }
  const auto bad_byte = FindInvalidUtf8(system);
  if (!bad_byte) return system;
  return Status::InvalidInput(fmt::format("{}: invalid UTF-8 at byte {}",
                                          options.system_file.empty() ? "--system" : options.system_file, *bad_byte));
}

// What a line asks for, message or command.
Result<AfterCommand> Take(const std::string& line, Conversation& conversation) {
  if (line.find_first_not_of(" \t\r") == std::string::npos) return AfterCommand::kGoOn;
  if (IsChatCommand(line)) return RunChatCommand(line, conversation);
  HW_ASSIGN_OR_RETURN(const bool has_room, conversation.Turn(line.starts_with("//") ? line.substr(1) : line));
  if (!has_room) {
    fmt::print(stderr,
               "The context is full: there is no room for this message, which was not sent; /reset begins anew.\n");
  }
  return AfterCommand::kGoOn;
}

Status Talk(Conversation& conversation, InterruptGuard& guard) {
  MessageReader reader(guard);
  for (bool may_quit = !reader.is_terminal();;) {
    HW_ASSIGN_OR_RETURN(const MessageReader::Input input, reader.Next());
    switch (input.kind) {
      case MessageReader::Kind::kEnd:
        if (reader.is_terminal()) fmt::print(stderr, "\n");
        return Status::Ok();
      case MessageReader::Kind::kInterrupted:
        if (reader.is_terminal()) fmt::print(stderr, "\n");
        if (may_quit) return Status::Cancelled("interrupted");
        // First: who reads it and presses again must find the next one awaited.
        guard.Forget();
        may_quit = true;
        fmt::print(stderr, "[press Ctrl-C again to quit]\n");
        break;
      case MessageReader::Kind::kLine: {
        may_quit = !reader.is_terminal();
        HW_ASSIGN_OR_RETURN(const AfterCommand after, Take(input.line, conversation));
        if (after == AfterCommand::kQuit) return Status::Ok();
        break;
      }
    }
  }
}

Status RunChat(const ChatOptions& options) {
  HW_RETURN_IF_ERROR(CheckRange("--max-new-tokens", options.max_new_tokens, 1, kMaxSequenceTokens));
  HW_RETURN_IF_ERROR(CheckRange("--max-context", options.max_context, 0, kMaxSequenceTokens));
  HW_ASSIGN_OR_RETURN(const std::string system, SystemOf(options));
  HW_ASSIGN_OR_RETURN(ChatSetup setup, ReadChatSetup(options.chat_flags));
  EngineOptions engine_options = options.engine;
  HW_ASSIGN_OR_RETURN(
      const AppliedPreset applied,
      ApplyPreset(options.preset, {.plan = options.plan, .max_context = options.max_context}, engine_options));
  HW_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::Create(engine_options));
  HW_RETURN_IF_ERROR(RequireTokenizer(*engine));
  HW_ASSIGN_OR_RETURN(const std::shared_ptr<const HeadPlan> plan, LoadPlan(applied.plan, *engine));
  HW_ASSIGN_OR_RETURN(const ChatFormat format, FindFormat(setup, *engine));
  const bool is_endless = options.max_context == 0 && RunsForEver(plan.get(), engine->config());
  int64_t max_tokens = applied.max_context > 0 ? applied.max_context : engine->config().trained_length;
  if (is_endless) {
    max_tokens = kForEver;
    fmt::print(stderr, "This conversation can run for ever at constant KV memory: no head keeps everything.\n");
  } else {
    const char* why = options.max_context > 0   ? ""
                      : applied.max_context > 0 ? ", which fit (--preset)"
                                                : ", the model's trained length (--max-context changes it)";
    fmt::print(stderr, "This conversation can grow to {} tokens{}.\n", max_tokens, why);
  }
  InterruptGuard guard;
  Conversation conversation(*engine, guard,
                            {.format = format,
                             .variables = std::move(setup.inputs.variables),
                             .plan = plan,
                             .sampling = SamplingOf(options.sampling),
                             .max_tokens = max_tokens,
                             .max_new_tokens = options.max_new_tokens,
                             .stats = options.stats});
  if (!system.empty()) conversation.Begin(system);
  return Talk(conversation, guard);
}

}  // namespace

void AddChatCommand(CommandLine& line) {
  auto options = std::make_shared<ChatOptions>();
  CLI::App& command = *line.app.add_subcommand("chat",
                                               "Talk with a model; /help there has its commands. Ctrl-C ends an "
                                               "answer; pressed twice at the prompt, the program");
  AddEngineOptions(command, options->engine);
  AddSamplingOptions(command, options->sampling);
  command.add_option("--plan", options->plan, "Head plan; every head full without one");
  AddPresetOptions(command, options->preset);
  command.add_option("--max-new-tokens,-n", options->max_new_tokens, "Longest answer")->capture_default_str();
  command.add_option("--max-context", options->max_context,
                     "Most tokens of the whole conversation; 0: no limit where no head keeps everything, otherwise the "
                     "trained length");
  AddChatFormatOptions(command, options->chat_flags);
  CLI::Option* system = command.add_option("--system", options->system, "System prompt");
  command.add_option("--system-file", options->system_file, "A file with it, taken as it is")->excludes(system);
  command.add_flag("--stats", options->stats, "Speeds, KV bytes and memory after every answer");
  OnChosen(line, command, std::move(options), RunChat);
}

}  // namespace headwise
