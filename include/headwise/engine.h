// The engine: loads a model, runs requests under head plans, several at once. This is the whole interface a program
// needs: see examples/embed for a use of it outside the tree.
//
// Thread-safety: one engine is driven by one thread; Cancel may be called from any, and a Sequence may be let go on
// any. headwise/service.h is the engine for many threads. All ids are token ids of the model's tokenizer; all lengths
// are in tokens.
//
// Callbacks run inside Step. There they may submit, cancel, take and fork; Step, Run and RunForced are refused. One
// that throws ends its request with kError; nothing is thrown on.
#ifndef HEADWISE_ENGINE_H_
#define HEADWISE_ENGINE_H_

#include <headwise/head_plan.h>
#include <headwise/status.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headwise {

class Tokenizer;        // headwise/tokenizer.h
class TokenConstraint;  // headwise/token_constraint.h
struct ExpertMemory;
struct ModelInfo;  // headwise/model_info.h
class Sequence;    // a text in the KV cache; engine/sequence.h
class EngineImpl;
struct ModelConfig;  // model/model_config.h

// The longest text. At a thousand tokens a second it takes 35 years; sums of some of these are far from overflow.
inline constexpr int64_t kMaxSequenceTokens = int64_t{1} << 40;
// The longest step of one request: activations of a step are held at once.
inline constexpr int64_t kMaxChunkTokens = 65536;
// The most that EngineOptions::max_gap_ms may be: an hour.
inline constexpr int64_t kMaxGapMs = 3600000;

struct EngineOptions {
  std::string model;            // a Hugging Face folder or a .gguf file
  std::string backend = "cpu";  // "cpu", "cuda", "ref", or "auto": cuda where a GPU is
  std::string isa = "auto";     // cpu: "amx", "avx512", "avx2", "baseline"; auto takes the best this machine has
  std::string compute =
      "auto";  // "f32", "bf16", "int8", "fp8" (cuda: many rows of prompts; decoding as "int8", with
               // a byte more of device memory for each weight of a layer), "w8a8" (isa "amx": weights of block formats
               // in bytes, a scale for 512 of K, with prompts; in q8_0 always); auto: int8 where weights are of block
               // formats, bf16 for prefill where they are 16-bit and a short measurement, once per process, finds this
               // machine's bf16 dots faster than f32; else f32. Engine::arithmetic() tells
  std::string kv_dtype = "f16";  // "f32", "f16", "bf16", "q8", "q4"; two with a comma: of heads that keep every
                                 // token, of heads that drop some
  // A token's logits do not depend, bit for bit, on which other requests share its steps, on how its text was cut into
  // steps, on what of it was found in a prefix cache, nor on whether its request gave way to others. Slower: how much
  // says docs/performance.md. Not with backend "cuda" nor with pages in "q4". "auto" is the backend "cpu" then, and of
  // "f32" and "bf16" f32.
  bool batch_invariant = false;
  int num_threads = 0;         // 0: one per core
  int64_t kv_limit_bytes = 0;  // hard limit on KV bytes; 0: none
  // What a request is let in by, where there is a limit. kWorstCase: all that it may come to hold is reserved for it.
  // kLikely: its prompt and as long an answer as others were; what it needs beyond that is reserved as its text grows,
  // and where the limit does not allow it the youngest request gives its memory to the older ones and comes back when
  // there is some again, so that more of them run at once. Requests on a Sequence that is given, and that sequence
  // itself, reserve their worst case either way.
  enum class KvAdmission { kWorstCase, kLikely } kv_admission = KvAdmission::kWorstCase;
  // Under kLikely: host memory that pages of requests which give way move to, at most; they come back with the same
  // bits. Where it is full, or 0, a text is read again from its first token if every rule of its plan holds from there
  // (equal but for the last digits), and requests under other plans reserve their worst case.
  int64_t host_kv_bytes = 0;
  int64_t chunk_tokens = 512;  // prompt tokens prefilled per step, of all requests together; 1 to kMaxChunkTokens
  // Where requests decode beside others that read prompts: the longest time between two of their tokens, in
  // milliseconds, 0 to kMaxGapMs. A step reads less of the prompts then, by what steps have taken so far, but at least
  // 32 tokens: how prompts are cut depends on time, and with it the last digits of results. 0: every step reads
  // chunk_tokens of them.
  int64_t max_gap_ms = 0;
  bool use_mmap = true;  // weights are read where they lie in their files, which must stay as they are: one that
                         // becomes shorter ends the process. false: all of them into memory first
  // Of a mixture whose experts have a block format in a .gguf file, for weights larger than memory: at most so many
  // bytes of experts are kept in the order in which they are multiplied, and one that is not among them is read of the
  // file when a token chooses it, in place of those that were not chosen for longest. The same bits with any limit. 0:
  // all are, from the beginning. Experts in plain formats are read where they lie in any case. Backend "cpu" only.
  int64_t expert_bytes = 0;
  int64_t page_tokens = 0;  // tokens per page of one KV head; 0: 64 where full heads are q4, otherwise 32
  // Told, from the thread that drives the engine, of what works but may not be what was meant: a plan made on other
  // weights, a prompt beyond the trained length. Empty: nobody is told; the library itself writes nowhere.
  std::function<void(std::string_view)> on_warning = {};
  // Told while weights are loaded how many bytes of them are ready, in the order in which a token goes through them;
  // for progress bars. Ends with done == total, also where loading fails.
  std::function<void(int64_t done_bytes, int64_t total_bytes)> on_load = {};
};

