// A whole text through the decoder and back: gradients of a loss on final hidden states with respect to gates and
// attention probabilities, weights frozen. What planners train and profile with.
//
// The same layers as model/decoder.h, from the same ModelConfig, but without a cache: all tokens at once, activations
// kept for the way back. Only each layer's input outlives the layer; the rest is computed a second time on the way
// back, so memory is one layer's activations plus N * E per layer.
//
// N tokens, E model dim, F ffn dim, Hq query heads, Hkv KV heads, D head dim, L layers, R wanted positions.
#ifndef HEADWISE_GRAD_GRAD_DECODER_H_
#define HEADWISE_GRAD_GRAD_DECODER_H_

#include <headwise/status.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "grad/attention.h"
#include "grad/linear.h"
#include "grad/rows.h"
#include "model/model.h"

namespace headwise {

// The code that gradients are computed with on this machine: "avx512, OpenBLAS SkylakeX". Where it differs, results
// differ in their last digits.
std::string GradArithmetic(Compute compute = Compute::kF32);

// Not OK for a model with experts, which have a way forward alone: what needs a gradient cannot run on it. `what` names
// it: "plan duo".
Status CheckHasGradients(const ModelConfig& config, std::string_view what);

// What a GradDecoder holds at most after texts of `num_tokens` tokens, in bytes: activations and a widened matrix; with
// products in bf16, what they read too.
int64_t GradMemoryBytes(const ModelConfig& config, int64_t num_tokens, int64_t bytes_per_number,
                        Compute compute = Compute::kF32);

// The output of query head q in layer l becomes g * full + (1 - g) * bounded, g = values[l * Hkv + q / G], before the
// output projection [duo §2.2 eq.1].
struct HeadGates {
  std::span<const double> values;  // [L * Hkv], each in [0, 1]
  HeadRule bounded;                // what a head with gate 0 reads: a stream, positions in the text
};

// One layer's dense attention, for scores that need no gradient.
template <typename Real>
struct AttentionView {
  int64_t layer_idx = 0;
  AttentionShape<Real> shape;  // under the model's own mask
  const Real* q = nullptr;     // [N, Hq*D], rotated
  const Real* k = nullptr;     // [N, Hkv*D], rotated
  const Real* v = nullptr;     // [N, Hkv*D]
  const Real* out = nullptr;   // [N, Hq*D]
  const Real* lse = nullptr;   // [N, Hq]

  // What the query of that head gives the key; 0 where the mask hides it.
  double Probability(int64_t q_head, int64_t query, int64_t key) const;
};

// Thread-safety: none; all threads of the pool work on one text. Results do not depend on their number, bit for bit.
template <typename Real>
class GradDecoder {
 public:
  // Requires: weights in host memory (the cpu and ref backends). `compute` is that of products with weights, as
  // LinearRunner says; all else is in Real.
  GradDecoder(const Model& model, ThreadPool& pool, Compute compute = Compute::kF32,
              const cpu::KernelTable* kernels = nullptr);
  ~GradDecoder();

  struct ForwardArgs {
    std::span<const int32_t> ids;      // [N], N at most the learned positions of a model that has some
    std::span<const int32_t> wanted;   // [R] positions whose hidden state is wanted
    const HeadGates* gates = nullptr;  // null: every head full
    enum class Keep {
      kNothing,
      kInputs,       // of every layer, for ForwardFrom
      kForBackward,  // these, where CheckHasGradients passed
    } keep = Keep::kNothing;
    std::function<void(const AttentionView<Real>&)> on_attention;  // after every layer's attention; gates null
  };
  // hidden [R, E]: after the last norm.
  void Forward(const ForwardArgs& args, std::vector<Real>& hidden);
  // What the last Forward, one that kept inputs and had no gates, would have given with gates of which all below
  // `first_layer` are 1: the layers from there on again. What was kept for the way back stays.
  void ForwardFrom(int64_t first_layer, const HeadGates& gates, std::vector<Real>& hidden);

  struct BackwardArgs {
    std::span<const Real> d_hidden;  // [R, E]
    std::span<double> d_gates;       // [L * Hkv], overwritten; empty when the forward pass had no gates
    // [L], added to; or empty. Of what the heads read in full; with gates, times the head's gate.
    std::span<Influence> influence;
  };
  // Of the last Forward with kForBackward and the same gates.
  void Backward(const BackwardArgs& args);

