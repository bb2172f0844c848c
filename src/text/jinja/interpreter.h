// Runs a program over a context. One Interpreter is one rendering; it counts what that costs and stops at the limits.
#ifndef HEADWISE_TEXT_JINJA_INTERPRETER_H_
#define HEADWISE_TEXT_JINJA_INTERPRETER_H_

#include <headwise/status.h>

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/print.h"
#include "text/jinja/template.h"

namespace headwise::jinja {

// The variables of one block. Lives until its block ends, or, where a macro may come back to it, as long as the
// interpreter.
struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<int, Value>> variables;  // by name; few
  bool is_captured = false;
};

struct LoopObject : Object {
  LoopObject() : Object(Type::kLoop) {}
  const ForStmt* statement = nullptr;
  Scope* outside = nullptr;
  std::vector<Value> source;  // all that is iterated over
  size_t source_position = 0;
  std::vector<Value> items;  // of those, as many as have been looked at and were let through by the loop's condition
  size_t position = 0;
  int depth0 = 0;
  std::vector<Value> last_changed;
  bool has_changed_before = false;
  bool is_over = false;

  void HoldSource() { Hold(source); }
};

struct MacroObject : Object {
  MacroObject(const MacroStmt& of, Scope* defined_in) : Object(Type::kMacro), statement(of), scope(defined_in) {}
  const MacroStmt& statement;
  Scope* const scope;
};

class Interpreter {
 public:
  Interpreter(const Program& program, const Context& context, const RenderOptions& options);
  ~Interpreter();

  Result<MarkedText> Run();

  const RenderOptions& options() const { return options_; }

  // ---- What things cost. Whoever makes a value or walks through one says so first. ----

  Status Spend(int64_t steps) {
    steps_left_ -= steps;
    return steps_left_ >= 0 ? Status::Ok() : OutOfSteps();
  }
  // Looking at so many bytes; looking for `part_size` bytes at each of them.
  Status SpendOnBytes(size_t size_bytes, size_t part_size = 0) {
    return Spend(static_cast<int64_t>(size_bytes / 64 * (1 + part_size / 8)));
  }
  // Walking through all of a value.
  Status SpendOn(const Value& value) { return Spend(value.weight() / 16); }
  Status Make(size_t size_bytes);

  Result<Value> NewString(MarkedBuffer text, bool is_markup = false);
  // Lists and tuples are checked for depth.
  Result<Value> NewList(std::vector<Value> items);
  Result<Value> NewTuple(std::vector<Value> items);
  Result<Value> NewGenerator(std::vector<Value> items);
  Result<Value> NewDict(std::vector<std::pair<Value, Value>> entries);
  Result<Value> NewNamespace(const std::vector<std::pair<Value, Value>>& entries);
  // Parts of a string, as a list. Requires: each is a view into `whole`.
  Result<Value> NewListOfParts(const MarkedString& whole, const std::vector<std::string_view>& parts, bool is_markup);

  // ---- What Python and jinja2 do with values. ----

  // str(value).
  Result<MarkedString> ToText(const Value& value);
  // str(), repr() and JSON of it behind `out`, no more than may still be made.
  Status AppendText(const Value& value, MarkedBuffer& out);
  Status AppendReprText(const Value& value, MarkedBuffer& out);
  Status AppendJsonText(const Value& value, const JsonStyle& style, MarkedBuffer& out);
  // All that iterating over it gives; a generator is empty then.
  Result<std::vector<Value>> Iterate(const Value& value);
  Result<int64_t> Length(const Value& value);
  // object.name and object[key].
  Result<Value> Attribute(const Value& object, std::string_view name);
  Result<Value> Item(const Value& object, const Value& key);
  Result<Value> Slice(const Value& object, const Value& begin, const Value& end, const Value& step);
  Result<bool> Contains(const Value& container, const Value& item);
  Result<bool> AreEqual(const Value& a, const Value& b);
  Result<Value> Binary(BinaryOp op, const Value& a, const Value& b);
  Result<Value> Call(const Value& callee, const CallArgs& args);
  Result<Value> ApplyFilter(FilterFunction filter, std::string_view name, const Value& input, const CallArgs& args);
  Result<bool> ApplyTest(TestFunction test, std::string_view name, const Value& input, const CallArgs& args);

