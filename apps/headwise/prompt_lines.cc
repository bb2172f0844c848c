#include "prompt_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/file.h"
#include "base/json_lines.h"
#include "engine/sampler.h"
#include "engine/stop_matcher.h"
#include "model/model_config.h"
#include "text/chat_messages.h"

namespace headwise {
namespace {

struct NumberKey {
  const char* name;
  float SamplingOptions::*member;
};
constexpr NumberKey kNumberKeys[] = {
    {"temperature", &SamplingOptions::temperature},
    {"top_p", &SamplingOptions::top_p},
    {"min_p", &SamplingOptions::min_p},
    {"repetition_penalty", &SamplingOptions::repetition_penalty},
    {"frequency_penalty", &SamplingOptions::frequency_penalty},
    {"presence_penalty", &SamplingOptions::presence_penalty},
};
constexpr std::string_view kKeys[] = {"id",
                                      "prompt",
                                      "messages",
                                      "tools",
                                      "documents",
                                      "chat_template_kwargs",
                                      "max_tokens",
                                      "stop",
                                      "temperature",
                                      "top_k",
                                      "top_p",
                                      "min_p",
                                      "seed",
                                      "repetition_penalty",
                                      "frequency_penalty",
                                      "presence_penalty",
                                      "logprobs"};

// Nothing where the line says nothing.
Result<std::optional<int64_t>> IntWithin(const JsonObject& object, const char* key, int64_t least, int64_t most) {
  if (!object.Has(key)) return std::optional<int64_t>();
  HW_ASSIGN_OR_RETURN(const int64_t value, object.Int(key));
  if (value >= least && value <= most) return std::optional<int64_t>(value);
  return Status::InvalidInput(fmt::format("{}: {} is {}, expected {} to {}", object.origin(), key, value, least, most));
}

// What templates read in the order in which it stands there. Requires: text is the object's.
Status ReadMessages(const JsonObject& object, std::string_view text, PromptLine& line) {
  const auto json = nlohmann::ordered_json::parse(text, nullptr, false);
  HW_ASSIGN_OR_RETURN(line.messages, ReadChatMessages(json["messages"], line.origin));
  for (const auto& [key, type, to] :
       {std::tuple("tools", Json::value_t::array, &line.inputs.tools),
        std::tuple("documents", Json::value_t::array, &line.inputs.documents),
        std::tuple("chat_template_kwargs", Json::value_t::object, &line.inputs.variables)}) {
    if (!object.Has(key)) continue;
    if (object.At(key).type() != type) {
      return Status::InvalidInput(fmt::format("{}: {}: found {}, expected {}", line.origin, key,
                                              object.At(key).type_name(), Json(type).type_name()));
    }
    *to = json[key].dump();
  }
  const std::string_view last = line.messages.empty() ? "" : std::string_view(line.messages.back().role);
  if (!last.empty() && last != "assistant" && last != "system") return Status::Ok();
  return Status::InvalidInput(
      fmt::format("{}: messages: the last is no user's, expected one that can be answered", line.origin));
}

Status ReadText(const JsonObject& object, std::string_view text, PromptLine& line) {
  if (object.Has("prompt") == object.Has("messages")) {
    return Status::InvalidInput(
        fmt::format("{}: {}, expected one of the two", line.origin,
                    object.Has("prompt") ? "has both prompt and messages" : "has neither prompt nor messages"));
  }
  if (object.Has("prompt")) {
    HW_ASSIGN_OR_RETURN(line.prompt, object.String("prompt"));
    for (const char* key : {"tools", "documents", "chat_template_kwargs"}) {
      if (!object.Has(key)) continue;
      return Status::InvalidInput(fmt::format("{}: has {} beside a prompt, expected messages", line.origin, key));
    }
    return Status::Ok();
  }
  return ReadMessages(object, text, line);
}

Status ReadStops(const JsonObject& object, PromptLine& line) {
  if (!object.Has("stop")) return Status::Ok();
  const Json& value = object.At("stop");
  const Json list = value.is_string() ? Json::array({value}) : value;
  if (!list.is_array() || !std::ranges::all_of(list, [](const Json& each) { return each.is_string(); })) {
    return Status::InvalidInput(fmt::format("{}: stop: expected a text or a list of texts", line.origin));
  }
  line.stop = list.get<std::vector<std::string>>();
  return ValidateStops(line.stop).Annotate(line.origin);
}

Status ReadSampling(const JsonObject& object, PromptLine& line) {
  for (const NumberKey& key : kNumberKeys) {
    if (!object.Has(key.name)) continue;
    HW_ASSIGN_OR_RETURN(const double value, object.Double(key.name));
    constexpr double kMost = std::numeric_limits<float>::max();
    line.sampling.*key.member = static_cast<float>(std::clamp(value, -kMost, kMost));
  }
  HW_ASSIGN_OR_RETURN(line.sampling.top_k, object.IntOr("top_k", line.sampling.top_k));
  if (!object.Has("seed")) return Status::Ok();
  if (!object.At("seed").is_number_unsigned()) {
    return Status::InvalidInput(fmt::format("{}: seed is {}, expected a whole number from 0 to {}", line.origin,
                                            object.At("seed").dump(), std::numeric_limits<uint64_t>::max()));
  }
  line.seed = object.At("seed").get<uint64_t>();
  return Status::Ok();
}

Status ReadLine(const JsonObject& object, std::string_view text, PromptLine& line) {
  line.origin = object.origin();
  HW_RETURN_IF_ERROR(object.ExpectOnly(kKeys));
  if (object.Has("id")) {
    line.id = object.At("id");
    if (!line.id.is_string() && !line.id.is_number()) {
      return Status::InvalidInput(fmt::format("{}: id: expected a text or a number", line.origin));
    }
  }
  HW_RETURN_IF_ERROR(ReadText(object, text, line));
  HW_RETURN_IF_ERROR(ReadStops(object, line));
  HW_RETURN_IF_ERROR(ReadSampling(object, line));
  HW_ASSIGN_OR_RETURN(const auto max_tokens, IntWithin(object, "max_tokens", -1, kMaxSequenceTokens));
  if (max_tokens) line.max_new_tokens = *max_tokens;
  HW_ASSIGN_OR_RETURN(const auto logprobs, IntWithin(object, "logprobs", 0, kMaxLogprobs));
  if (logprobs) line.logprobs = logprobs;
  return Status::Ok();
}

}  // namespace

Result<std::vector<PromptLine>> ReadPromptLines(const RunOptions& options, const ChatInputs& inputs) {
  const bool is_stdin = *options.prompts == "-";
  const std::string origin = is_stdin ? "standard input" : *options.prompts;
  HW_ASSIGN_OR_RETURN(const std::string text, is_stdin ? ReadStdin() : ReadFile(*options.prompts));
  PromptLine otherwise;
  otherwise.sampling = SamplingOf(options.sampling, false);
  otherwise.stop = options.stop;
  otherwise.logprobs = options.logprobs;
  otherwise.max_new_tokens = options.max_new_tokens;
  otherwise.inputs = inputs;
  std::vector<PromptLine> lines;
  const Status status = ForEachJsonLine(text, origin, [&](const JsonObject& object, std::string_view line) {
    lines.push_back(otherwise);
    return ReadLine(object, line, lines.back());
  });
  if (!status.ok()) return status;
  if (lines.empty()) return Status::InvalidInput(fmt::format("{}: holds no prompts, expected one a line", origin));
  return lines;
}

bool IsChat(const PromptLine& line, const RunOptions& options) {
  return !line.prompt || options.chat;
}

Result<Request> MakeRequest(const PromptLine& line, const RunOptions& options, const Engine& engine,
                            const ChatFormat* format) {
  Request request;
  Status status;
  if (!line.prompt) {
    status = FillChat(*format, line.messages, line.inputs, request);
  } else if (options.chat) {
    status = FillMessage(*format, *line.prompt, line.inputs, request);
  } else {
    status = FillPrompt(options, engine, *line.prompt, request);
  }
  if (status.ok()) status = ValidateSampling(line.sampling, engine.config().vocab_size);
  if (!status.ok()) return std::move(status).Annotate(line.origin);
  request.sampling = line.sampling;
  request.stop = line.stop;
  request.logprobs = line.logprobs;
  request.eos = options.ignore_eos ? EosMode::kIgnore : EosMode::kStop;
  return request;
}

}  // namespace headwise
