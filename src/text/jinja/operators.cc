// Arithmetic, as Python does it on 64-bit integers.
#include <fmt/format.h>

#include <cmath>

#include "text/jinja/format.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/strings.h"

namespace headwise::jinja {
namespace {

constexpr const char* kSigns[] = {"+", "-", "*", "/", "//", "%", "**"};

Status Overflow() {
  return Status::InvalidInput("an integer of more than 64 bits, which are not supported");
}

Status DivisionByZero() {
  return Status::InvalidInput("division by zero");
}

Result<Value> Power(int64_t base, int64_t exponent, Origin origin) {
  int64_t power = 1;
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) && __builtin_mul_overflow(power, base, &power)) return Overflow();
    if (exponent > 1 && __builtin_mul_overflow(base, base, &base)) return Overflow();
  }
  return Value::Int(power, origin);
}

// The quotient rounded down, and what is left, which has the divisor's sign.
Result<Value> DivideIntegers(BinaryOp op, int64_t a, int64_t b, Origin origin) {
  if (b == 0) return DivisionByZero();
  if (b == -1) {
    if (op == BinaryOp::kMod) return Value::Int(0, origin);
    if (a == INT64_MIN) return Overflow();
    return Value::Int(-a, origin);
  }
  const bool rounds_down = a % b != 0 && (a < 0) != (b < 0);
  if (op == BinaryOp::kMod) return Value::Int(a % b + (rounds_down ? b : 0), origin);
  return Value::Int(a / b - rounds_down, origin);
}

Result<Value> DivideFloats(BinaryOp op, double a, double b, Origin origin) {
  if (b == 0) return DivisionByZero();
  double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0) {
    if ((b < 0) != (rest < 0)) {
      rest += b;
      quotient -= 1;
    }
  } else {
    rest = std::copysign(0.0, b);
  }
  if (op == BinaryOp::kMod) return Value::Float(rest, origin);
  if (quotient == 0) return Value::Float(std::copysign(0.0, a / b), origin);
  double floor = std::floor(quotient);
  if (quotient - floor > 0.5) floor += 1;
  return Value::Float(floor, origin);
}

Result<Value> OfIntegers(BinaryOp op, int64_t a, int64_t b, Origin origin) {
  int64_t result = 0;
  switch (op) {
    case BinaryOp::kAdd:
      return __builtin_add_overflow(a, b, &result) ? Result<Value>(Overflow()) : Value::Int(result, origin);
    case BinaryOp::kSub:
      return __builtin_sub_overflow(a, b, &result) ? Result<Value>(Overflow()) : Value::Int(result, origin);
    case BinaryOp::kMul:
      return __builtin_mul_overflow(a, b, &result) ? Result<Value>(Overflow()) : Value::Int(result, origin);
    case BinaryOp::kDiv:
      if (b == 0) return DivisionByZero();
      return Value::Float(static_cast<double>(a) / static_cast<double>(b), origin);
    case BinaryOp::kPow:
      if (b >= 0) return Power(a, b, origin);
      if (a == 0) return DivisionByZero();
      return Value::Float(std::pow(static_cast<double>(a), static_cast<double>(b)), origin);
    default:
      return DivideIntegers(op, a, b, origin);
  }
}

Result<Value> OfFloats(BinaryOp op, double a, double b, Origin origin) {
  switch (op) {
    case BinaryOp::kAdd:
      return Value::Float(a + b, origin);
    case BinaryOp::kSub:
      return Value::Float(a - b, origin);
    case BinaryOp::kMul:
      return Value::Float(a * b, origin);
    case BinaryOp::kDiv:
      if (b == 0) return DivisionByZero();
      return Value::Float(a / b, origin);
    case BinaryOp::kPow: {
      if (a == 0 && b < 0) return DivisionByZero();
      if (a < 0 && std::isfinite(a) && std::isfinite(b) && b != std::floor(b)) {
        return Status::InvalidInput("a root of a negative number");
      }
      const double power = std::pow(a, b);
      if (std::isinf(power) && std::isfinite(a) && std::isfinite(b)) return Status::InvalidInput("a power too great");
      return Value::Float(power, origin);
    }
    default:
      return DivideFloats(op, a, b, origin);
  }
}

// A string or a list so many times.
Result<Value> Repeat(Interpreter& interpreter, const Value& what, int64_t times) {
  const size_t size = what.is_string() ? what.string().size() : what.items().size() * sizeof(Value);
  if (times < 0) times = 0;
  int64_t size_bytes = 0;
  if (__builtin_mul_overflow(static_cast<int64_t>(size), times, &size_bytes)) size_bytes = INT64_MAX;
  HW_RETURN_IF_ERROR(interpreter.Make(static_cast<size_t>(size_bytes)));
  if (size == 0) times = 0;
  if (what.is_string()) {
    MarkedBuffer text;
    for (int64_t i = 0; i < times; ++i) text.Append(what.string());
    return interpreter.NewString(std::move(text), what.is_markup());
  }
  std::vector<Value> items;
  for (int64_t i = 0; i < times; ++i) items.insert(items.end(), what.items().begin(), what.items().end());
  return what.type() == Type::kList ? interpreter.NewList(std::move(items)) : interpreter.NewTuple(std::move(items));
}

Result<Value> JoinStrings(Interpreter& interpreter, const Value& a, const Value& b) {
  MarkedString left = a.string(), right = b.string();
  const bool is_markup = a.is_markup() || b.is_markup();
  if (is_markup && !a.is_markup()) left = MarkedString(EscapeHtml(left));
  if (is_markup && !b.is_markup()) right = MarkedString(EscapeHtml(right));
  HW_RETURN_IF_ERROR(interpreter.Make(left.ConcatCost(right)));
  MarkedString joined = left.Concat(right);
  return is_markup ? Value::Markup(std::move(joined)) : Value::String(std::move(joined));
}

}  // namespace

Result<Value> Interpreter::Binary(BinaryOp op, const Value& a, const Value& b) {
  if (a.is_undefined()) return Status::InvalidInput(a.UndefinedMessage());
  if (op == BinaryOp::kMod && a.is_string()) return FormatPercent(*this, a.string(), b);
  if (b.is_undefined()) return Status::InvalidInput(b.UndefinedMessage());
  if (a.is_number() && b.is_number()) {
    const Origin origin = Either(a.origin(), b.origin());
    return a.is_integer() && b.is_integer() ? OfIntegers(op, a.integer(), b.integer(), origin)
                                            : OfFloats(op, a.number(), b.number(), origin);
  }
  if (op == BinaryOp::kAdd) {
    if (a.is_string() && b.is_string()) return JoinStrings(*this, a, b);
    if (a.is_list_or_tuple() && a.type() == b.type()) {
      HW_RETURN_IF_ERROR(Make((a.items().size() + b.items().size()) * sizeof(Value)));
      std::vector<Value> items = a.items();
      items.insert(items.end(), b.items().begin(), b.items().end());
      return a.type() == Type::kList ? NewList(std::move(items)) : NewTuple(std::move(items));
    }
  }
  if (op == BinaryOp::kMul) {
    if ((a.is_string() || a.is_list_or_tuple()) && b.is_integer()) return Repeat(*this, a, b.integer());
    if ((b.is_string() || b.is_list_or_tuple()) && a.is_integer()) return Repeat(*this, b, a.integer());
  }
  return Status::InvalidInput(
      fmt::format("{} {} {}: not possible", a.type_name(), kSigns[static_cast<size_t>(op)], b.type_name()));
}

}  // namespace headwise::jinja
