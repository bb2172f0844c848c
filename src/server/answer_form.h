// The form that a request's answers are held to, by its grammar, its tools or both.
#ifndef HEADWISE_SERVER_ANSWER_FORM_H_
#define HEADWISE_SERVER_ANSWER_FORM_H_

#include <headwise/token_constraint.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "server/api_error.h"
#include "server/model_host.h"
#include "server/openai_request.h"
#include "server/tool_syntax.h"

namespace headwise {

struct AnswerForm {
  std::shared_ptr<const TokenConstraint> constraint;
  std::optional<int32_t> marker = std::nullopt;  // CallMarker
};

// The field that asks for one; null where none does.
const char* FormParam(const ApiRequest& request);

// Takes as long as a grammar may take. An error names the field that it is about. Requires: FormParam is not null.
ApiResult<AnswerForm> CompileForm(const ServedModel& model, const ApiRequest& request);

// What tells calls in an answer from text; none where there is nothing to call.
std::optional<ToolCallReader> CallReaderFor(const ServedModel& model, const ApiRequest& request);

}  // namespace headwise

#endif  // HEADWISE_SERVER_ANSWER_FORM_H_
