// The functions that every template finds.
#include <fmt/format.h>

#include <unordered_map>

#include "text/jinja/call_args.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/strftime.h"
#include "text/jinja/strings.h"

namespace headwise::jinja {
namespace {

// The sandbox's limit, too.
constexpr int64_t kMaxRange = 100'000;

Result<Value> RaiseException(Interpreter& interpreter, const Value&, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"message"}, 1));
  HW_ASSIGN_OR_RETURN(const MarkedString message, interpreter.ToText(*found[0]));
  constexpr int64_t kMaxMessage = 2000;
  const std::string_view shown = message.view().substr(0, ByteOfCharacter(message.view(), kMaxMessage));
  return Status::InvalidInput(fmt::format("the template says: {}", shown));
}

Result<Value> StrftimeNow(Interpreter& interpreter, const Value&, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"format"}, 1));
  HW_ASSIGN_OR_RETURN(const MarkedString format, StringArg(found[0], "format"));
  if (!interpreter.options().now) return Status::InvalidInput("the time is not known here");
  HW_RETURN_IF_ERROR(interpreter.Make(format.size() * 8));
  HW_ASSIGN_OR_RETURN(const std::string text, FormatTime(*interpreter.options().now, format.view()));
  return Value::String(MarkedString(text, format.AnyOrigin()));
}

Result<Value> Range(Interpreter& interpreter, const Value&, const CallArgs& args) {
  if (args.values.empty() || args.values.size() > 3 || !args.named.empty()) {
    return Status::InvalidInput("expected one to three integers");
  }
  int64_t parts[3] = {0, 0, 1};
  for (size_t i = 0; i < args.values.size(); ++i) {
    HW_ASSIGN_OR_RETURN(parts[i], IntArg(&args.values[i], "range", 0));
  }
  if (args.values.size() == 1) std::swap(parts[0], parts[1]);
  int64_t span = 0;
  if (__builtin_sub_overflow(parts[1], parts[0], &span) || parts[2] == INT64_MIN) {
    return Status::InvalidInput(fmt::format("more than {} integers", kMaxRange));
  }
  if (parts[2] == 0) return Status::InvalidInput("a step of 0");
  HW_RETURN_IF_ERROR(interpreter.Make(sizeof(RangeObject)));
  auto range = std::make_shared<RangeObject>(parts[0], parts[1], parts[2]);
  if (range->size() > kMaxRange) {
    return Status::InvalidInput(fmt::format("{} integers, expected at most {}", range->size(), kMaxRange));
  }
  return Value::Of(std::move(range));
}

// The arguments of dict and namespace: a dict or pairs, and names.
Result<std::vector<std::pair<Value, Value>>> EntriesOf(Interpreter& interpreter, const CallArgs& args) {
  std::vector<std::pair<Value, Value>> entries;
  if (args.values.size() > 1) return Status::InvalidInput("several arguments without a name, expected at most one");
  if (!args.values.empty() && args.values[0].type() == Type::kDict) {
    entries = args.values[0].dict().entries;
    HW_RETURN_IF_ERROR(interpreter.Make(entries.size() * 2 * sizeof(Value)));
  } else if (!args.values.empty()) {
    HW_ASSIGN_OR_RETURN(const std::vector<Value> pairs, interpreter.Iterate(args.values[0]));
    for (const Value& pair : pairs) {
      HW_ASSIGN_OR_RETURN(const std::vector<Value> both, interpreter.Iterate(pair));
      if (both.size() != 2) return Status::InvalidInput("expected pairs of a key and a value");
      HW_RETURN_IF_ERROR(CheckHashable(both[0]));
      entries.emplace_back(both[0], both[1]);
    }
  }
  for (const auto& [name, value] : args.named) entries.emplace_back(Value::String(name), value);
  return entries;
}

Result<Value> Dict(Interpreter& interpreter, const Value&, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(auto entries, EntriesOf(interpreter, args));
  return interpreter.NewDict(std::move(entries));
}

Result<Value> Namespace(Interpreter& interpreter, const Value&, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto entries, EntriesOf(interpreter, args));
  return interpreter.NewNamespace(entries);
}

Result<Value> Joiner(Interpreter& interpreter, const Value&, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"sep"}, 0));
  HW_RETURN_IF_ERROR(interpreter.Make(sizeof(JoinerObject)));
  return Value::Of(std::make_shared<JoinerObject>(found[0] ? *found[0] : Value::String(", ")));
}

Result<Value> Cycler(Interpreter& interpreter, const Value&, const CallArgs& args) {
  if (args.values.empty() || !args.named.empty()) return Status::InvalidInput("expected the values to cycle through");
  HW_RETURN_IF_ERROR(interpreter.Make(args.values.size() * sizeof(Value)));
  return Value::Of(std::make_shared<CyclerObject>(args.values));
}

}  // namespace

MethodFunction FindGlobal(std::string_view name) {
  static const std::unordered_map<std::string_view, MethodFunction> kGlobals = {{"raise_exception", RaiseException},
                                                                                {"strftime_now", StrftimeNow},
                                                                                {"range", Range},
                                                                                {"dict", Dict},
                                                                                {"namespace", Namespace},
                                                                                {"joiner", Joiner},
                                                                                {"cycler", Cycler}};
  const auto at = kGlobals.find(name);
  return at == kGlobals.end() ? nullptr : at->second;
}

}  // namespace headwise::jinja
