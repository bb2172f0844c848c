// Per-head rules on the bundled model against float64 goldens: every rule kind, compensation, positions in the cache,
// and the 16-bit formats within their tolerances.
#include <gtest/gtest.h>

#include <span>

#include "eval/perplexity.h"
#include "kv/rule_json.h"
#include "support/engines.h"
#include "support/golden.h"
#include "support/tolerance.h"

namespace headwise {
namespace {

constexpr int64_t kVocabulary = 8192;

// `key` of a case's JSON as a plan for the bundled model.
std::shared_ptr<const HeadPlan> PlanOf(const Json& json, const char* key, const Engine& engine) {
  auto plan = std::make_shared<HeadPlan>();
  plan->shape = engine.shape();
  auto rules = ParseRuleTable(json.at(key), plan->shape, key);
  EXPECT_TRUE(rules.ok()) << rules.status().message();
  if (rules.ok()) plan->rules = *std::move(rules);
  return plan;
}

struct RuleCase {
  Json json;
  GoldenTensors tensors;
  explicit RuleCase(const std::string& name)
      : json(ReadJsonFile(SourcePath("tests/golden/cache_rules/" + name + ".json")).value()),
        tensors(SourcePath("tests/golden/cache_rules/" + name + ".safetensors")) {}
};

// Largest difference of the sampled logits, and of the mean NLL.
struct Differences {
  double logits = 0;
  double mean_nll = 0;
};
Differences Compare(Engine& engine, const RuleCase& rule_case, int64_t prompt_tokens, int64_t chunk_tokens) {
  std::vector<int32_t> ids = rule_case.tensors.Ids("ids");
  const int32_t last_target = ids.back();
  ids.pop_back();
  const ForcedRows rows =
      MustRunForced(engine, ids, PlanOf(rule_case.json, "plan", engine), prompt_tokens, chunk_tokens);
  std::vector<float> sampled;
  for (const int32_t position : rule_case.tensors.Ids("positions")) {
    const auto begin = rows.logits.begin() + position * kVocabulary;
    sampled.insert(sampled.end(), begin, begin + kVocabulary);
  }
  Differences differences{.logits = MaxDifference(sampled, rule_case.tensors.F32("logits"))};
  double sum = 0;
  for (size_t t = 0; t < ids.size(); ++t) {
    sum += NegativeLogLikelihood(std::span(rows.logits).subspan(t * kVocabulary, kVocabulary),
                                 t + 1 < ids.size() ? ids[t + 1] : last_target);
  }
  differences.mean_nll = std::abs(sum / static_cast<double>(ids.size()) - rule_case.json.at("mean_nll").get<double>());
  return differences;
}

std::vector<const char*> Cases() {
  if (kIsSanitized) return {"4_moa", "5_cache_positions"};
  return {"1_dense", "2_stream", "3_duo", "4_moa", "5_cache_positions"};
}

TEST(Rules, LogitsEqualTheGoldenOnEveryInstructionSet) {
  for (const BackendChoice& choice : BackendChoices()) {
    if (choice.backend == "ref") continue;  // see the next test
    const auto engine = MustCreate(ExactOptions(BundledModel(), choice));
    ASSERT_NE(engine, nullptr);
    for (const char* name : Cases()) {
      // Half of the text one token at a time: prefill and decode.
      const Differences differences = Compare(*engine, RuleCase(name), 256, 64);
      EXPECT_LE(differences.logits, kBundledLogitsF32) << choice.name() << " " << name;
      EXPECT_LE(differences.mean_nll, 1e-4) << choice.name() << " " << name;
    }
  }
}

TEST(Rules, AnyChunkingEqualsTheGolden) {
  const auto engine = MustCreate(ExactOptions(BundledModel(), {"cpu"}));
  ASSERT_NE(engine, nullptr);
  for (const char* name : Cases()) {
    for (const int64_t chunk : {100, 1, 4096}) {
      EXPECT_LE(Compare(*engine, RuleCase(name), -1, chunk).logits, kBundledLogitsF32) << name << " chunk " << chunk;
      if (kIsSanitized) break;
    }
  }
}

// The reference backend takes its time: only the beginning of two texts, with chunks; families_test.cc has it on whole
// ones.
TEST(Rules, ReferenceBackendEqualsTheGolden) {
  const auto engine = MustCreate(ExactOptions(BundledModel(), {"ref"}));
  ASSERT_NE(engine, nullptr);
  constexpr size_t kTokens = 64;
  for (const char* name : {"4_moa", "5_cache_positions"}) {
    const RuleCase rule_case(name);
    std::vector<int32_t> ids = rule_case.tensors.Ids("ids");
    ids.resize(kTokens);
    const ForcedRows rows = MustRunForced(*engine, ids, PlanOf(rule_case.json, "plan", *engine), -1, 50);
    const std::vector<int32_t> positions = rule_case.tensors.Ids("positions");
    const std::vector<float> logits = rule_case.tensors.F32("logits");
    int num_compared = 0;
    for (size_t i = 0; i < positions.size() && positions[i] < static_cast<int32_t>(kTokens); ++i, ++num_compared) {
      const auto row = rows.logits.begin() + positions[i] * kVocabulary;
      const auto golden = logits.begin() + static_cast<int64_t>(i) * kVocabulary;
      EXPECT_LE(MaxDifference(std::span(row, kVocabulary), std::span(golden, kVocabulary)), kBundledLogitsF32) << name;
    }
    EXPECT_GT(num_compared, 0);
  }
}

TEST(Rules, NarrowFormatsStayWithinTheirTolerance) {
  struct Format {
    const char* kv_dtype;
    const char* compute;
    double tolerance;
  };
  for (const Format& format :
       {Format{"f16", "f32", kBundledLogitsKvF16}, Format{"bf16", "f32", kBundledLogitsKvBF16},
        Format{"q8", "f32", kBundledLogitsKvQ8}, Format{"q4", "f32", kBundledLogitsKvQ4},
        Format{"f32", "bf16", kBundledLogitsComputeBF16}, Format{"f16", "bf16", kBundledLogitsComputeBF16}}) {
    if (kIsSanitized && std::string_view(format.kv_dtype) == "f32") continue;
    EngineOptions options = ExactOptions(BundledModel(), {"cpu"});
    options.kv_dtype = format.kv_dtype;
    options.compute = format.compute;
    options.page_tokens = 32;  // windows of 64 tokens, too, are to have pages that age
    const auto engine = MustCreate(options);
    ASSERT_NE(engine, nullptr);
    for (const char* name : Cases()) {
      const Differences differences = Compare(*engine, RuleCase(name), 256, 64);
      EXPECT_LE(differences.logits, format.tolerance) << format.kv_dtype << " " << format.compute << " " << name;
      EXPECT_LE(differences.mean_nll, 5e-3) << format.kv_dtype << " " << format.compute << " " << name;
    }
  }
}

// Dense prefill, cut at its end, then tokens one by one, with and without the compensation token. [razor Algorithm 1]
TEST(Rules, CompensationEqualsTheGolden) {
  const RuleCase rule_case("6_razor");
  std::vector<int32_t> ids = rule_case.tensors.Ids("ids");
  ids.pop_back();
  const auto prompt_tokens = rule_case.json.at("prompt_tokens").get<int64_t>();
  for (const BackendChoice& choice : BackendChoices()) {
    if (choice.backend == "ref") continue;  // tests/conformance compares it with the definition
    const auto engine = MustCreate(ExactOptions(BundledModel(), choice));
    ASSERT_NE(engine, nullptr);
    for (const std::string which : {"compensated", "dropped"}) {
      const auto plan = PlanOf(rule_case.json, ("plan_" + which).c_str(), *engine);
      const ForcedRows rows = MustRunForced(*engine, ids, plan, prompt_tokens, 200);
      const auto prefill_end = rows.logits.begin() + prompt_tokens * kVocabulary;
      EXPECT_LE(MaxDifference(std::span(prefill_end - kVocabulary, prefill_end),
                              rule_case.tensors.F32("logits_prefill_last")),
                kBundledLogitsF32);
      // The file holds the last rows only: they rest on all folding before them.
      const std::vector<float> golden = rule_case.tensors.F32("logits_" + which);
      ASSERT_LE(static_cast<int64_t>(golden.size()), rows.logits.end() - prefill_end);
      ASSERT_FALSE(golden.empty());
      EXPECT_LE(MaxDifference(std::span(rows.logits).last(golden.size()), golden), kBundledLogitsF32)
          << choice.name() << " " << which;
    }
  }
}

}  // namespace
}  // namespace headwise
