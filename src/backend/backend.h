// A backend: a device and about a dozen operations on its memory. `ref` is plain loops and the definition of correct;
// `cpu` is SIMD; others follow. Everything above works through this interface and never looks inside a tensor.
#ifndef HEADWISE_BACKEND_BACKEND_H_
#define HEADWISE_BACKEND_BACKEND_H_

#include <headwise/model_info.h>
#include <headwise/status.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "backend/ops.h"
#include "device/device.h"

namespace headwise {

// What a model may ask of operations that not every backend does: named here, so that such a model is refused before
// its weights are adopted.
enum class Feature {
  kGatedGelu,         // ActivateArgs::Kind::kGatedGeluTanh
  kLearnedPositions,  // EmbedArgs::positions
  kNormAdded,         // NormArgs::Write::kAdd
  kNormsByHead,       // NormArgs: W > 1
  kScaledEmbedding,   // EmbedArgs::scale
  kSoftCaps,          // SoftCap, AttentionArgs::score_cap
  kExperts,           // Experts, GateRows, ActivateArgs::Kind::kGatedSiluClamped
  kSelection,         // SelectKv, KvBlockReads: of plans, not of models
};
std::string_view NameOf(Feature feature);  // "soft caps of scores and logits"

// Thread-safety: one thread at a time.
class Backend {
 public:
  virtual ~Backend() = default;

  // "ref", "cpu".
  virtual std::string_view name() const = 0;
  // One line for --stats: instruction set, threads.
  virtual std::string Description() const = 0;
  // The instruction set of its kernels: "avx512". Empty where it has one way to compute. Results of two differ in their
  // last digits.
  virtual std::string_view isa() const = 0;
  // True where products in `compute` are faster than f32 ones: what `--compute auto` asks. May measure, some 2 ms;
  // the answer stays the same for the life of the process.
  virtual bool IsFast(Compute compute) const = 0;

  virtual bool Has(Feature /*feature*/) const { return true; }
  // Whether a row's bits depend neither on which other rows share a step nor on how its text was cut into steps. Not
  // over q4 pages: which of them have aged shows where steps end.
  virtual bool is_batch_invariant() const { return false; }

  // Its memory, and the queue that operations are put on.
  virtual Device& device() = 0;

  // Host rows as this backend's ops can read them, in an order of its own where that is faster; it owns what it makes.
  // A CPU returns plain formats as they are (a mapped file is not copied) and packs block formats; a device copies.
  // Where the result is `host` itself, that memory must outlive the backend's use.
  virtual Result<WeightMatrix> AdoptWeights(const WeightMatrix& host) = 0;

  // Where a backend was made to keep but some experts in memory: takes note of one, whose matrices AdoptWeights would
  // copy, and copies it when somebody chooses it. `release` is called whenever its rows have been read, which must
  // stay. False, and nothing is changed, where it was not made to or where its matrices are read as they lie.
  virtual bool DeferExpert(ExpertWeights& /*expert*/, std::function<void()> /*release*/) { return false; }
  // After the last of a model: takes the memory that they may have. An error where that holds none of them, or where
  // there are none.
  virtual Status ReserveExperts() { return Status::Ok(); }
  // Of those that were put off.
  virtual ExpertMemory expert_memory() const { return {}; }

  // Makes what products in `compute` want of an adopted matrix, ahead of them: beside it, which takes memory, or of
  // itself, which then has other numbers for all. Not supported: a number format that the machine does not multiply.
  virtual Status PrepareProducts(const WeightMatrix& /*adopted*/, Compute compute) {
    if (compute == Compute::kFp8) return Status::Unsupported("products in fp8 are not supported, only those of GPUs");
    if (compute == Compute::kW8A8) {
      return Status::Unsupported("products in w8a8 are not supported, only those of a CPU's tile registers (AMX)");
    }
    return Status::Ok();
  }

  // ---- ops: Validate(args), then put on the device's queue; what they write is there after device().Wait() ----
  virtual void Embed(const EmbedArgs& args) = 0;
  virtual void Norm(const NormArgs& args) = 0;
  virtual void MatMul(const MatMulArgs& args) = 0;
  virtual void Rope(const RopeArgs& args) = 0;
  virtual void Activate(const ActivateArgs& args) = 0;
  virtual void Experts(const ExpertsArgs& args) = 0;
  virtual void GateRows(const GateRowsArgs& args) = 0;
  virtual void Clamp(const ClampArgs& args) = 0;
  virtual void SoftCap(const SoftCapArgs& args) = 0;
  virtual void GatherRows(const GatherRowsArgs& args) = 0;
  virtual void DrawTokens(const DrawTokensArgs& args) = 0;

  // Bytes of one page; 64-byte multiples. The same for every page of a layout.
  virtual size_t PageBytes(const KvLayout& layout) const = 0;
  // Comes before the cache operations of a step: a backend that keeps tables brings them up to date.
  virtual void BeginStep(const KvStep& step) = 0;
  virtual void CopyPages(const CopyPagesArgs& args) = 0;
  virtual void AppendKv(const AppendKvArgs& args) = 0;
  virtual void AgeKv(const AgeKvArgs& args) = 0;
  virtual void Attention(const AttentionArgs& args) = 0;
  virtual void Compensate(const CompensateArgs& args) = 0;
  virtual void SelectKv(const SelectKvArgs& args) = 0;

  // Calls put(), which puts operations of a step behind BeginStep. Of two calls in a row with the same `kind`, not 0,
  // the second puts the operations of the first, with arguments that have the same in them, what they point to on the
  // host too, but for what they take from their KvStep. A backend may then know better than to call it again.
  virtual void PutAlike(uint64_t /*kind*/, const std::function<void()>& put) { put(); }

  // ---- operations one behind the other, which a backend may do in one: what only the later ones read need not be
  // written ----

  virtual void Linear(const LinearArgs& args) {
    if (args.norm) Norm(*args.norm);
    MatMul(args.product);
    if (args.activation) Activate(*args.activation);
    if (args.then) MatMul(*args.then);
  }
  // Rotates queries and keys, writes keys and values. For Attention without lse and q_sink, q and k may stay as is.
  virtual void RopeThenAppendKv(std::span<const RopeArgs> ropes, const AppendKvArgs& append) {
    for (const RopeArgs& rope : ropes) Rope(rope);
    AppendKv(append);
  }
};

}  // namespace headwise

#endif  // HEADWISE_BACKEND_BACKEND_H_