// What an engine computes in once everything left to the machine is resolved; each in the words of its option. Results
// of two engines that differ here differ, if only in their last digits.
struct Arithmetic {
  std::string backend;
  std::string isa;  // "auto" where the backend has no instruction sets
  std::string compute;
  std::string kv_dtype;  // "f16", or two with a comma
  int64_t chunk_tokens = 0;
  bool batch_invariant = false;  // as asked for: chunks and batches do not show

  friend bool operator==(const Arithmetic&, const Arithmetic&) = default;
};

// What is added to one token's logit.
struct LogitBias {
  int32_t id = 0;  // below the model's vocab_size
  float bias = 0;  // -infinity: never drawn; +infinity: always, the lowest id of several
};

// In this order: what Request::constraint forbids, logit_bias, the penalties (repetition, then frequency and presence),
// temperature, top_k, top_p, min_p.
struct SamplingOptions {
  float temperature = 0;         // 0: greedy, ties to the lowest id
  int64_t top_k = 0;             // 0: off
  float top_p = 1;               // 1: off
  float min_p = 0;               // 0: off
  float repetition_penalty = 1;  // 1: off; over prompt and output, as in Hugging Face
  // As OpenAI defines them, -2 to 2, 0: off. A token that this request has generated n times, n >= 1, loses
  // n * frequency_penalty + presence_penalty of its logit; what the prompt has does not count.
  float frequency_penalty = 0;
  float presence_penalty = 0;
  std::vector<LogitBias> logit_bias = {};  // each id once; not all of the vocabulary forbidden
  uint64_t seed = 0;
};

enum class FinishReason { kRunning, kLength, kEos, kStopString, kCancelled, kError };
const char* NameOf(FinishReason reason);  // "running", "length", "eos", "stop_string", "cancelled", "error"

// What happened to one request; valid at any time, final once `finish` is not kRunning.
struct RequestMetrics {
  int64_t prompt_tokens = 0;     // of this request, without what its sequence held before
  int64_t reused_tokens = 0;     // of these, found in a prefix cache and not read
  int64_t new_tokens = 0;        // of a stop string too
  int64_t num_preemptions = 0;   // how often it gave its memory to others
  double prefill_seconds = 0;    // admission to first token
  double decode_seconds = 0;     // first token to last
  int64_t kv_bytes = 0;          // pages held now, by this sequence
  int64_t kv_bytes_full = 0;     // of these, of heads that keep everything
  int64_t kv_bytes_bounded = 0;  // of heads that drop tokens, compensation state included
  int64_t kv_peak_bytes = 0;
};

// The most `Request::logprobs` may ask for.
inline constexpr int64_t kMaxLogprobs = 256;

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;  // natural logarithm of its probability
};

// How likely the model thought one generated token, and what else. By the model's own distribution: the softmax of its
// logits before biases, penalties, temperature and the like, which do not change it.
struct TokenLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  // the most probable ones, in that order; of equal ones the lowest id first
};

