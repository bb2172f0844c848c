#include "text/jinja/expression_parser.h"

#include <algorithm>
#include <charconv>

#include "text/jinja/numbers.h"

namespace headwise::jinja {
namespace {

// Deeper by one than the deepest of those inside.
template <typename Node>
Result<ExprPtr> Finish(std::unique_ptr<Node> node, std::initializer_list<const Expr*> inside) {
  for (const Expr* one : inside) {
    if (one) node->depth = std::max(node->depth, one->depth + 1);
  }
  if (node->depth > kMaxExprDepth) {
    return TokenStream::Fail(node->line, fmt::format("an expression of more than {} operations", kMaxExprDepth));
  }
  return ExprPtr(std::move(node));
}

Result<ExprPtr> FinishOperands(std::unique_ptr<OperandsExpr> node) {
  for (const ExprPtr& one : node->operands) {
    if (one) node->depth = std::max(node->depth, one->depth + 1);
  }
  return Finish(std::move(node), {});
}

template <typename... Operands>
Result<ExprPtr> Make(ExprKind kind, int line, Operands... operands) {
  auto node = std::make_unique<OperandsExpr>(kind, line);
  (node->operands.push_back(std::move(operands)), ...);
  return FinishOperands(std::move(node));
}

ExprPtr Const(int line, Value value) {
  return std::make_unique<ConstExpr>(line, std::move(value));
}

bool IsLiteralName(std::string_view name) {
  return name == "true" || name == "false" || name == "none" || name == "True" || name == "False" || name == "None";
}

int DeepestArgument(const ArgExprs& args) {
  int depth = 0;
  const auto look = [&](const ExprPtr& one) { depth = std::max(depth, one ? one->depth : 0); };
  for (const ExprPtr& one : args.values) look(one);
  for (const auto& [name, one] : args.named) look(one);
  look(args.more_values);
  look(args.more_named);
  return depth;
}

Result<ExprPtr> FinishCall(std::unique_ptr<CallExpr> call) {
  call->depth = DeepestArgument(call->args) + 1;
  const Expr* subject = call->subject.get();
  return Finish(std::move(call), {subject});
}

}  // namespace

ExpressionParser::ExpressionParser(TokenStream& tokens) : tokens_(tokens) {
  BeginBlock();
  for (const char* name : {"loop", "caller", "varargs", "kwargs"}) NameId(name);
}

int ExpressionParser::NameId(std::string_view name) {
  const auto [at, is_new] = name_ids_.emplace(name, static_cast<int>(names_.size()));
  if (is_new) {
    names_.emplace_back(name);
    is_read_.push_back(false);
  }
  return at->second;
}

void ExpressionParser::Read(int name) {
  is_read_[static_cast<size_t>(name)] = true;
  block_->known.insert(name);
  if (name >= kNumWellKnownNames) return;
  for (Reads& reads : macro_reads_) reads[static_cast<size_t>(name)] = true;
}

void ExpressionParser::Assigns(const Target& target) {
  for (const Target& part : target.parts) Assigns(part);
  if (target.kind == Target::Kind::kName) Assigns(target.name);
}

void ExpressionParser::Assigns(int name) {
  if (block_->known.insert(name).second && block_->num_branches == 0) block_->unset.push_back(name);
}

void ExpressionParser::TellUnsetNames() {
  for (const Block& block : blocks_) {
    for (const int name : block.unset) {
      const Block* around = block.around;
      while (around && !around->known.contains(name)) around = around->around;
      if (!around) block.body->unset.push_back(name);
    }
  }
}

Status ExpressionParser::Enter() {
  if (nesting_ == kMaxNesting) {
    return TokenStream::Fail(tokens_.line(), fmt::format("brackets and blocks more than {} deep", kMaxNesting));
  }
  ++nesting_;
  return Status::Ok();
}

Result<ExprPtr> ExpressionParser::Expression(Choices choices) {
  HW_RETURN_IF_ERROR(Enter());
  auto expression = choices == Choices::kAllowed ? Choice() : Or();
  Leave();
  return expression;
}

Result<ExprPtr> ExpressionParser::Choice() {
  const int line = tokens_.line();
  const bool was_conditional = is_conditional;
  HW_ASSIGN_OR_RETURN(ExprPtr value, Or());
  while (tokens_.SkipName("if")) {
    is_conditional = true;
    HW_ASSIGN_OR_RETURN(ExprPtr condition, Or());
    ExprPtr otherwise;
    if (tokens_.SkipName("else")) {
      HW_ASSIGN_OR_RETURN(otherwise, Expression());
    }
    is_conditional = was_conditional;
    HW_ASSIGN_OR_RETURN(value,
                        Make(ExprKind::kChoice, line, std::move(value), std::move(condition), std::move(otherwise)));
  }
  return value;
}

Result<ExprPtr> ExpressionParser::Or() {
  const int line = tokens_.line();
  HW_ASSIGN_OR_RETURN(ExprPtr left, And());
  while (tokens_.SkipName("or")) {
    HW_ASSIGN_OR_RETURN(ExprPtr right, And());
    HW_ASSIGN_OR_RETURN(left, Make(ExprKind::kOr, line, std::move(left), std::move(right)));
  }
  return left;
}

Result<ExprPtr> ExpressionParser::And() {
  const int line = tokens_.line();
  HW_ASSIGN_OR_RETURN(ExprPtr left, Not());
  while (tokens_.SkipName("and")) {
    HW_ASSIGN_OR_RETURN(ExprPtr right, Not());
    HW_ASSIGN_OR_RETURN(left, Make(ExprKind::kAnd, line, std::move(left), std::move(right)));
  }
  return left;
}

Result<ExprPtr> ExpressionParser::Not() {
  const int line = tokens_.line();
  if (!tokens_.SkipName("not")) return Compare();
  HW_RETURN_IF_ERROR(Enter());
  HW_ASSIGN_OR_RETURN(ExprPtr operand, Not());
  Leave();
  return Make(ExprKind::kNot, line, std::move(operand));
}

bool ExpressionParser::TakeCompareOp(CompareOp* op) {
  static constexpr std::pair<std::string_view, CompareOp> kOps[] = {{"==", CompareOp::kEq}, {"!=", CompareOp::kNe},
                                                                    {"<=", CompareOp::kLe}, {"<", CompareOp::kLt},
                                                                    {">=", CompareOp::kGe}, {">", CompareOp::kGt}};
  for (const auto& [text, one] : kOps) {
    *op = one;
    if (tokens_.SkipOperator(text)) return true;
  }
  *op = CompareOp::kIn;
  if (tokens_.SkipName("in")) return true;
  if (!tokens_.AtName("not") || !TokenStream::Is(tokens_.next(), TokenKind::kName, "in")) return false;
  tokens_.Take();
  tokens_.Take();
  *op = CompareOp::kNotIn;
  return true;
}

Result<ExprPtr> ExpressionParser::Compare() {
  auto compare = std::make_unique<CompareExpr>(tokens_.line());
  HW_ASSIGN_OR_RETURN(ExprPtr first, Sum());
  compare->operands.push_back(std::move(first));
  for (CompareOp op; TakeCompareOp(&op);) {
    HW_ASSIGN_OR_RETURN(ExprPtr next, Sum());
    compare->ops.push_back(op);
    compare->operands.push_back(std::move(next));
  }
  if (compare->ops.empty()) return std::move(compare->operands[0]);
  return FinishOperands(std::move(compare));
}

template <typename Next>
Result<ExprPtr> ExpressionParser::LeftToRight(std::initializer_list<std::pair<std::string_view, BinaryOp>> ops,
                                              Next next) {
  HW_ASSIGN_OR_RETURN(ExprPtr left, next());
  while (true) {
    const auto op =
        std::find_if(ops.begin(), ops.end(), [&](const auto& one) { return tokens_.AtOperator(one.first); });
    if (op == ops.end()) return left;
    auto binary = std::make_unique<BinaryExpr>(tokens_.line(), op->second);
    tokens_.Take();
    HW_ASSIGN_OR_RETURN(ExprPtr right, next());
    binary->operands.push_back(std::move(left));
    binary->operands.push_back(std::move(right));
    HW_ASSIGN_OR_RETURN(left, FinishOperands(std::move(binary)));
  }
}

Result<ExprPtr> ExpressionParser::Sum() {
  return LeftToRight({{"+", BinaryOp::kAdd}, {"-", BinaryOp::kSub}}, [&] { return Concat(); });
}

Result<ExprPtr> ExpressionParser::Concat() {
  auto concat = std::make_unique<OperandsExpr>(ExprKind::kConcat, tokens_.line());
  do {
    HW_ASSIGN_OR_RETURN(ExprPtr operand, Product());
    concat->operands.push_back(std::move(operand));
  } while (tokens_.SkipOperator("~"));
  if (concat->operands.size() == 1) return std::move(concat->operands[0]);
  return FinishOperands(std::move(concat));
}

Result<ExprPtr> ExpressionParser::Product() {
  return LeftToRight({{"*", BinaryOp::kMul}, {"/", BinaryOp::kDiv}, {"//", BinaryOp::kFloorDiv}, {"%", BinaryOp::kMod}},
                     [&] { return Power(); });
}

Result<ExprPtr> ExpressionParser::Power() {
  return LeftToRight({{"**", BinaryOp::kPow}}, [&] { return Unary(AllowFilters::kYes); });
}

Result<ExprPtr> ExpressionParser::Unary(AllowFilters filters) {
  const int line = tokens_.line();
  const bool is_negative = tokens_.AtOperator("-");
  ExprPtr value;
  if (is_negative || tokens_.AtOperator("+")) {
    tokens_.Take();
    HW_RETURN_IF_ERROR(Enter());
    HW_ASSIGN_OR_RETURN(ExprPtr operand, Unary(AllowFilters::kNo));
    Leave();
    HW_ASSIGN_OR_RETURN(value, Make(is_negative ? ExprKind::kNegative : ExprKind::kPositive, line, std::move(operand)));
  } else {
    HW_ASSIGN_OR_RETURN(value, Primary());
  }
  HW_ASSIGN_OR_RETURN(value, Postfix(std::move(value)));
  return filters == AllowFilters::kYes ? FiltersAndTests(std::move(value)) : Result<ExprPtr>(std::move(value));
}

Result<ExprPtr> ExpressionParser::Number() {
  const Token token = tokens_.Take();
  if (token.kind == TokenKind::kFloat) return Const(token.line, Value::Float(ParseFloat(token.text).value_or(0)));
  const ParsedInt number = ParseInt(token.text, 0);
  if (!number.value) {
    return TokenStream::Fail(token.line, fmt::format("{}, expected an integer of 64 bits", token.text));
  }
  return Const(token.line, Value::Int(*number.value));
}

Result<ExprPtr> ExpressionParser::Primary() {
  const int line = tokens_.line();
  switch (tokens_.current().kind) {
    case TokenKind::kName: {
      const std::string name = tokens_.Take().text;
      if (name == "true" || name == "True") return Const(line, Value::Bool(true));
      if (name == "false" || name == "False") return Const(line, Value::Bool(false));
      if (name == "none" || name == "None") return Const(line, Value::None());
      const int id = NameId(name);
      Read(id);
      return ExprPtr(std::make_unique<NameExpr>(line, id));
    }
    case TokenKind::kString: {
      std::string text;
      while (tokens_.At(TokenKind::kString)) text += tokens_.Take().text;
      return Const(line, Value::String(text));
    }
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return Number();
    default:
      break;
  }
  if (tokens_.AtOperator("[")) return ListLiteral();
  if (tokens_.AtOperator("{")) return DictLiteral();
  if (!tokens_.SkipOperator("(")) return tokens_.Unexpected("an expression");
  HW_RETURN_IF_ERROR(Enter());
  ExprPtr inside;
  if (tokens_.AtOperator(")")) {
    inside = std::make_unique<OperandsExpr>(ExprKind::kTuple, line);
  } else {
    HW_ASSIGN_OR_RETURN(inside, Tuple(Choices::kAllowed));
  }
  HW_RETURN_IF_ERROR(tokens_.ExpectOperator(")"));
  Leave();
  return inside;
}

Result<ExprPtr> ExpressionParser::ListLiteral() {
  auto list = std::make_unique<OperandsExpr>(ExprKind::kList, tokens_.line());
  tokens_.Take();
  while (!tokens_.AtOperator("]")) {
    if (!list->operands.empty()) {
      HW_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      if (tokens_.AtOperator("]")) break;
    }
    HW_ASSIGN_OR_RETURN(ExprPtr item, Expression());
    list->operands.push_back(std::move(item));
  }
  HW_RETURN_IF_ERROR(tokens_.ExpectOperator("]"));
  return FinishOperands(std::move(list));
}

Result<ExprPtr> ExpressionParser::DictLiteral() {
  auto dict = std::make_unique<OperandsExpr>(ExprKind::kDict, tokens_.line());
  tokens_.Take();
  while (!tokens_.AtOperator("}")) {
    if (!dict->operands.empty()) {
      HW_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      if (tokens_.AtOperator("}")) break;
    }
    HW_ASSIGN_OR_RETURN(ExprPtr key, Expression());
    HW_RETURN_IF_ERROR(tokens_.ExpectOperator(":"));
    HW_ASSIGN_OR_RETURN(ExprPtr value, Expression());
    dict->operands.push_back(std::move(key));
    dict->operands.push_back(std::move(value));
  }
  HW_RETURN_IF_ERROR(tokens_.ExpectOperator("}"));
  return FinishOperands(std::move(dict));
}

Result<ExprPtr> ExpressionParser::Tuple(Choices choices, std::string_view end) {
  auto tuple = std::make_unique<OperandsExpr>(ExprKind::kTuple, tokens_.line());
  bool is_tuple = false;
  const auto is_end = [&] {
    return tokens_.At(TokenKind::kVariableEnd) || tokens_.At(TokenKind::kBlockEnd) || tokens_.AtOperator(")") ||
           (!end.empty() && tokens_.AtName(end));
  };
  while (true) {
    if (!tuple->operands.empty()) HW_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
    if (is_end()) break;
    HW_ASSIGN_OR_RETURN(ExprPtr item, Expression(choices));
    tuple->operands.push_back(std::move(item));
    if (!tokens_.AtOperator(",")) break;
    is_tuple = true;
  }
  if (tuple->operands.empty()) return tokens_.Unexpected("an expression");
  if (!is_tuple) return std::move(tuple->operands[0]);
  return FinishOperands(std::move(tuple));
}

Result<ExprPtr> ExpressionParser::Postfix(ExprPtr of) {
  while (true) {
    if (tokens_.AtOperator(".")) {
      HW_ASSIGN_OR_RETURN(of, Attribute(std::move(of)));
    } else if (tokens_.AtOperator("[")) {
      HW_ASSIGN_OR_RETURN(of, Subscript(std::move(of)));
    } else if (tokens_.AtOperator("(")) {
      HW_ASSIGN_OR_RETURN(of, Call(std::move(of)));
    } else {
      return of;
    }
  }
}

Result<ExprPtr> ExpressionParser::FiltersAndTests(ExprPtr of) {
  while (true) {
    if (tokens_.AtOperator("|")) {
      HW_ASSIGN_OR_RETURN(of, Filters(std::move(of), true));
    } else if (tokens_.AtName("is")) {
      HW_ASSIGN_OR_RETURN(of, Test(std::move(of)));
    } else if (tokens_.AtOperator("(")) {
      HW_ASSIGN_OR_RETURN(of, Call(std::move(of)));
    } else {
      return of;
    }
  }
}

Result<ExprPtr> ExpressionParser::Attribute(ExprPtr of) {
  const int line = tokens_.line();
  tokens_.Take();
  if (tokens_.At(TokenKind::kInteger)) {
    HW_ASSIGN_OR_RETURN(ExprPtr index, Number());
    return Make(ExprKind::kItem, line, std::move(of), std::move(index));
  }
  HW_ASSIGN_OR_RETURN(std::string name, tokens_.ExpectName("the name of an attribute"));
  const Expr* object = of.get();
  return Finish(std::make_unique<AttributeExpr>(line, std::move(of), std::move(name)), {object});
}

Status ExpressionParser::SliceParts(ExprPtr first, int line, OperandsExpr& slice) {
  slice.operands.push_back(std::move(first));
  for (int part = 1; part < 3; ++part) {
    slice.operands.emplace_back();
    if (part == 2 && !tokens_.SkipOperator(":")) break;
    if (tokens_.AtOperator(":") || tokens_.AtOperator("]") || tokens_.AtOperator(",")) continue;
    HW_ASSIGN_OR_RETURN(slice.operands.back(), Expression());
  }
  if (tokens_.AtOperator(",")) return TokenStream::Fail(line, "a slice among several subscripts, expected one");
  return Status::Ok();
}

Result<ExprPtr> ExpressionParser::Subscript(ExprPtr of) {
  const int line = tokens_.line();
  tokens_.Take();
  ExprPtr first;
  if (!tokens_.AtOperator(":")) {
    if (tokens_.AtOperator("]")) {
      first = std::make_unique<OperandsExpr>(ExprKind::kTuple, line);
    } else {
      HW_ASSIGN_OR_RETURN(first, Expression());
    }
  }
  if (tokens_.SkipOperator(":")) {
    auto slice = std::make_unique<OperandsExpr>(ExprKind::kSlice, line);
    slice->operands.push_back(std::move(of));
    HW_RETURN_IF_ERROR(SliceParts(std::move(first), line, *slice));
    HW_RETURN_IF_ERROR(tokens_.ExpectOperator("]"));
    return FinishOperands(std::move(slice));
  }
  if (tokens_.AtOperator(",")) {
    auto key = std::make_unique<OperandsExpr>(ExprKind::kTuple, line);
    key->operands.push_back(std::move(first));
    while (tokens_.SkipOperator(",")) {
      HW_ASSIGN_OR_RETURN(ExprPtr next, Expression());
      key->operands.push_back(std::move(next));
    }
    HW_ASSIGN_OR_RETURN(first, FinishOperands(std::move(key)));
  }
  HW_RETURN_IF_ERROR(tokens_.ExpectOperator("]"));
  return Make(ExprKind::kItem, line, std::move(of), std::move(first));
}

Result<ExprPtr> ExpressionParser::Call(ExprPtr of) {
  auto call = std::make_unique<CallExpr>(ExprKind::kCall, tokens_.line(), std::move(of));
  HW_RETURN_IF_ERROR(Arguments(call->args));
  return FinishCall(std::move(call));
}

Status ExpressionParser::Arguments(ArgExprs& args) {
  HW_RETURN_IF_ERROR(tokens_.ExpectOperator("("));
  const int line = tokens_.line();
  const auto misplaced = [&](std::string_view what) {
    return TokenStream::Fail(line, fmt::format("{} behind *, ** or a named argument", what));
  };
  for (bool is_first = true; !tokens_.AtOperator(")"); is_first = false) {
    if (!is_first) {
      HW_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      if (tokens_.AtOperator(")")) break;
    }
    if (tokens_.SkipOperator("*")) {
      if (args.more_values || args.more_named) return misplaced("*");
      HW_ASSIGN_OR_RETURN(args.more_values, Expression());
    } else if (tokens_.SkipOperator("**")) {
      if (args.more_named) return misplaced("**");
      HW_ASSIGN_OR_RETURN(args.more_named, Expression());
    } else if (tokens_.At(TokenKind::kName) && TokenStream::Is(tokens_.next(), TokenKind::kOperator, "=")) {
      if (args.more_named) return misplaced("a named argument");
      std::string name = tokens_.Take().text;
      tokens_.Take();
      HW_ASSIGN_OR_RETURN(ExprPtr value, Expression());
      args.named.emplace_back(std::move(name), std::move(value));
    } else {
      if (args.more_values || args.more_named || !args.named.empty()) return misplaced("an argument");
      HW_ASSIGN_OR_RETURN(ExprPtr value, Expression());
      args.values.push_back(std::move(value));
    }
  }
  return tokens_.ExpectOperator(")");
}

Result<std::string> ExpressionParser::DottedName(std::string_view what) {
  HW_ASSIGN_OR_RETURN(std::string name, tokens_.ExpectName(what));
  while (tokens_.SkipOperator(".")) {
    HW_ASSIGN_OR_RETURN(const std::string part, tokens_.ExpectName(what));
    name += "." + part;
  }
  return name;
}

Result<ExprPtr> ExpressionParser::Filters(ExprPtr input, bool has_bar) {
  for (; !has_bar || tokens_.SkipOperator("|"); has_bar = true) {
    auto call = std::make_unique<CallExpr>(ExprKind::kFilter, tokens_.line(), std::move(input));
    HW_ASSIGN_OR_RETURN(call->name, DottedName("the name of a filter"));
    call->filter = FindFilter(call->name);
    if (!call->filter && !is_conditional) {
      return TokenStream::Fail(call->line, fmt::format("no filter is called '{}'", call->name));
    }
    if (tokens_.AtOperator("(")) HW_RETURN_IF_ERROR(Arguments(call->args));
    HW_ASSIGN_OR_RETURN(input, FinishCall(std::move(call)));
  }
  return input;
}

Result<ExprPtr> ExpressionParser::Test(ExprPtr of) {
  const int line = tokens_.line();
  tokens_.Take();
  const bool is_not = tokens_.SkipName("not");
  auto call = std::make_unique<CallExpr>(ExprKind::kTest, line, std::move(of));
  HW_ASSIGN_OR_RETURN(call->name, DottedName("the name of a test"));
  call->test = FindTest(call->name);
  if (!call->test && !is_conditional) {
    return TokenStream::Fail(line, fmt::format("no test is called '{}'", call->name));
  }
  const bool is_literal = tokens_.At(TokenKind::kName) || tokens_.At(TokenKind::kString) ||
                          tokens_.At(TokenKind::kInteger) || tokens_.At(TokenKind::kFloat) || tokens_.AtOperator("[") ||
                          tokens_.AtOperator("{");
  if (tokens_.AtOperator("(")) {
    HW_RETURN_IF_ERROR(Arguments(call->args));
  } else if (is_literal && !tokens_.AtName("else") && !tokens_.AtName("or") && !tokens_.AtName("and")) {
    if (tokens_.AtName("is")) return tokens_.Unexpected("one test: tests make no chain");
    HW_ASSIGN_OR_RETURN(ExprPtr argument, Primary());
    HW_ASSIGN_OR_RETURN(argument, Postfix(std::move(argument)));
    call->args.values.push_back(std::move(argument));
  }
  HW_ASSIGN_OR_RETURN(ExprPtr test, FinishCall(std::move(call)));
  if (!is_not) return test;
  return Make(ExprKind::kNot, line, std::move(test));
}

Result<int> ExpressionParser::TargetName() {
  if (tokens_.At(TokenKind::kName) && IsLiteralName(tokens_.current().text)) {
    return tokens_.Unexpected("a name to assign to");
  }
  HW_ASSIGN_OR_RETURN(const std::string name, tokens_.ExpectName("a name to assign to"));
  return NameId(name);
}

Result<Target> ExpressionParser::OneTarget(bool may_be_attribute) {
  if (tokens_.SkipOperator("(")) {
    HW_RETURN_IF_ERROR(Enter());
    HW_ASSIGN_OR_RETURN(Target inside, AssignTarget(may_be_attribute));
    HW_RETURN_IF_ERROR(tokens_.ExpectOperator(")"));
    Leave();
    return inside;
  }
  Target target;
  HW_ASSIGN_OR_RETURN(target.name, TargetName());
  if (may_be_attribute && tokens_.SkipOperator(".")) {
    target.kind = Target::Kind::kAttribute;
    Read(target.name);
    HW_ASSIGN_OR_RETURN(target.attribute, tokens_.ExpectName("the name of an attribute"));
  }
  return target;
}

Result<Target> ExpressionParser::AssignTarget(bool may_be_attribute, std::string_view end) {
  HW_ASSIGN_OR_RETURN(Target first, OneTarget(may_be_attribute));
  if (!tokens_.AtOperator(",")) return first;
  Target tuple;
  tuple.kind = Target::Kind::kTuple;
  tuple.parts.push_back(std::move(first));
  while (tokens_.SkipOperator(",")) {
    if (tokens_.AtOperator("=") || tokens_.At(TokenKind::kBlockEnd) || tokens_.AtOperator(")") ||
        (!end.empty() && tokens_.AtName(end))) {
      break;
    }
    HW_ASSIGN_OR_RETURN(Target next, OneTarget(may_be_attribute));
    tuple.parts.push_back(std::move(next));
  }
  return tuple;
}

}  // namespace headwise::jinja
