// The engine, its sequences, and forced readings of given ids. Requests that draw: request_bindings.cc.
#include <headwise/model_info.h>
#include <headwise/prompt.h>
#include <headwise/tokenizer.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "bound_engine.h"
#include "calls.h"
#include "engine/prompt.h"
#include "engine/read_plan.h"
#include "engine/token_logprobs.h"
#include "model/model_config.h"
#include "python_errors.h"
#include "text/chat_messages.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace headwise::python {

namespace {

// Guarded by the GIL.
std::set<BoundEngine*>& OpenEngines() {
  static std::set<BoundEngine*>& engines = *new std::set<BoundEngine*>;
  return engines;
}

Status Open(const EngineOptions& options, OpenedEngine& opened) {
  HW_ASSIGN_OR_RETURN(opened.service, Service::Create(options));
  const Result<std::shared_ptr<Sequence>> empty = opened.service->NewSequence({});
  if (!empty.ok()) return Status::Ok();
  const Engine& engine = opened.engine();
  const Arithmetic arithmetic = engine.arithmetic();
  EngineOptions resolved = options;
  resolved.chunk_tokens = arithmetic.chunk_tokens;
  resolved.page_tokens = engine.page_tokens();
  opened.checks.emplace(engine.config(), (*empty)->memory(), resolved);
  return Status::Ok();
}

}  // namespace

void OwnProcess::Require() const {
  if (is_here()) return;
  Raise(
      Status::InvalidInput("the engine was opened by another process, of which this one is a fork; expected one that "
                           "this process has opened"));
}

BoundEngine::BoundEngine(const EngineOptions& options) {
  auto opened = std::make_shared<OpenedEngine>();
  opened->warnings = std::make_shared<Warnings>();
  EngineOptions own = options;
  own.on_warning = [warnings = opened->warnings](std::string_view message) { warnings->Add(message); };
  Check(WithoutGil([&] { return Open(own, *opened); }));
  // Nobody would close it any more.
  if (AreCallsRefused()) Raise(Status::Cancelled("the process is ending, expected no more engines"));
  opened_ = std::move(opened);
  OpenEngines().insert(this);
}

BoundEngine::~BoundEngine() {
  OpenEngines().erase(this);
  Close();
}

std::shared_ptr<OpenedEngine> BoundEngine::Get() const {
  if (opened_ == nullptr) Raise(Status::Cancelled("the engine is closed, expected an open one"));
  process_.Require();
  return opened_;
}

void BoundEngine::Close() {
  std::shared_ptr<OpenedEngine> opened = std::exchange(opened_, nullptr);
  if (opened == nullptr) return;
  if (!process_.is_here()) {
    [[maybe_unused]] const auto* leaked = new std::shared_ptr<OpenedEngine>(std::move(opened));
    return;
  }
  WithoutGil<AtTheEnd::kRuns>([&] {
    opened->service->Shutdown();
    opened.reset();
  });
}

void BoundEngine::CloseAll() {
  // While one closes others may come to their end.
  std::set<BoundEngine*>& engines = OpenEngines();
  while (!engines.empty()) engines.extract(engines.begin()).value()->Close();
}

