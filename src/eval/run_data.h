// What an evaluation leaves behind, as data: the run folder (eval/run_folder.h) read back. Reports and summaries are
// made of this and of nothing else, so they can be made of a run that another machine did, or of an unfinished one.
//
//   manifest.json    what was asked: RunInfo
//   cases.jsonl      one prompt per line: CaseText
//   results.jsonl    one finished case per line: CaseResult
//   summary.json     eval/summary.h, written when a run ends
//   plans/           a copy of every plan, by name and length
#ifndef HEADWISE_EVAL_RUN_DATA_H_
#define HEADWISE_EVAL_RUN_DATA_H_

#include <headwise/status.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace headwise {

// One number that a task gives for every case.
struct MetricInfo {
  enum class Better { kHigher, kLower };
  enum class Kind {
    kRate,  // 0 or 1 per case: Wilson's interval
    kMean,  // any number: bootstrap
    // Above 0: the mean is that of the logarithms, given as its exponential, and so is its bootstrap. The perplexity of
    // several texts is exp(mean NLL), not the mean of their perplexities.
    kGeometricMean,
  };
  std::string name;   // its key in CaseResult::scores: "accuracy"
  std::string label;  // for people: "right answers"
  std::string unit;   // "nats", "ms", "bytes"; empty for shares
  Better better = Better::kHigher;
  Kind kind = Kind::kRate;
};

// One of the plans that are compared: at every length the same file, or one re-planned to a share of the KV bytes.
struct PlanInfo {
  std::string name;                      // unique in the run: "duo", "duo@0.25"
  std::string method;                    // of the planner: "duo", "full"
  std::optional<double> kv_ratio;        // of the dense KV bytes, where it was re-planned
  std::map<int64_t, std::string> files;  // by length; 0: any length. Relative to the folder; none for the full plan
};

struct RunInfo {
  std::string task;                   // the registry's name: "needle"
  std::string study;                  // that it is a part of, for people: an ablation; otherwise empty
  std::string title;                  // for people
  std::vector<MetricInfo> metrics;    // the first is the one that summaries show
  std::string model;                  // path as given
  std::string source_hash;            // of its weights
  std::vector<PlanInfo> plans;        // in the order given; the first is what the others are compared with
  std::vector<int64_t> lengths;       // ascending, tokens
  Json options = Json::object();      // everything else that decides the results: seed, texts by hash, numerics
  Json environment = Json::object();  // what only speed depends on: version, machine, threads, backend
};

// The prompt of one question, so that a person can look at any failure.
struct CaseText {
  int64_t length = 0;
  int64_t case_idx = 0;
  int64_t question_idx = 0;
  std::string prompt;                 // whole
  std::vector<std::string> expected;  // any of them is right; empty where a task has no answers
};

// A line over a position: perplexity over the text, say. [(x, y)], ascending in x.
using Curve = std::vector<std::pair<double, double>>;

struct CaseResult {
  std::string plan;  // PlanInfo::name
  int64_t length = 0;
  int64_t case_idx = 0;                  // within its length
  int64_t question_idx = 0;              // within its case
  std::map<std::string, double> scores;  // by MetricInfo::name
  // Where in the task's space it lies: {"depth": 0.25, "variant": "single"}; values are numbers or texts.
  Json tags = Json::object();
  std::string answer;
  std::map<std::string, Curve> curves;
  // Of each answer that the task offered, in their order, natural logarithms; empty where a task offers none.
  std::vector<double> log_likelihoods;
  int64_t prompt_tokens = 0;
  int64_t new_tokens = 0;     // behind the prompt: those of an answer, or those of a text that were scored
  double seconds = 0;         // prefill and decode, of what was not shared with others
  int64_t kv_bytes = 0;       // at the end
  int64_t kv_peak_bytes = 0;  // prefill included
  // Of kv_bytes what the next token's query reads: all, but of heads that read blocks. Filled in by TaskRun::Add.
  int64_t kv_read_bytes = 0;
};

struct RunData {
  std::filesystem::path folder;
  RunInfo info;
  std::vector<CaseResult> results;
};

Json ToJson(const RunInfo& info);
Json ToJson(const CaseText& text);
Json ToJson(const CaseResult& result);
// Errors name the origin, what was found and what was expected.
Result<RunInfo> RunInfoFromJson(const Json& json, const std::string& origin);
Result<CaseText> CaseTextFromJson(const Json& json, const std::string& origin);
Result<CaseResult> CaseResultFromJson(const Json& json, const std::string& origin);

inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kCasesFile = "cases.jsonl";
inline constexpr const char* kResultsFile = "results.jsonl";
inline constexpr const char* kSummaryFile = "summary.json";
inline constexpr const char* kPlansFolder = "plans";

// Of RunInfo::options: what the engine computed in, "auto" resolved (Arithmetic in engine.h), and the batch of tasks
// that have one, by the names of the options. Older runs do not have it, or not all of it.
inline constexpr const char* kArithmeticKey = "arithmetic";
inline constexpr const char* kBatchInvariantKey = "batch_invariant";  // within

// The JSON values of all lines that are complete: what follows the last line end was cut off by an interruption. No
// file: none. Errors name the file and the line.
Result<std::vector<Json>> ReadCompleteLines(const std::filesystem::path& path);

// manifest.json and results.jsonl; a last line that an interruption left incomplete is left out.
Result<RunData> ReadRun(const std::filesystem::path& folder);
// cases.jsonl; empty where a task keeps none.
Result<std::vector<CaseText>> ReadCaseTexts(const std::filesystem::path& folder);

}  // namespace headwise

#endif  // HEADWISE_EVAL_RUN_DATA_H_
