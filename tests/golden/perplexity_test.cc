// Perplexity of four small models under sink + recent caches with positions in the cache, against a float64 reference
// (tests/golden/perplexity): a learned sink token, none, a zero sink in the softmax, ALiBi. The models lie beside the
// project, not in it: without them this is skipped. [streaming-llm §3.1 table 1, §3.3]
#include <gtest/gtest.h>

#include <filesystem>

#include "eval/perplexity.h"
#include "support/engines.h"
#include "support/golden.h"

namespace headwise {
namespace {

TEST(PerplexityTable, EveryCellIsWithinOnePercent) {
  const std::string folder = SourcePath("tests/golden/perplexity/");
  const Json table = ReadJsonFile(folder + "table.json").value();
  const GoldenTensors ids(folder + "ids.safetensors");
  int num_compared = 0;
  for (const auto& [name, model] : table.at("models").items()) {
    const std::string path = SourcePath("../shared/models/" + name);
    if (!std::filesystem::exists(path)) continue;
    EngineOptions options;
    options.model = path;
    options.compute = "f32";
    const auto engine = MustCreate(options);
    ASSERT_NE(engine, nullptr);
    for (const auto& [rule_name, cell] : model.at("rules").items()) {
      std::shared_ptr<HeadPlan> plan = std::make_shared<HeadPlan>(HeadPlan::Dense(engine->shape()));
      if (cell.contains("recent")) {
        HeadRule rule = HeadRule::Stream(cell.at("sink").get<int64_t>(), cell.at("recent").get<int64_t>());
        rule.positions = Positions::kCache;
        for (HeadRule& each : plan->rules) each = rule;
      }
      const auto text = ids.Ids(model.at("ids").get<std::string>());
      const auto result = MeasurePerplexity(*engine, {.plan = plan, .ids = text, .on_progress = nullptr});
      ASSERT_TRUE(result.ok()) << result.status().message();
      const double expected = cell.at("perplexity").get<double>();
      EXPECT_NEAR(result->ppl, expected, 0.01 * expected) << name << " " << rule_name;
      ++num_compared;
      if (kIsSanitized) break;
    }
  }
  if (num_compared == 0) GTEST_SKIP() << "the small models are not beside the project (../shared/models)";
}

}  // namespace
}  // namespace headwise