  // ---- Loops: their items come one by one, for their condition may read what their body has set. ----

  // Whether there is an item at `position`. Looks at the source as far as it must.
  Result<bool> LoopHas(LoopObject& loop, size_t position);
  // The body over other items, one deeper: what calling `loop` does.
  Result<Value> RecurseLoop(LoopObject& loop, const Value& items);

 private:
  enum class Flow : uint8_t { kNormal, kBreak, kContinue };
  class Deeper;

  Status OutOfSteps() const;
  Status CheckNesting(const Value& value) const;

  Status RunBody(const Body& body);
  Status RunStatement(const Stmt& statement);
  Status RunOutput(const OutputStmt& statement);
  Status RunIf(const IfStmt& statement);
  Status RunFor(const ForStmt& statement);
  Status RunLoop(const ForStmt& statement, const Value& items, Scope* outside, int depth0);
  Status RunSetBlock(const BlockStmt& statement);
  Status RunFilterBlock(const BlockStmt& statement);
  Status RunCallBlock(const CallBlockStmt& statement);
  Status RunWith(const WithStmt& statement);
  // What a body writes, in a scope of its own.
  Result<Value> Capture(const Body& body);
  Result<Value> FilteredBlock(const BlockStmt& statement);
  Status Emit(const Value& value);

  Status Assign(const Target& target, const Value& value);
  void SetVariable(Scope& scope, int name, Value value);
  const Value* FindVariable(const Scope* scope, int name) const;

  Result<Value> Evaluate(const Expr& expr);
  Result<Value> EvaluateKind(const Expr& expr);
  Result<Value> EvaluateName(const NameExpr& expr);
  Result<Value> EvaluateDict(const OperandsExpr& expr);
  Result<Value> EvaluateSlice(const OperandsExpr& expr);
  Result<Value> EvaluateSign(const OperandsExpr& expr);
  Result<Value> EvaluateLogic(const OperandsExpr& expr);
  Result<Value> EvaluateChoice(const OperandsExpr& expr);
  Result<Value> EvaluateConcat(const OperandsExpr& expr);
  Result<Value> EvaluateCompare(const CompareExpr& expr);
  Result<Value> EvaluateCall(const CallExpr& expr);
  Result<std::vector<Value>> EvaluateAll(const std::vector<ExprPtr>& exprs);
  Result<CallArgs> EvaluateArgs(const ArgExprs& exprs);
  Result<bool> CompareOnce(CompareOp op, const Value& a, const Value& b);

  Result<Value> CallMacro(const MacroObject& macro, const CallArgs& args);
  Status BindMacro(const MacroStmt& macro, const CallArgs& args);
  Result<Value> LoopAttribute(const std::shared_ptr<Object>& object, std::string_view name);
  Result<Value> Missing(const Value& object, std::string_view name) const;

  // A scope within the current one, or within another; it becomes the current one.
  Scope* PushScope(Scope* parent);
  void PopScope(Scope* scope, Scope* back_to);
  void KeepScopes(Scope* scope);

  const Program& program_;
  const RenderOptions& options_;
  std::vector<const Value*> context_;  // by name; null where the context has none
  std::deque<Scope> scopes_;
  std::vector<Scope*> free_scopes_;
  Scope* scope_ = nullptr;
  MarkedBuffer* out_ = nullptr;
  // All namespaces: they may hold each other in a ring, which nobody else would open.
  std::vector<std::shared_ptr<DictObject>> namespaces_;
  Value block_text_;
  Flow flow_ = Flow::kNormal;
  int line_ = 0;
  int depth_ = 0;
  int64_t steps_left_;
  int64_t bytes_left_;
};

}  // namespace headwise::jinja

#endif  // HEADWISE_TEXT_JINJA_INTERPRETER_H_
