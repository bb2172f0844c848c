// POST /tokenize and POST /detokenize, in the shapes of vLLM ("prompt") and of llama.cpp ("content").
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/prompt.h"
#include "server/api_server.h"
#include "server/json_fields.h"
#include "server/openai_response.h"
#include "server/prompt_encoding.h"

namespace headwise {
namespace {

Status RequireText(const ServedModel& model) {
  return RequireTokenizer(model.engine()).ok()
             ? Status::Ok()
             : Status::Unsupported(fmt::format("the model {} has no tokenizer: it runs on ids", model.name()));
}

// vLLM puts the start token in front unless told otherwise, llama.cpp only when told to.
ApiResult<std::vector<int32_t>> EncodeText(const ServedModel& model, const std::string& text, bool adds_start,
                                           bool reads_special) {
  const PromptOptions options{.bos = adds_start ? Bos::kAuto : Bos::kNever,
                              .special = reads_special ? SpecialText::kParse : SpecialText::kAsText};
  if (text.empty()) return adds_start ? StartOfText(model.engine()) : std::vector<int32_t>();
  HW_ASSIGN_OR_RETURN(std::vector<int32_t> ids, EncodePrompt(model.engine(), text, options));
  return ids;
}

struct TokenizeRequest {
  std::string model;
  std::optional<std::string> prompt, content;
  std::optional<ApiConversation> conversation;
  bool add_special_tokens = true;
  bool add_special = false;
  bool parse_special = false;
  bool with_pieces = false;
};

ApiResult<TokenizeRequest> ParseTokenizeRequest(const std::string& body) {
  HW_ASSIGN_OR_RETURN(const Json json, ParseRequestBody(body));
  JsonFields fields(json);
  TokenizeRequest request;
  request.model = fields.String("model").value_or("");
  request.prompt = fields.String("prompt");
  request.content = fields.String("content");
  if (fields.Find("messages") != nullptr) ReadConversation(fields, body, request.conversation.emplace());
  request.add_special_tokens = fields.Bool("add_special_tokens").value_or(true);
  request.add_special = fields.Bool("add_special").value_or(false);
  request.parse_special = fields.Bool("parse_special").value_or(false);
  request.with_pieces = fields.Bool("with_pieces").value_or(fields.Bool("return_token_strs").value_or(false));
  fields.Ignore({"return_token_strs"});
  const int num_given = request.prompt.has_value() + request.content.has_value() + request.conversation.has_value();
  if (num_given != 1) fields.Fail("prompt", "expected exactly one of prompt, content and messages");
  if (auto error = fields.Finish()) return *std::move(error);
  return request;
}

ApiResult<HttpResponse> Tokenize(const EndpointParts& parts, const HttpRequest& http) {
  HW_ASSIGN_OR_RETURN(const TokenizeRequest request, ParseTokenizeRequest(http.body));
  HW_ASSIGN_OR_RETURN(const ServedModel* model, parts.host.Find(request.model));
  HW_RETURN_IF_ERROR(RequireText(*model));
  ApiResult<std::vector<int32_t>> encoded =
      request.conversation ? EncodeConversation(*model, *request.conversation)
      : request.prompt     ? EncodeText(*model, *request.prompt, request.add_special_tokens, request.parse_special)
                           : EncodeText(*model, *request.content, request.add_special, request.parse_special);
  HW_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, std::move(encoded));
  ApiJson json = {{"tokens", ids}, {"count", ids.size()}, {"max_model_len", model->max_context()}};
  if (request.with_pieces) {
    json["token_strs"] = ApiJson::array();
    for (const int32_t id : ids) json["token_strs"].push_back(model->engine().tokenizer().BytesOf(id));
  }
  return HttpResponse{.body = ToText(json)};
}

ApiResult<HttpResponse> Detokenize(const EndpointParts& parts, const HttpRequest& http) {
  HW_ASSIGN_OR_RETURN(const Json json, ParseRequestBody(http.body));
  JsonFields fields(json);
  const std::string name = fields.String("model").value_or("");
  const Json* tokens = fields.Find("tokens");
  std::vector<int32_t> ids;
  const auto is_id = [](const Json& id) {
    return id.is_number_integer() && id >= 0 && id <= std::numeric_limits<int32_t>::max();
  };
  if (tokens == nullptr) {
    fields.Fail("tokens", "is missing, expected a list of token ids");
  } else if (!tokens->is_array() || !std::ranges::all_of(*tokens, is_id)) {
    fields.FailValue("tokens", *tokens, "a list of token ids");
  } else {
    ids = tokens->get<std::vector<int32_t>>();
  }
  if (auto error = fields.Finish()) return *std::move(error);
  HW_ASSIGN_OR_RETURN(const ServedModel* model, parts.host.Find(name));
  HW_RETURN_IF_ERROR(RequireText(*model));
  const Tokenizer& tokenizer = model->engine().tokenizer();
  for (const int32_t id : ids) {
    if (tokenizer.TokenOf(id) != nullptr) continue;
    return InvalidField("tokens", fmt::format("tokens: {} is no token of the model {}", id, model->name()));
  }
  // Special tokens show: what was encoded from ids comes back whole.
  const std::string text = tokenizer.Decode(ids, SpecialDisplay::kShow);
  return HttpResponse{.body = ToText({{"prompt", text}, {"content", text}})};
}

}  // namespace

void AddTokenEndpoints(Router& router, const EndpointParts& parts) {
  router.Add("POST", "/tokenize",
             Immediate([parts](const HttpRequest& request, const std::string&) { return Tokenize(parts, request); }));
  router.Add("POST", "/detokenize",
             Immediate([parts](const HttpRequest& request, const std::string&) { return Detokenize(parts, request); }));
}

}  // namespace headwise