struct RequestResult {
  FinishReason finish = FinishReason::kRunning;
  Status status;  // what went wrong, exactly where finish is kError
  // Those that `text` is made of: an EOS token is not among them, nor are those behind the beginning of a stop string.
  // Only the last may reach into one.
  std::vector<int32_t> tokens;
  std::string text;                     // decoded, cut before a stop string
  std::vector<TokenLogprobs> logprobs;  // one for each of `tokens`, where Request::logprobs asks
  RequestMetrics metrics;
};

// How an end-of-sequence token is treated.
enum class EosMode { kStop, kIgnore };

struct Request {
  std::vector<int32_t> prompt;           // at least one token; appended to `sequence` where that is given
  std::shared_ptr<Sequence> sequence;    // continue this text (chat, shared prefixes); null: a new one
  std::shared_ptr<const HeadPlan> plan;  // for a new sequence; null: every head full
  SamplingOptions sampling;
  int64_t max_new_tokens = 256;   // with the text so far at most what its sequence was made for
  std::vector<std::string> stop;  // generation ends before the first of these
  EosMode eos = EosMode::kStop;
  // Begins with what a service's prefix cache has of the prompt, and leaves its own text there:
  // Service::UsePrefixCache. Without one, or on a sequence that has a text already, it changes nothing.
  bool reuse_prefix = false;
  // Whose turn is first where not all can have memory, or a share of a step for their prompts: the lowest priority; who
  // waits rises by one every 256 steps. Of equal ones the client for whom steps have read the fewest tokens, and of one
  // client's who came first. Where memory ends the highest priority gives way first, and of these who came last.
  int64_t priority = 0;
  std::string client;                // any name; all without one are one client
  std::vector<int32_t> stop_tokens;  // besides the model's EOS ids, and under kIgnore alone
  // What texts there may be: headwise/grammar.h has grammars and schemas. Only tokens that it allows are drawn, EOS and
  // stop_tokens where the text may end; where it may do nothing else the request ends there. Log-probabilities stay the
  // model's own. Not with EosMode::kIgnore. Null: any.
  std::shared_ptr<const TokenConstraint> constraint = nullptr;
  // Set: RequestResult::logprobs, with so many of the most probable tokens, 0 to kMaxLogprobs; 0: the chosen one alone.
  // It takes a copy of the logits and a pass over the vocabulary for every token.
  std::optional<int64_t> logprobs = std::nullopt;
  // Called with text that can be shown now (never half a UTF-8 character); return false to cancel.
  std::function<bool(std::string_view)> on_text;
  // Called with every generated token; return false to cancel.
  std::function<bool(int32_t)> on_token;
  // kStreamOnly: RequestResult's tokens, text and logprobs stay empty, so that an endless stream runs in constant
  // memory. Log-probabilities are events of a service then; an engine has nowhere to give them and refuses.
  enum class Output { kCollect, kStreamOnly } output = Output::kCollect;
};

using RequestId = int64_t;

// What a new sequence may become; fixes elastic rules and what admission reserves.
struct SequenceOptions {
  std::shared_ptr<const HeadPlan> plan;  // null: every head full
  int64_t prompt_tokens = 0;             // the first turn; rules "from the end of the prompt" hold after it
  int64_t max_tokens = 0;                // prompt + new tokens, N_limit [moa §3.2]; 0 to kMaxSequenceTokens
};

