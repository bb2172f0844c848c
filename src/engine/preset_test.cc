#include "engine/preset.h"

#include <gtest/gtest.h>

#include <utility>

namespace headwise {
namespace {

ModelShape Shape(int64_t num_kv_heads = 4) {
  return {.architecture = "llama",
          .num_layers = 1,
          .num_q_heads = num_kv_heads,
          .num_kv_heads = num_kv_heads,
          .head_dim = 64};
}

// Of a token in one head: 4 bytes in f16, 2 in q8; 1 in q4 once it has aged.
PageSizes PageSizesByHand(const KvLayout& layout) {
  switch (layout.format) {
    case KvFormat::kF16:
      return {.newest = 4 * layout.page_tokens};
    case KvFormat::kQ8:
      return {.newest = 2 * layout.page_tokens};
    default:
      return {.newest = 2 * layout.page_tokens, .aged = layout.page_tokens};
  }
}

PresetPlan Full() {
  return {
      .name = "full", .plan = std::make_shared<HeadPlan>(HeadPlan::Dense(Shape())), .loss = {MeasuredLoss{}, "full"}};
}

// One head full, three with 8 tokens.
PresetPlan OneFull(std::optional<MeasuredLoss> loss) {
  HeadPlan plan = HeadPlan::Dense(Shape());
  for (const size_t head : {1, 2, 3}) plan.rules[head] = HeadRule::Stream(0, 8);
  return {.name = "one.json", .plan = std::make_shared<HeadPlan>(std::move(plan)), .loss = {loss, "a figure"}};
}

constexpr KvFormats kF16{.full = KvFormat::kF16, .bounded = KvFormat::kF16};
constexpr KvFormats kQ8F16{.full = KvFormat::kQ8, .bounded = KvFormat::kF16};
constexpr KvFormats kQ8{.full = KvFormat::kQ8, .bounded = KvFormat::kQ8};
constexpr KvFormats kQ4{.full = KvFormat::kQ4, .bounded = KvFormat::kQ4};

// 10,000 bytes, of which 5,120 are left for caches.
PresetInput Input(double max_loss) {
  return {.memory = {.total_bytes = 10000, .weight_bytes = 4000, .activation_bytes = 800, .reserve_bytes = 80},
          .most_tokens = 1 << 20,
          .chunk_tokens = 1,
          .max_loss = max_loss,
          .plans = {Full()},
          .formats = {kF16, kQ8},
          .page_sizes_of = PageSizesByHand};
}

TEST(ChoosePreset, TakesTheMostTokensWithinTheLoss) {
  // Every head full: a page of 32 tokens takes 4 * 32 * 4 = 512 bytes in f16 and 256 in q8: 10 and 20 of them.
  const PresetChoice lossless = ChoosePreset(Input(0)).value();
  EXPECT_EQ(lossless.chosen.formats, kF16);
  EXPECT_EQ(lossless.chosen.tokens, 320);
  EXPECT_EQ(lossless.num_within, 1);
  EXPECT_EQ(lossless.options.size(), 2u);
  const PresetChoice choice = ChoosePreset(Input(0.01)).value();
  EXPECT_EQ(choice.chosen.formats, kQ8);
  EXPECT_EQ(choice.chosen.tokens, 640);
  EXPECT_EQ(choice.num_within, 2);
}

TEST(ChoosePreset, ManyTextsShareTheMemory) {
  PresetInput input = Input(0.01);
  input.num_texts = 3;  // 1,706 bytes each: 6 pages of 256
  EXPECT_EQ(ChoosePreset(input)->chosen.tokens, 192);
}

TEST(ChoosePreset, ALimitOfCachesIsForCachesAlone) {
  PresetInput input = Input(0.01);
  input.memory.kv_limit_bytes = 512;
  EXPECT_EQ(ChoosePreset(input)->chosen.tokens, 64);
}

TEST(ChoosePreset, OfThoseThatHoldEnoughTheLeastLoss) {
  PresetInput input = Input(0.5);
  input.plans.push_back(OneFull(MeasuredLoss{.perplexity = 0.01}));
  for (const auto& [most_tokens, formats, plan_idx] :
       {std::tuple(320, kF16, size_t{0}), std::tuple(321, kQ8, size_t{0}), std::tuple(641, kF16, size_t{1})}) {
    input.most_tokens = most_tokens;
    const PresetChoice choice = ChoosePreset(input).value();
    EXPECT_EQ(choice.chosen.tokens, most_tokens);
    EXPECT_EQ(choice.chosen.formats, formats) << most_tokens;
    EXPECT_EQ(choice.chosen.plan_idx, plan_idx) << most_tokens;
  }
}

TEST(ChoosePreset, AnswersCountAsPerplexityDoes) {
  for (const auto& [max_loss, plan_idx] : {std::pair(0.049, 0u), std::pair(0.051, 1u)}) {
    PresetInput input = Input(max_loss);
    input.plans.push_back(OneFull(MeasuredLoss{.perplexity = 0.001, .answers = 0.05}));
    const PresetChoice choice = ChoosePreset(input).value();
    EXPECT_EQ(choice.chosen.plan_idx, plan_idx) << max_loss;
  }
}

TEST(ChoosePreset, LossesOfPlanAndCacheAddUp) {
  // Alone either is within: 1 % and 0.036 %.
  PresetInput input = Input(0.0102);
  input.plans.push_back(OneFull(MeasuredLoss{.perplexity = 0.01}));
  const PresetChoice choice = ChoosePreset(input).value();
  EXPECT_EQ(choice.num_within, 3);
  EXPECT_EQ(choice.chosen.plan_idx, 1u);
  EXPECT_EQ(choice.chosen.formats, kF16);
  EXPECT_DOUBLE_EQ(choice.options.back().loss->perplexity, 0.01 + LossOfCache(KvFormat::kQ8).perplexity);
}

TEST(ChoosePreset, WhatFitsIsWhatTheLimitAdmits) {
  PresetInput input = Input(0.5);
  input.plans = {OneFull(MeasuredLoss{})};
  for (const KvFormats& formats : {kF16, kQ8F16, kQ8, kQ4}) {
    input.formats = {formats};
    const int64_t tokens = ChoosePreset(input)->chosen.tokens;
    const int64_t page_tokens = formats.full == KvFormat::kQ4 ? 64 : 32;
    const auto pages_in = [&](KvFormat format) {
      return PageSizesByHand({.head_dim = 64, .page_tokens = page_tokens, .format = format});
    };
    KvBytesArgs args{.plan = input.plans.front().plan.get(),
                     .limits = {},
                     .chunk_tokens = 1,
                     .page_tokens = page_tokens,
                     .full_pages = pages_in(formats.full),
                     .bounded_pages = pages_in(formats.bounded)};
    args.limits = {.prompt_tokens = tokens, .max_tokens = tokens};
    EXPECT_LE(PeakKvBytes(args), 5120);
    args.limits = {.prompt_tokens = tokens + 1, .max_tokens = tokens + 1};
    EXPECT_GT(PeakKvBytes(args), 5120);
  }
}

TEST(ChoosePreset, FormatsOfBoundedHeadsMatterWhereSomeAre) {
  PresetInput input = Input(0.01);
  input.formats = {kF16, kQ8F16, kQ8};
  EXPECT_EQ(ChoosePreset(input)->options.size(), 2u);
  input.plans.push_back(OneFull(MeasuredLoss{}));
  EXPECT_EQ(ChoosePreset(input)->options.size(), 5u);
  // A layer's own window bounds full heads too.
  input.plans.pop_back();
  input.windows.tokens = {16};
  EXPECT_EQ(ChoosePreset(input)->options.size(), 3u);
}

TEST(ChoosePreset, HeadsThatReadByScoreAreNotPutIntoQ4) {
  PresetInput input = Input(1);
  input.formats = {kF16, kQ8, kQ4};
  EXPECT_EQ(ChoosePreset(input)->chosen.formats, kQ4);
  HeadPlan plan = *input.plans.front().plan;
  plan.rules.back().select.kind = TokenSelector::Kind::kQuest;
  input.plans.front().plan = std::make_shared<const HeadPlan>(std::move(plan));
  const PresetChoice choice = ChoosePreset(input).value();
  EXPECT_EQ(choice.chosen.formats, kQ8);
  EXPECT_EQ(choice.options.size(), 2u);
}

TEST(ChoosePreset, WhatIsNotKnownIsNotWithin) {
  PresetInput input = Input(1);
  input.plans.push_back(OneFull(std::nullopt));
  const PresetChoice choice = ChoosePreset(input).value();
  EXPECT_EQ(choice.chosen.plan_idx, 0u);
  EXPECT_EQ(choice.num_within, 2);
  EXPECT_NE(PresetText(input, choice).find("one.json holds up to"), std::string::npos);
  EXPECT_NE(PresetText(input, choice).find("not known: a figure"), std::string::npos);
  input.plans.erase(input.plans.begin());
  EXPECT_EQ(ChoosePreset(input).status().code(), StatusCode::kInvalidInput);
}

TEST(ChoosePreset, WhatIsAskedForIsNotBounded) {
  PresetInput input = Input(0);
  input.formats = {kQ4};
  input.formats_are_given = true;
  PresetChoice choice = ChoosePreset(input).value();
  EXPECT_EQ(choice.chosen.formats, kQ4);
  EXPECT_GT(choice.chosen.loss->perplexity, 0);
  EXPECT_NE(PresetText(input, choice).find("plan full, cache q4 (as asked for)"), std::string::npos);
  input = Input(0);
  input.plans = {OneFull(std::nullopt)};
  input.plan_is_given = true;
  choice = ChoosePreset(input).value();
  EXPECT_EQ(choice.chosen.formats, kF16);  // the cache is the preset's, and loses nothing
  EXPECT_NE(PresetText(input, choice).find("plan one.json (as asked for), cache f16:"), std::string::npos);
  EXPECT_NE(PresetText(input, choice).find("not known"), std::string::npos);
  input.formats = {kF16, kQ8};
  EXPECT_NE(PresetText(input, ChoosePreset(input).value()).find("(--max-loss, of the cache alone)"), std::string::npos);
}

TEST(ChoosePreset, SaysWhatTheSmallestChoiceNeeds) {
  PresetInput input = Input(0.01);
  input.memory.total_bytes = 4000;
  // 4,880 bytes of other things, and a page of q8 in each of four heads: 4 * 64.
  const Status status = ChoosePreset(input).status();
  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
  EXPECT_NE(status.message().find("cache q8, needs 5.14 kB, 256 B of it for caches"), std::string::npos)
      << status.message();
  input.max_loss = 0;  // 4 * 128 in f16
  EXPECT_NE(ChoosePreset(input).status().message().find("needs 5.39 kB, 512 B"), std::string::npos);
  input.memory.kv_limit_bytes = 511;
  EXPECT_NE(ChoosePreset(input).status().message().find("needs 512 B"), std::string::npos);
  input.memory.kv_limit_bytes = 512;
  EXPECT_EQ(ChoosePreset(input)->chosen.tokens, 32);
}

// ---- figures ----

// `num_full` of 8 heads full, the others with `recent` tokens.
HeadPlan PlanWith(int num_full, int64_t recent, const char* method) {
  HeadPlan plan = HeadPlan::Dense(Shape(8));
  for (size_t head = static_cast<size_t>(num_full); head < 8; ++head) plan.rules[head] = HeadRule::Stream(0, recent);
  plan.method = method;
  return plan;
}

MeasuredLoss LossOf(const HeadPlan& plan) {
  return LossOfPlan(plan, {}, "plan").value().loss.value();
}

TEST(LossOfPlan, IsThatOfTheMethodAtTheNextShareBelow) {
  EXPECT_NEAR(LossOf(PlanWith(4, 32, "duo")).perplexity, 0.0027, 0.00005);
  EXPECT_NEAR(LossOf(PlanWith(4, 32, "duo")).answers, 1.0 / 99, 1e-9);
  EXPECT_NEAR(LossOf(PlanWith(3, 32, "duo")).perplexity, 0.0136, 0.00005);
  EXPECT_NEAR(LossOf(PlanWith(7, 32, "duo")).perplexity, 0.0027, 0.00005);
  EXPECT_NEAR(LossOf(PlanWith(1, 32, "import-duo")).perplexity, 0.0359, 0.00005);
  EXPECT_EQ(LossOf(PlanWith(2, 32, "duo")).answers, 0);  // 100 in place of 99 were right
  EXPECT_NEAR(LossOf(PlanWith(0, 2048, "streaming")).answers, 78.0 / 99, 1e-9);
  EXPECT_NEAR(LossOf(PlanWith(1, 32, "zigzag")).answers, 89.0 / 99, 1e-9);
}

TEST(LossOfPlan, JustBelowAShareIsThatShare) {
  // A window of 1,986 tokens is a ring of 64 pages, a quarter of 256; one of 1,985 has 63.
  HeadPlan plan = PlanWith(0, 1986, "razor");
  EXPECT_NEAR(LossOf(plan).perplexity, 0.0753, 0.00005);
  plan.rules[7].recent = 1985;  // as a budget ends: within a page
  EXPECT_NEAR(LossOf(plan).perplexity, 0.0753, 0.00005);
  EXPECT_NEAR(LossOf(PlanWith(0, 1985, "razor")).perplexity, 0.2220, 0.00005);
}

TEST(LossOfPlan, WhereNobodyMeasuredThereIsNone) {
  EXPECT_FALSE(LossOfPlan(PlanWith(4, 32, "snapkv"), {}, "plan").value().loss);
  EXPECT_FALSE(LossOfPlan(PlanWith(4, 32, "manual"), {}, "plan").value().loss);
  const PlanLoss too_small = LossOfPlan(PlanWith(0, 256, "duo"), {}, "plan").value();
  EXPECT_FALSE(too_small.loss);
  EXPECT_NE(too_small.from.find("was not measured"), std::string::npos);
  EXPECT_EQ(LossOf(HeadPlan::Dense(Shape())).worst(), 0);
}

TEST(LossOfPlan, IsWhatItsReportSays) {
  HeadPlan plan = PlanWith(1, 32, "duo");
  plan.report_json = R"({"measured_loss": {"perplexity": 0.25, "answers": 0.5, "from": "here"}})";
  EXPECT_EQ(LossOf(plan).perplexity, 0.25);
  EXPECT_EQ(LossOf(plan).worst(), 0.5);
  EXPECT_EQ(LossOfPlan(plan, {}, "plan")->from, "here");
  for (const char* wrong : {R"({"measured_loss": 1})", R"({"measured_loss": {"perplexity": 0.1}})",
                            R"({"measured_loss": {"perplexity": 0.1, "answers": 0, "more": 1}})"}) {
    plan.report_json = wrong;
    EXPECT_EQ(LossOfPlan(plan, {}, "p.json").status().code(), StatusCode::kInvalidInput) << wrong;
  }
}

TEST(LossOfCache, IsThatOfTheCoarser) {
  EXPECT_EQ(LossOfCache(kF16).worst(), 0);
  EXPECT_NEAR(LossOfCache(kQ8).perplexity, 0.00036, 0.00001);
  EXPECT_NEAR(LossOfCache(kQ4).perplexity, 0.00112, 0.00001);
  EXPECT_EQ(LossOfCache(kQ8F16).perplexity, LossOfCache(kQ8).perplexity);
}

}  // namespace
}  // namespace headwise
