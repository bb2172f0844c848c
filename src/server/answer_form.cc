#include "server/answer_form.h"

#include <fmt/format.h>

#include <utility>

namespace headwise {
namespace {

constexpr const char* kTools = "tools";

bool HasTools(const ApiRequest& request) {
  return !request.tools.tools.empty();
}

// Of answers that call nothing though they might; null: any text, or none.
const GrammarSource* FormBesideCalls(const ApiRequest& request) {
  const bool may_say_either = request.grammar && HasTools(request) && !request.tools.must_call;
  return may_say_either ? &request.grammar->source : nullptr;
}

ApiError ErrorOf(const Status& status, const std::string& param) {
  ApiError error = ToApiError(status);
  if (error.status != 400) return error;
  error.param = param;
  error.message = fmt::format("{}: {}", param, error.message);
  return error;
}

}  // namespace

const char* FormParam(const ApiRequest& request) {
  if (HasTools(request)) return kTools;
  return request.grammar ? request.grammar->param.c_str() : nullptr;
}

ApiResult<AnswerForm> CompileForm(const ServedModel& model, const ApiRequest& request) {
  const Result<const GrammarCompiler*> grammars = model.Grammars();
  if (!grammars.ok()) return ErrorOf(grammars.status(), FormParam(request));
  AnswerForm form;
  const GrammarSource* text = HasTools(request) ? FormBesideCalls(request) : &request.grammar->source;
  if (text != nullptr) {
    // By itself, beside calls too: what is wrong with it is said of it.
    auto compiled = (*grammars)->Compile(*text);
    if (!compiled.ok()) return ErrorOf(compiled.status(), request.grammar->param);
    form.constraint = *std::move(compiled);
  }
  if (!HasTools(request)) return form;
  form.marker = CallMarker(model.tool_syntax(), model.engine().tokenizer());
  auto compiled = (*grammars)->Compile(MakeCallGrammar(model.tool_syntax(), request.tools, form.marker, text));
  if (!compiled.ok()) return ErrorOf(compiled.status(), kTools);
  form.constraint = *std::move(compiled);
  return form;
}

std::optional<ToolCallReader> CallReaderFor(const ServedModel& model, const ApiRequest& request) {
  if (!HasTools(request)) return std::nullopt;
  const ToolSyntax syntax = model.tool_syntax();
  if (FormBesideCalls(request) == nullptr) return ToolCallReader(syntax);
  return ToolCallReader(syntax, CallBeginnings(syntax, request.tools));
}

}  // namespace headwise
