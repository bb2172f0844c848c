// headwise eval variables: chains of assignments scattered over a long text, RULER's variable tracking [arXiv
// 2404.06654].
#include <algorithm>
#include <utility>

#include "base/mix_seed.h"
#include "data/variables.h"
#include "eval/judge.h"
#include "eval/tasks/haystack.h"
#include "eval/tasks/tasks.h"

namespace headwise {
namespace {

// What a variable looks like.
bool IsVariable(std::string_view word) {
  return word.size() == 5 && std::ranges::all_of(word, [](char c) { return c >= 'A' && c <= 'Z'; });
}

Result<std::unique_ptr<Task>> MakeVariablesTask(const TaskInput& input) {
  HW_ASSIGN_OR_RETURN(Haystack haystack, ReadHaystack(input, /*max_new_tokens=*/48));
  VariableOptions options;
  HW_ASSIGN_OR_RETURN(options.num_chains, input.options.IntOr("chains", options.num_chains, 1, 1000));
  HW_ASSIGN_OR_RETURN(options.num_hops, input.options.IntOr("hops", options.num_hops, 0, 1000));
  HW_RETURN_IF_ERROR(ValidateVariableOptions(options));
  AskedTaskParts& parts = haystack.parts;
  for (const int64_t length : parts.lengths) {
    for (int64_t i = 0; i < haystack.num_cases; ++i) {
      Rng rng(MixSeed(haystack.seed, length, i));
      const std::vector<VariableChain> chains = DrawVariableChains(rng, options);
      HW_ASSIGN_OR_RETURN(AskedCase asked, FitCase(input, haystack, rng, length, [&](std::string_view filler) {
                            return MakeVariables(filler, chains);
                          }));
      parts.cases.push_back(std::move(asked));
    }
  }
  parts.judge = RecallJudge(IsVariable);
  return MakeAskedTask(std::move(parts));
}

}  // namespace

const TaskMethod kVariablesTask = {
    .name = "variables",
    .title = "Variable tracking",
    .description = "which variables have a value, through chains of assignments in a long text",
    .options = JoinLists<TaskOption>(
        kHaystackOptions, std::to_array<TaskOption>({{"hops", "Assignments of a chain after its first"},
                                                     {"chains", "Chains: one is asked for, the others distract"}})),
    .metrics = AccuracyMetrics(),
    .make = MakeVariablesTask,
};

}  // namespace headwise
