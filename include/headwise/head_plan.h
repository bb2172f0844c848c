// The head plan: one cache rule per layer and KV head. Planners write it, the cache reads it; it is the only contact
// between the two. On disk it is versioned JSON (docs/head-plan.md).
#ifndef HEADWISE_HEAD_PLAN_H_
#define HEADWISE_HEAD_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <headwise/status.h>

namespace headwise {

// Where a kept key's position is counted.
enum class Positions {
  kText,   // at its place in the text: rotated once [duo, razor, moa]
  kCache,  // inside the cache: a stream may outrun the trained length [streaming-llm §3.2]
};

// From when on a rule holds.
enum class RuleStart {
  kFirstToken,   // also for every query inside the prompt
  kEndOfPrompt,  // dense prefill, then the cache is cut [razor Algorithm 1]
};

// Which tokens a head keeps, of as many as its rule lets it keep; or, of kQuest and kInfLlm, which it reads of all.
struct TokenSelector {
  enum class Kind {
    kPosition,  // the rule's own: the first `sink` and the newest `recent`
    // By score: the first `sink` always, and of all others `recent`, those that scored highest.
    kH2o,       // sums over all queries so far; a share of them are the newest tokens, whatever their sums [h2o]
    kFastGen,   // special tokens, and where `punctuation` says so punctuation, as HeadPlan::tokens lists them; of all
                // others as kH2o [fastgen §3.2]
    kTova,      // what the last query of a step gave each, the newest token among them [tova]
    kSnapKv,    // sums over the prompt's last queries, pooled along positions; once, at its end, and what comes behind
                // the prompt is kept on top of that [snapkv]
    kKeyNorm,   // the shortest keys, whatever is asked [knorm]
    kAdaKv,     // as kSnapKv, and the heads of a layer share their budgets by these sums, in whole pages [adakv]
    kKeyDiff,   // the keys that point least where keys point on the whole, whatever is asked [keydiff]
    kExpected,  // what the prompt's queries lead one to expect of those to come, times the length of its value; when
                // tokens go as kSnapKv [expected]
    kQuest,     // every token is kept; queries behind the prompt read the blocks whose keys may give them most, as many
                // as `recent` has tokens, the newest among them, and those of `sink` [quest]
    kInfLlm,    // as kQuest, but a share of `recent` are the newest blocks, and the others those whose representatives,
                // the tokens that these looked at most when they came, are most like the query [infllm §3.2]
  };
  enum class Pooling { kMax, kMean };

  Kind kind = Kind::kPosition;
  double recent_share = 0.5;  // kH2o, kFastGen and kInfLlm: of `recent`; half and half in the paper of the first
  bool punctuation = false;   // kFastGen
  // The prompt's newest tokens, which are always kept. kSnapKv, kAdaKv: their queries are those that are observed, at
  // least 1; kExpected: all are.
  int64_t window = 32;
  double epsilon = 0;  // kExpected: added to every token's share of the attention, at least 0
  // kSnapKv and kAdaKv:
  int64_t kernel = 7;  // positions that are pooled, an odd number
  Pooling pooling = Pooling::kMax;
  double floor = 0.2;  // kAdaKv: of a budget, what does not depend on the other heads
  // kQuest and kInfLlm: tokens that are read or not together, a multiple of 16; of kInfLlm at least 32.
  int64_t block = 16;
  int64_t representatives = 4;  // kInfLlm: of a block

  // Whether tokens go once, at the end of the prompt, by what its queries say.
  bool CutsOnce() const { return PoolsSums() || kind == Kind::kExpected; }
  // Whether scores are sums over all queries so far.
  bool SumsAll() const { return kind == Kind::kH2o || kind == Kind::kFastGen; }
  // Whether a share of `recent` are the newest, whatever they scored.
  bool HasRecentShare() const { return SumsAll() || kind == Kind::kInfLlm; }
  // Whether every token is kept.
  bool ReadsBlocks() const { return kind == Kind::kQuest || kind == Kind::kInfLlm; }
  // Whether scores are sums over these, pooled: then the steps that a text was read in do not matter.
  bool PoolsSums() const { return kind == Kind::kSnapKv || kind == Kind::kAdaKv; }

  friend bool operator==(const TokenSelector&, const TokenSelector&) = default;
};

// What one KV head keeps, or reads. t is the query's position, j a key's; all lengths are in tokens.
struct HeadRule {
  enum class Kind {
    kFull,          // the query at t reads every j <= t
    kStream,        // j < sink or t - j < recent; the token itself counts [streaming-llm §3.2, duo §2.1]
    kElasticMoa,    // span = floor(alpha + beta * (prompt + max new tokens)), recent = span - sink [moa §3.2 eq.2]
    kElasticRazor,  // recent = max(min_recent, prompt / divisor), fixed at the end of the prompt [razor §3.3]
  };

