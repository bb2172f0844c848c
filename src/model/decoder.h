// The one forward loop that runs every model family: what a layer does follows from ModelConfig, what a head keeps from
// its KvCache. One call is one ragged step over several sequences, each with its own number of new tokens and its own
// plan.
#ifndef HEADWISE_MODEL_DECODER_H_
#define HEADWISE_MODEL_DECODER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "device/arena.h"
#include "kv/cache_step.h"
#include "model/model.h"
#include "model/step_angles.h"

namespace headwise {

// What a backend calls it.
ActivateArgs::Kind ActivationOf(MlpKind kind);

ExpertRouting RoutingOf(const ExpertsConfig& experts, const ConstTensorView& selection_bias);

// One sequence's share of a step.
struct StepSequence {
  KvCache* cache = nullptr;
  std::span<const int32_t> ids;  // new tokens, as many as the cache has planned; none where `follows` says which
  // In place of ids, one token that nobody but the device may know yet: the one drawn from that row of the step before,
  // counted among all rows that were wanted of it.
  std::optional<int32_t> follows = std::nullopt;
  const TokenLists* marked = nullptr;                     // tokens that its heads keep for what they are; null: none
  const SequenceFrequencies* rope_frequencies = nullptr;  // RopeFrequencies() of the sequence
  std::span<const int32_t> wanted;                        // indices into `ids` whose rows are wanted
  // Of the one wanted row no more is wanted than a token that is drawn so, and its log-probabilities, of as many ids as
  // there are; null: the rows. Only where DrawsOnDevice().
  const TokenDraw* draw = nullptr;
};

// Rows of all sequences' wanted tokens, in order. Host memory, valid until the step behind the next one; may be written
// to.
struct StepOutput {
  std::span<float> logits;  // [R, V]
  std::span<float> hidden;  // [R, E] after the last norm
  // What was drawn on the device; rows of sequences that draw nothing mean nothing here, and those of others mean
  // nothing above, where both are empty if all sequences draw. Empty where none does.
  std::span<const int32_t> ids;  // [R], -1 where a logit is not finite
  int64_t num_top = -1;          // N, the largest TokenDraw::num_top
  // As in DrawTokensArgs.
  std::span<const float> logprobs;   // [R, 1 + N]
  std::span<const int32_t> top_ids;  // [R, N]
};

// Steps go through it in two halves, Launch and Collect, so that one can be put on a device's queue while the one
// before it runs there, and the host has its work with that one's outcome meanwhile.
//
// Thread-safety: none. The caches of all its steps are over the same pools.
class Decoder {
 public:
  // What products are computed in; `compute` is a wish that a backend may exceed.
  Decoder(const Model& model, Backend& backend, Compute compute);
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  ~Decoder();

  // Puts a step on the queue that reads the new tokens into every cache. Requires: each cache has planned this step,
  // and of the steps before it at most one is still to be collected. An error (memory for activations or tables, the
  // device) is one of the whole step: none of its sequences can go on, and the decoder is ready for the next.
  Status Launch(std::span<const StepSequence> sequences);
  // Waits for the oldest step that is still to be collected. An error is as one of Launch; of a step that was launched
  // behind it the same holds then. Requires: there is one.
  Status Collect(StepOutput& output);
  // Whether sequences may have tokens drawn before their logits reach the host, which would have to copy them.
  bool DrawsOnDevice() const { return !backend_->device().IsHostMemory(); }
  // Whether the newest step's drawn tokens are where the next one can follow them, unseen by the host.
  bool HasDrawn() const { return num_launched_ > 0 && !outcomes_[(num_launched_ - 1) % 2].output.ids.empty(); }

 private:
  struct Buffers;
  // What RunLayers puts, and with what, follows from these and what a KvStep says.
  struct Layers;
  // What a step leaves on the host, from Launch to the second Launch behind it.
  struct Outcome {
    // Where the host cannot read the device's memory.
    std::vector<int32_t> ids, top_ids;
    std::vector<float> logprobs, logits, hidden;
    StepOutput output;
    Status status;  // not OK: it is lost
  };

  Outcome& newest() { return outcomes_[num_launched_ % 2]; }
  Status PutStep(std::span<const StepSequence> sequences);
  void RunLayers(Buffers& buffers);
  // For Backend::PutAlike: 0 but where each sequence has one token, as they decode.
  uint64_t KindOfLayers(const Buffers& buffers);
  Status PlaceBuffers(int64_t num_tokens, int64_t num_wanted, Buffers& buffers);
  // What is copied goes ahead of BeginStep, behind which a device may keep back operations to see whether they are
  // those of the last step; few angles, those of a decoding step, go along with these.
  void PutAngles(bool are_few, Buffers& buffers);
  bool FillRopes(int64_t layer_idx, const Buffers& buffers);
  // `norm`: what the input still has to go through, whose output it then is.
  void Attend(int64_t layer_idx, const TensorView& input, const std::optional<NormArgs>& norm, Buffers& buffers);
  void NormHeads(const LayerWeights& layer, const Buffers& buffers);
  void Mlp(int64_t layer_idx, const TensorView& input, const std::optional<NormArgs>& norm, Buffers& buffers);
  // The layer's mixture, to where its MLP adds.
  void RunExperts(const LayerWeights& layer, const TensorView& input, const std::optional<NormArgs>& norm,
                  const Buffers& buffers);
  NormArgs NormOf(const NormWeights& norm, const TensorView& x, const TensorView& out) const;
  void MarkTokens(std::span<const StepSequence> sequences);
  // Normed rows of the step's wanted tokens, their logits, and what is wanted of both.
  void FinishRows(std::span<const StepSequence> sequences, const Buffers& buffers);
  void DrawRows(const Buffers& buffers);
  std::span<float> OnHost(const TensorView& view, std::span<const StepSequence> sequences, std::vector<float>& copy);
  // buffers.x += x W^T + bias, through `norm` where there is one.
  void AddToStream(const TensorView& x, const LinearWeights& weights, const NormWeights& norm, const Buffers& buffers);
  // The same in its parts: the product, which borrows `part`, and what is behind it.
  static MatMulPart StreamPart(const LinearWeights& weights, const NormWeights& norm, const Buffers& buffers);
  MatMulArgs StreamProduct(const TensorView& x, const MatMulPart& part, const NormWeights& norm) const;
  void AddBranch(const NormWeights& norm, const Buffers& buffers);

  const Model* model_;
  Backend* backend_;
  Compute compute_;
  Arena arena_;
  // Of the step under way; kept because a step of one token is short.
  std::optional<CacheStep> cache_step_;
  StepAngles angles_;
  std::vector<AngledSequence> angled_;
  std::vector<int32_t> ids_;          // [T]
  std::vector<TokenMark> marks_;      // [T], or empty where no head asks
  std::vector<int32_t> positions_;    // [T] of learned positions, else empty
  std::vector<int32_t> wanted_rows_;  // [R]
  std::vector<RopeArgs> ropes_;       // of the layer under way
  std::vector<TokenDraw> draws_;      // [R], or empty where nothing is drawn
  std::unique_ptr<Layers> layers_;    // of the newest step that has a kind
  uint64_t kind_ = 0;                 // theirs, of no others in this process
  // [R] i32: what was drawn from the newest step's wanted rows. Its address stays from step to step.
  DeviceBuffer drawn_;
  Outcome outcomes_[2];  // of the step under way, or the newest, and of the one before
  int64_t num_launched_ = 0;
  int64_t num_collected_ = 0;
};

}  // namespace headwise

#endif  // HEADWISE_MODEL_DECODER_H_
