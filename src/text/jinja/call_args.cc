#include "text/jinja/call_args.h"

#include <algorithm>

namespace headwise::jinja {

Status BindParameters(const CallArgs& args, std::span<const char* const> names, size_t num_required,
                      std::span<const Value*> found) {
  if (args.values.size() > names.size()) {
    return Status::InvalidInput(fmt::format("{} arguments, expected at most {}", args.values.size(), names.size()));
  }
  for (size_t i = 0; i < args.values.size(); ++i) found[i] = &args.values[i];
  for (const auto& [name, value] : args.named) {
    const auto at = std::find(names.begin(), names.end(), name);
    if (at == names.end()) return Status::InvalidInput(fmt::format("no parameter is called '{}'", name));
    const Value*& place = found[static_cast<size_t>(at - names.begin())];
    if (place) return Status::InvalidInput(fmt::format("parameter '{}' is given twice", name));
    place = &value;
  }
  for (size_t i = 0; i < num_required; ++i) {
    if (!found[i]) return Status::InvalidInput(fmt::format("parameter '{}' is missing", names[i]));
  }
  return Status::Ok();
}

Status BindNothing(const CallArgs& args) {
  return args.empty() ? Status::Ok() : Status::InvalidInput("arguments given, expected none");
}

Result<int64_t> IntArg(const Value* value, const char* name, int64_t otherwise) {
  if (!value) return otherwise;
  if (value->is_integer()) return value->integer();
  return Status::InvalidInput(fmt::format("parameter '{}' is a {}, expected int", name, value->type_name()));
}

Result<bool> TruthArg(const Value* value, bool otherwise) {
  return value ? IsTrue(*value) : otherwise;
}

Result<MarkedString> StringArg(const Value* value, const char* name) {
  if (value && value->is_string()) return value->string();
  return Status::InvalidInput(
      fmt::format("parameter '{}' is a {}, expected str", name, value ? value->type_name() : "None"));
}

FunctionObject::FunctionObject(std::string its_name, Value belongs_to, MethodFunction calls)
    : Object(Type::kFunction), name(std::move(its_name)), self(std::move(belongs_to)), function(calls) {
  Hold(self);
}

}  // namespace headwise::jinja