  Kind kind = Kind::kFull;
  int64_t sink = 0;
  int64_t recent = 0;       // kStream
  double alpha = 0;         // kElasticMoa, tokens
  double beta = 0;          // kElasticMoa, tokens per token
  int64_t min_recent = 0;   // kElasticRazor: S0
  double divisor = 1;       // kElasticRazor: C, at least 1
  bool compensate = false;  // fold dropped tokens into one mean key and value [razor §3.3 eq.4-5]
  Positions positions = Positions::kText;
  RuleStart start = RuleStart::kFirstToken;
  TokenSelector select = {};

  // Whether it chooses by score, and then what: the tokens that it keeps, or the blocks that its queries read.
  bool HasSelector() const { return select.kind != TokenSelector::Kind::kPosition; }
  bool SelectsByScore() const { return HasSelector() && !ReadsBlocks(); }
  bool ReadsBlocks() const { return select.ReadsBlocks(); }

  friend bool operator==(const HeadRule&, const HeadRule&) = default;

  static HeadRule Full() { return {}; }
  static HeadRule Stream(int64_t sink, int64_t recent) {
    HeadRule rule;
    rule.kind = Kind::kStream;
    rule.sink = sink;
    rule.recent = recent;
    return rule;
  }
};

// The part of a model that a plan must fit.
struct ModelShape {
  std::string architecture;  // the family's registry name: "llama", "gpt_neox", ...
  int64_t num_layers = 0;    // L
  int64_t num_q_heads = 0;   // Hq
  int64_t num_kv_heads = 0;  // Hkv
  int64_t head_dim = 0;      // D

  friend bool operator==(const ModelShape&, const ModelShape&) = default;
};

// Tokens that heads keep for what they are (TokenSelector::Kind::kFastGen). Ids, ascending; no id is in both.
struct TokenLists {
  std::vector<int32_t> special;      // what stands for no text: starts of texts, turn markers
  std::vector<int32_t> punctuation;  // nothing but punctuation and white space

  friend bool operator==(const TokenLists&, const TokenLists&) = default;
};

struct HeadPlan {
  // Files are read from the first version on. They are written as version 2 where a head has a selector, which version
  // 1 does not know, and as version 1 otherwise.
  static constexpr int kVersion = 2;

  ModelShape shape;
  std::vector<HeadRule> rules;  // [L * Hkv], layer-major
  TokenLists tokens;            // empty where no head is kFastGen

  // Provenance: how the plan came about. Not needed to run it.
  std::optional<std::string> source_hash;  // of the model the planner ran on; a difference only warns
  std::string method;                      // "duo", "streaming", "import-moa", ...
  std::string parameters_json = "{}";      // the method's options, a JSON object
  std::optional<std::string> data_hash;    // of the calibration data
  std::optional<uint64_t> seed;
  std::vector<std::string> notes;  // what a reader should know, for example groups that an import widened
  std::vector<double> scores;      // [L * Hkv] gates or scores the method ranked by; may be empty
  std::string report_json = "{}";  // what the planner measured on its way, a JSON object: seconds, memory, losses

  const HeadRule& At(int64_t layer_idx, int64_t kv_head) const {
    return rules[static_cast<size_t>(layer_idx * shape.num_kv_heads + kv_head)];
  }
  HeadRule& At(int64_t layer_idx, int64_t kv_head) {
    return rules[static_cast<size_t>(layer_idx * shape.num_kv_heads + kv_head)];
  }

  // Every head full.
  static HeadPlan Dense(const ModelShape& shape);
};

// Checks one rule alone: lengths in range, finite numbers, combinations that have a meaning.
Status ValidateRule(const HeadRule& rule);
// Checks every rule and the number of rules. `origin` opens the message.
Status ValidatePlan(const HeadPlan& plan, const std::string& origin);
// A plan for another model is refused with what was found and what was expected.
Status CheckPlanFits(const HeadPlan& plan, const ModelShape& shape, const std::string& origin);

Result<HeadPlan> ParseHeadPlan(std::string_view text, const std::string& origin);
Result<HeadPlan> ReadHeadPlan(const std::string& path);
std::string SerializeHeadPlan(const HeadPlan& plan);
// Replaces the file in one step; when that fails the old file is intact.
Status WriteHeadPlan(const HeadPlan& plan, const std::string& path);

}  // namespace headwise

#endif  // HEADWISE_HEAD_PLAN_H_