// Teacher-forced reading of given ids, for perplexity, logits and comparisons: a request like others, under the same
// limits, in the same steps. A token that the sequence's last request sampled is read before the ids.
struct ForcedRun {
  std::shared_ptr<const HeadPlan> plan;  // null: every head full
  std::shared_ptr<Sequence> sequence;    // continue this one; null: a new one
  std::span<const int32_t> ids;          // at least one
  int64_t prompt_tokens = -1;            // where the prompt ends, for rules that ask; -1: with the last id
  int64_t chunk_tokens = 0;              // ids of the prompt per step, to kMaxChunkTokens; 0: the engine's
  int64_t decode_tokens = 1;             // ids behind the prompt per step: 1 as decoding does, 0 as the prompt's
  int64_t priority = 0;                  // whose turn it is, as Request::priority and Request::client
  std::string client;
  // Positions (indices into ids, ascending) whose logits are wanted; empty with Rows::kEvery.
  std::span<const int64_t> positions;
  enum class Rows { kListed, kEvery } rows = Rows::kListed;
  // Called once per wanted position, in order: logits [V] and final hidden state after the last norm [E], f32, valid
  // during the call. Return false to stop early (the run ends with kCancelled).
  std::function<bool(int64_t position, std::span<const float> logits, std::span<const float> hidden)> on_row;
  // Called after every step with the number of ids read; for progress bars.
  std::function<void(int64_t num_read)> on_progress;
};

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> Create(const EngineOptions& options);
  explicit Engine(std::unique_ptr<EngineImpl> impl);
  ~Engine();

  ModelInfo info() const;  // headwise/model_info.h
  const ModelConfig& config() const;
  ModelShape shape() const;  // what a plan must fit
  const std::string& source_hash() const;
  const Tokenizer& tokenizer() const;  // Requires: has_tokenizer()
  bool has_tokenizer() const;          // tiny test models have none; they run on ids
  std::string backend_description() const;
  int64_t page_tokens() const;
  Arithmetic arithmetic() const;
  ExpertMemory expert_memory() const;  // headwise/model_info.h; looks at every page of experts that lie in a file
  void Warn(std::string_view message) const;  // tells EngineOptions::on_warning

  // A text to continue in later requests. Refused when the plan does not fit the model or when its KV bytes at worst
  // would not fit under the limit even alone: the message says needed and available.
  Result<std::shared_ptr<Sequence>> NewSequence(const SequenceOptions& options);
  // A copy that shares pages until one of the two writes; continuing it equals continuing the original, bit for bit.
  Result<std::shared_ptr<Sequence>> Fork(const Sequence& sequence);
  // A copy that goes on under another plan, or with another end of its prompt: so that texts with the same beginning,
  // and plans that read a prompt alike, share its prefill. Refused where the rules would have treated the tokens so far
  // otherwise than they were; rules "from the end of the prompt" treat a prompt as full heads do. Dynamic NTK keeps the
  // base of `sequence`.
  Result<std::shared_ptr<Sequence>> Fork(const Sequence& sequence, const SequenceOptions& options);

  // Queues a request; errors are those of the request itself, and of one that could never fit. It waits for memory
  // while others run; what goes wrong later is in its result.
  Result<RequestId> Submit(Request request);
  // One ragged step: prompts share chunk_tokens of prefill, every decoding request gets one token. False when nothing
  // is left to do. An error is a call from inside a callback; requests that fail do so in their own results.
  Result<bool> Step();
  // From any thread; takes effect at the next step. Unknown ids are passed over.
  void Cancel(RequestId id);
  // Null where `id` did not come from Submit or was taken; valid until it is. Final once finish is not kRunning.
  const RequestResult* Peek(RequestId id) const;
  // Cancels a request that is running. kNotFound where Peek has nothing.
  Result<RequestResult> Take(RequestId id);

  // Submit, Step until it is done, Take. Its own error, if it ends with one.
  Result<RequestResult> Run(Request request);
  // The same for a forced run; kCancelled where on_row or Cancel ended it.
  Status RunForced(const ForcedRun& run);

  // Whether the KV formats let a text that was read with every head full go on in a fork under `plan`: a fork cannot
  // give a head pages of another format. False where full and bounded heads have different ones; with "q4" also where
  // sinks, whose pages stay in q8, fill more than the first page.
  bool CanBeginFull(const HeadPlan& plan) const;

  // KV bytes over all sequences.
  int64_t kv_bytes() const;
  int64_t kv_peak_bytes() const;
  void ResetKvPeak();

  // Bytes of one sequence's cache now, and its tokens; on the engine's thread, or while no request runs on it.
  static int64_t KvBytes(const Sequence& sequence);
  static int64_t NumTokens(const Sequence& sequence);

 private:
  friend class Service;

  // Steps until `id` is over and takes it.
  Result<RequestResult> RunToEnd(RequestId id);

  std::unique_ptr<EngineImpl> impl_;
};

}  // namespace headwise

#endif  // HEADWISE_ENGINE_H_
