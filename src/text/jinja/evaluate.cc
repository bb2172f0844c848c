// Expressions.
#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/interpreter.h"

namespace headwise::jinja {

Result<Value> Interpreter::Evaluate(const Expr& expr) {
  HW_RETURN_IF_ERROR(Spend(1));
  if (expr.kind == ExprKind::kConst) return static_cast<const ConstExpr&>(expr).value;
  if (expr.kind == ExprKind::kName) return EvaluateName(static_cast<const NameExpr&>(expr));
  if (++depth_ > options_.limits.max_depth) {
    --depth_;
    return Status::InvalidInput(
        fmt::format("operations, blocks and macros more than {} deep inside one another", options_.limits.max_depth));
  }
  auto value = EvaluateKind(expr);
  --depth_;
  return value;
}

Result<Value> Interpreter::EvaluateKind(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::kConst:
    case ExprKind::kName:
      break;
    case ExprKind::kList:
    case ExprKind::kTuple: {
      HW_ASSIGN_OR_RETURN(std::vector<Value> items, EvaluateAll(static_cast<const OperandsExpr&>(expr).operands));
      return expr.kind == ExprKind::kList ? NewList(std::move(items)) : NewTuple(std::move(items));
    }
    case ExprKind::kDict:
      return EvaluateDict(static_cast<const OperandsExpr&>(expr));
    case ExprKind::kAttribute: {
      const auto& attribute = static_cast<const AttributeExpr&>(expr);
      HW_ASSIGN_OR_RETURN(const Value object, Evaluate(*attribute.object));
      line_ = expr.line;
      return Attribute(object, attribute.name);
    }
    case ExprKind::kItem: {
      const auto& operands = static_cast<const OperandsExpr&>(expr).operands;
      HW_ASSIGN_OR_RETURN(const Value object, Evaluate(*operands[0]));
      HW_ASSIGN_OR_RETURN(const Value key, Evaluate(*operands[1]));
      line_ = expr.line;
      return Item(object, key);
    }
    case ExprKind::kSlice:
      return EvaluateSlice(static_cast<const OperandsExpr&>(expr));
    case ExprKind::kCall:
    case ExprKind::kFilter:
    case ExprKind::kTest:
      return EvaluateCall(static_cast<const CallExpr&>(expr));
    case ExprKind::kNegative:
    case ExprKind::kPositive:
      return EvaluateSign(static_cast<const OperandsExpr&>(expr));
    case ExprKind::kNot: {
      HW_ASSIGN_OR_RETURN(const Value value, Evaluate(*static_cast<const OperandsExpr&>(expr).operands[0]));
      return Value::Bool(!IsTrue(value));
    }
    case ExprKind::kAnd:
    case ExprKind::kOr:
      return EvaluateLogic(static_cast<const OperandsExpr&>(expr));
    case ExprKind::kBinary: {
      const auto& binary = static_cast<const BinaryExpr&>(expr);
      HW_ASSIGN_OR_RETURN(const Value a, Evaluate(*binary.operands[0]));
      HW_ASSIGN_OR_RETURN(const Value b, Evaluate(*binary.operands[1]));
      line_ = expr.line;
      return Binary(binary.op, a, b);
    }
    case ExprKind::kConcat:
      return EvaluateConcat(static_cast<const OperandsExpr&>(expr));
    case ExprKind::kCompare:
      return EvaluateCompare(static_cast<const CompareExpr&>(expr));
    case ExprKind::kChoice:
      return EvaluateChoice(static_cast<const OperandsExpr&>(expr));
    case ExprKind::kBlockText:
      return std::exchange(block_text_, Value());
  }
  return Value();
}

Result<Value> Interpreter::EvaluateName(const NameExpr& expr) {
  const std::string& name = program_.names[static_cast<size_t>(expr.name)];
  if (const Value* value = FindVariable(scope_, expr.name)) {
    if (!value->is_unset()) return *value;
  } else if (const Value* given = context_[static_cast<size_t>(expr.name)]) {
    return *given;
  } else if (const MethodFunction function = FindGlobal(name)) {
    HW_RETURN_IF_ERROR(Make(sizeof(FunctionObject)));
    return Value::Of(std::make_shared<FunctionObject>(name, Value(), function));
  }
  HW_RETURN_IF_ERROR(Make(sizeof(UndefinedObject)));
  return Value::Undefined(fmt::format("'{}' is undefined", name));
}

