#include "eval/ablation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "planner/planner.h"

namespace headwise {
namespace {

// Running them all takes an hour; what a row asks of planners and tasks can be checked at once.
TEST(Ablations, EveryRowAsksForWhatPlannersAndTasksHave) {
  AblationInput input;
  input.gates = "gates.json";
  input.text = "book.txt";
  input.steps = "10";
  std::set<std::string_view> names;
  for (const Ablation& ablation : Ablations()) {
    SCOPED_TRACE(ablation.name);
    EXPECT_TRUE(names.insert(ablation.name).second);
    std::set<std::string> labels;
    for (const AblationVariant& variant : ablation.variants(input)) {
      EXPECT_TRUE(labels.insert(variant.label).second) << variant.label;
      const auto method = std::ranges::find(PlannerMethods(), variant.method, &PlannerMethod::name);
      ASSERT_NE(method, PlannerMethods().end()) << variant.method;
      const Status status = NamedOptions(variant.options).CheckKnown(variant.method, method->options);
      EXPECT_TRUE(status.ok()) << variant.label << ": " << status.message();
    }
    EXPECT_GE(labels.size(), 2U);
    for (const AblationTask& task : ablation.tasks(input)) {
      const TaskMethod* method = FindTask(task.task);
      ASSERT_NE(method, nullptr) << task.task;
      std::vector<std::string_view> known;
      for (const TaskOption& option : method->options) known.push_back(option.name);
      const Status status = NamedOptions(task.options).CheckKnown(task.task, known);
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }
}

// The planners' own texts would take hours.
TEST(Ablations, HeadsAreIdentifiedOnTextsNoLongerThanTheCases) {
  AblationInput input;
  input.gates = "gates.json";
  input.length = 2048;
  const auto ablation = std::ranges::find(Ablations(), "identification", &Ablation::name);
  ASSERT_NE(ablation, Ablations().end());
  int num_that_read = 0;
  for (const AblationVariant& variant : ablation->variants(input)) {
    if (variant.method == "random" || variant.options.contains("from")) continue;
    ++num_that_read;
    EXPECT_EQ(variant.options.at("max-tokens"), "2048") << variant.label;
    EXPECT_LT(std::stoi(variant.options.at("min-tokens")), 2048) << variant.label;
  }
  EXPECT_EQ(num_that_read, 3);
}

}  // namespace
}  // namespace headwise
