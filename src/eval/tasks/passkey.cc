// headwise eval passkey: a number in a long text, at depths from its start to its end in even steps.
#include "base/mix_seed.h"
#include "data/recall_prompts.h"
#include "eval/judge.h"
#include "eval/tasks/haystack.h"
#include "eval/tasks/tasks.h"

namespace headwise {
namespace {

Result<std::unique_ptr<Task>> MakePasskey(const TaskInput& input) {
  HW_ASSIGN_OR_RETURN(Haystack haystack, ReadHaystack(input, /*max_new_tokens=*/16));
  AskedTaskParts& parts = haystack.parts;
  for (const int64_t length : parts.lengths) {
    for (int64_t i = 0; i < haystack.num_cases; ++i) {
      Rng rng(MixSeed(haystack.seed, length, i));
      HiddenNumber hidden = DrawHiddenNumber(rng);
      // Even steps reach all of the text with few cases; one case stands in the middle.
      hidden.depth =
          haystack.num_cases == 1 ? 0.5 : static_cast<double>(i) / static_cast<double>(haystack.num_cases - 1);
      const auto make = [&](std::string_view filler) {
        return AskedText{.context = "",
                         .questions = {{.text = MakeHiddenNumberPrompt(filler, hidden),
                                        .expected = {std::to_string(hidden.number)}}}};
      };
      HW_ASSIGN_OR_RETURN(AskedCase asked, FitCase(input, haystack, rng, length, make));
      asked.questions.front().tags["depth"] = hidden.depth;
      parts.cases.push_back(std::move(asked));
    }
  }
  parts.judge = RecallJudge(IsNumber);
  return MakeAskedTask(std::move(parts));
}

}  // namespace

const TaskMethod kPasskeyTask = {
    .name = "passkey",
    .title = "Passkey retrieval",
    .description = "a five-digit number hidden in a long text",
    .options = JoinLists<TaskOption>(kHaystackOptions),
    .metrics = AccuracyMetrics(),
    .make = MakePasskey,
};

}  // namespace headwise
