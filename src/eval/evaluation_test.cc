// Every task end to end on the bundled model: what is decided by a seed, what a stopped run resumes to, what bad input
// says.
#include "eval/evaluation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "base/file.h"
#include "engine/prompt.h"
#include "eval/metrics.h"
#include "planner/budget.h"
#include "support/engines.h"
#include "support/golden.h"
#include "support/silent_terminal.h"

namespace headwise {
namespace {

using testing::HasSubstr;
using Resume = EvaluationOptions::Resume;

class EvaluationTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    engine_options_ = new EngineOptions();
    engine_options_->model = SourcePath("models/headwise-17m");
    engine_ = MustCreate(*engine_options_).release();
  }
  static void TearDownTestSuite() {
    delete engine_;
    delete engine_options_;
  }
  EvaluationTest() {
    folder_ = std::filesystem::path(testing::TempDir()) /
              (std::string("evaluation_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~EvaluationTest() override { std::filesystem::remove_all(folder_); }

  // A text of plain sentences.
  std::string TextFile() {
    const std::string path = (folder_ / "text.txt").string();
    std::ofstream file(path);
    for (int i = 0; i < 200; ++i) file << "The miller waited by the river, and nobody asked him why. ";
    return path;
  }

  struct Case {
    std::string task;
    std::map<std::string, std::string> options;
    std::vector<std::string> plans = {"full", SourcePath("models/headwise-17m-two-heads.json")};
    std::vector<double> kv_ratios = {};
    std::string out = {};
    Resume resume = Resume::kNo;
  };
  static Result<EvaluationOutcome> Run(const Case& each) {
    EvaluationOptions options;
    options.task = FindTask(each.task);
    options.task_options = NamedOptions(each.options);
    options.engine = *engine_options_;
    HW_ASSIGN_OR_RETURN(options.plans, ReadPlans(each.plans, *engine_));
    options.kv_ratios = each.kv_ratios;
    options.out = each.out;
    options.resume = each.resume;
    return Evaluate(*engine_, options);
  }

  // What a run found, without what only speed decides.
  static std::vector<std::string> Found(const RunData& run) {
    std::vector<std::string> found;
    for (CaseResult result : run.results) {
      result.seconds = 0;
      result.kv_peak_bytes = 0;  // depends on how steps were cut
      result.scores.erase("ms_per_token");
      if (!result.curves.contains("nll") && !result.curves.contains("kl")) result.curves.clear();
      found.push_back(ToJson(result).dump());
    }
    std::ranges::sort(found);
    return found;
  }

  static EngineOptions* engine_options_;
  static Engine* engine_;
  std::filesystem::path folder_;
};

EngineOptions* EvaluationTest::engine_options_ = nullptr;
Engine* EvaluationTest::engine_ = nullptr;

TEST_F(EvaluationTest, ASeedDecidesEverythingAndAnotherDecidesOtherwise) {
  const std::vector<Case> cases = {
      {.task = "passkey", .options = {{"lengths", "256,400"}, {"num-cases", "2"}}},
      {.task = "lines", .options = {{"num-lines", "8,12"}, {"num-cases", "2"}}},
      {.task = "lines", .options = {{"lengths", "400"}, {"num-cases", "2"}}},
      {.task = "needle",
       .options = {{"lengths", "512"}, {"num-cases", "2"}, {"variants", "single,multiquery,needles"}}},
      {.task = "variables", .options = {{"lengths", "512"}, {"num-cases", "1"}}},
      {.task = "words", .options = {{"lengths", "1024"}, {"num-cases", "1"}}},
      {.task = "stream", .options = {{"lengths", "2048"}}},
  };
  for (Case each : cases) {
    SCOPED_TRACE(each.task);
    const auto first = Run(each);
    ASSERT_TRUE(first.ok()) << first.status().message();
    const auto again = Run(each);
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_FALSE(first->run.results.empty());
    EXPECT_EQ(Found(first->run), Found(again->run));
    each.options["seed"] = "7";
    EXPECT_NE(Found(first->run), Found(Run(each)->run));
  }
}

// Questions of one text are asked from forks of it, several texts at a time, under several plans at once. Each answer
// is what the prompt gives alone, but for what rounds otherwise in steps of other rows; these few are far from a tie.
TEST_F(EvaluationTest, SharingAndBatchingChangeNoAnswer) {
  Case each{.task = "needle", .options = {{"lengths", "512"}, {"num-cases", "3"}, {"variants", "multiquery"}}};
  const std::string razor = (folder_ / "razor.json").string();
  HeadPlan plan = HeadPlan::Dense(engine_->shape());
  for (size_t i = 0; i < plan.rules.size(); i += 2) {
    plan.rules[i] = HeadRule::Stream(4, 32);
    plan.rules[i].compensate = true;
    plan.rules[i].start = RuleStart::kEndOfPrompt;
  }
  plan.method = "manual";
  ASSERT_TRUE(WriteHeadPlan(plan, razor).ok());
  each.plans.push_back(razor);
  const auto together = Run(each);
  ASSERT_TRUE(together.ok()) << together.status().message();
  EXPECT_EQ(together->run.results.size(), 3U * 4 * 3);
  each.options["batch"] = "3";
  EXPECT_EQ(Found(Run(each)->run), Found(together->run));
  // One plan at a time: nothing dense is shared.
  std::vector<std::string> alone;
  for (const std::string& path : std::vector<std::string>(each.plans)) {
    each.plans = {path};
    const auto one = Run(each);
    ASSERT_TRUE(one.ok()) << one.status().message();
    const std::vector<std::string> found = Found(one->run);
    alone.insert(alone.end(), found.begin(), found.end());
  }
  std::ranges::sort(alone);
  EXPECT_EQ(alone, Found(together->run));
}

// What a conversation by hand gives: the record read and cut, then the question; or the second question behind the
// first answer.
TEST_F(EvaluationTest, QuestionsComeInLaterTurns) {
  HeadPlan plan = HeadPlan::Dense(engine_->shape());
  plan.method = "manual";
  const auto save = [&](const char* name, const HeadRule& rule) {
    for (size_t i = 0; i < plan.rules.size(); ++i) plan.rules[i] = i % 4 == 1 ? HeadRule::Full() : rule;
    const std::string path = (folder_ / name).string();
    EXPECT_TRUE(WriteHeadPlan(plan, path).ok());
    return path;
  };
  HeadRule rule = HeadRule::Stream(4, 100);
  rule.start = RuleStart::kEndOfPrompt;
  const std::string cut = save("cut.json", rule);
  rule.select.kind = TokenSelector::Kind::kSnapKv;
  const std::string snapkv = save("snapkv.json", rule);
  for (const std::string turns : {"later", "next"}) {
    Case each{.task = "lines", .options = {{"num-lines", "30"}, {"num-cases", "2"}, {"turns", turns}}};
    each.plans = {"full", cut, snapkv};
    each.out = (folder_ / turns).string();
    const auto found = Run(each);
    ASSERT_TRUE(found.ok()) << found.status().message();
    const auto texts = ReadCaseTexts(each.out);
    ASSERT_TRUE(texts.ok()) << texts.status().message();
    const size_t num_questions = turns == "next" ? 2 : 1;
    ASSERT_EQ(texts->size(), 2 * num_questions);
    ASSERT_EQ(found->run.results.size(), 3 * texts->size());
    for (const std::string& path : each.plans) {
      std::shared_ptr<const HeadPlan> read;
      if (path != "full") read = std::make_shared<HeadPlan>(ReadHeadPlan(path).value());
      for (int64_t case_idx = 0; case_idx < 2; ++case_idx) {
        std::vector<std::string> asked;
        for (const CaseText& text : *texts) {
          if (text.case_idx == case_idx) asked.push_back(text.prompt);
        }
        if (turns == "later") {
          const size_t question = asked.front().rfind('\n') + 1;
          asked = {asked.front().substr(0, question), asked.front().substr(question)};
        }
        std::shared_ptr<Sequence> sequence;
        std::vector<std::string> answers;
        for (const std::string& turn : asked) {
          Request request;
          request.prompt =
              EncodePrompt(*engine_, turn, {.bos = sequence == nullptr ? Bos::kAuto : Bos::kNever}).value();
          if (sequence == nullptr) {
            const auto num_tokens = static_cast<int64_t>(request.prompt.size());
            sequence = engine_->NewSequence({.plan = read, .prompt_tokens = num_tokens, .max_tokens = num_tokens + 500})
                           .value();
          }
          request.sequence = sequence;
          request.stop = {"\n"};
          request.max_new_tokens = turns == "later" && answers.empty() ? 0 : 48;
          answers.push_back(engine_->Run(std::move(request))->text);
        }
        if (turns == "later") answers.erase(answers.begin());
        for (const CaseResult& result : found->run.results) {
          if (result.case_idx != case_idx || (path == "full") != (result.plan == "full")) continue;
          if (path != "full" && !path.ends_with("/" + result.plan + ".json")) continue;
          EXPECT_EQ(result.answer, answers[static_cast<size_t>(result.question_idx)])
              << turns << " " << result.plan << " case " << case_idx << " question " << result.question_idx;
        }
      }
    }
  }
}

TEST_F(EvaluationTest, AResumedRunIsAnUninterruptedOne) {
  const std::string text = TextFile();
  const std::vector<Case> cases = {
      {.task = "needle", .options = {{"lengths", "400"}, {"num-cases", "2"}, {"variants", "single,multiquery"}}},
      {.task = "stream", .options = {{"lengths", "2048"}}},
      {.task = "lines", .options = {{"lengths", "512"}, {"num-cases", "2"}, {"turns", "next"}}},
      {.task = "ppl", .options = {{"text", text}, {"lengths", "64,128"}, {"num-cases", "2"}}},
      {.task = "fidelity", .options = {{"text", text}, {"lengths", "128"}}},
  };
  for (Case each : cases) {
    SCOPED_TRACE(each.task);
    each.out = (folder_ / each.task).string();
    const auto whole = Run(each);
    ASSERT_TRUE(whole.ok()) << whole.status().message();
    EXPECT_TRUE(std::filesystem::exists(folder_ / each.task / "summary.json"));
    // Cut in the middle of a line, as an interruption would.
    const std::filesystem::path results = folder_ / each.task / "results.jsonl";
    const std::string lines = *ReadFile(results);
    std::filesystem::resize_file(results, lines.size() / 2);
    each.resume = Resume::kYes;
    const auto resumed = Run(each);
    ASSERT_TRUE(resumed.ok()) << resumed.status().message();
    EXPECT_EQ(Found(resumed->run), Found(whole->run));
    EXPECT_EQ(Found(*ReadRun(folder_ / each.task)), Found(whole->run));
    // Another run does not fit into the folder.
    each.options["lengths"] = "1024";
    EXPECT_THAT(Run(each).status().message(), HasSubstr("choose another folder"));
  }
}

// Files of the run's folder have fewer letters than names of plans: each plan counts with its content all the same.
TEST_F(EvaluationTest, ARunDoesNotGoOnWithAnEditedPlan) {
  const auto write = [&](const char* name, int64_t recent) {
    HeadPlan plan = HeadPlan::Dense(engine_->shape());
    for (HeadRule& rule : plan.rules) rule = HeadRule::Stream(4, recent);
    const std::string path = (folder_ / name).string();
    EXPECT_TRUE(WriteHeadPlan(plan, path).ok());
    return path;
  };
  Case each{.task = "ppl",
            .options = {{"text", TextFile()}, {"lengths", "64"}},
            .plans = {write("a b.json", 20), write("a-b.json", 40)},
            .out = (folder_ / "run").string()};
  ASSERT_TRUE(Run(each).ok());
  each.resume = Resume::kYes;
  ASSERT_TRUE(Run(each).ok());
  for (const char* edited : {"a b.json", "a-b.json"}) {
    const std::string before = *ReadFile(folder_ / edited);
    write(edited, 30);
    EXPECT_THAT(Run(each).status().message(), HasSubstr("choose another folder")) << edited;
    ASSERT_TRUE(WriteFileAtomically(folder_ / edited, before).ok());
  }
  EXPECT_TRUE(Run(each).ok());
}

// As on a machine that takes "auto" for something else.
TEST_F(EvaluationTest, ARunDoesNotGoOnInAnotherArithmetic) {
  if (engine_->arithmetic().isa == "baseline") GTEST_SKIP() << "this machine has no other instruction set";
  const std::string text = TextFile();
  EvaluationOptions options;
  options.task = FindTask("ppl");
  options.task_options = NamedOptions({{"text", text}, {"lengths", "64"}});
  options.out = (folder_ / "run").string();
  std::string warnings;
  const auto run = [&](const std::string& isa, const std::string& compute) {
    options.engine = *engine_options_;
    options.engine.isa = isa;
    options.engine.compute = compute;
    options.engine.on_warning = [&](std::string_view warning) { warnings += warning; };
    const auto engine = MustCreate(options.engine);
    options.plans = *ReadPlans(std::vector<std::string>{"full"}, *engine);
    return Evaluate(*engine, options).status();
  };
  ASSERT_TRUE(run("auto", "auto").ok());
  options.resume = Resume::kYes;
  EXPECT_TRUE(run("auto", "auto").ok());
  EXPECT_THAT(run("baseline", "f32").message(), HasSubstr("--isa " + engine_->arithmetic().isa));
  const Status same = run(engine_->arithmetic().isa, engine_->arithmetic().compute);
  EXPECT_TRUE(same.ok()) << same.message();
  EXPECT_EQ(warnings, "");

  const std::filesystem::path manifest = folder_ / "run" / kManifestFile;
  Json older = *ReadJsonFile(manifest.string());
  older["options"].erase(kArithmeticKey);
  ASSERT_TRUE(WriteFileAtomically(manifest, older.dump()).ok());
  EXPECT_TRUE(run("auto", "auto").ok());
  EXPECT_THAT(warnings, HasSubstr("does not say"));
}

// Answers hang on how many rows a step has, so a run goes on with the batch that it began with.
TEST_F(EvaluationTest, ARunDoesNotGoOnWithAnotherBatch) {
  Case each{.task = "passkey",
            .options = {{"lengths", "256"}, {"num-cases", "2"}, {"max-new-tokens", "1"}, {"batch", "2"}},
            .plans = {"full"},
            .out = (folder_ / "run").string()};
  ASSERT_TRUE(Run(each).ok());
  each.resume = Resume::kYes;
  EXPECT_TRUE(Run(each).ok());
  each.options.erase("batch");
  EXPECT_THAT(Run(each).status().message(), HasSubstr("give --batch 2 to go on"));
  // Folders of before do not say what theirs was.
  const std::filesystem::path manifest = folder_ / "run" / kManifestFile;
  Json older = *ReadJsonFile(manifest.string());
  older["options"][kArithmeticKey].erase("batch");
  ASSERT_TRUE(WriteFileAtomically(manifest, older.dump()).ok());
  EXPECT_TRUE(Run(each).ok());
}

// A library's warnings and progress go where its program wants them, and nowhere by themselves.
TEST_F(EvaluationTest, NothingIsWrittenToTheTerminal) {
  HeadPlan plan = HeadPlan::Dense(engine_->shape());
  plan.source_hash = "of other weights";
  const std::string path = (folder_ / "other.json").string();
  ASSERT_TRUE(WriteHeadPlan(plan, path).ok());
  const Case each{.task = "ppl", .options = {{"text", TextFile()}, {"lengths", "64"}}, .plans = {"full", path}};
  SilentTerminal terminal;
  const bool is_ok = Run(each).ok();
  WarnBeyondTrainedLength(*engine_, 1 << 30);
  EXPECT_EQ(terminal.Restore(), "");
  EXPECT_TRUE(is_ok);
}

// The number stands right before the question; what counts is what the model says after it.
TEST_F(EvaluationTest, AnAnswerInThePromptIsNoAnswer) {
  const auto outcome = Run({.task = "passkey",
                            .options = {{"lengths", "256"}, {"num-cases", "2"}, {"max-new-tokens", "1"}},
                            .plans = {"full"},
                            .out = (folder_ / "run").string()});
  ASSERT_TRUE(outcome.ok()) << outcome.status().message();
  const std::vector<CaseText> texts = *ReadCaseTexts(folder_ / "run");
  EXPECT_THAT(texts.back().prompt, HasSubstr(texts.back().expected.front() + " is the pass key."));
  EXPECT_EQ(FindCell(outcome->summary, "full", std::nullopt, "accuracy")->mean, 0);
}

// No question gives its answer away.
TEST_F(EvaluationTest, QuestionsDoNotHoldTheirAnswers) {
  for (const char* task : {"passkey", "lines", "needle", "variables", "words"}) {
    const std::filesystem::path out = folder_ / task;
    ASSERT_TRUE(Run({.task = task,
                     .options = {{"lengths", "1024"}, {"num-cases", "1"}, {"max-new-tokens", "1"}},
                     .plans = {"full"},
                     .out = out.string()})
                    .ok());
    const std::vector<CaseText> texts = *ReadCaseTexts(out);
    for (const CaseText& text : texts) {
      const std::string question = text.prompt.substr(text.prompt.rfind("\n\n"));
      for (const std::string& expected : text.expected) EXPECT_FALSE(HoldsWhole(question, expected)) << question;
    }
  }
}

TEST_F(EvaluationTest, TheDenseModelIsExactlyItself) {
  const auto outcome = Run({.task = "fidelity", .options = {{"text", TextFile()}, {"lengths", "300"}}});
  ASSERT_TRUE(outcome.ok()) << outcome.status().message();
  const Cell* full = FindCell(outcome->summary, "full", std::nullopt, "kl");
  const Cell* two_heads = FindCell(outcome->summary, "headwise-17m-two-heads", std::nullopt, "kl");
  ASSERT_TRUE(full != nullptr && two_heads != nullptr);
  EXPECT_EQ(full->mean, 0);
  EXPECT_EQ(FindCell(outcome->summary, "full", std::nullopt, "top1")->mean, 1);
  EXPECT_GT(two_heads->mean, 0);
}

// In f32 to the last digits; bf16 products would blur what is looked for.
TEST_F(EvaluationTest, PerplexityDoesNotDependOnHowTheTextIsRead) {
  const auto ppl = [text = TextFile()](const std::string& prompt_tokens, int64_t chunk_tokens) {
    EvaluationOptions options;
    options.engine = ExactOptions(SourcePath("models/headwise-17m"), {"cpu"});
    options.engine.chunk_tokens = chunk_tokens;
    options.task = FindTask("ppl");
    options.task_options = NamedOptions({{"text", text}, {"tokens", "200"}, {"prompt-tokens", prompt_tokens}});
    const auto engine = MustCreate(options.engine);
    options.plans = *ReadPlans(std::vector<std::string>{"full"}, *engine);
    const auto outcome = Evaluate(*engine, options);
    EXPECT_TRUE(outcome.ok()) << outcome.status().message();
    return FindCell(outcome->summary, "full", std::nullopt, "nll")->mean;
  };
  const double whole = ppl("-1", 512);
  EXPECT_NEAR(ppl("-1", 7), whole, 1e-5);
  EXPECT_NEAR(ppl("1", 512), whole, 1e-5);
  EXPECT_NEAR(ppl("77", 64), whole, 1e-5);
}

TEST_F(EvaluationTest, PerplexityOfSeveralWindowsIsThatOfTheirMeanNll) {
  std::string text;
  for (const char* line : {"The miller waited by the river. ", "qz xj 9# vw [] kk "}) {
    for (int i = 0; i < 60; ++i) text += line;
  }
  const std::string path = (folder_ / "two.txt").string();
  std::ofstream(path) << text;
  for (const char* task : {"ppl", "fidelity"}) {
    const std::filesystem::path out = folder_ / task;
    const auto outcome = Run({.task = task,
                              .options = {{"text", path}, {"lengths", "64"}, {"num-cases", "2"}},
                              .plans = {"full"},
                              .out = out.string()});
    ASSERT_TRUE(outcome.ok()) << outcome.status().message();
    // Every prompt is there for people.
    const std::vector<CaseText> texts = *ReadCaseTexts(out);
    ASSERT_EQ(texts.size(), 2U);
    EXPECT_THAT(texts[0].prompt, HasSubstr("The miller waited"));
    EXPECT_THAT(texts[1].prompt, HasSubstr("qz xj"));
    if (std::string_view(task) != "ppl") continue;
    const double nll = FindCell(outcome->summary, "full", std::nullopt, "nll")->mean;
    const double ppl = FindCell(outcome->summary, "full", std::nullopt, "ppl")->mean;
    EXPECT_NEAR(ppl, std::exp(nll), 1e-9 * ppl);
  }
}

// With a window as wide as the text, reading every window anew is reading it once.
TEST_F(EvaluationTest, RecomputingAWindowThatHoldsEverythingIsTheDenseModel) {
  const auto outcome =
      Run({.task = "ppl", .options = {{"text", TextFile()}, {"tokens", "100"}, {"recompute-window", "100"}}});
  ASSERT_TRUE(outcome.ok()) << outcome.status().message();
  const double dense = FindCell(outcome->summary, "full", std::nullopt, "nll")->mean;
  EXPECT_NEAR(FindCell(outcome->summary, "recompute@100", std::nullopt, "nll")->mean, dense, 1e-9);
  const auto narrow =
      Run({.task = "ppl", .options = {{"text", TextFile()}, {"tokens", "100"}, {"recompute-window", "4"}}});
  EXPECT_GT(FindCell(narrow->summary, "recompute@4", std::nullopt, "nll")->mean, dense + 0.1);
}

TEST_F(EvaluationTest, ChoicesByLikelihood) {
  const std::string path = (folder_ / "choices.jsonl").string();
  std::ofstream(path)
      << R"({"question": "The pass key is 71432. Remember it. 71432 is the pass key.\n\nWhat is the pass )"
      << R"(key? The pass key is", "options": ["12345", "71432"], "answer": 1})"
      << "\n"
      << R"({"question": "The pass key is 12345. Remember it. 12345 is the pass key.\n\nWhat is the pass )"
      << R"(key? The pass key is", "options": ["12345", "71432"], "answer": "71432"})"
      << "\n";
  const auto outcome = Run({.task = "choice", .options = {{"cases", path}, {"joint", " "}}});
  ASSERT_TRUE(outcome.ok()) << outcome.status().message();
  EXPECT_EQ(FindCell(outcome->summary, "full", std::nullopt, "accuracy")->mean, 0.5);  // the second's answer is false
  const std::vector<double>& options = outcome->run.results.front().log_likelihoods;
  ASSERT_EQ(options.size(), 2u);
  EXPECT_LT(options[0], options[1]);
  EXPECT_LT(options[1], 0);
}

