#include "text/jinja/interpreter.h"

#include <fmt/format.h>

#include <algorithm>

namespace headwise::jinja {
namespace {

// What a list's entry, a dict's entry and an object of any kind cost, about.
constexpr size_t kEntryBytes = sizeof(Value);
constexpr size_t kObjectBytes = 64;

}  // namespace

// One operation or block inside another. Stops where recursion would become a danger to the stack.
class Interpreter::Deeper {
 public:
  explicit Deeper(Interpreter& interpreter) : interpreter_(interpreter) { ++interpreter_.depth_; }
  ~Deeper() { --interpreter_.depth_; }
  Status Check() const {
    if (interpreter_.depth_ <= interpreter_.options_.limits.max_depth) return Status::Ok();
    return Status::InvalidInput(fmt::format("operations, blocks and macros more than {} deep inside one another",
                                            interpreter_.options_.limits.max_depth));
  }

 private:
  Interpreter& interpreter_;
};

Interpreter::Interpreter(const Program& program, const Context& context, const RenderOptions& options)
    : program_(program),
      options_(options),
      steps_left_(options.limits.max_steps),
      bytes_left_(options.limits.max_value_bytes) {
  context_.reserve(program.names.size());
  for (const std::string& name : program.names) context_.push_back(context.Find(name));
}

Interpreter::~Interpreter() {
  for (const auto& one : namespaces_) one->Clear();
}

Result<MarkedText> Interpreter::Run() {
  MarkedBuffer out;
  out_ = &out;
  PushScope(nullptr);
  if (Status status = RunBody(program_.body); !status.ok()) {
    return std::move(status).Annotate(fmt::format("line {}", line_));
  }
  MarkedText text;
  text.from_context = out.ContextRanges();
  text.text = out.TakeText();
  return text;
}

// ---- Costs. ----

Status Interpreter::OutOfSteps() const {
  return Status::InvalidInput(fmt::format("more than {} operations", options_.limits.max_steps));
}

Status Interpreter::Make(size_t size_bytes) {
  if (size_bytes > static_cast<size_t>(bytes_left_)) {
    return Status::InvalidInput(fmt::format("values of more than {} bytes", options_.limits.max_value_bytes));
  }
  bytes_left_ -= static_cast<int64_t>(size_bytes);
  return Spend(static_cast<int64_t>(size_bytes / 64));
}

Status Interpreter::CheckNesting(const Value& value) const {
  if (value.depth() > kMaxValueDepth) {
    return Status::InvalidInput(fmt::format("lists and dicts more than {} deep", kMaxValueDepth));
  }
  if (value.weight() > kMaxValueWeight) {
    return Status::InvalidInput(
        fmt::format("a {} with more than {} values inside", value.type_name(), kMaxValueWeight));
  }
  return Status::Ok();
}

Result<Value> Interpreter::NewString(MarkedBuffer text, bool is_markup) {
  HW_RETURN_IF_ERROR(Make(text.num_bytes() + kObjectBytes));
  MarkedString string(std::move(text));
  return is_markup ? Value::Markup(std::move(string)) : Value::String(std::move(string));
}

Result<Value> Interpreter::NewList(std::vector<Value> items) {
  HW_RETURN_IF_ERROR(Make(items.size() * kEntryBytes + kObjectBytes));
  Value list = Value::List(std::move(items));
  HW_RETURN_IF_ERROR(CheckNesting(list));
  return list;
}

Result<Value> Interpreter::NewTuple(std::vector<Value> items) {
  HW_RETURN_IF_ERROR(Make(items.size() * kEntryBytes + kObjectBytes));
  Value tuple = Value::Tuple(std::move(items));
  HW_RETURN_IF_ERROR(CheckNesting(tuple));
  return tuple;
}

Result<Value> Interpreter::NewGenerator(std::vector<Value> items) {
  HW_RETURN_IF_ERROR(Make(items.size() * kEntryBytes + kObjectBytes));
  Value generator = Value::Of(std::make_shared<GeneratorObject>(std::move(items)));
  HW_RETURN_IF_ERROR(CheckNesting(generator));
  return generator;
}

Result<Value> Interpreter::NewDict(std::vector<std::pair<Value, Value>> entries) {
  HW_RETURN_IF_ERROR(Make(entries.size() * 3 * kEntryBytes + kObjectBytes));
  auto dict = std::make_shared<DictObject>();
  for (auto& [key, value] : entries) {
    HW_RETURN_IF_ERROR(CheckHashable(key));
    HW_RETURN_IF_ERROR(SpendOn(key));
    dict->Set(std::move(key), std::move(value));
  }
  Value value = Value::Of(std::move(dict));
  HW_RETURN_IF_ERROR(CheckNesting(value));
  return value;
}

Result<Value> Interpreter::NewNamespace(const std::vector<std::pair<Value, Value>>& entries) {
  HW_RETURN_IF_ERROR(Make(entries.size() * 3 * kEntryBytes + kObjectBytes));
  auto space = std::make_shared<DictObject>(Type::kNamespace);
  for (const auto& [key, value] : entries) space->Set(key, value);
  namespaces_.push_back(space);
  return Value::Of(std::move(space));
}

Result<Value> Interpreter::NewListOfParts(const MarkedString& whole, const std::vector<std::string_view>& parts,
                                          bool is_markup) {
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const std::string_view part : parts) {
    items.push_back(is_markup ? Value::Markup(whole.Part(part)) : Value::String(whole.Part(part)));
  }
  return NewList(std::move(items));
}

