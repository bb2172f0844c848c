// The mixed-integer programme of rule_choice.h, written for CBC, and the loops around it.
//
// CBC meets constraints up to absolute tolerances, and the caller's limits are exact (a plan never exceeds its bytes).
// So every row is shifted and scaled to a known size, relaxed by less than CBC can see, and each answer is checked in
// the caller's own units; an answer over a limit is excluded by a cut that excludes nothing else of use, and CBC runs
// again. Tightening the limits beforehand instead would lose choices that meet a limit exactly, which whole bytes often
// do.
#include "planner/rule_choice.h"

#include <Cbc_C_Interface.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "planner/isolated.h"

namespace headwise {
namespace {

// Above this, sums and scale factors could overflow.
constexpr double kLargestValue = 1e100;
// Largest coefficient of a scaled row or objective. CBC's tolerances are about 1e-7: 1e-11 of a value.
constexpr double kScaled = 1e4;
// How far a scaled row is opened, relative to its largest coefficient, so that CBC's arithmetic loses no exact choice.
constexpr double kOpened = 1e-10;
// What rounding may do to a sum over heads, relative to the sum of magnitudes.
constexpr double kRounding = 1e-12;
// Losses that differ by less than this share of their spread are the same to the Pareto set.
constexpr double kResolution = 1e-9;

using Table = std::vector<double>;

// Upper bound of the sum of `values` over the chosen rules.
struct Limit {
  const Table* values;
  double most;
};

size_t NumHeads(const RuleChoiceProblem& p) {
  return static_cast<size_t>(p.num_layers * p.heads_per_layer);
}
size_t NumRules(const RuleChoiceProblem& p) {
  return static_cast<size_t>(p.num_rules);
}

void CheckSizes(const RuleChoiceProblem& p) {
  HW_CHECK(p.num_layers >= 1 && p.heads_per_layer >= 1 && p.num_rules >= 1 && p.max_rules_per_layer >= 1,
           "layers {} heads {} rules {} rules per layer {}", p.num_layers, p.heads_per_layer, p.num_rules,
           p.max_rules_per_layer);
  HW_CHECK(!p.losses.empty());
  HW_CHECK(p.costs.size() == p.cost_limits.size(), "{} tables {} limits", p.costs.size(), p.cost_limits.size());
  const size_t size = NumHeads(p) * NumRules(p);
  for (const Table& table : p.losses) HW_CHECK(table.size() == size, "{} values, {} expected", table.size(), size);
  for (const Table& table : p.costs) HW_CHECK(table.size() == size, "{} values, {} expected", table.size(), size);
}

Status CheckTable(const RuleChoiceProblem& p, const Table& table, const std::string& name) {
  for (size_t i = 0; i < table.size(); ++i) {
    if (std::abs(table[i]) <= kLargestValue) continue;  // false for NaN
    const size_t head = i / NumRules(p);
    const auto per_layer = static_cast<size_t>(p.heads_per_layer);
    return Status::InvalidInput(
        fmt::format("rule choice: {}, layer {}, head {}, rule {}: found {}, expected a number of size up to {}", name,
                    head / per_layer, head % per_layer, i % NumRules(p), table[i], kLargestValue));
  }
  return Status::Ok();
}

Status CheckProblem(const RuleChoiceProblem& p) {
  CheckSizes(p);
  for (size_t i = 0; i < p.losses.size(); ++i) {
    HW_RETURN_IF_ERROR(CheckTable(p, p.losses[i], fmt::format("loss at length {}", i)));
  }
  for (size_t i = 0; i < p.costs.size(); ++i) {
    HW_RETURN_IF_ERROR(CheckTable(p, p.costs[i], fmt::format("cost {}", i)));
    if (std::isnan(p.cost_limits[i])) {
      return Status::InvalidInput(fmt::format("rule choice: cost limit {}: found nan, expected a number", i));
    }
  }
  return Status::Ok();
}

// Always the same order of summation: rounding is monotonic, so a sum never falls when one head's value rises. The
// limits are checked with it and the cuts rest on it.
double SumOf(const RuleChoiceProblem& p, const Table& table, const std::vector<int64_t>& rule_of_head) {
  double sum = 0.0;
  for (size_t head = 0; head < rule_of_head.size(); ++head) {
    sum += table[head * NumRules(p) + static_cast<size_t>(rule_of_head[head])];
  }
  return sum;
}

RuleChoice ChoiceOf(const RuleChoiceProblem& p, std::vector<int64_t> rule_of_head) {
  RuleChoice choice;
  for (const Table& table : p.losses) choice.losses.push_back(SumOf(p, table, rule_of_head));
  for (const Table& table : p.costs) choice.costs.push_back(SumOf(p, table, rule_of_head));
  choice.rule_of_head = std::move(rule_of_head);
  return choice;
}

// The table less each head's least value. Each head has exactly one rule, so this moves every sum by the same amount,
// and losses that share a large offset keep their differences.
struct Shifted {
  Table values;
  double base = 0.0;       // the sum of what was taken away
  double magnitude = 0.0;  // the sum over heads of the largest absolute value
  double spread = 0.0;     // the sum over heads of the largest shifted value
};

Shifted ShiftToZero(const RuleChoiceProblem& p, const Table& table) {
  Shifted shifted{.values = table};
  for (size_t head = 0; head < NumHeads(p); ++head) {
    const std::span<double> row(shifted.values.data() + head * NumRules(p), NumRules(p));
    const auto [least, most] = std::ranges::minmax(row);
    for (double& value : row) value -= least;
    shifted.base += least;
    shifted.magnitude += std::max(std::abs(least), std::abs(most));
    shifted.spread += most - least;
  }
  return shifted;
}

// sum over i of coefficients[i] * column[i] <= most
struct Row {
  std::vector<int> columns;
  std::vector<double> coefficients;
  double most = 0.0;

