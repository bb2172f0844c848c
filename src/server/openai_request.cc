#include "server/openai_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <string>
#include <utility>

#include "engine/stop_matcher.h"
#include "text/chat_messages.h"

namespace headwise {
namespace {

constexpr int32_t kMaxId = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxChatLogprobs = 20;  // OpenAI's
constexpr size_t kMaxStopIds = 1024;

std::optional<int32_t> IdOf(const Json& value) {
  if (!value.is_number_integer() || value < 0 || value > kMaxId) return std::nullopt;
  return value.get<int32_t>();
}

std::optional<std::vector<int32_t>> IdsOf(const Json& list) {
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const Json& value : list) {
    const auto id = IdOf(value);
    if (!id) return std::nullopt;
    ids.push_back(*id);
  }
  return ids;
}

void ReadPrompt(JsonFields& fields, ApiRequest& request) {
  constexpr const char* kExpected = "a text, a list of texts, a list of token ids or a list of such lists";
  const Json* prompt = fields.Find("prompt");
  if (prompt == nullptr) return fields.Fail("prompt", fmt::format("is missing, expected {}", kExpected));
  if (prompt->is_string()) {
    request.prompts.emplace_back(prompt->get<std::string>());
  } else if (!prompt->is_array() || prompt->empty()) {
    return fields.FailValue("prompt", *prompt, kExpected);
  } else if (prompt->front().is_number()) {
    auto ids = IdsOf(*prompt);
    if (!ids) return fields.Fail("prompt", fmt::format("expected token ids alone, from 0 to {}", kMaxId));
    request.prompts.emplace_back(*std::move(ids));
  } else {
    if (prompt->size() > static_cast<size_t>(kMaxChoices)) {
      return fields.Fail("prompt", fmt::format("has {} prompts, expected at most {}", prompt->size(), kMaxChoices));
    }
    for (const Json& each : *prompt) {
      auto ids = each.is_array() ? IdsOf(each) : std::nullopt;
      if (!ids && !each.is_string()) {
        return fields.Fail("prompt", fmt::format("item {} is {}, expected a text or a list of token ids",
                                                 request.prompts.size(), ShowJson(each)));
      }
      request.prompts.push_back(ids ? ApiPrompt(*std::move(ids)) : ApiPrompt(each.get<std::string>()));
    }
  }
}

void ReadStops(JsonFields& fields, ApiRequest& request) {
  if (const Json* stop = fields.Find("stop")) {
    const Json list = stop->is_string() ? Json::array({*stop}) : *stop;
    if (!list.is_array() || !std::ranges::all_of(list, [](const Json& each) { return each.is_string(); })) {
      return fields.FailValue("stop", *stop, "a text or a list of texts");
    }
    request.stop = list.get<std::vector<std::string>>();
    const Status status = ValidateStops(request.stop);
    if (!status.ok()) return fields.Fail("stop", status.message());
  }
  if (const Json* list = fields.Find("stop_token_ids")) {
    auto ids = list->is_array() && list->size() <= kMaxStopIds ? IdsOf(*list) : std::nullopt;
    if (!ids)
      return fields.FailValue("stop_token_ids", *list, fmt::format("a list of up to {} token ids", kMaxStopIds));
    request.stop_token_ids = *std::move(ids);
  }
}

void ReadLogitBias(JsonFields& fields, SamplingOptions& sampling) {
  const Json* biases = fields.Object("logit_bias");
  if (biases == nullptr) return;
  for (const auto& [key, value] : biases->items()) {
    LogitBias bias;
    const std::errc error = std::from_chars(key.data(), key.data() + key.size(), bias.id).ec;
    // Written otherwise an id could stand there twice.
    const bool is_id = error == std::errc() && bias.id >= 0 && key == std::to_string(bias.id);
    const double number = value.is_number() ? value.get<double>() : std::numeric_limits<double>::infinity();
    if (!is_id || !(number >= -100 && number <= 100)) {
      return fields.Fail("logit_bias", fmt::format("{}: {}, expected token ids, as strings, with numbers from -100 to "
                                                   "100",
                                                   ShowJson(key), ShowJson(value)));
    }
    bias.bias = static_cast<float>(number);
    sampling.logit_bias.push_back(bias);
  }
}

// Whatever it is, it changes no answer: what is no text is nobody's name.
void ReadUser(JsonFields& fields, ApiRequest& request) {
  constexpr size_t kMostBytes = 256;
  const Json* user = fields.Find("user");
  if (user != nullptr && user->is_string()) request.client = user->get<std::string>().substr(0, kMostBytes);
}

// A number that the engine holds as float.
void ReadFloat(JsonFields& fields, const char* name, double least, double most, float& to) {
  if (const auto number = fields.Number(name, least, most)) to = static_cast<float>(*number);
}

void ReadSampling(JsonFields& fields, ApiRequest& request) {
  SamplingOptions& sampling = request.sampling;
  sampling.temperature = 1;
  ReadFloat(fields, "temperature", 0, 2, sampling.temperature);
  ReadFloat(fields, "top_p", 0, 1, sampling.top_p);
  // The engine wants a set of at least one: so small a share is that.
  sampling.top_p = std::max(sampling.top_p, std::numeric_limits<float>::min());
  ReadFloat(fields, "min_p", 0, 1, sampling.min_p);
  ReadFloat(fields, "presence_penalty", -2, 2, sampling.presence_penalty);
  ReadFloat(fields, "frequency_penalty", -2, 2, sampling.frequency_penalty);
  if (const auto penalty = fields.Number("repetition_penalty", 0, 100)) {
    sampling.repetition_penalty = static_cast<float>(*penalty);
    if (!(sampling.repetition_penalty > 0)) {
      fields.Fail("repetition_penalty", fmt::format("is {}, expected a number above 0 (1: off)", *penalty));
    }
  }
  // vLLM has -1 for off, others 0.
  sampling.top_k = std::max<int64_t>(0, fields.Int("top_k", -1, kMaxSequenceTokens).value_or(0));
  ReadLogitBias(fields, sampling);
  if (const Json* seed = fields.Find("seed"); seed != nullptr && seed->is_number_unsigned()) {
    request.seed = seed->get<uint64_t>();
  } else if (const auto number =
                 fields.Int("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max())) {
    request.seed = static_cast<uint64_t>(*number);
  }
}

void ReadStream(JsonFields& fields, ApiRequest& request) {
  request.stream = fields.Bool("stream").value_or(false);
  const Json* options = fields.Object("stream_options");
  if (options == nullptr) return;
  if (!request.stream) return fields.Fail("stream_options", "is given without stream, expected \"stream\": true");
  JsonFields inner(*options, "stream_options.");
  request.include_usage = inner.Bool("include_usage").value_or(false);
  // Padding against observers of encrypted lengths; OpenAI's clients may ask for none.
  inner.Ignore({"include_obfuscation"});
  if (auto error = inner.Finish()) fields.Fail(*std::move(error));
}

// What both endpoints have.
void ReadCommon(JsonFields& fields, ApiRequest& request) {
  request.model = fields.String("model").value_or("");
  request.plan = fields.String("plan").value_or("");
  request.n = fields.Int("n", 1, 128).value_or(1);
  ReadStream(fields, request);
  ReadStops(fields, request);
  request.ignore_eos = fields.Bool("ignore_eos").value_or(false);
  request.priority =
      fields.Int("priority", std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()).value_or(0);
  ReadUser(fields, request);
  request.cache_prompt = fields.Bool("cache_prompt").value_or(true);
  ReadSampling(fields, request);
  // Who asks, what he stores elsewhere, how urgent it is: none of it changes an answer.
  fields.Ignore(
      {"metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"});
}

// Before what nobody has read is refused.
void ReadForm(JsonFields& fields, std::string_view body, ApiRequest& request) {
  request.grammar = ReadGrammar(fields, body);
  if (request.kind == ApiKind::kChat) request.tools = ReadTools(fields, body);
  const bool has_tools = !request.tools.tools.empty();
  if (request.ignore_eos && (has_tools || request.grammar)) {
    fields.Fail("ignore_eos", "is given for an answer whose form says where it ends");
  }
}

void RefuseChatFields(JsonFields& fields) {
  // What tools were before they were called so.
  const Json* functions = fields.Find("functions");
  const bool has_functions = functions != nullptr && !(functions->is_array() && functions->empty());
  if (has_functions) fields.NotYet("functions", "functions, other than as tools");
  if (fields.Find("function_call") != nullptr) fields.NotYet("function_call", "other than tool_choice");
  if (const Json* modalities = fields.Find("modalities"); modalities != nullptr && *modalities != Json({"text"})) {
    fields.NotYet("modalities", "modalities but [\"text\"]");
  }
  for (const char* name : {"audio", "reasoning_effort", "verbosity", "web_search_options"}) {
    if (fields.Find(name) != nullptr) fields.NotYet(name, "this");
  }
  fields.Ignore({"prediction"});  // only ever makes an answer come sooner
}

void RefuseCompletionFields(JsonFields& fields, const ApiRequest& request) {
  const auto best_of = fields.Int("best_of", 1, 128);
  if (best_of && *best_of != request.n) fields.NotYet("best_of", "a number other than n");
  const Json* suffix = fields.Find("suffix");
  if (suffix != nullptr && *suffix != "") fields.NotYet("suffix", "text behind the answer");
}

void CheckNumChoices(JsonFields& fields, const ApiRequest& request) {
  const int64_t num_choices = static_cast<int64_t>(request.prompts.size()) * request.n;
  if (num_choices <= kMaxChoices) return;
  fields.Fail("n", fmt::format("{} prompts of {} choices, expected at most {} in all", request.prompts.size(),
                               request.n, kMaxChoices));
}

// The text of a list of text parts.
std::optional<std::string> JoinParts(JsonFields& fields, const nlohmann::ordered_json& parts, size_t message) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const nlohmann::ordered_json& part = parts[i];
    const std::string type = part.is_object() && part.contains("type") && part["type"].is_string()
                                 ? part["type"].get<std::string>()
                                 : std::string();
    const bool is_text = type == "text" && part.contains("text") && part["text"].is_string();
    if (!is_text) {
      fields.Fail("messages", fmt::format("message {}: content: part {} is of type {}, expected {{\"type\": \"text\", "
                                          "\"text\": ...}}",
                                          message, i, ShowJson(type)));
      return std::nullopt;
    }
    text += (i > 0 ? "\n" : "") + part["text"].get<std::string>();
  }
  return text;
}

}  // namespace