// ---- Scopes. ----

Scope* Interpreter::PushScope(Scope* parent) {
  Scope* scope;
  if (free_scopes_.empty()) {
    scope = &scopes_.emplace_back();
  } else {
    scope = free_scopes_.back();
    free_scopes_.pop_back();
  }
  scope->parent = parent;
  scope_ = scope;
  return scope;
}

void Interpreter::PopScope(Scope* scope, Scope* back_to) {
  scope_ = back_to;
  if (scope->is_captured) return;
  scope->variables.clear();
  free_scopes_.push_back(scope);
}

void Interpreter::KeepScopes(Scope* scope) {
  for (; scope && !scope->is_captured; scope = scope->parent) scope->is_captured = true;
}

void Interpreter::SetVariable(Scope& scope, int name, Value value) {
  for (auto& [known, place] : scope.variables) {
    if (known == name) {
      place = std::move(value);
      return;
    }
  }
  scope.variables.emplace_back(name, std::move(value));
}

const Value* Interpreter::FindVariable(const Scope* scope, int name) const {
  for (; scope; scope = scope->parent) {
    for (const auto& [known, value] : scope->variables) {
      if (known == name) return &value;
    }
  }
  return nullptr;
}

Status Interpreter::Assign(const Target& target, const Value& value) {
  switch (target.kind) {
    case Target::Kind::kName:
      SetVariable(*scope_, target.name, value);
      return Status::Ok();
    case Target::Kind::kAttribute: {
      const std::string& name = program_.names[static_cast<size_t>(target.name)];
      const Value* object = FindVariable(scope_, target.name);
      if (!object || object->type() != Type::kNamespace) {
        return Status::InvalidInput(fmt::format("'{}' is {}, expected a namespace to set '{}' of", name,
                                                object ? fmt::format("a {}", object->type_name()) : "undefined",
                                                target.attribute));
      }
      HW_RETURN_IF_ERROR(Make(2 * kEntryBytes));
      object->as<DictObject>().Set(Value::String(target.attribute), value);
      return Status::Ok();
    }
    case Target::Kind::kTuple: {
      HW_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(value));
      if (items.size() != target.parts.size()) {
        return Status::InvalidInput(fmt::format("{} values to unpack, expected {}", items.size(), target.parts.size()));
      }
      for (size_t i = 0; i < items.size(); ++i) HW_RETURN_IF_ERROR(Assign(target.parts[i], items[i]));
      return Status::Ok();
    }
  }
  return Status::Ok();
}

// ---- Statements. ----

Status Interpreter::RunBody(const Body& body) {
  const Deeper deeper(*this);
  HW_RETURN_IF_ERROR(deeper.Check());
  for (const int name : body.unset) SetVariable(*scope_, name, Value());
  for (const StmtPtr& statement : body.statements) {
    HW_RETURN_IF_ERROR(RunStatement(*statement));
    if (flow_ != Flow::kNormal) break;
  }
  return Status::Ok();
}

