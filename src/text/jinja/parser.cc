#include "text/jinja/parser.h"

#include <algorithm>
#include <initializer_list>

#include "text/jinja/expression_parser.h"

namespace headwise::jinja {
namespace {

using Choices = ExpressionParser::Choices;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)), expressions_(tokens_) {}

  Result<Program> Run() {
    Program program;
    HW_ASSIGN_OR_RETURN(program.body, Statements({}));
    expressions_.EndBlock(program.body);
    expressions_.TellUnsetNames();
    program.names = std::move(expressions_.names());
    program.is_read = std::move(expressions_.is_read());
    return program;
  }

 private:
  // Up to a tag that begins with one of `ends`, whose name is left in the stream; up to the end, if there are none.
  Result<Body> Statements(std::initializer_list<std::string_view> ends) {
    HW_RETURN_IF_ERROR(expressions_.Enter());
    Body body;
    OutputStmt* output = nullptr;  // the one that text and {{ }} are added to
    const auto add = [&](ExprPtr part) {
      if (!output) {
        auto statement = std::make_unique<OutputStmt>(part->line);
        output = statement.get();
        body.statements.push_back(std::move(statement));
      }
      output->parts.push_back(std::move(part));
    };
    while (!tokens_.At(TokenKind::kEnd)) {
      if (tokens_.At(TokenKind::kText)) {
        const Token text = tokens_.Take();
        add(std::make_unique<ConstExpr>(text.line, Value::String(text.text)));
        continue;
      }
      if (tokens_.At(TokenKind::kVariableBegin)) {
        tokens_.Take();
        HW_ASSIGN_OR_RETURN(ExprPtr value, expressions_.Tuple(Choices::kAllowed));
        HW_RETURN_IF_ERROR(tokens_.Expect(TokenKind::kVariableEnd, "'}}'"));
        add(std::move(value));
        continue;
      }
      HW_RETURN_IF_ERROR(tokens_.Expect(TokenKind::kBlockBegin, "a tag"));
      if (std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return tokens_.AtName(end); })) {
        expressions_.Leave();
        return body;
      }
      HW_ASSIGN_OR_RETURN(StmtPtr statement, Statement());
      HW_RETURN_IF_ERROR(tokens_.Expect(TokenKind::kBlockEnd, "'%}'"));
      body.statements.push_back(std::move(statement));
      output = nullptr;
    }
    if (ends.size() > 0) return tokens_.Unexpected(fmt::format("{{% {} %}}", *(ends.end() - 1)));
    expressions_.Leave();
    return body;
  }

  // From behind a tag to its end tag, whose name goes too.
  Result<Body> BodyUntil(std::string_view end) {
    tokens_.SkipOperator(":");
    HW_RETURN_IF_ERROR(tokens_.Expect(TokenKind::kBlockEnd, "'%}'"));
    HW_ASSIGN_OR_RETURN(Body body, Statements({end}));
    tokens_.Take();
    return body;
  }

  Result<Body> BodyUntilOneOf(std::initializer_list<std::string_view> ends) {
    tokens_.SkipOperator(":");
    HW_RETURN_IF_ERROR(tokens_.Expect(TokenKind::kBlockEnd, "'%}'"));
    return Statements(ends);
  }

  // Bodies that are run whenever they are come to, even where the tag around them may not be.
  class Unconditional {
   public:
    explicit Unconditional(ExpressionParser& expressions)
        : expressions_(expressions), before_(expressions.is_conditional) {
      expressions.is_conditional = false;
    }
    ~Unconditional() { expressions_.is_conditional = before_; }

   private:
    ExpressionParser& expressions_;
    const bool before_;
  };

  Result<StmtPtr> Statement() {
    using Parse = Result<StmtPtr> (Parser::*)(int line);
    static constexpr std::pair<std::string_view, Parse> kStatements[] = {
        {"if", &Parser::If},           {"for", &Parser::For},           {"set", &Parser::Set},
        {"macro", &Parser::Macro},     {"call", &Parser::CallBlock},    {"filter", &Parser::FilterBlock},
        {"with", &Parser::With},       {"print", &Parser::Print},       {"generation", &Parser::Generation},
        {"break", &Parser::LeaveLoop}, {"continue", &Parser::LeaveLoop}};
    static constexpr std::string_view kUnsupported[] = {"block", "extends", "include", "import", "from", "autoescape"};
    const Token& tag = tokens_.current();
    if (tag.kind != TokenKind::kName) return tokens_.Unexpected("the name of a tag");
    for (const auto& [name, parse] : kStatements) {
      if (tag.text != name) continue;
      const int line = tag.line;
      if (parse != &Parser::LeaveLoop) tokens_.Take();
      return (this->*parse)(line);
    }
    for (const std::string_view name : kUnsupported) {
      if (tag.text != name) continue;
      return Status::Unsupported(
          fmt::format("line {}: {{% {} %}} is not supported: chat templates are one file", tag.line, name));
    }
    return tokens_.Unexpected("the name of a tag that is open or known");
  }

  Result<StmtPtr> If(int line) {
    auto statement = std::make_unique<IfStmt>(line);
    const bool was_conditional = expressions_.is_conditional;
    expressions_.is_conditional = true;
    while (true) {
      HW_ASSIGN_OR_RETURN(ExprPtr condition, expressions_.Tuple(Choices::kNot));
      ++expressions_.block().num_branches;
      HW_ASSIGN_OR_RETURN(Body body, BodyUntilOneOf({"elif", "else", "endif"}));
      statement->branches.emplace_back(std::move(condition), std::move(body));
      const Token end = tokens_.Take();
      if (end.text == "else") {
        HW_ASSIGN_OR_RETURN(statement->otherwise, BodyUntil("endif"));
      }
      --expressions_.block().num_branches;
      if (end.text != "elif") break;
    }
    expressions_.is_conditional = was_conditional;
    return StmtPtr(std::move(statement));
  }

  Result<StmtPtr> For(int line) {
    auto statement = std::make_unique<ForStmt>(line);
    HW_ASSIGN_OR_RETURN(statement->target, expressions_.AssignTarget(false, "in"));
    if (AssignsLoop(statement->target)) return TokenStream::Fail(line, "the loop assigns to 'loop', which is its own");
    if (!tokens_.SkipName("in")) return tokens_.Unexpected("'in'");
    HW_ASSIGN_OR_RETURN(statement->items, expressions_.Tuple(Choices::kNot, "recursive"));
    const Unconditional unconditional(expressions_);
    expressions_.BeginBlock();
    expressions_.Gives(statement->target);
    expressions_.Gives(kNameLoop);
    if (tokens_.SkipName("if")) {
      HW_ASSIGN_OR_RETURN(statement->condition, expressions_.Expression());
    }
    statement->is_recursive = tokens_.SkipName("recursive");
    ++num_loops_;
    HW_ASSIGN_OR_RETURN(statement->body, BodyUntilOneOf({"else", "endfor"}));
    --num_loops_;
    expressions_.EndBlock(statement->body);
    if (tokens_.Take().text == "else") {
      expressions_.BeginBlock();
      HW_ASSIGN_OR_RETURN(statement->otherwise, BodyUntil("endfor"));
      expressions_.EndBlock(statement->otherwise);
    }
    return StmtPtr(std::move(statement));
  }

  static bool AssignsLoop(const Target& target) {
    return (target.kind == Target::Kind::kName && target.name == kNameLoop) ||
           std::any_of(target.parts.begin(), target.parts.end(), AssignsLoop);
  }

  Result<StmtPtr> LeaveLoop(int line) {
    const bool breaks = tokens_.Take().text == "break";
    if (num_loops_ == 0) {
      return TokenStream::Fail(line, fmt::format("'{}' outside of a loop", breaks ? "break" : "continue"));
    }
    return StmtPtr(std::make_unique<Stmt>(breaks ? StmtKind::kBreak : StmtKind::kContinue, line));
  }

  Result<StmtPtr> Set(int line) {
    HW_ASSIGN_OR_RETURN(Target target, expressions_.AssignTarget(true));
    if (tokens_.SkipOperator("=")) {
      auto statement = std::make_unique<SetStmt>(line);
      statement->target = std::move(target);
      HW_ASSIGN_OR_RETURN(statement->value, expressions_.Tuple(Choices::kAllowed));
      expressions_.Assigns(statement->target);
      return StmtPtr(std::move(statement));
    }
    auto statement = std::make_unique<BlockStmt>(StmtKind::kSetBlock, line);
    statement->target = std::move(target);
    expressions_.Assigns(statement->target);
    HW_RETURN_IF_ERROR(FilterAndBody("endset", tokens_.AtOperator("|"), true, *statement));
    return StmtPtr(std::move(statement));
  }

  Result<StmtPtr> FilterBlock(int line) {
    auto statement = std::make_unique<BlockStmt>(StmtKind::kFilterBlock, line);
    HW_RETURN_IF_ERROR(FilterAndBody("endfilter", true, false, *statement));
    return StmtPtr(std::move(statement));
  }

  Status FilterAndBody(std::string_view end, bool has_filter, bool has_bar, BlockStmt& statement) {
    const Unconditional unconditional(expressions_);
    if (has_filter) {
      HW_ASSIGN_OR_RETURN(statement.filter,
                          expressions_.Filters(std::make_unique<Expr>(ExprKind::kBlockText, statement.line), has_bar));
    }
    expressions_.BeginBlock();
    HW_ASSIGN_OR_RETURN(statement.body, BodyUntil(end));
    expressions_.EndBlock(statement.body);
    return Status::Ok();
  }

  Status Signature(MacroStmt& macro) {
    HW_RETURN_IF_ERROR(tokens_.ExpectOperator("("));
    while (!tokens_.AtOperator(")")) {
      if (!macro.parameters.empty()) HW_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      const int line = tokens_.line();
      HW_ASSIGN_OR_RETURN(const int name, expressions_.TargetName());
      if (std::find(macro.parameters.begin(), macro.parameters.end(), name) != macro.parameters.end()) {
        return TokenStream::Fail(line, "two parameters of one name");
      }
      macro.parameters.push_back(name);
      expressions_.Gives(name);
      if (tokens_.SkipOperator("=")) {
        HW_ASSIGN_OR_RETURN(ExprPtr value, expressions_.Expression());
        macro.defaults.push_back(std::move(value));
      } else if (!macro.defaults.empty()) {
        return TokenStream::Fail(line, "a parameter without a default behind one that has one");
      }
    }
    return tokens_.ExpectOperator(")");
  }

  void BeginMacro() {
    expressions_.BeginBlock();
    for (const int name : {kNameCaller, kNameVarargs, kNameKwargs}) expressions_.Gives(name);
  }

  Status MacroBody(std::string_view end, MacroStmt& macro) {
    const Unconditional unconditional(expressions_);
    const int loops_outside = std::exchange(num_loops_, 0);
    expressions_.macro_reads().emplace_back();
    HW_ASSIGN_OR_RETURN(macro.body, BodyUntil(end));
    const ExpressionParser::Reads reads = expressions_.macro_reads().back();
    expressions_.macro_reads().pop_back();
    expressions_.EndBlock(macro.body);
    num_loops_ = loops_outside;
    macro.uses_caller = reads[kNameCaller];
    macro.uses_varargs = reads[kNameVarargs];
    macro.uses_kwargs = reads[kNameKwargs];
    return Status::Ok();
  }

  Result<StmtPtr> Macro(int line) {
    auto macro = std::make_unique<MacroStmt>(StmtKind::kMacro, line);
    HW_ASSIGN_OR_RETURN(macro->name_id, expressions_.TargetName());
    macro->name = expressions_.names()[static_cast<size_t>(macro->name_id)];
    expressions_.Assigns(macro->name_id);
    BeginMacro();
    HW_RETURN_IF_ERROR(Signature(*macro));
    HW_RETURN_IF_ERROR(MacroBody("endmacro", *macro));
    return StmtPtr(std::move(macro));
  }

  Result<StmtPtr> CallBlock(int line) {
    auto statement = std::make_unique<CallBlockStmt>(line);
    statement->caller = std::make_unique<MacroStmt>(StmtKind::kMacro, line);
    statement->caller->name = "caller";
    BeginMacro();
    if (tokens_.AtOperator("(")) HW_RETURN_IF_ERROR(Signature(*statement->caller));
    // What is called, and with what, is read outside.
    ExpressionParser::Block* const inside = expressions_.StepOut();
    HW_ASSIGN_OR_RETURN(statement->call, expressions_.Expression());
    expressions_.StepInto(inside);
    if (statement->call->kind != ExprKind::kCall) return TokenStream::Fail(line, "{% call %} without a call");
    HW_RETURN_IF_ERROR(MacroBody("endcall", *statement->caller));
    return StmtPtr(std::move(statement));
  }

  Result<StmtPtr> With(int line) {
    auto statement = std::make_unique<WithStmt>(line);
    while (!tokens_.At(TokenKind::kBlockEnd)) {
      if (!statement->values.empty()) HW_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      HW_ASSIGN_OR_RETURN(const int name, expressions_.TargetName());
      HW_RETURN_IF_ERROR(tokens_.ExpectOperator("="));
      HW_ASSIGN_OR_RETURN(ExprPtr value, expressions_.Expression());
      Target target;
      target.name = name;
      statement->values.emplace_back(std::move(target), std::move(value));
    }
    const Unconditional unconditional(expressions_);
    expressions_.BeginBlock();
    for (const auto& [target, value] : statement->values) expressions_.Gives(target);
    HW_ASSIGN_OR_RETURN(statement->body, BodyUntil("endwith"));
    expressions_.EndBlock(statement->body);
    return StmtPtr(std::move(statement));
  }

  Result<StmtPtr> Print(int line) {
    auto statement = std::make_unique<OutputStmt>(line);
    while (!tokens_.At(TokenKind::kBlockEnd)) {
      if (!statement->parts.empty()) HW_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      HW_ASSIGN_OR_RETURN(ExprPtr value, expressions_.Expression());
      statement->parts.push_back(std::move(value));
    }
    return StmtPtr(std::move(statement));
  }

  // Marks what a model is to learn, which is nothing to who renders. transformers makes it a call of its own body.
  Result<StmtPtr> Generation(int line) {
    auto statement = std::make_unique<ScopeStmt>(line);
    const Unconditional unconditional(expressions_);
    const int loops_outside = std::exchange(num_loops_, 0);
    expressions_.BeginBlock();
    HW_ASSIGN_OR_RETURN(statement->body, BodyUntil("endgeneration"));
    expressions_.EndBlock(statement->body);
    num_loops_ = loops_outside;
    return StmtPtr(std::move(statement));
  }

  TokenStream tokens_;
  ExpressionParser expressions_;
  int num_loops_ = 0;  // around this place, within the macro
};

}  // namespace

Result<Program> ParseProgram(std::string_view source) {
  HW_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace headwise::jinja