namespace {

using Matrix = nb::ndarray<nb::numpy, float, nb::ndim<2>>;
using Vector = nb::ndarray<nb::numpy, float, nb::ndim<1>>;
using Flags = nb::ndarray<nb::numpy, bool, nb::ndim<1>>;

// An array of numpy's that owns `data`.
template <typename Array, typename Number>
Array ArrayOf(std::unique_ptr<Number[]> data, std::initializer_list<size_t> shape) {
  Number* numbers = data.get();
  const nb::capsule owner(data.release(), [](void* memory) noexcept { delete[] static_cast<Number*>(memory); });
  return Array(numbers, shape, owner);
}

struct Reading {
  std::vector<int32_t> ids;
  std::optional<std::vector<int64_t>> positions;  // none: every
  PlanPointer plan;
  std::shared_ptr<Sequence> sequence;
  int64_t prompt_tokens = -1;
  int64_t chunk_tokens = 0;
  int64_t decode_tokens = 1;
};

using OnRow = std::function<void(std::span<const float> logits, std::span<const float> hidden)>;

// Ctrl-C ends it: the library asks no one while it reads, but says after every step how far it is.
Status Read(const OpenedEngine& opened, const Reading& reading, PendingError& pending, const OnRow& on_row) {
  // Who has a text so far knows how long the whole is.
  if (reading.sequence == nullptr) {
    WarnBeyondTrainedLength(opened.engine(), static_cast<int64_t>(reading.ids.size()));
  }
  ForcedRun run;
  run.plan = reading.plan;
  run.sequence = reading.sequence;
  run.ids = reading.ids;
  run.prompt_tokens = reading.prompt_tokens;
  run.chunk_tokens = reading.chunk_tokens;
  run.decode_tokens = reading.decode_tokens;
  if (reading.positions) {
    run.positions = *reading.positions;
  } else {
    run.rows = ForcedRun::Rows::kEvery;
  }
  run.on_row = [&](int64_t, std::span<const float> logits, std::span<const float> hidden) {
    on_row(logits, hidden);
    return !pending.is_set();
  };
  run.on_progress = [&](int64_t) {
    if (pending.Poll()) throw std::runtime_error("interrupted");
  };
  return opened.service->RunForced(run);
}

// logits [n, V], hidden [n, E] where it is wanted, of the n positions.
std::pair<std::optional<Matrix>, std::optional<Matrix>> Forced(const BoundEngine& engine, std::vector<int32_t> ids,
                                                               std::optional<std::vector<int64_t>> positions,
                                                               const BoundPlan* plan, const BoundSequence* sequence,
                                                               int64_t prompt_tokens, int64_t chunk_tokens,
                                                               int64_t decode_tokens, bool wants_logits,
                                                               bool wants_hidden) {
  const auto opened = engine.Get();
  const auto vocab_size = static_cast<size_t>(opened->engine().config().vocab_size);
  const auto model_dim = static_cast<size_t>(opened->engine().config().model_dim);
  const size_t num_rows = positions ? positions->size() : ids.size();
  std::unique_ptr<float[]> logits(wants_logits ? new float[num_rows * vocab_size] : nullptr);
  std::unique_ptr<float[]> hidden(wants_hidden ? new float[num_rows * model_dim] : nullptr);
  const Reading reading{.ids = std::move(ids),
                        .positions = std::move(positions),
                        .plan = PlanOf(plan),
                        .sequence = sequence == nullptr ? nullptr : sequence->sequence,
                        .prompt_tokens = prompt_tokens,
                        .chunk_tokens = chunk_tokens,
                        .decode_tokens = decode_tokens};
  PendingError pending;
  size_t row = 0;
  const Status status = WithoutGil([&] {
    return Read(*opened, reading, pending, [&](std::span<const float> row_logits, std::span<const float> row_hidden) {
      if (logits) std::ranges::copy(row_logits, logits.get() + row * vocab_size);
      if (hidden) std::ranges::copy(row_hidden, hidden.get() + row * model_dim);
      ++row;
    });
  });
  pending.Rethrow();
  Check(status);
  std::pair<std::optional<Matrix>, std::optional<Matrix>> arrays;
  if (logits) arrays.first = ArrayOf<Matrix>(std::move(logits), {num_rows, vocab_size});
  if (hidden) arrays.second = ArrayOf<Matrix>(std::move(hidden), {num_rows, model_dim});
  return arrays;
}

// Of ids[first:], each behind those before it: log-probabilities [n - first], and whether each is the most likely. The
// last is not read, as nothing comes behind it.
std::pair<Vector, Flags> Score(const BoundEngine& engine, std::vector<int32_t> ids, int64_t first,
                               const BoundPlan* plan, const BoundSequence* sequence, int64_t prompt_tokens,
                               int64_t decode_tokens) {
  const auto opened = engine.Get();
  const auto num_ids = static_cast<int64_t>(ids.size());
  if (first < 1 || first > num_ids) {
    Raise(Status::InvalidInput(fmt::format("first: found {}, expected 1 to {}, the number of ids", first, num_ids)));
  }
  const auto num_scored = static_cast<size_t>(num_ids - first);
  std::unique_ptr<float[]> logprobs(new float[num_scored]);
  std::unique_ptr<bool[]> greedy(new bool[num_scored]);
  const int32_t last = ids.back();
  const int64_t vocab_size = opened->engine().config().vocab_size;
  if (last < 0 || last >= vocab_size) {
    Raise(Status::InvalidInput(
        fmt::format("ids: token {} is id {}, expected 0 to {}", num_ids - 1, last, vocab_size - 1)));
  }
  if (num_scored > 0) ids.pop_back();
  if (prompt_tokens == num_ids) prompt_tokens = -1;
  Reading reading{.ids = std::move(ids),
                  .positions = std::vector<int64_t>(num_scored),
                  .plan = PlanOf(plan),
                  .sequence = sequence == nullptr ? nullptr : sequence->sequence,
                  .prompt_tokens = prompt_tokens,
                  .decode_tokens = decode_tokens};
  for (size_t i = 0; i < num_scored; ++i) (*reading.positions)[i] = first - 1 + static_cast<int64_t>(i);
  PendingError pending;
  size_t row = 0;
  const Status status = WithoutGil([&] {
    return Read(*opened, reading, pending, [&](std::span<const float> logits, std::span<const float>) {
      const size_t place = static_cast<size_t>(first) + row;
      const int32_t id = place < reading.ids.size() ? reading.ids[place] : last;
      const TokenLogprobs scored = LogprobsOf(logits, id, 1);
      logprobs[row] = scored.chosen.logprob;
      greedy[row] = scored.top.front().id == id;
      ++row;
    });
  });
  pending.Rethrow();
  Check(status);
  return {ArrayOf<Vector>(std::move(logprobs), {num_scored}), ArrayOf<Flags>(std::move(greedy), {num_scored})};
}

SequenceOptions OptionsOf(const BoundPlan* plan, int64_t prompt_tokens, int64_t max_tokens) {
  return {.plan = PlanOf(plan), .prompt_tokens = prompt_tokens, .max_tokens = max_tokens};
}

// Of the text so far, with the last token of an answer, which is not in the cache yet.
int64_t TextTokens(const BoundEngine& engine, const BoundSequence& sequence) {
  engine.Get();
  const std::optional<SequenceClaim> claim = SequenceClaim::Take(sequence.sequence);
  if (!claim) Raise(Status::InvalidInput("sequence: another request is running on it"));
  return sequence.sequence->NumTextTokens();
}

std::vector<int32_t> EncodeText(const BoundEngine& engine, const std::string& text, bool bos, bool special) {
  const auto opened = engine.Get();
  return Value(WithoutGil([&] {
    return EncodePrompt(
        opened->engine(), text,
        {.bos = bos ? Bos::kAuto : Bos::kNever, .special = special ? SpecialText::kParse : SpecialText::kAsText});
  }));
}

std::vector<int32_t> Tokenize(const BoundEngine& engine, const std::string& text, bool special) {
  const auto opened = engine.Get();
  Check(RequireTokenizer(opened->engine()));
  return Value(WithoutGil(
      [&] { return opened->engine().tokenizer().Encode(text, special ? SpecialText::kParse : SpecialText::kAsText); }));
}

std::string Decode(const BoundEngine& engine, const std::vector<int32_t>& ids, bool skip_special) {
  const auto opened = engine.Get();
  Check(RequireTokenizer(opened->engine()));
  return opened->engine().tokenizer().Decode(ids, skip_special ? SpecialDisplay::kSkip : SpecialDisplay::kShow);
}

struct ChatSetup {
  std::string form;
  std::string chat_template;
};

Result<ChatFormat> FormatOf(OpenedEngine& opened, const ChatSetup& setup) {
  const std::string key = setup.form + '\0' + setup.chat_template;
  const std::lock_guard lock(opened.mutex);
  if (const auto found = opened.formats.find(key); found != opened.formats.end()) return found->second;
  ChatFormatOptions options{.form = setup.form};
  if (!setup.chat_template.empty()) {
    options.chat_template =
        ChatTemplateText{.name = "default", .source = setup.chat_template, .origin = "chat_template"};
  }
  HW_ASSIGN_OR_RETURN(ChatFormat format, FindChatFormat(opened.engine(), std::move(options)));
  return opened.formats.emplace(key, std::move(format)).first->second;
}

// All but the two of the setup as JSON; "" where there is none. Ids, and those that end the answer.
std::pair<std::vector<int32_t>, std::vector<int32_t>> EncodeChat(const BoundEngine& engine, const std::string& messages,
                                                                 const std::string& tools, const std::string& documents,
                                                                 const std::string& variables, bool opens_answer,
                                                                 const std::string& form,
                                                                 const std::string& chat_template) {
  using Encoded = std::pair<std::vector<int32_t>, std::vector<int32_t>>;
  const auto opened = engine.Get();
  return Value(WithoutGil([&]() -> Result<Encoded> {
    HW_ASSIGN_OR_RETURN(const std::vector<ChatMessage> parsed,
                        ReadChatMessages(nlohmann::ordered_json::parse(messages, nullptr, false), "messages"));
    HW_ASSIGN_OR_RETURN(const ChatFormat format, FormatOf(*opened, {.form = form, .chat_template = chat_template}));
    HW_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                        format.Encode({.messages = parsed,
                                       .end = opens_answer ? ChatEnd::kOpenAssistantTurn : ChatEnd::kAsGiven,
                                       .tools = tools,
                                       .documents = documents,
                                       .variables = variables}));
    return Encoded(std::move(ids), format.stop_ids());
  }));
}