  // Mean negative log-likelihood of targets [R] given hidden [R, E]; fills d_hidden.
  double NllLoss(std::span<const Real> hidden, std::span<const int32_t> targets, std::vector<Real>& d_hidden);
  // Mean of how far the largest other logit is above the target's: negative where the model is right, and of the same
  // slope however certain it is. Fills d_hidden.
  double MarginLoss(std::span<const Real> hidden, std::span<const int32_t> targets, std::vector<Real>& d_hidden);

  // Of activations and a widened matrix, after what was run so far; GradMemoryBytes foresees it.
  int64_t HeldBytes() const;

  const Model& model() const { return *model_; }
  ThreadPool& pool() { return *pool_; }

 private:
  struct Activations;  // of one layer
  struct Saved;        // what the way back needs of a forward pass
  // Which of a head's two outputs something is about.
  enum class Path { kFull, kBounded };

  // Outputs that a gate leaves no weight are only worth computing for the gate's own gradient.
  enum class Outputs { kWeighted, kBoth };

  using OnAttention = std::function<void(const AttentionView<Real>&)>;

  // Layers [first_layer, L) from the input `x` of the first; each writes its output to the matrix behind its input, or,
  // where nothing is kept, in its place. The last one's output.
  enum class Inputs { kKept, kOverwritten };
  std::vector<Real>* RunLayers(int64_t first_layer, std::vector<Real>* x, Inputs inputs,
                               const OnAttention& on_attention);
  void NormWanted(const std::vector<Real>& x, std::vector<Real>& hidden) const;
  // The mean over rows of loss_of_row(row, logits [V]), which leaves the gradient of that mean in the logits' place.
  template <typename LossOfRow>
  double MeanLoss(std::span<const Real> hidden, int64_t num_rows, std::vector<Real>& d_hidden,
                  const LossOfRow& loss_of_row);
  void FillAngles(int64_t num_tokens);
  void Embed(std::span<const int32_t> ids, std::vector<Real>& x) const;
  void RunProjections(int64_t layer_idx, const Real* input);
  void RunAttention(int64_t layer_idx, const Real* x, Outputs outputs);
  void AttendPath(int64_t layer_idx, Path path, Outputs outputs);
  std::vector<bool> WeightedHeads(int64_t layer_idx, Path path) const;
  void MixPaths(int64_t layer_idx);
  // What the MLP, or the mixture in its place, reads.
  const Real* MlpInput(int64_t layer_idx, const Real* x);
  void RunMlp(int64_t layer_idx, const Real* input);
  // y += what a layer with experts adds. Forward alone.
  void AddExperts(int64_t layer_idx, const Real* input, Real* y);
  void AddSharedMlp(int64_t layer_idx, const Real* input, std::vector<Real>& sums);
  void BackLayer(int64_t layer_idx, const BackwardArgs& args);
  void BackMlp(int64_t layer_idx);
  void BackGates(int64_t layer_idx, std::span<double> d_gates);
  void BackPath(int64_t layer_idx, Path path, Influence* influence);
  void BackProjections(int64_t layer_idx);

  void AddToStream(const LinearWeights& linear, const NormWeights& norm, const Real* x, std::vector<Real>& branch,
                   Real* y);
  void BackFromStream(const LinearWeights& linear, const NormWeights& norm, std::vector<Real>& branch, Real* d_input);
  void AddGradient(const NormWeights& norm, const Real* x, const std::vector<Real>& d_y);
  void NormRows(const RowNorm& norm, const Real* x, RowWrite write, Real* y);
  void NormRowsBackward(const RowNorm& norm, const Real* x, const Real* d_y, RowWrite write, Real* d_x);
  void RotateRows(int64_t layer_idx, Rotation rotation, int64_t num_heads, Real* x);
  NormRowParams NormParams(const NormWeights& norm) const;
  RowNorm StreamNorm(const NormWeights& norm) const;                   // of the residual stream's rows
  RowNorm HeadNorm(const NormWeights& norm, int64_t num_heads) const;  // of queries or keys
  AttentionShape<Real> ShapeOf(int64_t layer_idx, Path path) const;
  double GateOf(int64_t layer_idx, int64_t kv_head) const;

  const Model* model_;
  ThreadPool* pool_;
  LinearRunner<Real> linear_;
  std::unique_ptr<Activations> a_;
  std::unique_ptr<Saved> saved_;
};

}  // namespace headwise

#endif  // HEADWISE_GRAD_GRAD_DECODER_H_