TEST_F(EvaluationTest, DocumentsAreCutInTheMiddleAndScored) {
  const std::string path = (folder_ / "docs.jsonl").string();
  std::string document = "The pass key is 71432. Remember it. 71432 is the pass key. ";
  for (int i = 0; i < 100; ++i) document += "The miller waited by the river. ";
  std::ofstream(path) << Json{{"input", ""}, {"context", document}, {"answers", {"71432"}}}.dump() << "\n";
  const std::string prompts = (folder_ / "prompts.json").string();
  std::ofstream(prompts) << R"({"default": {"prompt": "{context}\n\nWhat is the pass key? The pass key is", )"
                         << R"("metric": "count", "max_new_tokens": 8}})";
  const auto outcome = Run({.task = "docs",
                            .options = {{"cases", path}, {"prompts", prompts}, {"lengths", "256"}},
                            .plans = {"full"},
                            .out = (folder_ / "run").string()});
  ASSERT_TRUE(outcome.ok()) << outcome.status().message();
  EXPECT_GT(FindCell(outcome->summary, "full", std::nullopt, "score")->mean, 0);
  EXPECT_LE(outcome->run.results.front().prompt_tokens, 248);
  const auto texts = ReadCaseTexts(folder_ / "run");
  EXPECT_THAT(texts->front().prompt, HasSubstr("71432"));
}