BoundConstraint Compile(const BoundEngine& engine, const std::string& kind, const std::string& text,
                        const std::vector<std::string>& choices) {
  static constexpr std::pair<std::string_view, GrammarKind> kKinds[] = {{"json", GrammarKind::kJson},
                                                                        {"json_schema", GrammarKind::kJsonSchema},
                                                                        {"grammar", GrammarKind::kGbnf},
                                                                        {"regex", GrammarKind::kRegex},
                                                                        {"choice", GrammarKind::kChoice}};
  const auto* row = std::ranges::find(kKinds, kind, &std::pair<std::string_view, GrammarKind>::first);
  if (row == std::end(kKinds)) Raise(Status::InvalidInput(fmt::format("no kind of grammar is called \"{}\"", kind)));
  const auto opened = engine.Get();
  Check(RequireTokenizer(opened->engine()));
  auto constraint = WithoutGil([&]() -> Result<std::shared_ptr<const TokenConstraint>> {
    const std::lock_guard lock(opened->mutex);
    if (opened->compiler == nullptr) {
      HW_ASSIGN_OR_RETURN(opened->compiler,
                          GrammarCompiler::Create(opened->engine().tokenizer(), opened->engine().config().vocab_size));
    }
    return opened->compiler->Compile({.kind = row->second, .text = text, .choices = choices});
  });
  if (!constraint.ok()) Raise(std::move(constraint).status().Annotate(kind));
  return {*std::move(constraint)};
}