  void Add(size_t column, double coefficient) {
    columns.push_back(static_cast<int>(column));
    coefficients.push_back(coefficient);
  }
};

// Columns 0 .. heads * num_rules - 1 are x[head][rule], 1 where the head has the rule; the others are y[layer][rule],
// at least x of every head of the layer.
//
// y is continuous in [0, 1]. That is exact: let x be binary and y feasible. y'[layer][rule] = max over the layer's
// heads of x[head][rule] is feasible too, 0 or 1, and y' <= y everywhere, so sum y' <= sum y <= max_rules_per_layer;
// and sum y' is the number of distinct rules of the layer.
constexpr const char* kInfeasible = "infeasible";

class Programme {
 public:
  explicit Programme(const RuleChoiceProblem& problem) : p_(problem), allowed_(NumHeads(p_) * NumRules(p_), true) {
    AddLayerRows();
  }

  // False: no choice can meet it.
  bool AddLimit(const Limit& limit);
  void SetObjective(const Table& table);
  // Excludes `rule_of_head`, whose sum is over the limit, and every choice that is nowhere lower: those are over it
  // too.
  void Exclude(const Limit& limit, const std::vector<int64_t>& rule_of_head);
  // The rule of each head; none: infeasible. Unsupported: CBC gave up.
  Result<std::optional<std::vector<int64_t>>> Solve() const;

 private:
  struct Deleter {
    void operator()(Cbc_Model* model) const { Cbc_deleteModel(model); }
  };
  using Model = std::unique_ptr<Cbc_Model, Deleter>;

  enum class Branching { kTrusting, kDefault, kPlain };

  void AddLayerRows();
  Model Build(Branching branching) const;
  std::string SolveHere(Branching branching) const;