Status Interpreter::RunStatement(const Stmt& statement) {
  line_ = statement.line;
  HW_RETURN_IF_ERROR(Spend(1));
  switch (statement.kind) {
    case StmtKind::kOutput:
      return RunOutput(static_cast<const OutputStmt&>(statement));
    case StmtKind::kIf:
      return RunIf(static_cast<const IfStmt&>(statement));
    case StmtKind::kFor:
      return RunFor(static_cast<const ForStmt&>(statement));
    case StmtKind::kSet: {
      const auto& set = static_cast<const SetStmt&>(statement);
      HW_ASSIGN_OR_RETURN(const Value value, Evaluate(*set.value));
      return Assign(set.target, value);
    }
    case StmtKind::kSetBlock:
      return RunSetBlock(static_cast<const BlockStmt&>(statement));
    case StmtKind::kMacro: {
      const auto& macro = static_cast<const MacroStmt&>(statement);
      KeepScopes(scope_);
      HW_RETURN_IF_ERROR(Make(kObjectBytes + sizeof(Scope)));
      SetVariable(*scope_, macro.name_id, Value::Of(std::make_shared<MacroObject>(macro, scope_)));
      return Status::Ok();
    }
    case StmtKind::kCallBlock:
      return RunCallBlock(static_cast<const CallBlockStmt&>(statement));
    case StmtKind::kFilterBlock:
      return RunFilterBlock(static_cast<const BlockStmt&>(statement));
    case StmtKind::kWith:
      return RunWith(static_cast<const WithStmt&>(statement));
    case StmtKind::kScope: {
      Scope* const outside = scope_;
      Scope* const inside = PushScope(outside);
      Status status = RunBody(static_cast<const ScopeStmt&>(statement).body);
      PopScope(inside, outside);
      return status;
    }
    case StmtKind::kBreak:
      flow_ = Flow::kBreak;
      return Status::Ok();
    case StmtKind::kContinue:
      flow_ = Flow::kContinue;
      return Status::Ok();
  }
  return Status::Ok();
}

Status Interpreter::Emit(const Value& value) {
  const size_t before = out_->num_bytes();
  HW_RETURN_IF_ERROR(AppendText(value, *out_));
  if (static_cast<int64_t>(out_->size()) > options_.limits.max_output_bytes) {
    return Status::InvalidInput(fmt::format("a text of more than {} bytes", options_.limits.max_output_bytes));
  }
  return Make(out_->num_bytes() - before);
}

Status Interpreter::RunOutput(const OutputStmt& statement) {
  for (const ExprPtr& part : statement.parts) {
    if (part->kind == ExprKind::kConst) {
      HW_RETURN_IF_ERROR(Emit(static_cast<const ConstExpr&>(*part).value));
      continue;
    }
    HW_ASSIGN_OR_RETURN(const Value value, Evaluate(*part));
    HW_RETURN_IF_ERROR(Emit(value));
  }
  return Status::Ok();
}

Status Interpreter::RunIf(const IfStmt& statement) {
  for (const auto& [condition, body] : statement.branches) {
    HW_ASSIGN_OR_RETURN(const Value value, Evaluate(*condition));
    if (IsTrue(value)) return RunBody(body);
  }
  return RunBody(statement.otherwise);
}

Status Interpreter::RunFor(const ForStmt& statement) {
  HW_ASSIGN_OR_RETURN(const Value items, Evaluate(*statement.items));
  // `loop` may be called when the block is long over.
  if (statement.is_recursive) KeepScopes(scope_);
  return RunLoop(statement, items, scope_, 0);
}

Status Interpreter::RunLoop(const ForStmt& statement, const Value& items, Scope* outside, int depth0) {
  auto loop = std::make_shared<LoopObject>();
  HW_ASSIGN_OR_RETURN(loop->source, Iterate(items));
  loop->HoldSource();
  loop->statement = &statement;
  loop->outside = outside;
  loop->depth0 = depth0;
  const Value loop_value = Value::Of(loop);
  Scope* const back_to = scope_;
  Status status;
  bool any_ran_to_its_end = false;  // not left by break or continue: so jinja2 decides whether to come to `else`
  for (;; ++loop->position) {
    auto has_item = LoopHas(*loop, loop->position);
    if (!has_item.ok()) status = std::move(has_item).status();
    if (!has_item.ok() || !*has_item) break;
    status = Spend(1);
    if (!status.ok()) break;
    Scope* const inside = PushScope(outside);
    status = Assign(statement.target, loop->items[loop->position]);
    SetVariable(*inside, kNameLoop, loop_value);
    if (status.ok()) status = RunBody(statement.body);
    PopScope(inside, back_to);
    if (!status.ok() || flow_ == Flow::kBreak) break;
    any_ran_to_its_end |= flow_ == Flow::kNormal;
    flow_ = Flow::kNormal;
  }
  loop->is_over = true;
  loop->last_changed.clear();  // may hold the loop itself
  HW_RETURN_IF_ERROR(std::move(status));
  flow_ = Flow::kNormal;
  if (any_ran_to_its_end || statement.otherwise.statements.empty()) return Status::Ok();
  Scope* const inside = PushScope(outside);
  status = RunBody(statement.otherwise);
  PopScope(inside, back_to);
  return status;
}