std::string InfoJson(const BoundEngine& engine) {
  const auto opened = engine.Get();
  const Engine& own = opened->engine();
  const ModelInfo info = own.info();
  const Arithmetic arithmetic = own.arithmetic();
  Json windows = Json::array();
  for (const std::optional<int64_t>& window : info.sliding_windows) windows.push_back(window ? Json(*window) : Json());
  return Json({{"shape",
                {{"architecture", info.shape.architecture},
                 {"num_layers", info.shape.num_layers},
                 {"num_q_heads", info.shape.num_q_heads},
                 {"num_kv_heads", info.shape.num_kv_heads},
                 {"head_dim", info.shape.head_dim}}},
               {"model_dim", info.model_dim},
               {"ffn_dim", info.ffn_dim},
               {"vocab_size", info.vocab_size},
               {"trained_length", info.trained_length},
               {"sliding_windows", std::move(windows)},
               {"bos_id", info.bos_id ? Json(*info.bos_id) : Json()},
               {"eos_ids", info.eos_ids},
               {"start_ids", info.has_tokenizer ? StartOfText(own) : std::vector<int32_t>()},
               {"has_tokenizer", info.has_tokenizer},
               {"adds_bos", info.has_tokenizer && own.tokenizer().AddsBos()},
               {"source_hash", own.source_hash()},
               {"page_tokens", own.page_tokens()},
               {"backend", arithmetic.backend},
               {"isa", arithmetic.isa},
               {"compute", arithmetic.compute},
               {"kv_dtype", arithmetic.kv_dtype},
               {"chunk_tokens", arithmetic.chunk_tokens},
               {"description", own.backend_description()}})
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

Row Stats(const BoundEngine& engine) {
  const ServiceStats stats = engine.Get()->service->stats();
  nb::dict row;
  row["num_running"] = stats.num_running;
  row["num_waiting"] = stats.num_waiting;
  row["num_finished"] = stats.num_finished;
  row["num_preemptions"] = stats.num_preemptions;
  row["kv_bytes"] = stats.kv_bytes;
  row["kv_peak_bytes"] = stats.kv_peak_bytes;
  row["kv_reserved_bytes"] = stats.kv_reserved_bytes;
  row["kv_limit_bytes"] = stats.kv_limit_bytes;
  row["kv_host_bytes"] = stats.kv_host_bytes;
  return row;
}

void BindOptions(nb::module_& module) {
  nb::class_<EngineOptions>(module, "EngineOptions")
      .def(nb::init<>())
      .def_rw("model", &EngineOptions::model)
      .def_rw("backend", &EngineOptions::backend)
      .def_rw("isa", &EngineOptions::isa)
      .def_rw("compute", &EngineOptions::compute)
      .def_rw("kv_dtype", &EngineOptions::kv_dtype)
      .def_rw("num_threads", &EngineOptions::num_threads)
      .def_rw("kv_limit_bytes", &EngineOptions::kv_limit_bytes)
      .def_rw("host_kv_bytes", &EngineOptions::host_kv_bytes)
      .def_rw("chunk_tokens", &EngineOptions::chunk_tokens)
      .def_rw("max_gap_ms", &EngineOptions::max_gap_ms)
      .def_rw("use_mmap", &EngineOptions::use_mmap)
      .def_rw("expert_bytes", &EngineOptions::expert_bytes)
      .def_rw("batch_invariant", &EngineOptions::batch_invariant)
      .def_rw("page_tokens", &EngineOptions::page_tokens)
      .def_prop_rw(
          "admits_likely",
          [](const EngineOptions& options) { return options.kv_admission == EngineOptions::KvAdmission::kLikely; },
          [](EngineOptions& options, bool is_likely) {
            options.kv_admission =
                is_likely ? EngineOptions::KvAdmission::kLikely : EngineOptions::KvAdmission::kWorstCase;
          });
}

}  // namespace

