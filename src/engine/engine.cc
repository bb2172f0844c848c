// The public face of the engine, and how its parts are put together.
#include <headwise/engine.h>

#include <fmt/format.h>
#include <headwise/model_info.h>

#include <algorithm>
#include <filesystem>

#include "backend/all_backends.h"
#include "base/cpu_info.h"
#include "base/json.h"
#include "base/no_memory.h"
#include "base/process_memory.h"
#include "engine/engine_impl.h"
#include "engine/open_tokenizer.h"
#include "model/load_config.h"

namespace headwise {
namespace {

// A step is not over while its callbacks run.
Status RefuseInCallback(const EngineImpl& impl, const char* what) {
  if (!impl.is_stepping()) return Status::Ok();
  return Status::InvalidInput(fmt::format("{}: called by a callback of a step, expected it outside of steps", what));
}

}  // namespace

Status CheckOptions(const EngineOptions& options) {
  if (options.chunk_tokens < 1 || options.chunk_tokens > kMaxChunkTokens) {
    return Status::InvalidInput(
        fmt::format("chunk_tokens is {}, expected 1 to {}", options.chunk_tokens, kMaxChunkTokens));
  }
  if (options.max_gap_ms < 0 || options.max_gap_ms > kMaxGapMs) {
    return Status::InvalidInput(
        fmt::format("max_gap_ms is {}, expected 0 (no limit) to {}", options.max_gap_ms, kMaxGapMs));
  }
  HW_RETURN_IF_ERROR(PageTokensFor(options.page_tokens, KvFormat::kF16).status());
  if (options.kv_limit_bytes < 0) {
    return Status::InvalidInput(fmt::format("kv_limit_bytes is {}, expected 0 or more", options.kv_limit_bytes));
  }
  if (options.expert_bytes < 0) {
    return Status::InvalidInput(
        fmt::format("expert_bytes is {}, expected 0 (all experts) or more", options.expert_bytes));
  }
  if (options.host_kv_bytes < 0) {
    return Status::InvalidInput(fmt::format("host_kv_bytes is {}, expected 0 or more", options.host_kv_bytes));
  }
  const bool may_preempt = options.kv_admission == EngineOptions::KvAdmission::kLikely && options.kv_limit_bytes > 0;
  if (options.host_kv_bytes > 0 && !may_preempt) {
    return Status::InvalidInput(fmt::format(
        "host_kv_bytes is {}, but nobody gives way: expected 0, or a limit of KV bytes and requests that are "
        "let in by what they are likely to need",
        options.host_kv_bytes));
  }
  return CheckNumThreads(options.num_threads);
}

// Of pages that age a step reads those that had aged when it began, so that results show where steps end.
Status CheckInvariance(const EngineOptions& options, const KvFormats& formats, const Backend& backend) {
  if (!options.batch_invariant) return Status::Ok();
  if (!backend.is_batch_invariant()) {
    return Status::Unsupported(
        fmt::format("batch_invariant: the backend {} is not, expected cpu or ref, made for it", backend.name()));
  }
  if (formats.full != KvFormat::kQ4 && formats.bounded != KvFormat::kQ4) return Status::Ok();
  return Status::Unsupported(fmt::format(
      "batch_invariant: kv_dtype is \"{}\", but pages of q4 are made smaller between steps, so that results show where "
      "steps end; expected f32, f16, bf16 or q8",
      options.kv_dtype));
}

// Of matrices of layers; logits, and few rows of most formats, have their own numbers.
Status PrepareProducts(const Model& model, Compute compute, Backend& backend) {
  for (const LayerWeights& layer : model.weights.layers) {
    for (const LinearWeights* linear : LinearsOf(layer)) {
      if (!linear->weight.present()) continue;
      Status status = backend.PrepareProducts(linear->weight, compute);
      if (!status.ok()) return std::move(status).Annotate(fmt::format("backend {}, compute", backend.name()));
    }
  }
  return Status::Ok();
}

Result<Compute> ResolveCompute(const std::string& name, const Model& model, const Backend& backend) {
  if (name != "auto") {
    const std::optional<Compute> compute = ComputeByName(name);
    if (compute) return *compute;
    return Status::InvalidInput(fmt::format("compute is \"{}\", expected auto, f32, bf16, int8, fp8 or w8a8", name));
  }
  const std::vector<DType> types = model.MatrixTypes();
  // Other codes are multiplied as bf16 or f32 in any case.
  const auto has_whole_codes = [](DType dtype) { return IsBlockFormat(dtype) && !HasFloatCodes(dtype); };
  if (std::ranges::any_of(types, has_whole_codes) && backend.IsFast(Compute::kInt8)) return Compute::kInt8;
  const bool is_wide = std::ranges::any_of(types, [](DType dtype) { return dtype == DType::kF32; });
  return !is_wide && backend.IsFast(Compute::kBF16) ? Compute::kBF16 : Compute::kF32;
}

const char* NameOf(FinishReason reason) {
  switch (reason) {
    case FinishReason::kRunning:
      return "running";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kEos:
      return "eos";
    case FinishReason::kStopString:
      return "stop_string";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "unknown";
}

Result<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options) {
  return CatchNoMemory("a model", [&]() -> Result<std::unique_ptr<Engine>> {
    HW_RETURN_IF_ERROR(CheckOptions(options));
    HW_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, MakeBackend({.name = options.backend,
                                                                       .isa = options.isa,
                                                                       .num_threads = options.num_threads,
                                                                       .batch_invariant = options.batch_invariant,
                                                                       .expert_bytes = options.expert_bytes}));
    return CreateEngine(options, std::move(backend));
  });
}