Result<bool> Interpreter::LoopHas(LoopObject& loop, size_t position) {
  while (loop.items.size() <= position) {
    if (loop.source_position == loop.source.size()) return false;
    const Value& item = loop.source[loop.source_position++];
    if (loop.statement->condition) {
      HW_RETURN_IF_ERROR(Spend(1));
      Scope* const back_to = scope_;
      Scope* const inside = PushScope(loop.outside);
      Status status = Assign(loop.statement->target, item);
      Result<Value> is_wanted = status.ok() ? Evaluate(*loop.statement->condition) : Result<Value>(std::move(status));
      PopScope(inside, back_to);
      if (!is_wanted.ok()) return std::move(is_wanted).status();
      if (!IsTrue(*is_wanted)) continue;
    }
    loop.items.push_back(item);
  }
  return true;
}

Result<Value> Interpreter::RecurseLoop(LoopObject& loop, const Value& items) {
  if (!loop.statement->is_recursive) {
    return Status::InvalidInput("'loop' is called, expected a loop that is marked 'recursive'");
  }
  MarkedBuffer text;
  MarkedBuffer* const out = std::exchange(out_, &text);
  const int line = line_;
  const Deeper deeper(*this);
  Status status = deeper.Check();
  if (status.ok()) status = RunLoop(*loop.statement, items, loop.outside, loop.depth0 + 1);
  out_ = out;
  HW_RETURN_IF_ERROR(std::move(status));
  line_ = line;
  return NewString(std::move(text));
}

Result<Value> Interpreter::Capture(const Body& body) {
  MarkedBuffer text;
  MarkedBuffer* const out = std::exchange(out_, &text);
  Scope* const outside = scope_;
  Scope* const inside = PushScope(outside);
  Status status = RunBody(body);
  PopScope(inside, outside);
  out_ = out;
  HW_RETURN_IF_ERROR(std::move(status));
  return NewString(std::move(text));
}

Result<Value> Interpreter::FilteredBlock(const BlockStmt& statement) {
  HW_ASSIGN_OR_RETURN(Value text, Capture(statement.body));
  if (!statement.filter || flow_ != Flow::kNormal) return text;
  block_text_ = std::move(text);
  return Evaluate(*statement.filter);
}

Status Interpreter::RunSetBlock(const BlockStmt& statement) {
  HW_ASSIGN_OR_RETURN(const Value text, FilteredBlock(statement));
  return flow_ == Flow::kNormal ? Assign(statement.target, text) : Status::Ok();
}

Status Interpreter::RunFilterBlock(const BlockStmt& statement) {
  HW_ASSIGN_OR_RETURN(const Value text, FilteredBlock(statement));
  return flow_ == Flow::kNormal ? Emit(text) : Status::Ok();
}

Status Interpreter::RunCallBlock(const CallBlockStmt& statement) {
  const auto& call = static_cast<const CallExpr&>(*statement.call);
  HW_ASSIGN_OR_RETURN(const Value callee, Evaluate(*call.subject));
  HW_ASSIGN_OR_RETURN(CallArgs args, EvaluateArgs(call.args));
  KeepScopes(scope_);
  HW_RETURN_IF_ERROR(Make(kObjectBytes + sizeof(Scope)));
  args.named.emplace_back("caller", Value::Of(std::make_shared<MacroObject>(*statement.caller, scope_)));
  line_ = statement.line;
  HW_ASSIGN_OR_RETURN(const Value text, Call(callee, args));
  return Emit(text);
}

