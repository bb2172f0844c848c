// GET /v1/plans/{name}/heads: what every head of a model holds of a text under a plan. Arithmetic alone, in the pages
// that the model's engine has: the bytes are those of a request's usage.
#ifndef HEADWISE_SERVER_PLAN_HEADS_H_
#define HEADWISE_SERVER_PLAN_HEADS_H_

#include <cstdint>
#include <map>
#include <string>

#include "kv/kv_bytes.h"
#include "server/api_error.h"
#include "server/model_host.h"

namespace headwise {

// The pages of a model's KV heads.
struct HeadPages {
  std::string kv_dtype;
  int64_t tokens = 0;  // of a page
  PageSizes full;      // of heads that keep everything
  PageSizes bounded;   // of heads that drop tokens
};

// Where the limit of KV bytes has no room for a single token, which serves nobody, they are those of an f16 cache
// without padding.
HeadPages HeadPagesOf(const ServedModel& model);

// `rest`: "{name}/heads". The query: tokens, and what plans with elastic heads and with rules from the end of the
// prompt depend on: prompt_tokens and max_tokens, which are `tokens` where they are not given; model.
ApiResult<HttpResponse> AnswerHeads(const ModelHost& host, const std::map<const ServedModel*, HeadPages>& pages_of,
                                    const HttpRequest& request, const std::string& rest);

}  // namespace headwise

#endif  // HEADWISE_SERVER_PLAN_HEADS_H_