void ReadConversation(JsonFields& fields, std::string_view body, ApiConversation& conversation) {
  const Json* given = fields.Find("messages");
  const Json* documents = fields.Find("documents");
  const Json* variables = fields.Object("chat_template_kwargs");
  const bool opens = fields.Bool("add_generation_prompt").value_or(true);
  if (!opens) conversation.end = ChatEnd::kAsGiven;
  if (fields.Bool("continue_final_message").value_or(false)) {
    fields.NotYet("continue_final_message", "going on with an assistant's message");
  }
  if (documents != nullptr && !documents->is_array()) fields.FailValue("documents", *documents, "a list of objects");
  if (given == nullptr) fields.Fail("messages", "is missing, expected a list of messages");
  if (given != nullptr && (!given->is_array() || given->empty())) {
    fields.FailValue("messages", *given, "a list of messages");
  }
  if (fields.failed()) return;

  // Templates write some of it out as JSON: the order in which a client wrote it is part of the prompt.
  const auto ordered = nlohmann::ordered_json::parse(body, nullptr, false);
  nlohmann::ordered_json messages = ordered["messages"];
  for (size_t i = 0; i < messages.size(); ++i) {
    nlohmann::ordered_json& message = messages[i];
    if (!message.is_object()) return fields.Fail("messages", fmt::format("message {} is no object", i));
    // Clients hand back answers with every field that an answer may have.
    for (auto it = message.begin(); it != message.end();) {
      it = it->is_null() && it.key() != "content" ? message.erase(it) : std::next(it);
    }
    if (!message.contains("content") || !message["content"].is_array()) continue;
    auto text = JoinParts(fields, message["content"], i);
    if (!text) return;
    message["content"] = *std::move(text);
  }
  Result<std::vector<ChatMessage>> read = ReadChatMessages(messages, "messages");
  if (!read.ok()) return fields.Fail(InvalidField("messages", read.status().message()));
  conversation.messages = *std::move(read);
  if (documents != nullptr) conversation.documents = ordered["documents"].dump();
  if (variables != nullptr) conversation.variables = ordered["chat_template_kwargs"].dump();
}

