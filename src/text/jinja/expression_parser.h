// Expressions of the template language, by recursive descent in the order in which its operators bind.
#ifndef HEADWISE_TEXT_JINJA_EXPRESSION_PARSER_H_
#define HEADWISE_TEXT_JINJA_EXPRESSION_PARSER_H_

#include <headwise/status.h>

#include <array>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/token_stream.h"

namespace headwise::jinja {

// Brackets, blocks and operators inside one another. The parser and all that follows it are recursive.
inline constexpr int kMaxNesting = 80;
// `a + b + c` is as deep as it is long.
inline constexpr int kMaxExprDepth = 300;

class ExpressionParser {
 public:
  enum class Choices { kAllowed, kNot };  // `a if b else c` without parentheses

  explicit ExpressionParser(TokenStream& tokens);

  Result<ExprPtr> Expression(Choices choices = Choices::kAllowed);
  // One expression, or several with commas between them as a tuple. Ends before the name `end`, if one is given.
  Result<ExprPtr> Tuple(Choices choices, std::string_view end = {});
  // `upper | trim(...)` behind a bar or the word filter; the first is applied to `input`.
  Result<ExprPtr> Filters(ExprPtr input, bool has_bar);
  // Names, tuples of them, attributes where `may_be_attribute`.
  Result<Target> AssignTarget(bool may_be_attribute, std::string_view end = {});
  Result<int> TargetName();

  int NameId(std::string_view name);
  // The names so far, and which of them are read.
  std::vector<std::string>& names() { return names_; }
  std::vector<bool>& is_read() { return is_read_; }

  // ---- Which names a block assigns before it has read them, and no block around it knows: there they are undefined
  // until then, in what lies inside the block, too, and whatever the context says. jinja2 decides so. ----

  struct Block {
    Block* around;
    std::unordered_set<int> known = {};  // read or assigned
    int num_branches = 0;                // of `if` around this place: what is assigned there may not be
    std::vector<int> unset = {};
    Body* body = nullptr;
  };
  Block& block() { return *block_; }
  void BeginBlock() { block_ = &blocks_.emplace_back(Block{.around = block_}); }
  // Requires: the body stays where it is.
  void EndBlock(Body& body) {
    block_->body = &body;
    block_ = block_->around;
  }
  // What is read until StepInto is read by the block around. Returns what to enter again.
  Block* StepOut() { return std::exchange(block_, block_->around); }
  void StepInto(Block* block) { block_ = block; }
  // Once all blocks have ended.
  void TellUnsetNames();
  // With names that it is given: parameters, a loop's variables.
  void Gives(int name) { block_->known.insert(name); }
  void Gives(const Target& target) {
    for (const Target& part : target.parts) Gives(part);
    Gives(target.name);
  }
  void Assigns(const Target& target);
  void Assigns(int name);

  // What the bodies of the macros under way read of the names that a macro gives itself.
  using Reads = std::array<bool, kNumWellKnownNames>;
  std::vector<Reads>& macro_reads() { return macro_reads_; }

  // Whether what is parsed may never be reached: there an unknown filter is an error only when it is.
  bool is_conditional = false;

  // Counts what is open. Requires: Leave after every Enter that was OK.
  Status Enter();
  void Leave() { --nesting_; }

 private:
  void Read(int name);

  Result<ExprPtr> Choice();
  Result<ExprPtr> Or();
  Result<ExprPtr> And();
  Result<ExprPtr> Not();
  Result<ExprPtr> Compare();
  bool TakeCompareOp(CompareOp* op);
  Result<ExprPtr> Sum();
  Result<ExprPtr> Concat();
  Result<ExprPtr> Product();
  Result<ExprPtr> Power();
  enum class AllowFilters { kYes, kNo };
  Result<ExprPtr> Unary(AllowFilters filters);
  Result<ExprPtr> Primary();
  Result<ExprPtr> Number();
  Result<ExprPtr> ListLiteral();
  Result<ExprPtr> DictLiteral();
  Result<ExprPtr> Postfix(ExprPtr of);
  Result<ExprPtr> FiltersAndTests(ExprPtr of);
  Result<ExprPtr> Attribute(ExprPtr of);
  Result<ExprPtr> Subscript(ExprPtr of);
  Status SliceParts(ExprPtr first, int line, OperandsExpr& slice);
  Result<ExprPtr> Call(ExprPtr of);
  Status Arguments(ArgExprs& args);
  Result<std::string> DottedName(std::string_view what);
  Result<ExprPtr> Test(ExprPtr of);
  Result<Target> OneTarget(bool may_be_attribute);

  template <typename Next>
  Result<ExprPtr> LeftToRight(std::initializer_list<std::pair<std::string_view, BinaryOp>> ops, Next next);

  TokenStream& tokens_;
  int nesting_ = 0;
  std::vector<std::string> names_;
  std::vector<bool> is_read_;
  std::unordered_map<std::string, int> name_ids_;
  std::vector<Reads> macro_reads_;
  std::deque<Block> blocks_;
  Block* block_ = nullptr;
};

}  // namespace headwise::jinja

#endif  // HEADWISE_TEXT_JINJA_EXPRESSION_PARSER_H_