void BindEngine(nb::module_& module) {
  BindOptions(module);
  nb::class_<BoundSequence>(module, "Sequence");
  nb::class_<BoundConstraint>(module, "Constraint");
  nb::class_<BoundEngine>(module, "Engine")
      .def(nb::init<const EngineOptions&>(), "options"_a)
      .def_prop_ro("is_closed", &BoundEngine::is_closed)
      .def("close", &BoundEngine::Close)
      .def("info", InfoJson)
      .def("stats", Stats)
      .def("take_warnings", [](const BoundEngine& engine) { return engine.Get()->warnings->Take(); })
      .def(
          "check_plan",
          [](const BoundEngine& engine, const BoundPlan& plan, const std::string& origin) {
            Check(CheckPlanFor(engine.Get()->engine(), *plan.plan, origin));
          },
          "plan"_a, "origin"_a)
      .def(
          "note_length",
          [](const BoundEngine& engine, int64_t num_tokens) {
            WarnBeyondTrainedLength(engine.Get()->engine(), num_tokens);
          },
          "tokens"_a)
      .def("encode", EncodeText, "text"_a, "bos"_a, "special"_a)
      .def("tokenize", Tokenize, "text"_a, "special"_a)
      .def("decode", Decode, "ids"_a, "skip_special"_a)
      .def(
          "token_text",
          [](const BoundEngine& engine, int32_t id) {
            const auto opened = engine.Get();
            if (!opened->engine().has_tokenizer()) return nb::bytes("", 0);
            const std::string_view text = opened->engine().tokenizer().BytesOf(id);
            return nb::bytes(text.data(), text.size());
          },
          "id"_a)
      .def("encode_chat", EncodeChat, "messages"_a, "tools"_a, "documents"_a, "variables"_a, "opens_answer"_a, "form"_a,
           "chat_template"_a)
      .def("compile", Compile, "kind"_a, "text"_a, "choices"_a)
      .def("forced", Forced, "ids"_a, "positions"_a.none(), "plan"_a.none(), "sequence"_a.none(), "prompt_tokens"_a,
           "chunk_tokens"_a, "decode_tokens"_a, "logits"_a, "hidden"_a)
      .def("score", Score, "ids"_a, "first"_a, "plan"_a.none(), "sequence"_a.none(), "prompt_tokens"_a,
           "decode_tokens"_a)
      .def(
          "new_sequence",
          [](const BoundEngine& engine, const BoundPlan* plan, int64_t prompt_tokens, int64_t max_tokens) {
            const auto opened = engine.Get();
            const SequenceOptions options = OptionsOf(plan, prompt_tokens, max_tokens);
            return BoundSequence{Value(WithoutGil([&] { return opened->service->NewSequence(options); }))};
          },
          "plan"_a.none(), "prompt_tokens"_a, "max_tokens"_a)
      .def(
          "fork",
          [](const BoundEngine& engine, const BoundSequence& sequence) {
            const auto opened = engine.Get();
            const std::shared_ptr<Sequence> own = sequence.sequence;
            return BoundSequence{Value(WithoutGil([&] { return opened->service->Fork(*own); }))};
          },
          "sequence"_a)
      .def(
          "fork_under",
          [](const BoundEngine& engine, const BoundSequence& sequence, const BoundPlan* plan, int64_t prompt_tokens,
             int64_t max_tokens) {
            const auto opened = engine.Get();
            const std::shared_ptr<Sequence> own = sequence.sequence;
            const SequenceOptions options = OptionsOf(plan, prompt_tokens, max_tokens);
            return BoundSequence{Value(WithoutGil([&] { return opened->service->Fork(*own, options); }))};
          },
          "sequence"_a, "plan"_a.none(), "prompt_tokens"_a, "max_tokens"_a)
      .def(
          "size_of",
          [](const BoundEngine& engine, const BoundSequence& sequence) {
            const auto opened = engine.Get();
            const std::shared_ptr<Sequence> own = sequence.sequence;
            const SequenceSize size = Value(WithoutGil([&] { return opened->service->SizeOf(*own); }));
            return std::pair(size.num_tokens, size.kv_bytes);
          },
          "sequence"_a)
      .def("text_tokens", TextTokens, "sequence"_a);
}

}  // namespace headwise::python