ApiResult<ApiRequest> ParseCompletionRequest(std::string_view body) {
  HW_ASSIGN_OR_RETURN(const Json json, ParseRequestBody(body));
  JsonFields fields(json);
  ApiRequest request;
  ReadPrompt(fields, request);
  ReadCommon(fields, request);
  request.max_tokens = fields.Int("max_tokens", 0, kMaxSequenceTokens);
  request.echo = fields.Bool("echo").value_or(false);
  // Some clients say false for none, as chat completions have it.
  const Json* logprobs = fields.Find("logprobs");
  if (logprobs == nullptr || *logprobs != false) request.logprobs = fields.Int("logprobs", 0, kMaxLogprobs);
  CheckNumChoices(fields, request);
  ReadForm(fields, body, request);
  RefuseCompletionFields(fields, request);
  if (auto error = fields.Finish()) return *std::move(error);
  return request;
}

ApiResult<ApiRequest> ParseChatRequest(std::string_view body) {
  HW_ASSIGN_OR_RETURN(const Json json, ParseRequestBody(body));
  JsonFields fields(json);
  ApiRequest request;
  request.kind = ApiKind::kChat;
  ReadConversation(fields, body, request.conversation);
  ReadCommon(fields, request);
  const auto max_tokens = fields.Int("max_tokens", 0, kMaxSequenceTokens);
  const auto max_completion_tokens = fields.Int("max_completion_tokens", 0, kMaxSequenceTokens);
  if (max_tokens && max_completion_tokens && *max_tokens != *max_completion_tokens) {
    fields.Fail("max_completion_tokens", fmt::format("is {} beside max_tokens {}, expected one of the two",
                                                     *max_completion_tokens, *max_tokens));
  }
  request.max_tokens = max_completion_tokens ? max_completion_tokens : max_tokens;
  const bool wants_logprobs = fields.Bool("logprobs").value_or(false);
  const auto top_logprobs = fields.Int("top_logprobs", 0, kMaxChatLogprobs);
  if (top_logprobs && !wants_logprobs) {
    fields.Fail("top_logprobs", "is given without logprobs, expected \"logprobs\": true");
  }
  if (wants_logprobs) request.logprobs = top_logprobs.value_or(0);
  ReadForm(fields, body, request);
  RefuseChatFields(fields);
  if (auto error = fields.Finish()) return *std::move(error);
  return request;
}

}  // namespace headwise
