// The tests behind `is`.
#include <unordered_map>

#include "text/jinja/call_args.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/strings.h"

namespace headwise::jinja {
namespace {

using Predicate = bool (*)(const Value& input);

template <Predicate holds>
Result<bool> Is(Interpreter&, const Value& input, const CallArgs& args) {
  HW_RETURN_IF_ERROR(BindNothing(args));
  return holds(input);
}

bool IsDefined(const Value& input) {
  return !input.is_undefined();
}
bool IsUndefined(const Value& input) {
  return input.is_undefined();
}
bool IsNone(const Value& input) {
  return input.is_none();
}
bool IsString(const Value& input) {
  return input.is_string();
}
bool IsNumber(const Value& input) {
  return input.is_number();
}
bool IsInteger(const Value& input) {
  return input.type() == Type::kInt;
}
bool IsFloat(const Value& input) {
  return input.type() == Type::kFloat;
}
bool IsBoolean(const Value& input) {
  return input.type() == Type::kBool;
}
bool IsTheTrue(const Value& input) {
  return input.type() == Type::kBool && input.boolean();
}
bool IsTheFalse(const Value& input) {
  return input.type() == Type::kBool && !input.boolean();
}
bool IsMapping(const Value& input) {
  return input.type() == Type::kDict;
}
bool IsCallable(const Value& input) {
  return input.is_callable();
}
bool IsEscaped(const Value& input) {
  return input.is_markup();
}

bool IsIterable(const Value& input) {
  switch (input.type()) {
    case Type::kNone:
    case Type::kBool:
    case Type::kInt:
    case Type::kFloat:
    case Type::kNamespace:
    case Type::kMacro:
    case Type::kFunction:
    case Type::kCycler:
    case Type::kJoiner:
      return false;
    default:
      return true;
  }
}

// Has a length and items by key.
bool IsSequence(const Value& input) {
  switch (input.type()) {
    case Type::kUndefined:
    case Type::kString:
    case Type::kList:
    case Type::kTuple:
    case Type::kDict:
    case Type::kRange:
      return true;
    default:
      return false;
  }
}

template <Case to>
Result<bool> IsInCase(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_RETURN_IF_ERROR(BindNothing(args));
  HW_ASSIGN_OR_RETURN(const MarkedString text, interpreter.ToText(input));
  HW_RETURN_IF_ERROR(interpreter.SpendOnBytes(text.size(), 32));
  return AreAll(text.view(), to == Case::kUpper ? CharacterClass::kUpper : CharacterClass::kLower);
}

Result<bool> LeavesRest(Interpreter& interpreter, const Value& input, const Value& divisor, int64_t rest) {
  if (input.is_string()) return Status::InvalidInput("a str, expected a number");
  HW_ASSIGN_OR_RETURN(const Value left, interpreter.Binary(BinaryOp::kMod, input, divisor));
  return Equals(left, Value::Int(rest));
}

template <int rest>
Result<bool> IsOddOrEven(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_RETURN_IF_ERROR(BindNothing(args));
  return LeavesRest(interpreter, input, Value::Int(2), rest);
}

Result<bool> IsDivisibleBy(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"num"}, 1));
  return LeavesRest(interpreter, input, *found[0], 0);
}

template <CompareOp op>
Result<bool> IsInOrder(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"b"}, 1));
  if (op == CompareOp::kEq || op == CompareOp::kNe) {
    HW_ASSIGN_OR_RETURN(const bool is_equal, interpreter.AreEqual(input, *found[0]));
    return is_equal == (op == CompareOp::kEq);
  }
  HW_RETURN_IF_ERROR(interpreter.SpendOn(input));
  HW_ASSIGN_OR_RETURN(const int order, Compare(input, *found[0]));
  if (order == 2) return false;
  return op == CompareOp::kLt   ? order < 0
         : op == CompareOp::kLe ? order <= 0
         : op == CompareOp::kGt ? order > 0
                                : order >= 0;
}

Result<bool> IsIn(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"seq"}, 1));
  return interpreter.Contains(*found[0], input);
}

// The same object in memory. Of numbers and strings Python decides case by case; here equal ones of a type are the
// same.
Result<bool> IsSameAs(Interpreter& interpreter, const Value& input, const CallArgs& args) {
  HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"other"}, 1));
  const Value& other = *found[0];
  if (input.type() != other.type()) return false;
  if (input.is_none() || input.is_number() || input.is_string()) return interpreter.AreEqual(input, other);
  if (input.is_undefined()) return false;
  return input.object() == other.object();
}

template <auto find>
Result<bool> IsKnown(Interpreter&, const Value& input, const CallArgs& args) {
  HW_RETURN_IF_ERROR(BindNothing(args));
  return input.is_string() && find(input.view()) != nullptr;
}

}  // namespace

TestFunction FindTest(std::string_view name) {
  static const std::unordered_map<std::string_view, TestFunction> kTests = {
      {"defined", Is<IsDefined>},
      {"undefined", Is<IsUndefined>},
      {"none", Is<IsNone>},
      {"string", Is<IsString>},
      {"number", Is<IsNumber>},
      {"integer", Is<IsInteger>},
      {"float", Is<IsFloat>},
      {"boolean", Is<IsBoolean>},
      {"true", Is<IsTheTrue>},
      {"false", Is<IsTheFalse>},
      {"mapping", Is<IsMapping>},
      {"iterable", Is<IsIterable>},
      {"sequence", Is<IsSequence>},
      {"callable", Is<IsCallable>},
      {"escaped", Is<IsEscaped>},
      {"lower", IsInCase<Case::kLower>},
      {"upper", IsInCase<Case::kUpper>},
      {"odd", IsOddOrEven<1>},
      {"even", IsOddOrEven<0>},
      {"divisibleby", IsDivisibleBy},
      {"eq", IsInOrder<CompareOp::kEq>},
      {"equalto", IsInOrder<CompareOp::kEq>},
      {"==", IsInOrder<CompareOp::kEq>},
      {"ne", IsInOrder<CompareOp::kNe>},
      {"!=", IsInOrder<CompareOp::kNe>},
      {"lt", IsInOrder<CompareOp::kLt>},
      {"lessthan", IsInOrder<CompareOp::kLt>},
      {"<", IsInOrder<CompareOp::kLt>},
      {"le", IsInOrder<CompareOp::kLe>},
      {"<=", IsInOrder<CompareOp::kLe>},
      {"gt", IsInOrder<CompareOp::kGt>},
      {"greaterthan", IsInOrder<CompareOp::kGt>},
      {">", IsInOrder<CompareOp::kGt>},
      {"ge", IsInOrder<CompareOp::kGe>},
      {">=", IsInOrder<CompareOp::kGe>},
      {"in", IsIn},
      {"sameas", IsSameAs},
      {"filter", IsKnown<FindFilter>},
      {"test", IsKnown<FindTest>},
  };
  const auto at = kTests.find(name);
  return at == kTests.end() ? nullptr : at->second;
}

}  // namespace headwise::jinja
