// A parsed template. Nodes know their line and how deep they reach, so that whoever walks them knows in advance what
// recursion costs.
#ifndef HEADWISE_TEXT_JINJA_AST_H_
#define HEADWISE_TEXT_JINJA_AST_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/call_args.h"
#include "text/jinja/value.h"

namespace headwise::jinja {

enum class ExprKind : uint8_t {
  kConst,
  kName,
  kList,
  kTuple,
  kDict,
  kAttribute,
  kItem,
  kSlice,
  kCall,
  kFilter,
  kTest,
  kNegative,
  kPositive,
  kNot,
  kAnd,
  kOr,
  kBinary,
  kConcat,
  kCompare,
  kChoice,
  kBlockText,  // in `{% filter ... %}` and `{% set x | ... %}`: what the block's body gave
};

enum class BinaryOp : uint8_t { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow };
enum class CompareOp : uint8_t { kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

struct Expr {
  Expr(ExprKind of, int at_line) : kind(of), line(at_line) {}
  virtual ~Expr() = default;

  const ExprKind kind;
  const int line;
  int depth = 1;
};
using ExprPtr = std::unique_ptr<Expr>;

struct ConstExpr : Expr {
  ConstExpr(int at_line, Value what) : Expr(ExprKind::kConst, at_line), value(std::move(what)) {}
  Value value;
};

struct NameExpr : Expr {
  NameExpr(int at_line, int which) : Expr(ExprKind::kName, at_line), name(which) {}
  const int name;  // into Program::names
};

// Lists, tuples, the pairs of dicts one behind the other, and everything that has operands in order: not, and, or, ~,
// signs, a choice (value, condition, otherwise; the last may be null), an item (object, key), a slice (object, begin,
// end, step; all but the first may be null).
struct OperandsExpr : Expr {
  using Expr::Expr;
  std::vector<ExprPtr> operands;
};

struct BinaryExpr : OperandsExpr {
  BinaryExpr(int at_line, BinaryOp which) : OperandsExpr(ExprKind::kBinary, at_line), op(which) {}
  const BinaryOp op;
};

// operands[0] ops[0] operands[1] ops[1] ...
struct CompareExpr : OperandsExpr {
  explicit CompareExpr(int at_line) : OperandsExpr(ExprKind::kCompare, at_line) {}
  std::vector<CompareOp> ops;
};

struct AttributeExpr : Expr {
  AttributeExpr(int at_line, ExprPtr of, std::string attribute)
      : Expr(ExprKind::kAttribute, at_line), object(std::move(of)), name(std::move(attribute)) {}
  ExprPtr object;
  const std::string name;
};

struct ArgExprs {
  std::vector<ExprPtr> values;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr more_values;  // *args
  ExprPtr more_named;   // **kwargs
};

// A call, a filter or a test.
struct CallExpr : Expr {
  CallExpr(ExprKind of, int at_line, ExprPtr first) : Expr(of, at_line), subject(std::move(first)) {}
  ExprPtr subject;                  // what is called; what is filtered or tested
  std::string name;                 // of the filter or test
  FilterFunction filter = nullptr;  // null where unknown: an error only if it comes to that
  TestFunction test = nullptr;
  ArgExprs args;
};

enum class StmtKind : uint8_t {
  kOutput,
  kIf,
  kFor,
  kSet,
  kSetBlock,
  kMacro,
  kCallBlock,
  kFilterBlock,
  kWith,
  kScope,  // generation
  kBreak,
  kContinue,
};

struct Stmt {
  Stmt(StmtKind of, int at_line) : kind(of), line(at_line) {}
  virtual ~Stmt() = default;

  const StmtKind kind;
  const int line;
};
using StmtPtr = std::unique_ptr<Stmt>;

struct Body {
  std::vector<StmtPtr> statements;
  // Of a block with a scope of its own: the names that it assigns before it has read them. They are undefined at first,
  // whatever lies outside calls by the name.
  std::vector<int> unset;
};

// A place to assign to: a name, an attribute of a namespace, or several of those.
struct Target {
  enum class Kind : uint8_t { kName, kAttribute, kTuple };
  Kind kind = Kind::kName;
  int name = 0;
  std::string attribute;
  std::vector<Target> parts;
};

struct OutputStmt : Stmt {
  explicit OutputStmt(int at_line) : Stmt(StmtKind::kOutput, at_line) {}
  std::vector<ExprPtr> parts;  // text is a ConstExpr
};

struct IfStmt : Stmt {
  explicit IfStmt(int at_line) : Stmt(StmtKind::kIf, at_line) {}
  std::vector<std::pair<ExprPtr, Body>> branches;
  Body otherwise;
};

struct ForStmt : Stmt {
  explicit ForStmt(int at_line) : Stmt(StmtKind::kFor, at_line) {}
  Target target;
  ExprPtr items;
  ExprPtr condition;  // may be null
  bool is_recursive = false;
  Body body;
  Body otherwise;
};

struct SetStmt : Stmt {
  explicit SetStmt(int at_line) : Stmt(StmtKind::kSet, at_line) {}
  Target target;
  ExprPtr value;
};

// Also a filter block, whose target is not read.
struct BlockStmt : Stmt {
  using Stmt::Stmt;
  Target target;
  ExprPtr filter;  // over a kBlockText; null: the text as it is
  Body body;
};

// Also the body of a call block, which is the macro `caller`.
struct MacroStmt : Stmt {
  using Stmt::Stmt;
  std::string name;
  int name_id = 0;
  std::vector<int> parameters;
  std::vector<ExprPtr> defaults;  // of the last parameters
  bool uses_varargs = false;
  bool uses_kwargs = false;
  bool uses_caller = false;
  Body body;
};

struct CallBlockStmt : Stmt {
  explicit CallBlockStmt(int at_line) : Stmt(StmtKind::kCallBlock, at_line) {}
  ExprPtr call;
  std::unique_ptr<MacroStmt> caller;
};

struct WithStmt : Stmt {
  explicit WithStmt(int at_line) : Stmt(StmtKind::kWith, at_line) {}
  std::vector<std::pair<Target, ExprPtr>> values;
  Body body;
};

struct ScopeStmt : Stmt {
  explicit ScopeStmt(int at_line) : Stmt(StmtKind::kScope, at_line) {}
  Body body;
};

// Names that the interpreter gives itself, at fixed places of Program::names.
enum WellKnownName : int { kNameLoop, kNameCaller, kNameVarargs, kNameKwargs, kNumWellKnownNames };

struct Program {
  std::vector<std::string> names;
  std::vector<bool> is_read;  // whether the name is read anywhere
  Body body;
};

}  // namespace headwise::jinja

#endif  // HEADWISE_TEXT_JINJA_AST_H_
