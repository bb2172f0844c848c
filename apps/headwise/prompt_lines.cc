#include "prompt_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string_view>
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

Status ReadText(const JsonObject& object, PromptLine& line) {
  if (object.Has("prompt") == object.Has("messages")) {
    return Status::InvalidInput(
        fmt::format("{}: {}, expected one of the two", line.origin,
                    object.Has("prompt") ? "has both prompt and messages" : "has neither prompt nor messages"));
  }
  if (object.Has("prompt")) {
    HW_ASSIGN_OR_RETURN(line.prompt, object.String("prompt"));
    return Status::Ok();
  }
  HW_ASSIGN_OR_RETURN(line.messages, ReadChatMessages(object.At("messages"), line.origin));
  if (!line.messages.empty() && line.messages.back().role == "user") return Status::Ok();
  return Status::InvalidInput(
      fmt::format("{}: messages: the last is no user's, expected one that can be answered", line.origin));
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

Status ReadLine(const JsonObject& object, PromptLine& line) {
  line.origin = object.origin();
  HW_RETURN_IF_ERROR(object.ExpectOnly(kKeys));
  if (object.Has("id")) {
    line.id = object.At("id");
    if (!line.id.is_string() && !line.id.is_number()) {
      return Status::InvalidInput(fmt::format("{}: id: expected a text or a number", line.origin));
    }
  }
  HW_RETURN_IF_ERROR(ReadText(object, line));
  HW_RETURN_IF_ERROR(ReadStops(object, line));
  HW_RETURN_IF_ERROR(ReadSampling(object, line));
  HW_ASSIGN_OR_RETURN(const auto max_tokens, IntWithin(object, "max_tokens", -1, kMaxSequenceTokens));
  if (max_tokens) line.max_new_tokens = *max_tokens;
  HW_ASSIGN_OR_RETURN(const auto logprobs, IntWithin(object, "logprobs", 0, kMaxLogprobs));
  if (logprobs) line.logprobs = logprobs;
  return Status::Ok();
}

}  // namespace

Result<std::vector<PromptLine>> ReadPromptLines(const RunOptions& options) {
  const bool is_stdin = *options.prompts == "-";
  const std::string origin = is_stdin ? "standard input" : *options.prompts;
  HW_ASSIGN_OR_RETURN(const std::string text, is_stdin ? ReadStdin() : ReadFile(*options.prompts));
  PromptLine otherwise;
  otherwise.sampling = SamplingOf(options.sampling, false);
  otherwise.stop = options.stop;
  otherwise.logprobs = options.logprobs;
  otherwise.max_new_tokens = options.max_new_tokens;
  std::vector<PromptLine> lines;
  const Status status = ForEachJsonLine(text, origin, [&](const JsonObject& object) {
    lines.push_back(otherwise);
    return ReadLine(object, lines.back());
  });
  if (!status.ok()) return status;
  if (lines.empty()) return Status::InvalidInput(fmt::format("{}: holds no prompts, expected one a line", origin));
  return lines;
}

Result<Request> MakeRequest(const PromptLine& line, const RunOptions& options, const Engine& engine) {
  Request request;
  Status status;
  if (line.prompt) {
    status = FillPrompt(options, engine, *line.prompt, request);
  } else {
    Result<ChatIds> ids = EncodeChat(engine, line.messages, options.chat_form);
    status = ids.status();
    if (ids.ok()) {
      request.prompt = std::move(ids->prompt);
      request.stop_tokens = std::move(ids->stop_tokens);
    }
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