Result<std::vector<Value>> Interpreter::EvaluateAll(const std::vector<ExprPtr>& exprs) {
  std::vector<Value> values;
  values.reserve(exprs.size());
  for (const ExprPtr& expr : exprs) {
    HW_ASSIGN_OR_RETURN(Value value, Evaluate(*expr));
    values.push_back(std::move(value));
  }
  return values;
}

Result<Value> Interpreter::EvaluateDict(const OperandsExpr& expr) {
  std::vector<std::pair<Value, Value>> entries;
  for (size_t i = 0; i < expr.operands.size(); i += 2) {
    HW_ASSIGN_OR_RETURN(Value key, Evaluate(*expr.operands[i]));
    HW_ASSIGN_OR_RETURN(Value value, Evaluate(*expr.operands[i + 1]));
    entries.emplace_back(std::move(key), std::move(value));
  }
  line_ = expr.line;
  return NewDict(std::move(entries));
}

Result<Value> Interpreter::EvaluateSlice(const OperandsExpr& expr) {
  Value parts[4] = {Value::None(), Value::None(), Value::None(), Value::None()};
  for (size_t i = 0; i < expr.operands.size(); ++i) {
    if (!expr.operands[i]) continue;
    HW_ASSIGN_OR_RETURN(parts[i], Evaluate(*expr.operands[i]));
  }
  line_ = expr.line;
  return Slice(parts[0], parts[1], parts[2], parts[3]);
}

Result<Value> Interpreter::EvaluateSign(const OperandsExpr& expr) {
  HW_ASSIGN_OR_RETURN(const Value value, Evaluate(*expr.operands[0]));
  line_ = expr.line;
  if (value.is_undefined()) return Status::InvalidInput(value.UndefinedMessage());
  if (!value.is_number()) {
    return Status::InvalidInput(fmt::format("a sign in front of a {}, expected a number", value.type_name()));
  }
  const bool is_negative = expr.kind == ExprKind::kNegative;
  if (!value.is_integer()) return Value::Float(is_negative ? -value.number() : value.number(), value.origin());
  if (is_negative) return Binary(BinaryOp::kSub, Value::Int(0), value);
  return Value::Int(value.integer(), value.origin());
}

Result<Value> Interpreter::EvaluateLogic(const OperandsExpr& expr) {
  HW_ASSIGN_OR_RETURN(Value value, Evaluate(*expr.operands[0]));
  if (IsTrue(value) == (expr.kind == ExprKind::kOr)) return value;
  return Evaluate(*expr.operands[1]);
}

Result<Value> Interpreter::EvaluateChoice(const OperandsExpr& expr) {
  HW_ASSIGN_OR_RETURN(const Value condition, Evaluate(*expr.operands[1]));
  if (IsTrue(condition)) return Evaluate(*expr.operands[0]);
  if (expr.operands[2]) return Evaluate(*expr.operands[2]);
  return Value::Undefined("the inline if evaluated to false and no else section was defined");
}

Result<Value> Interpreter::EvaluateConcat(const OperandsExpr& expr) {
  HW_ASSIGN_OR_RETURN(const std::vector<Value> values, EvaluateAll(expr.operands));
  line_ = expr.line;
  MarkedString joined;
  for (const Value& value : values) {
    HW_ASSIGN_OR_RETURN(const MarkedString text, ToText(value));
    HW_RETURN_IF_ERROR(Make(joined.ConcatCost(text)));
    joined = joined.Concat(text);
  }
  return Value::String(std::move(joined));
}

Result<bool> Interpreter::CompareOnce(CompareOp op, const Value& a, const Value& b) {
  switch (op) {
    case CompareOp::kEq:
      return AreEqual(a, b);
    case CompareOp::kNe: {
      HW_ASSIGN_OR_RETURN(const bool are_equal, AreEqual(a, b));
      return !are_equal;
    }
    case CompareOp::kIn:
      return Contains(b, a);
    case CompareOp::kNotIn: {
      HW_ASSIGN_OR_RETURN(const bool is_in, Contains(b, a));
      return !is_in;
    }
    default:
      break;
  }
  HW_RETURN_IF_ERROR(Spend(std::min(a.weight(), b.weight()) / 16));
  HW_ASSIGN_OR_RETURN(const int order, Compare(a, b));
  if (order == 2) return false;
  return op == CompareOp::kLt   ? order < 0
         : op == CompareOp::kLe ? order <= 0
         : op == CompareOp::kGt ? order > 0
                                : order >= 0;
}