Status Interpreter::RunWith(const WithStmt& statement) {
  std::vector<Value> values;
  for (const auto& [target, expr] : statement.values) {
    HW_ASSIGN_OR_RETURN(Value value, Evaluate(*expr));
    values.push_back(std::move(value));
  }
  Scope* const outside = scope_;
  Scope* const inside = PushScope(outside);
  for (size_t i = 0; i < values.size(); ++i) SetVariable(*inside, statement.values[i].first.name, values[i]);
  Status status = RunBody(statement.body);
  PopScope(inside, outside);
  return status;
}

// ---- Macros. ----

Status Interpreter::BindMacro(const MacroStmt& macro, const CallArgs& args) {
  const size_t num_parameters = macro.parameters.size();
  std::vector<Value> varargs;
  std::vector<std::pair<Value, Value>> kwargs;
  std::vector<bool> is_given(num_parameters, false);
  const auto give = [&](size_t i, const Value& value) {
    SetVariable(*scope_, macro.parameters[i], value);
    is_given[i] = true;
  };
  for (size_t i = 0; i < args.values.size(); ++i) {
    if (i < num_parameters) {
      give(i, args.values[i]);
    } else {
      varargs.push_back(args.values[i]);
    }
  }
  for (const auto& [name, value] : args.named) {
    const auto at = std::find_if(
        macro.parameters.begin(), macro.parameters.end(),
        [&, key = std::string_view(name)](int id) { return program_.names[static_cast<size_t>(id)] == key; });
    const size_t i = static_cast<size_t>(at - macro.parameters.begin());
    if (at != macro.parameters.end()) {
      if (is_given[i]) return Status::InvalidInput(fmt::format("macro '{}': '{}' is given twice", macro.name, name));
      give(i, value);
    } else if (name == "caller" && macro.uses_caller) {
      SetVariable(*scope_, kNameCaller, value);
    } else if (macro.uses_kwargs) {
      kwargs.emplace_back(Value::String(name), value);
    } else {
      return Status::InvalidInput(fmt::format("macro '{}': no parameter is called '{}'", macro.name, name));
    }
  }
  if (!varargs.empty() && !macro.uses_varargs) {
    return Status::InvalidInput(
        fmt::format("macro '{}': {} arguments, expected at most {}", macro.name, args.values.size(), num_parameters));
  }
  const size_t num_required = num_parameters - macro.defaults.size();
  for (size_t i = 0; i < num_parameters; ++i) {
    if (is_given[i]) continue;
    Value value;
    if (i < num_required) {
      value = Value::Undefined(
          fmt::format("parameter '{}' was not provided", program_.names[static_cast<size_t>(macro.parameters[i])]));
    } else {
      HW_ASSIGN_OR_RETURN(value, Evaluate(*macro.defaults[i - num_required]));
    }
    SetVariable(*scope_, macro.parameters[i], std::move(value));
  }
  if (macro.uses_varargs) {
    HW_ASSIGN_OR_RETURN(Value tuple, NewTuple(std::move(varargs)));
    SetVariable(*scope_, kNameVarargs, std::move(tuple));
  }
  if (macro.uses_kwargs) {
    HW_ASSIGN_OR_RETURN(Value dict, NewDict(std::move(kwargs)));
    SetVariable(*scope_, kNameKwargs, std::move(dict));
  }
  const bool has_own_caller = std::any_of(scope_->variables.begin(), scope_->variables.end(),
                                          [](const auto& variable) { return variable.first == kNameCaller; });
  if (macro.uses_caller && !has_own_caller) SetVariable(*scope_, kNameCaller, Value::Undefined("No caller defined"));
  return Status::Ok();
}

Result<Value> Interpreter::CallMacro(const MacroObject& macro, const CallArgs& args) {
  const Deeper deeper(*this);
  HW_RETURN_IF_ERROR(deeper.Check());
  const int line = line_;
  const MacroStmt& statement = macro.statement;
  MarkedBuffer text;
  MarkedBuffer* const out = std::exchange(out_, &text);
  Scope* const back_to = scope_;
  Scope* const inside = PushScope(macro.scope);
  Status status = BindMacro(statement, args);
  if (status.ok()) status = RunBody(statement.body);
  PopScope(inside, back_to);
  out_ = out;
  HW_RETURN_IF_ERROR(std::move(status));
  line_ = line;
  return NewString(std::move(text));
}

}  // namespace headwise::jinja