  const RuleChoiceProblem& p_;
  std::vector<char> allowed_;  // 0: a limit alone rules x out
  Table objective_;
  size_t num_rule_columns_ = 0;  // y
  std::vector<Row> rows_;
};

void Programme::AddLayerRows() {
  const auto per_layer = static_cast<size_t>(p_.heads_per_layer);
  if (p_.max_rules_per_layer >= std::min(p_.heads_per_layer, p_.num_rules)) return;
  for (size_t layer = 0; layer < static_cast<size_t>(p_.num_layers); ++layer) {
    Row distinct{.columns = {}, .coefficients = {}, .most = static_cast<double>(p_.max_rules_per_layer)};
    for (size_t rule = 0; rule < NumRules(p_); ++rule) {
      const size_t used = allowed_.size() + num_rule_columns_++;
      distinct.Add(used, 1.0);
      for (size_t head = layer * per_layer; head < (layer + 1) * per_layer; ++head) {
        Row& link = rows_.emplace_back();
        link.Add(head * NumRules(p_) + rule, 1.0);
        link.Add(used, -1.0);
      }
    }
    rows_.push_back(std::move(distinct));
  }
}

bool Programme::AddLimit(const Limit& limit) {
  if (limit.most == std::numeric_limits<double>::infinity()) return true;
  const Shifted shifted = ShiftToZero(p_, *limit.values);
  const double budget = limit.most - shifted.base + kRounding * (std::abs(limit.most) + shifted.magnitude);
  if (!(budget >= 0.0)) return false;
  if (shifted.spread <= budget) return true;  // nothing to say; what rounding hides here, the check afterwards finds
  double largest = 0.0;
  for (size_t i = 0; i < allowed_.size(); ++i) {
    // One outlier would otherwise set the scale of the row and hide the rest under the tolerance.
    if (shifted.values[i] > budget) allowed_[i] = 0;
    if (allowed_[i]) largest = std::max(largest, shifted.values[i]);
  }
  if (largest == 0.0) return true;
  Row& row = rows_.emplace_back();
  row.most = (budget / largest + kOpened) * kScaled;
  for (size_t i = 0; i < allowed_.size(); ++i) {
    if (allowed_[i] && shifted.values[i] > 0.0) row.Add(i, shifted.values[i] / largest * kScaled);
  }
  return true;
}

void Programme::SetObjective(const Table& table) {
  objective_ = ShiftToZero(p_, table).values;
  double largest = 0.0;
  for (size_t i = 0; i < objective_.size(); ++i) {
    if (allowed_[i]) largest = std::max(largest, objective_[i]);
  }
  for (size_t i = 0; i < objective_.size(); ++i) {
    objective_[i] = allowed_[i] && largest > 0.0 ? objective_[i] / largest * kScaled : 0.0;
  }
}

void Programme::Exclude(const Limit& limit, const std::vector<int64_t>& rule_of_head) {
  Row& row = rows_.emplace_back();
  row.most = static_cast<double>(rule_of_head.size()) - 1.0;
  for (size_t head = 0; head < rule_of_head.size(); ++head) {
    const double* values = limit.values->data() + head * NumRules(p_);
    for (size_t rule = 0; rule < NumRules(p_); ++rule) {
      if (values[rule] >= values[rule_of_head[head]]) row.Add(head * NumRules(p_) + rule, 1.0);
    }
  }
}

Programme::Model Programme::Build(Branching branching) const {
  Model model(Cbc_newModel());
  Cbc_setLogLevel(model.get(), 0);
  for (size_t i = 0; i < allowed_.size(); ++i) {
    Cbc_addCol(model.get(), "x", 0.0, allowed_[i] ? 1.0 : 0.0, objective_[i], 1, 0, nullptr, nullptr);
  }
  for (size_t i = 0; i < num_rule_columns_; ++i) {
    Cbc_addCol(model.get(), "y", 0.0, 1.0, 0.0, 0, 0, nullptr, nullptr);
  }
  for (size_t head = 0; head < NumHeads(p_); ++head) {
    Row one;
    for (size_t rule = 0; rule < NumRules(p_); ++rule) one.Add(head * NumRules(p_) + rule, 1.0);
    Cbc_addRow(model.get(), "one", static_cast<int>(one.columns.size()), one.columns.data(), one.coefficients.data(),
               'E', 1.0);
  }
  for (const Row& row : rows_) {
    Cbc_addRow(model.get(), "most", static_cast<int>(row.columns.size()), row.columns.data(), row.coefficients.data(),
               'L', row.most);
  }
  // CBC's integer preprocessing takes the worst choice for a proven optimum where coefficients differ by rounding
  // alone: rows of whole numbers show it. Off, it is also faster here.
  Cbc_setParameter(model.get(), "preprocess", "off");
  // The default is too coarse: a solution had to be better by 1e-5. The tolerance at which a value counts as whole
  // stays at its default, 1e-6: with a finer one than that of the linear programmes CBC 2.10 can fail an assertion when
  // it branches on a value that a second solve of the same node has made whole.
  Cbc_setParameter(model.get(), "increment", "1e-8");
  if (branching == Branching::kTrusting) {
    // Trust a variable's cost after one branching: faster here than CBC's default.
    Cbc_setParameter(model.get(), "trustPseudoCosts", "1");
  } else if (branching == Branching::kPlain) {
    Cbc_setParameter(model.get(), "trustPseudoCosts", "0");
    Cbc_setParameter(model.get(), "strongBranching", "0");
  }
  Cbc_setAllowableGap(model.get(), 0.0);
  Cbc_setAllowableFractionGap(model.get(), p_.relative_gap);
  return model;
}

// In one word per case, so that it can come from another process: "infeasible", "gave up" with a reason, or the rules.
std::string Programme::SolveHere(Branching branching) const {
  const Model model = Build(branching);
  Cbc_solve(model.get());
  constexpr int kFinished = 0;
  const bool is_infeasible =
      Cbc_isProvenInfeasible(model.get()) || Cbc_isInitialSolveProvenPrimalInfeasible(model.get());
  const double* solution = is_infeasible ? nullptr : Cbc_bestSolution(model.get());
  if (is_infeasible || (solution == nullptr && Cbc_status(model.get()) == kFinished)) return kInfeasible;
  if (solution == nullptr || !Cbc_isProvenOptimal(model.get())) {
    return fmt::format("CBC stopped with status {}, {}", Cbc_status(model.get()), Cbc_secondaryStatus(model.get()));
  }
  std::string rules;
  for (size_t head = 0; head < NumHeads(p_); ++head) {
    const std::span<const double> x(solution + head * NumRules(p_), NumRules(p_));
    rules += fmt::format("{} ", std::ranges::max_element(x) - x.begin());
  }
  return rules;
}

Result<std::optional<std::string>> RunCbc(const std::function<std::string()>& work) {
#if defined(__SANITIZE_THREAD__)
  // Which cannot follow a copy of a process of many threads: where CBC aborts, so do the tests.
  return std::optional<std::string>(work());
#else
  return RunIsolated(work);
#endif
}

// Some assertions of CBC 2.10 about solutions that its own solves have changed fail where many choices tie, and abort:
// each of its ways of branching at other problems. So it runs in a process of its own, and is tried in another way
// where it dies.
Result<std::optional<std::vector<int64_t>>> Programme::Solve() const {
  for (const Branching branching : {Branching::kTrusting, Branching::kDefault, Branching::kPlain}) {
    HW_ASSIGN_OR_RETURN(const std::optional<std::string> answer, RunCbc([&] { return SolveHere(branching); }));
    if (!answer) continue;
    if (*answer == kInfeasible) return std::optional<std::vector<int64_t>>();
    std::vector<int64_t> rule_of_head;
    std::istringstream rules(*answer);
    for (int64_t rule = 0; rules >> rule;) rule_of_head.push_back(rule);
    if (rule_of_head.size() == NumHeads(p_)) return std::optional(std::move(rule_of_head));
    return Status::Unsupported(fmt::format("rule choice: {}, expected a proven optimum", *answer));
  }
  return Status::Unsupported("rule choice: CBC died in every way of branching, expected a proven optimum");
}

// The choice of least sum of `objective` within `limits`, exactly; none where there is none.
Result<std::optional<RuleChoice>> Minimise(const RuleChoiceProblem& p, const Table& objective,
                                           std::span<const Limit> limits) {
  Programme programme(p);
  for (const Limit& limit : limits) {
    if (!programme.AddLimit(limit)) return std::optional<RuleChoice>();
  }
  programme.SetObjective(objective);
  for (;;) {  // ends: every turn but the last excludes a choice
    HW_ASSIGN_OR_RETURN(const auto rule_of_head, programme.Solve());
    if (!rule_of_head) return std::optional<RuleChoice>();
    const auto exceeded = std::ranges::find_if(
        limits, [&](const Limit& limit) { return SumOf(p, *limit.values, *rule_of_head) > limit.most; });
    if (exceeded == limits.end()) return std::optional(ChoiceOf(p, *rule_of_head));
    programme.Exclude(*exceeded, *rule_of_head);
  }
}

std::vector<Limit> LimitsOf(const RuleChoiceProblem& p, std::span<const double> loss_limits) {
  std::vector<Limit> limits;
  for (size_t i = 0; i < p.costs.size(); ++i) limits.push_back({.values = &p.costs[i], .most = p.cost_limits[i]});
  for (size_t i = 0; i < loss_limits.size(); ++i) limits.push_back({.values = &p.losses[i], .most = loss_limits[i]});
  return limits;
}

bool AllAtMost(std::span<const double> values, std::span<const double> bounds) {
  return std::ranges::equal(values, bounds, std::less_equal<>());
}

// The first limit that cannot be met even alone.
Status CheckEachLimit(RuleChoiceProblem p, std::span<const Limit> limits) {
  p.relative_gap = 0;  // what is said to be the least must be
  for (size_t i = 0; i < limits.size(); ++i) {
    HW_ASSIGN_OR_RETURN(const auto cheapest, Minimise(p, *limits[i].values, {}));
    HW_CHECK(cheapest.has_value());
    const double least = SumOf(p, *limits[i].values, cheapest->rule_of_head);
    if (least <= limits[i].most) continue;
    const std::string name = i < p.costs.size() ? fmt::format("cost limit {}", i)
                                                : fmt::format("loss limit at length {}", i - p.costs.size());
    return Status::InvalidInput(
        fmt::format("rule choice: {}: at most {} was asked, but the least possible with up to {} rules per layer is {}",
                    name, limits[i].most, p.max_rules_per_layer, least));
  }
  return Status::Ok();
}

// Why no choice meets the limits.
Status ExplainInfeasible(const RuleChoiceProblem& p, std::span<const Limit> limits) {
  HW_RETURN_IF_ERROR(CheckEachLimit(p, limits));
  return Status::InvalidInput(fmt::format(
      "rule choice: each of the {} limits can be met alone, but no choice with up to {} rules per layer meets "
      "them together",
      limits.size(), p.max_rules_per_layer));
}

Result<RuleChoice> MinimiseChecked(const RuleChoiceProblem& p, size_t length_idx, std::span<const double> loss_limits) {
  const std::vector<Limit> limits = LimitsOf(p, loss_limits);
  HW_ASSIGN_OR_RETURN(auto choice, Minimise(p, p.losses[length_idx], limits));
  if (!choice) return ExplainInfeasible(p, limits);
  return *std::move(choice);
}

// The epsilon-constraint method.
class ParetoSearch {
 public:
  ParetoSearch(const RuleChoiceProblem& problem, int64_t num_intervals, const std::function<bool()>& should_stop);
  Result<std::vector<RuleChoice>> Run();