Result<Value> Interpreter::EvaluateCompare(const CompareExpr& expr) {
  HW_ASSIGN_OR_RETURN(Value left, Evaluate(*expr.operands[0]));
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    HW_ASSIGN_OR_RETURN(Value right, Evaluate(*expr.operands[i + 1]));
    line_ = expr.line;
    HW_ASSIGN_OR_RETURN(const bool holds, CompareOnce(expr.ops[i], left, right));
    if (!holds) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

Result<CallArgs> Interpreter::EvaluateArgs(const ArgExprs& exprs) {
  CallArgs args;
  HW_ASSIGN_OR_RETURN(args.values, EvaluateAll(exprs.values));
  for (const auto& [name, expr] : exprs.named) {
    HW_ASSIGN_OR_RETURN(Value value, Evaluate(*expr));
    args.named.emplace_back(name, std::move(value));
  }
  if (exprs.more_values) {
    HW_ASSIGN_OR_RETURN(const Value more, Evaluate(*exprs.more_values));
    HW_ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(more));
    HW_RETURN_IF_ERROR(Make(items.size() * sizeof(Value)));
    std::move(items.begin(), items.end(), std::back_inserter(args.values));
  }
  if (exprs.more_named) {
    HW_ASSIGN_OR_RETURN(const Value more, Evaluate(*exprs.more_named));
    if (more.type() != Type::kDict) {
      return Status::InvalidInput(fmt::format("** of a {}, expected dict", more.type_name()));
    }
    HW_RETURN_IF_ERROR(Make(more.dict().entries.size() * 2 * sizeof(Value)));
    for (const auto& [key, value] : more.dict().entries) {
      if (!key.is_string()) {
        return Status::InvalidInput(fmt::format("** of a dict with a {} as key, expected str", key.type_name()));
      }
      HW_RETURN_IF_ERROR(Make(key.string().size()));
      args.named.emplace_back(key.view(), value);
    }
  }
  return args;
}

Result<Value> Interpreter::EvaluateCall(const CallExpr& expr) {
  HW_ASSIGN_OR_RETURN(const Value subject, Evaluate(*expr.subject));
  HW_ASSIGN_OR_RETURN(const CallArgs args, EvaluateArgs(expr.args));
  line_ = expr.line;
  if (expr.kind == ExprKind::kCall) return Call(subject, args);
  if (expr.kind == ExprKind::kFilter) return ApplyFilter(expr.filter, expr.name, subject, args);
  HW_ASSIGN_OR_RETURN(const bool holds, ApplyTest(expr.test, expr.name, subject, args));
  return Value::Bool(holds);
}

Result<Value> Interpreter::ApplyFilter(FilterFunction filter, std::string_view name, const Value& input,
                                       const CallArgs& args) {
  if (!filter) return Status::InvalidInput(fmt::format("no filter is called '{}'", name));
  HW_RETURN_IF_ERROR(Spend(1));
  auto value = filter(*this, input, args);
  if (!value.ok()) return std::move(value).status().Annotate(fmt::format("filter '{}'", name));
  return value;
}

Result<bool> Interpreter::ApplyTest(TestFunction test, std::string_view name, const Value& input,
                                    const CallArgs& args) {
  if (!test) return Status::InvalidInput(fmt::format("no test is called '{}'", name));
  HW_RETURN_IF_ERROR(Spend(1));
  auto holds = test(*this, input, args);
  if (!holds.ok()) return std::move(holds).status().Annotate(fmt::format("test '{}'", name));
  return holds;
}

Result<Value> Interpreter::Call(const Value& callee, const CallArgs& args) {
  switch (callee.type()) {
    case Type::kUndefined:
      return Status::InvalidInput(callee.UndefinedMessage());
    case Type::kMacro:
      return CallMacro(callee.as<MacroObject>(), args);
    case Type::kFunction: {
      const auto& function = callee.as<FunctionObject>();
      auto value = function.function(*this, function.self, args);
      if (value.ok() || function.name == "raise_exception") return value;
      return std::move(value).status().Annotate(fmt::format("{}()", function.name));
    }
    case Type::kLoop: {
      HW_ASSIGN_OR_RETURN(const auto found, Bind(args, {"iterable"}, 1));
      return RecurseLoop(callee.as<LoopObject>(), *found[0]);
    }
    case Type::kJoiner: {
      HW_RETURN_IF_ERROR(BindNothing(args));
      auto& joiner = callee.as<JoinerObject>();
      return std::exchange(joiner.is_used, true) ? joiner.separator : Value::String("");
    }
    default:
      return Status::InvalidInput(fmt::format("a {} is called, expected a function or a macro", callee.type_name()));
  }
}

}  // namespace headwise::jinja