TEST_F(EvaluationTest, EqualBytesAtEveryLength) {
  const std::string streaming = (folder_ / "streaming.json").string();
  HeadPlan plan = HeadPlan::Dense(engine_->shape());
  for (HeadRule& rule : plan.rules) rule = HeadRule::Stream(4, 100);
  plan.method = "streaming";
  ASSERT_TRUE(WriteHeadPlan(plan, streaming).ok());
  const auto outcome = Run({.task = "passkey",
                            .options = {{"lengths", "512,1024"}, {"num-cases", "1"}},
                            .plans = {"full", streaming},
                            .kv_ratios = {0.5, 0.25},
                            .out = (folder_ / "run").string()});
  ASSERT_TRUE(outcome.ok()) << outcome.status().message();
  for (const int64_t length : {512, 1024}) {
    const auto full = static_cast<double>(PlanBytesAt(HeadPlan::Dense(engine_->shape()), length, /*windows=*/{}));
    for (const double ratio : {0.5, 0.25}) {
      const Cell* cell =
          FindCell(outcome->summary, ratio == 0.5 ? "streaming@0.5" : "streaming@0.25", length, "accuracy");
      ASSERT_NE(cell, nullptr);
      // The case is a little shorter than its length: a window may lie on one page more or less, in every head.
      const double page_of_every_head = full * 32 / static_cast<double>(length);
      EXPECT_NEAR(static_cast<double>(cell->kv_bytes), ratio * full, page_of_every_head);
    }
  }
  EXPECT_TRUE(std::filesystem::exists(folder_ / "run" / "plans" / "streaming@0.25-512.json"));
}