 private:
  // What one programme of a fixed objective said; `bounds` are its loss limits.
  struct Answer {
    std::vector<double> bounds;
    std::optional<RuleChoice> choice;
  };

  Status GoOn() const {
    if (!should_stop_ || !should_stop_()) return Status::Ok();
    return Status::Cancelled("stopped while rules were chosen; the influence is kept, --resume goes on from it");
  }
  Status FindRanges();
  Status SolveGrid(size_t objective);
  Result<RuleChoice> Improve(RuleChoice choice) const;
  bool NowhereWorse(const RuleChoice& a, const RuleChoice& b) const;
  void DropDominated(std::vector<RuleChoice>* choices) const;

  const RuleChoiceProblem& p_;
  const size_t num_lengths_;
  const int64_t num_intervals_;
  const std::function<bool()>& should_stop_;
  Table weighted_;                               // the sum of the losses, each by the inverse of its spread
  std::vector<double> tolerances_;               // [num_lengths]
  std::vector<std::vector<double>> upper_ends_;  // [num_lengths][intervals], falling
  std::vector<RuleChoice> found_;
};

ParetoSearch::ParetoSearch(const RuleChoiceProblem& problem, int64_t num_intervals,
                           const std::function<bool()>& should_stop)
    : p_(problem), num_lengths_(problem.losses.size()), num_intervals_(num_intervals), should_stop_(should_stop) {
  weighted_.assign(p_.losses[0].size(), 0.0);
  for (const Table& table : p_.losses) {
    const Shifted shifted = ShiftToZero(p_, table);
    tolerances_.push_back(kResolution * shifted.spread + kRounding * shifted.magnitude);
    if (shifted.spread == 0.0) continue;
    for (size_t i = 0; i < weighted_.size(); ++i) weighted_[i] += shifted.values[i] / shifted.spread;
  }
}

// A choice that nothing betters and that is no worse than `choice` at any length, both to the resolution. Lengths at
// which several rules are the whole text make ties common, and of choices that tie at the objective's length CBC
// returns any. Rules that lose next to nothing make near ties as common: held to the last digit, they would be excluded
// one by one.
Result<RuleChoice> ParetoSearch::Improve(RuleChoice choice) const {
  std::vector<double> bounds = choice.losses;
  for (size_t i = 0; i < num_lengths_; ++i) bounds[i] += tolerances_[i];
  std::vector<Limit> limits = LimitsOf(p_, bounds);
  limits.push_back({.values = &weighted_, .most = SumOf(p_, weighted_, choice.rule_of_head) - kResolution});
  HW_ASSIGN_OR_RETURN(auto improved, Minimise(p_, weighted_, limits));
  return improved ? *std::move(improved) : std::move(choice);
}

Status ParetoSearch::FindRanges() {
  for (size_t length = 0; length < num_lengths_; ++length) {
    HW_RETURN_IF_ERROR(GoOn());
    HW_ASSIGN_OR_RETURN(RuleChoice optimum, MinimiseChecked(p_, length, {}));
    HW_ASSIGN_OR_RETURN(RuleChoice improved, Improve(std::move(optimum)));
    found_.push_back(std::move(improved));
  }
  for (size_t length = 0; length < num_lengths_; ++length) {
    double least = std::numeric_limits<double>::infinity();
    double most = -least;
    for (const RuleChoice& choice : found_) {
      least = std::min(least, choice.losses[length]);
      most = std::max(most, choice.losses[length]);
    }
    std::vector<double>& ends = upper_ends_.emplace_back(1, most + tolerances_[length]);
    if (most - least <= tolerances_[length]) continue;
    for (int64_t i = num_intervals_ - 1; i >= 1; --i) {
      ends.push_back(least + (most - least) * static_cast<double>(i) / static_cast<double>(num_intervals_));
    }
  }
  return Status::Ok();
}

// Solves for every combination of the other lengths' upper ends, loosest first. A looser answer that already meets the
// bounds is the answer, and what is infeasible stays so under tighter bounds.
Status ParetoSearch::SolveGrid(size_t objective) {
  std::vector<Answer> answers;
  std::vector<size_t> at(num_lengths_, 0);
  for (;;) {
    std::vector<double> bounds(num_lengths_, std::numeric_limits<double>::infinity());
    for (size_t i = 0; i < num_lengths_; ++i) {
      if (i != objective) bounds[i] = upper_ends_[i][at[i]];
    }
    const bool known = std::ranges::any_of(answers, [&](const Answer& answer) {
      return AllAtMost(bounds, answer.bounds) && (!answer.choice || AllAtMost(answer.choice->losses, bounds));
    });
    if (!known) {
      HW_RETURN_IF_ERROR(GoOn());
      HW_ASSIGN_OR_RETURN(auto choice, Minimise(p_, p_.losses[objective], LimitsOf(p_, bounds)));
      if (choice) found_.push_back(*choice);
      answers.push_back({.bounds = std::move(bounds), .choice = std::move(choice)});
    }
    size_t i = 0;
    for (; i < num_lengths_; ++i) {
      if (i == objective) continue;
      if (++at[i] < upper_ends_[i].size()) break;
      at[i] = 0;
    }
    if (i == num_lengths_) return Status::Ok();
  }
}

bool ParetoSearch::NowhereWorse(const RuleChoice& a, const RuleChoice& b) const {
  for (size_t i = 0; i < num_lengths_; ++i) {
    if (a.losses[i] > b.losses[i] + tolerances_[i]) return false;
  }
  return true;
}

// Leaves the choices in order; of equal ones the cheaper stays.
void ParetoSearch::DropDominated(std::vector<RuleChoice>* choices) const {
  std::ranges::sort(*choices, {}, [](const RuleChoice& c) { return std::tie(c.losses, c.costs, c.rule_of_head); });
  std::vector<RuleChoice> kept;
  for (size_t i = 0; i < choices->size(); ++i) {
    const RuleChoice& choice = (*choices)[i];
    bool is_dominated = std::ranges::any_of(kept, [&](const RuleChoice& k) { return NowhereWorse(k, choice); });
    for (size_t j = i + 1; j < choices->size() && !is_dominated; ++j) {
      is_dominated = NowhereWorse((*choices)[j], choice) && !NowhereWorse(choice, (*choices)[j]);
    }
    if (!is_dominated) kept.push_back(choice);
  }
  *choices = std::move(kept);
}

Result<std::vector<RuleChoice>> ParetoSearch::Run() {
  HW_RETURN_IF_ERROR(FindRanges());
  for (size_t objective = 0; objective < num_lengths_; ++objective) HW_RETURN_IF_ERROR(SolveGrid(objective));
  DropDominated(&found_);
  for (RuleChoice& choice : found_) {
    HW_RETURN_IF_ERROR(GoOn());
    HW_ASSIGN_OR_RETURN(choice, Improve(std::move(choice)));
  }
  DropDominated(&found_);
  return std::move(found_);
}

}  // namespace

Status CheckCostLimits(const RuleChoiceProblem& problem) {
  HW_RETURN_IF_ERROR(CheckProblem(problem));
  return CheckEachLimit(problem, LimitsOf(problem, {}));
}

Result<RuleChoice> MinimiseLoss(const RuleChoiceProblem& problem, int64_t length_idx,
                                std::span<const double> loss_limits) {
  HW_RETURN_IF_ERROR(CheckProblem(problem));
  const auto length = static_cast<size_t>(length_idx);
  HW_CHECK(length < problem.losses.size(), "length {} of {}", length_idx, problem.losses.size());
  HW_CHECK(loss_limits.empty() || loss_limits.size() == problem.losses.size(), "{} loss limits, {} lengths",
           loss_limits.size(), problem.losses.size());
  for (size_t i = 0; i < loss_limits.size(); ++i) {
    if (std::isnan(loss_limits[i])) {
      return Status::InvalidInput(fmt::format("rule choice: loss limit at length {}: found nan, expected a number", i));
    }
  }
  return MinimiseChecked(problem, length, loss_limits);
}

Result<std::vector<RuleChoice>> ParetoSet(const RuleChoiceProblem& problem, int64_t num_intervals,
                                          const std::function<bool()>& should_stop) {
  HW_RETURN_IF_ERROR(CheckProblem(problem));
  HW_CHECK(num_intervals >= 1, "{} intervals", num_intervals);
  return ParetoSearch(problem, num_intervals, should_stop).Run();
}

}  // namespace headwise