Result<std::unique_ptr<Engine>> CreateEngine(const EngineOptions& options, std::unique_ptr<Backend> own_backend) {
  EngineImpl::Parts parts;
  parts.options = options;
  parts.memory = std::make_shared<KvMemory>();
  parts.memory->backend = std::move(own_backend);
  Backend& backend = *parts.memory->backend;
  HW_ASSIGN_OR_RETURN(parts.model, LoadModel(options.model, backend,
                                             options.use_mmap ? FileAccess::kMap : FileAccess::kRead, options.on_load));
  HW_RETURN_IF_ERROR(AddGenerationEosIds(options.model, parts.model->config));
  Result<std::unique_ptr<Tokenizer>> tokenizer = OpenTokenizer(options.model, options.on_warning);
  if (!tokenizer.ok() && tokenizer.status().code() != StatusCode::kNotFound) return std::move(tokenizer).status();
  if (tokenizer.ok()) parts.tokenizer = *std::move(tokenizer);
  return MakeEngine(std::move(parts));
}

Result<std::unique_ptr<Engine>> MakeEngine(EngineImpl::Parts parts) {
  EngineOptions& options = parts.options;
  HW_RETURN_IF_ERROR(CheckOptions(options));
  Backend& backend = *parts.memory->backend;
  HW_ASSIGN_OR_RETURN(parts.memory->formats, KvFormatsByName(options.kv_dtype));
  HW_RETURN_IF_ERROR(CheckInvariance(options, parts.memory->formats, backend));
  HW_ASSIGN_OR_RETURN(options.page_tokens, PageTokensFor(options.page_tokens, parts.memory->formats.full));
  HW_ASSIGN_OR_RETURN(parts.compute, ResolveCompute(options.compute, *parts.model, backend));
  HW_RETURN_IF_ERROR(PrepareProducts(*parts.model, parts.compute, backend));
  parts.memory->limit_bytes = options.kv_limit_bytes;
  parts.memory->host_limit_bytes = options.host_kv_bytes;
  parts.memory->page_pools.emplace(backend, KvPoolSet::Options{.head_dim = parts.model->config.head_dim,
                                                               .page_tokens = options.page_tokens,
                                                               .formats = parts.memory->formats,
                                                               .limit_bytes = options.kv_limit_bytes});
  return std::make_unique<Engine>(std::make_unique<EngineImpl>(std::move(parts)));
}