// Of heads that keep all and read few blocks it is the bytes read that are equal, and both are told.
TEST_F(EvaluationTest, BytesReadBesideBytesKept) {
  HeadRule rule = HeadRule::Stream(0, 100);
  rule.select.kind = TokenSelector::Kind::kQuest;
  rule.start = RuleStart::kEndOfPrompt;
  HeadPlan plan = HeadPlan::Dense(engine_->shape());
  for (HeadRule& each : plan.rules) each = rule;
  plan.method = "quest";
  plan.parameters_json = R"({"dense-layers": "0"})";
  const std::string quest = (folder_ / "quest.json").string();
  ASSERT_TRUE(WriteHeadPlan(plan, quest).ok());
  const std::map<std::string, std::string> text = {{"text", TextFile()}, {"lengths", "1024"}, {"prompt-tokens", "300"}};
  const std::pair<Case, const char*> cases[] = {
      {{.task = "passkey", .options = {{"lengths", "1024"}, {"num-cases", "1"}}}, "accuracy"},
      {{.task = "ppl", .options = text}, "ppl"},
      {{.task = "fidelity", .options = text}, "kl"},
  };
  for (auto [each, metric] : cases) {
    each.plans = {"full", quest};
    each.kv_ratios = {0.25};
    const auto outcome = Run(each);
    ASSERT_TRUE(outcome.ok()) << each.task << ": " << outcome.status().message();
    const Cell* full = FindCell(outcome->summary, "full", 1024, metric);
    const Cell* cell = FindCell(outcome->summary, "quest@0.25", 1024, metric);
    ASSERT_TRUE(full != nullptr && cell != nullptr) << each.task;
    EXPECT_FALSE(full->ReadsLess()) << each.task;
    EXPECT_GT(cell->kv_bytes, full->kv_bytes) << "keys' bounds, on top of what full heads keep, in " << each.task;
    const auto all = static_cast<double>(full->kv_bytes);
    EXPECT_NEAR(static_cast<double>(cell->kv_read_bytes), 0.25 * all, 0.03 * all) << each.task;
  }
}

