#include "report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/file.h"
#include "report/tables.h"

namespace headwise {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

namespace fs = std::filesystem;

CaseResult Answered(const std::string& plan, int64_t length, int64_t case_idx, double right, Json tags,
                    const std::string& answer) {
  CaseResult result;
  result.plan = plan;
  result.length = length;
  result.case_idx = case_idx;
  result.scores = {{"right", right}};
  result.tags = std::move(tags);
  result.answer = answer;
  result.curves["nll"] = {{100, 2.5}, {200, 2.25}};
  result.kv_bytes = plan == "full" ? 8'000'000 : 2'000'000;
  result.kv_peak_bytes = result.kv_bytes * 2;
  result.kv_read_bytes = plan == "razor@0.25" ? 500'000 : result.kv_bytes;
  return result;
}

RunInfo NeedleInfo() {
  RunInfo info;
  info.task = "needle";
  info.title = "Needle in a haystack";
  info.metrics = {{.name = "right", .label = "right answers", .unit = ""}};
  info.model = "models/small";
  info.source_hash = "abc123";
  info.plans = {{.name = "full", .method = "full", .kv_ratio = {}, .files = {}},
                {.name = "duo@0.25", .method = "duo", .kv_ratio = 0.25, .files = {{0, "plans/duo.json"}}},
                {.name = "razor@0.25", .method = "razor", .kv_ratio = 0.25, .files = {{0, "plans/gone.json"}}}};
  info.lengths = {4096, 8192};
  info.options = {{"seed", 7}};
  info.environment = {{"machine", "a small one"}};
  return info;
}

std::string DuoPlan() {
  HeadPlan plan =
      HeadPlan::Dense({.architecture = "llama", .num_layers = 2, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 64});
  plan.method = "duo";
  plan.rules[1] = HeadRule::Stream(16, 128);
  return SerializeHeadPlan(plan);
}

class ReportTest : public testing::Test {
 protected:
  ReportTest() {
    root_ = fs::path(testing::TempDir()) /
            (std::string("report_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root_);
  }
  ~ReportTest() override { fs::remove_all(root_); }

  fs::path WriteRun(const std::string& name, const RunInfo& info, const std::vector<CaseResult>& results,
                    const std::vector<CaseText>& texts = {}, bool is_finished = true) {
    const fs::path folder = root_ / name;
    fs::create_directories(folder / "plans");
    std::ofstream(folder / kManifestFile) << Dump(ToJson(info));
    std::ofstream(folder / "plans" / "duo.json") << DuoPlan();
    std::ofstream lines(folder / kResultsFile);
    for (const CaseResult& result : results) lines << Dump(ToJson(result)) << "\n";
    std::ofstream cases(folder / kCasesFile);
    for (const CaseText& text : texts) cases << Dump(ToJson(text)) << "\n";
    if (is_finished) std::ofstream(folder / kSummaryFile) << "{}\n";
    return folder;
  }

  // Two lengths, two depths; duo misses one, razor two.
  fs::path WriteNeedle() {
    std::vector<CaseResult> results;
    std::vector<CaseText> texts;
    for (const int64_t length : {4096, 8192}) {
      for (int64_t i = 0; i < 4; ++i) {
        const Json tags = {{"depth", i % 2 == 0 ? 0.0 : 0.5}, {"variant", i < 2 ? "single" : "multi"}};
        texts.push_back({.length = length,
                         .case_idx = i,
                         .question_idx = 0,
                         .prompt = "It was day. The number is 4711. And 14711 is none. What is the number?",
                         .expected = {"4711"}});
        results.push_back(Answered("full", length, i, 1, tags, "4711"));
        results.push_back(Answered("duo@0.25", length, i, i == 3 && length == 8192 ? 0 : 1, tags, "4712"));
        results.push_back(Answered("razor@0.25", length, i, i == 3 ? 0 : 1, tags, "none"));
      }
    }
    return WriteRun("needle", NeedleInfo(), results, texts);
  }

  fs::path WriteCost() {
    RunInfo info = NeedleInfo();
    info.task = "cost";
    info.title = "Time and memory";
    info.metrics = {{.name = "decode_ms",
                     .label = "time per token",
                     .unit = "ms",
                     .better = MetricInfo::Better::kLower,
                     .kind = MetricInfo::Kind::kMean}};
    std::vector<CaseResult> results;
    for (const int64_t length : {4096, 8192}) {
      for (const PlanInfo& plan : info.plans) {
        CaseResult result = Answered(plan.name, length, 0, 0, Json::object(), "");
        result.curves.clear();
        result.scores = {{"decode_ms", plan.name == "full" ? 30.0 : 12.0}};
        results.push_back(result);
      }
    }
    return WriteRun("cost", info, results);
  }

  std::vector<ReportRun> Load(const std::vector<std::string>& folders) {
    auto runs = LoadReportRuns(folders);
    EXPECT_TRUE(runs.ok()) << runs.status().message();
    return runs.ok() ? std::move(*runs) : std::vector<ReportRun>();
  }

  static std::string Dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

  fs::path root_;
};

TEST_F(ReportTest, HasEverySectionAndNothingFromOutside) {
  WriteNeedle();
  WriteCost();
  const std::string html = RenderReport(Load({root_.string()}));
  for (const char* part :
       {"<!DOCTYPE html>", "<h2>Summary</h2>", "<h2>Needle in a haystack</h2>", "Quality against KV bytes", "By length",
        "By depth and length", "By variant", "Along the text: nll", "Every cell", "<h2>Time and memory</h2>",
        "times better than full", "<h2>Plans</h2>", "class=\"head-plan\"", "<h2>Failures</h2>", "<h2>What was run</h2>",
        "abc123", "a small one", "25 % of the dense KV bytes", "prefers-color-scheme:dark"}) {
    EXPECT_THAT(html, HasSubstr(part));
  }
  for (const char* part : {"http://", "https://", "src=", "@import", "url(", "<script", "<link", ">nan", ">inf"}) {
    EXPECT_THAT(html, Not(HasSubstr(part))) << part;
  }
  EXPECT_THAT(html, HasSubstr("×2.50"));  // 30 ms against 12
}

TEST_F(ReportTest, ShowsFailuresWithTheirPlaceInTheText) {
  WriteNeedle();
  const std::vector<ReportRun> runs = Load({root_.string()});
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].num_questions, 8);
  EXPECT_FALSE(runs[0].failures.contains("full"));
  EXPECT_EQ(runs[0].failures.at("duo@0.25").total, 1);
  EXPECT_EQ(runs[0].failures.at("razor@0.25").total, 2);
  const Failure& failure = runs[0].failures.at("duo@0.25").shown[0];
  ASSERT_TRUE(failure.place.has_value());
  EXPECT_EQ(failure.place->before, "It was day. The number is ");  // not inside 14711
  const std::string html = RenderReport(runs);
  EXPECT_THAT(html, AllOf(HasSubstr("duo@0.25: 1 not right"), HasSubstr("<mark>4711</mark>. And 14711"),
                          HasSubstr("<pre>4712</pre>"), HasSubstr("8K tokens, case 3, question 0, depth 0.5")));
}

TEST_F(ReportTest, CutsLongPromptsBetweenCharactersAndCountsWhatItLeavesOut) {
  RunInfo info = NeedleInfo();
  std::vector<CaseResult> results;
  std::vector<CaseText> texts;
  std::string long_text;
  for (int i = 0; i < 1000; ++i) long_text += "日本";
  for (int64_t i = 0; i < 25; ++i) {
    texts.push_back(
        {.length = 4096, .case_idx = i, .question_idx = 0, .prompt = long_text + "x?", .expected = {"zzz"}});
    results.push_back(Answered("full", 4096, i, 0, Json::object(), ""));
  }
  WriteRun("needle", info, results, texts);
  const std::vector<ReportRun> runs = Load({root_.string()});
  const PlanFailures& failures = runs[0].failures.at("full");
  EXPECT_EQ(failures.total, 25);
  ASSERT_EQ(failures.shown.size(), 20u);
  EXPECT_FALSE(failures.shown[0].place.has_value());
  EXPECT_LE(failures.shown[0].prompt_end.size(), 600u);
  const std::string html = RenderReport(runs);
  EXPECT_THAT(html, HasSubstr("5 more are in results.jsonl"));
  EXPECT_THAT(html, Not(HasSubstr("\xEF\xBF\xBD")));
}

TEST_F(ReportTest, UnfinishedRunsShowWhatThereIs) {
  std::vector<CaseResult> some = {Answered("full", 4096, 0, 1, Json::object(), "4711")};
  std::vector<CaseText> texts(8,
                              {.length = 4096, .case_idx = 0, .question_idx = 0, .prompt = "p", .expected = {"4711"}});
  WriteRun("half", NeedleInfo(), some, texts, /*is_finished=*/false);
  RunInfo other = NeedleInfo();
  other.title = "Not begun";
  const fs::path empty = WriteRun("none", other, {}, {}, /*is_finished=*/false);
  fs::remove(empty / kResultsFile);
  const std::string html = RenderReport(Load({root_.string()}));
  EXPECT_THAT(html, HasSubstr("Unfinished: 1 results so far of 24."));
  EXPECT_THAT(html, HasSubstr("No results yet."));
  EXPECT_THAT(html, Not(HasSubstr(">nan")));
  EXPECT_THAT(RenderReport(Load({empty.string()})), HasSubstr("No results yet."));
  EXPECT_THAT(ToMarkdown(Load({empty.string()})), HasSubstr("No results yet."));
}

TEST_F(ReportTest, HostileTextsStayText) {
  RunInfo info = NeedleInfo();
  const std::string evil = "<script>alert('x')</script>&\"";
  info.plans[0].name = evil;
  info.plans[1].method = evil;
  info.title = evil;
  info.model = evil;
  info.metrics[0].label = evil;
  info.options[evil] = evil;
  CaseResult result = Answered(evil, 4096, 0, 0, {{evil, evil}, {"depth", 0.5}}, evil + "\xff\xfe\x01");
  result.curves[evil] = {{1, 2}};
  CaseResult second = Answered(evil, 4096, 1, 1, {{evil, "other"}, {"depth", 1.0}}, "");
  WriteRun("evil", info, {result, second},
           {{.length = 4096, .case_idx = 0, .question_idx = 0, .prompt = evil + evil, .expected = {evil}}});
  const std::vector<ReportRun> runs = Load({root_.string()});
  const std::string html = RenderReport(runs);
  EXPECT_THAT(html, Not(HasSubstr("<script")));
  EXPECT_THAT(html, Not(HasSubstr("alert('x')")));
  EXPECT_THAT(html, HasSubstr("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&quot;"));
  EXPECT_THAT(ToMarkdown(runs), Not(HasSubstr("\n| <script")));
  EXPECT_THAT(ToCsv(runs), HasSubstr("needle,\"<script>alert('x')</script>&\"\"\",full,,all,right,2,0.5,"));
}

// Names of plans are names of files: other programs must not take them for links, pictures or formulas.
TEST_F(ReportTest, HostileNamesInTablesStayNames) {
  RunInfo info = NeedleInfo();
  info.plans[0].name = "![x](http://y)&lt;~~z~~";
  info.plans[1].method = "=1+cmd|'/C calc'!A0";
  info.model = "@SUM(A1)";
  info.title = "a\x1b[2Jb";
  WriteRun("run", info,
           {Answered("![x](http://y)&lt;~~z~~", 4096, 0, 1, Json::object(), ""),
            Answered("duo@0.25", 4096, 0, 1, Json::object(), "")});
  const std::vector<ReportRun> runs = Load({root_.string()});
  const std::string markdown = ToMarkdown(runs);
  EXPECT_THAT(markdown, HasSubstr(R"(| \!\[x\](http://y)\&lt;\~\~z\~\~ |)"));
  EXPECT_THAT(markdown, AllOf(Not(HasSubstr("\x1b")), HasSubstr(R"(a\\u001b\[2Jb)")));
  const std::string csv = ToCsv(runs);
  EXPECT_THAT(csv, AllOf(HasSubstr(",'=1+cmd|'/C calc'!A0,"), HasSubstr(",'@SUM(A1)\n"), Not(HasSubstr(",="))));
}

TEST_F(ReportTest, BytesThatAreNoTextAreShownAsSuch) {
  WriteNeedle();
  std::vector<ReportRun> runs = Load({root_.string()});
  for (CaseResult& result : runs[0].data.results) result.answer = "broken \xff\xc3 end";
  EXPECT_THAT(RenderReport(runs), HasSubstr("broken \xEF\xBF\xBD\xEF\xBF\xBD end"));
}

TEST_F(ReportTest, FindsRunsBelowAndRefusesTheRest) {
  const fs::path needle = WriteNeedle();
  WriteCost();
  const auto found = FindRuns({needle.string() + "/", root_.string()});
  ASSERT_TRUE(found.ok());
  ASSERT_EQ(found->size(), 2u);
  EXPECT_TRUE(fs::equivalent(found->at(0), needle));
  fs::create_directories(root_ / "empty");
  EXPECT_THAT(FindRuns({(root_ / "empty").string()}).status().message(),
              AllOf(HasSubstr("empty"), HasSubstr("manifest.json")));
  EXPECT_THAT(FindRuns({(root_ / "absent").string()}).status().message(), HasSubstr("absent"));
  std::ofstream(needle / kManifestFile) << "{\"task\": 3}";
  EXPECT_THAT(LoadReportRun(needle).status().message(), HasSubstr("manifest.json"));
}

TEST_F(ReportTest, AMissingPlanFileIsNoted) {
  WriteNeedle();
  EXPECT_THAT(RenderReport(Load({root_.string()})), AllOf(HasSubstr("Not drawn: razor@0.25"), HasSubstr("gone.json")));
}

TEST_F(ReportTest, TablesForOthers) {
  WriteNeedle();
  WriteCost();
  const std::vector<ReportRun> runs = Load({root_.string()});
  const std::string csv = ToCsv(runs);
  EXPECT_EQ(
      csv.find("task,plan,method,kv_ratio,length,metric,count,mean,low,high,kv_bytes,kv_peak_bytes,kv_read_bytes"), 0u);
  EXPECT_THAT(csv, HasSubstr("\nneedle,duo@0.25,duo,0.25,8192,right,4,0.75,"));
  EXPECT_THAT(csv, HasSubstr("\ncost,full,full,,4096,decode_ms,1,30,30,30,8000000,16000000,8000000,models/small\n"));
  EXPECT_THAT(csv, HasSubstr(",2000000,4000000,500000,models/small\n"));
  const std::string markdown = ToMarkdown(runs);
  EXPECT_THAT(markdown, HasSubstr("| Plan | Needle in a haystack: right answers, % | KV bytes, largest |"));
  EXPECT_THAT(markdown, HasSubstr("| duo@0.25 | 87.5 ("));
  EXPECT_THAT(markdown, HasSubstr("## Time and memory"));
}

// Of razor alone here.
TEST_F(ReportTest, PlansThatReadLessThanTheyKeepSaySo) {
  WriteNeedle();
  const std::vector<ReportRun> runs = Load({root_.string()});
  EXPECT_THAT(ToMarkdown(runs), AllOf(HasSubstr("| 2.00 MB, 500 kB read |"), HasSubstr("| 2.00 MB |")));
  const std::string html = RenderReport(runs);
  EXPECT_THAT(html, AllOf(HasSubstr(", 500 kB read"), HasSubstr("KV 2.00 MB, 500 kB of it read by a query")));
  EXPECT_THAT(html, Not(HasSubstr("2.00 MB read")));
}

// Results of earlier versions do not say what was read: all that was kept.
TEST_F(ReportTest, ResultsWithoutReadBytesReadAllThatTheyKeep) {
  const CaseResult result = Answered("razor@0.25", 4096, 0, 1, Json::object(), "");
  Json json = ToJson(result);
  EXPECT_EQ(CaseResultFromJson(json, "line")->kv_read_bytes, 500'000);
  json.erase("kv_read_bytes");
  EXPECT_EQ(CaseResultFromJson(json, "line")->kv_read_bytes, 2'000'000);
}

TEST_F(ReportTest, CurvesAtDifferentPositionsAreAveragedInBins) {
  CaseResult first = Answered("full", 4096, 0, 1, Json::object(), "");
  CaseResult second = Answered("full", 4096, 1, 1, Json::object(), "");
  first.curves = {{"kv_bytes", {{100, 1e6}, {200, 3e6}}}};
  second.curves = {{"kv_bytes", {{110, 2e6}, {210, 5e6}}}};
  WriteRun("stream", NeedleInfo(), {first, second});
  const std::string html = RenderReport(Load({root_.string()}));
  EXPECT_THAT(html, HasSubstr("Along the text: KV bytes"));
  EXPECT_THAT(html, HasSubstr("full at 105.0: 1.5 MB, 2 values"));
  EXPECT_THAT(html, HasSubstr("full at 205.0: 4 MB, 2 values"));
}

TEST_F(ReportTest, KindsThatBeginWithNumbersStandInTheirOrder) {
  WriteRun("stream", NeedleInfo(),
           {Answered("full", 4096, 0, 1, {{"distance", "100 lines"}}, ""),
            Answered("full", 4096, 1, 1, {{"distance", "50 lines"}}, ""),
            Answered("full", 4096, 2, 0, {{"distance", "far"}}, "")});
  EXPECT_THAT(RenderReport(Load({root_.string()})),
              HasSubstr("<th scope=\"col\">50 lines</th><th scope=\"col\">100 lines</th><th scope=\"col\">far</th>"));
}

TEST_F(ReportTest, BytesComeFromTheLongestTextThatAPlanHasRead) {
  WriteNeedle();
  RunInfo other = NeedleInfo();
  other.title = "Other";
  other.plans[1].name = "mine";
  WriteRun("other", other,
           {Answered("full", 4096, 0, 1, Json::object(), ""), Answered("mine", 4096, 0, 1, Json::object(), "")});
  EXPECT_THAT(RenderReport(Load({root_.string()})),
              AllOf(HasSubstr("KV at the end, 8K"), HasSubstr(">2.00 MB<small>25 % at 4K</small>")));
}

TEST_F(ReportTest, TwoModelsAreNotMixed) {
  WriteNeedle();
  RunInfo other = NeedleInfo();
  other.model = "models/large";
  other.source_hash = "def456";
  WriteRun("other", other, {Answered("full", 4096, 0, 1, Json::object(), "4711")});
  const std::string html = RenderReport(Load({root_.string()}));
  EXPECT_THAT(html, AllOf(HasSubstr("<h3>small</h3>"), HasSubstr("<h3>large</h3>"),
                          HasSubstr("<h2>Needle in a haystack · large</h2>")));
}

TEST_F(ReportTest, AblationsHaveTablesOfTheirOwn) {
  WriteNeedle();
  RunInfo ablation = NeedleInfo();
  ablation.study = "Windows";
  ablation.plans[1].name = "2+30";
  const std::vector<CaseResult> results = {Answered("full", 4096, 0, 1, Json::object(), ""),
                                           Answered("2+30", 4096, 0, 1, Json::object(), "")};
  WriteRun("ablation/needle", ablation, results);
  WriteRun("ablation/passkey", ablation, results);
  const std::vector<ReportRun> runs = Load({root_.string()});
  const std::string html = RenderReport(runs);
  EXPECT_THAT(html, AllOf(HasSubstr("<h3>small</h3>"), HasSubstr("<h3>Windows</h3>"),
                          HasSubstr("<th scope=\"col\">Needle in a haystack · passkey: right answers, %</th>"),
                          HasSubstr("<h2>Windows: Needle in a haystack · passkey</h2>")));
  const size_t begin = html.find("<h3>small</h3>");
  const std::string first_table = html.substr(begin, html.find("<h3>Windows</h3>") - begin);
  EXPECT_THAT(first_table, Not(HasSubstr("<th scope=\"row\">2+30")));
  EXPECT_THAT(ToMarkdown(runs), AllOf(HasSubstr("## Summary: small"), HasSubstr("## Summary: Windows")));
}

}  // namespace
}  // namespace headwise