Engine::Engine(std::unique_ptr<EngineImpl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

ExpertMemory Engine::expert_memory() const {
  ExpertMemory memory = impl_->parts().memory->backend->expert_memory();
  for (const LayerWeights& layer : impl_->model().weights.layers) {
    for (const ExpertWeights& expert : layer.experts) {
      for (const LinearWeights* linear : {&expert.gate, &expert.up, &expert.down}) {
        const WeightMatrix& matrix = linear->weight;
        if (matrix.order == WeightMatrix::Order::kOnDemand) continue;
        const int64_t bytes = matrix.size_bytes();
        memory.total_bytes += bytes;
        memory.resident_bytes +=
            matrix.order == WeightMatrix::Order::kRows ? ResidentBytes(matrix.planes[0], bytes) : bytes;
      }
    }
  }
  return memory;
}

const ModelConfig& Engine::config() const {
  return impl_->model().config;
}
ModelShape Engine::shape() const {
  return config().shape();
}
const std::string& Engine::source_hash() const {
  return impl_->model().source_hash;
}
bool Engine::has_tokenizer() const {
  return impl_->parts().tokenizer != nullptr;
}
const Tokenizer& Engine::tokenizer() const {
  HW_CHECK(has_tokenizer());
  return *impl_->parts().tokenizer;
}
std::string Engine::backend_description() const {
  const EngineImpl::Parts& parts = impl_->parts();
  const bool is_invariant = parts.options.batch_invariant;
  const bool of_prefill = parts.compute == Compute::kBF16 || parts.compute == Compute::kFp8;
  return fmt::format("{}, {}{}{}", parts.memory->backend->Description(), NameOf(parts.compute),
                     of_prefill && !is_invariant ? " prefill" : "", is_invariant ? ", batch-invariant" : "");
}
int64_t Engine::page_tokens() const {
  return impl_->parts().options.page_tokens;
}

Arithmetic Engine::arithmetic() const {
  const EngineImpl::Parts& parts = impl_->parts();
  const Backend& backend = *parts.memory->backend;
  const KvFormats& formats = parts.memory->formats;
  return {.backend = std::string(backend.name()),
          .isa = backend.isa().empty() ? "auto" : std::string(backend.isa()),
          .compute = std::string(NameOf(parts.compute)),
          .kv_dtype = NameOf(formats),
          .chunk_tokens = parts.options.chunk_tokens,
          .batch_invariant = parts.options.batch_invariant};
}
void Engine::Warn(std::string_view message) const {
  const auto& on_warning = impl_->parts().options.on_warning;
  if (on_warning) on_warning(message);
}

Result<std::shared_ptr<Sequence>> Engine::NewSequence(const SequenceOptions& options) {
  return CatchNoMemory(kNewSequence, [&] { return impl_->sequences().New(options, impl_->sequences().step_tokens()); });
}
Result<std::shared_ptr<Sequence>> Engine::Fork(const Sequence& sequence, const SequenceOptions& options) {
  return CatchNoMemory(kNewSequence, [&] { return impl_->sequences().Fork(sequence, options); });
}
Result<std::shared_ptr<Sequence>> Engine::Fork(const Sequence& sequence) {
  return CatchNoMemory(kNewSequence, [&] { return impl_->sequences().Fork(sequence); });
}

Result<RequestId> Engine::Submit(Request request) {
  return CatchNoMemory(kNewRequest, [&]() -> Result<RequestId> {
    HW_ASSIGN_OR_RETURN(std::shared_ptr<RunningRequest> prepared, impl_->Prepare(std::move(request)));
    return impl_->Accept(std::move(prepared));
  });
}
Result<bool> Engine::Step() {
  HW_RETURN_IF_ERROR(RefuseInCallback(*impl_, "Step"));
  impl_->Step();
  return impl_->num_running() + impl_->num_waiting() > 0;
}
void Engine::Cancel(RequestId id) {
  impl_->cancellations()->Cancel(id);
}
const RequestResult* Engine::Peek(RequestId id) const {
  return impl_->Peek(id);
}
Result<RequestResult> Engine::Take(RequestId id) {
  return impl_->Take(id);
}

Result<RequestResult> Engine::RunToEnd(RequestId id) {
  // Null once a callback has taken it.
  for (const RequestResult* result = Peek(id); result != nullptr && result->finish == FinishReason::kRunning;) {
    impl_->Step();
    result = Peek(id);
  }
  return Take(id);
}

Result<RequestResult> Engine::Run(Request request) {
  HW_RETURN_IF_ERROR(RefuseInCallback(*impl_, "Run"));
  HW_ASSIGN_OR_RETURN(const RequestId id, Submit(std::move(request)));
  HW_ASSIGN_OR_RETURN(RequestResult result, RunToEnd(id));
  if (!result.status.ok()) return std::move(result.status);  // a copy could fail, where memory is short
  return result;
}

Status Engine::RunForced(const ForcedRun& run) {
  HW_RETURN_IF_ERROR(RefuseInCallback(*impl_, "RunForced"));
  HW_ASSIGN_OR_RETURN(const RequestId id, CatchNoMemory(kNewRequest, [&]() -> Result<RequestId> {
                        HW_ASSIGN_OR_RETURN(std::shared_ptr<RunningRequest> prepared, impl_->Prepare(run));
                        return impl_->Accept(std::move(prepared));
                      }));
  HW_ASSIGN_OR_RETURN(RequestResult result, RunToEnd(id));
  if (result.finish == FinishReason::kCancelled) return Status::Cancelled("stopped by the caller");
  return std::move(result.status);
}

bool Engine::CanBeginFull(const HeadPlan& plan) const {
  const KvFormats& formats = impl_->parts().memory->formats;
  if (formats.full != formats.bounded || HasSelector(plan)) return false;
  // Of a full head's first pages only one never ages.
  return NewestFormat(formats.full) == formats.full || std::ranges::all_of(plan.rules, [&](const HeadRule& rule) {
           return rule.kind == HeadRule::Kind::kFull || rule.sink <= page_tokens();
         });
}
int64_t Engine::kv_bytes() const {
  const KvMemory::Hold hold(*impl_->parts().memory);
  return impl_->parts().memory->usage().bytes;
}
int64_t Engine::kv_peak_bytes() const {
  const KvMemory::Hold hold(*impl_->parts().memory);
  return impl_->parts().memory->usage().peak_bytes;
}
void Engine::ResetKvPeak() {
  const KvMemory::Hold hold(*impl_->parts().memory);
  PoolUsage& usage = impl_->parts().memory->usage();
  usage.peak_bytes = usage.bytes;
}
int64_t Engine::KvBytes(const Sequence& sequence) {
  return sequence.cache->Bytes().total();
}
int64_t Engine::NumTokens(const Sequence& sequence) {
  return sequence.cache->num_tokens();
}

}  // namespace headwise