TEST_F(EvaluationTest, BadInputIsNamed) {
  const auto error = [](const Case& each) { return std::string(Run(each).status().message()); };
  EXPECT_THAT(error({.task = "passkey", .options = {{"lengths", "32"}}}), HasSubstr("a case of 32 tokens"));
  EXPECT_THAT(error({.task = "passkey", .options = {{"lengths", "400,300"}}}), HasSubstr("300 after 400"));
  EXPECT_THAT(error({.task = "passkey", .options = {{"depths", "3"}}}), HasSubstr("--depths: eval passkey"));
  EXPECT_THAT(error({.task = "needle", .options = {{"variants", "single,none"}}}), HasSubstr("\"none\""));
  EXPECT_THAT(error({.task = "ppl", .options = {}}), HasSubstr("--text: is missing"));
  EXPECT_THAT(error({.task = "ppl", .options = {{"text", TextFile()}, {"tokens", "100000"}}}),
              HasSubstr("expected 99999"));
  EXPECT_THAT(error({.task = "stream", .options = {{"distances", "0"}}}), HasSubstr("--distances"));
  EXPECT_THAT(error({.task = "lines", .options = {{"turns", "twice"}}}),
              HasSubstr("found \"twice\", expected one, later"));
  const std::string broken = (folder_ / "broken.jsonl").string();
  std::ofstream(broken) << "{\"question\": \"a\", \"options\": [\"b\", \"c\"], \"answer\": 0}\n\n{\"question\": 3}\n";
  EXPECT_THAT(error({.task = "choice", .options = {{"cases", broken}}}), HasSubstr("broken.jsonl:3"));
  EXPECT_THAT(error({.task = "docs", .options = {{"cases", broken}}}), HasSubstr("broken.jsonl:1"));
  EXPECT_THAT(error({.task = "lines", .options = {{"cases", broken}}}), HasSubstr("broken.jsonl:1"));
  const std::string other = (folder_ / "other.json").string();
  HeadPlan plan = HeadPlan::Dense({"llama", 2, 4, 2, 64});
  ASSERT_TRUE(WriteHeadPlan(plan, other).ok());
  EXPECT_THAT(error({.task = "passkey", .options = {}, .plans = {other}}), HasSubstr("other.json"));
  EXPECT_THAT(error({.task = "passkey", .options = {}, .plans = {"full", "full"}}), HasSubstr("given twice"));
  // Made by hand: there is nothing to make it again from.
  EXPECT_THAT(error({.task = "passkey", .options = {}, .kv_ratios = {0.5}}), HasSubstr("cannot be made for another"));
  EXPECT_THAT(error({.task = "passkey", .options = {}, .resume = Resume::kYes}), HasSubstr("--out"));
}

}  // namespace
}  // namespace headwise
