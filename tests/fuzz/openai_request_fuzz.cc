// Any bytes as the body of a completion and of a chat: an error that can be shown, or a request within
// the limits.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "engine/sampler.h"
#include "engine/stop_matcher.h"
#include "server/openai_request.h"
#include "tensor/draw_weight.h"
#include "text/utf8.h"

namespace headwise {
namespace {

constexpr int64_t kVocabSize = int64_t{1} << 31;

void Check(const ApiResult<ApiRequest>& request) {
  if (!request.ok()) {
    const HttpResponse response = ErrorResponse(request.status());
    HW_CHECK(response.status == 400, "status {}", response.status);
    HW_CHECK(!FindInvalidUtf8(response.body), "an error that is no text");
    HW_CHECK(!request.status().message.empty());
    return;
  }
  const ApiRequest& parsed = *request;
  const bool is_chat = parsed.kind == ApiKind::kChat;
  HW_CHECK(is_chat == parsed.prompts.empty() && is_chat != parsed.conversation.messages.empty());
  HW_CHECK(parsed.n >= 1 && static_cast<int64_t>(parsed.prompts.size()) * parsed.n <= kMaxChoices);
  HW_CHECK(!parsed.max_tokens || (*parsed.max_tokens >= 0 && *parsed.max_tokens <= kMaxSequenceTokens));
  HW_CHECK(!parsed.logprobs || (*parsed.logprobs >= 0 && *parsed.logprobs <= kMaxLogprobs));
  // Ids are looked at where the model is known, which draws from fewer.
  SamplingOptions options = parsed.sampling;
  options.logit_bias.clear();
  const Status sampling = ValidateSampling(options, kMaxDrawIds);
  HW_CHECK(sampling.ok(), "{}", sampling.message());
  const Status biases = ValidateSampling({.logit_bias = parsed.sampling.logit_bias}, kVocabSize);
  HW_CHECK(biases.ok(), "{}", biases.message());
  const Status stops = ValidateStops(parsed.stop);
  HW_CHECK(stops.ok(), "{}", stops.message());
}

}  // namespace
}  // namespace headwise

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  headwise::Check(headwise::ParseCompletionRequest(body));
  headwise::Check(headwise::ParseChatRequest(body));
  return 0;
}
