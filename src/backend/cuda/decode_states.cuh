// What the two kernels of decode attention share: their arguments. Every piece of a head leaves a state, its outputs
// before the division with their maximum and sum; decode_merge.cu puts a head's states together.
#ifndef HEADWISE_BACKEND_CUDA_DECODE_STATES_CUH_
#define HEADWISE_BACKEND_CUDA_DECODE_STATES_CUH_

#include "backend/cuda/decode_plan.h"
#include "backend/cuda/kv_page.cuh"
#include "backend/cuda/rounded_columns.cuh"
#include "backend/cuda/softmax.cuh"
#include "backend/ops.h"

namespace headwise::cuda {

// Rows of a decoding step as products left them, one a sequence, and what their queries and keys are rotated by.
struct NewRows {
  const float* k;  // [B, Hkv D]
  const float* v;
  const float* angles;        // [A, D / 2] cosines with sines; null: there are no such rows
  const int32_t* angle_rows;  // [B], of `angles`
};

// Of both kernels.
struct DecodeParams {
  StepView step;
  const HeadPlan* heads;  // [B * Hkv], of the layer
  const RunStart* runs;   // [blocks + 1]
  int layer_idx;
  int group;        // G
  float scale;      // times log2 e
  float score_cap;  // times log2 e, or 0
  const float* q;
  const float* q_sink;  // null: q
  NewRows new_rows;     // where q is not rotated yet, and pages lack the newest tokens
  const float* alibi_slopes;
  const float* sink_logits;
  float* out;
  RoundedColumns rounded_out;  // the same for the product behind
  float* lse;                  // or null
  float* state_outputs;        // [states, G, D], not divided by the sum
  float2* state_softmax;       // [states, G] maximum in units of log2, sum
  // Of a block's shared memory (decode_ring.cuh).
  int num_stages;
  int num_buffers;
};

namespace decode {

// A layer's heads of one kind of pages, each by a kernel of its own: pages of numbers of 16 bits, and of codes.
void DecodeHalves(const DecodeParams& params, const FastPages& pages, Compute compute, CudaDevice& device);
void DecodeCodes(const DecodeParams& params, const FastPages& pages, CudaDevice& device);
// Whether a multiprocessor has the shared memory for them: some architectures have less than half of Hopper's.
bool HasRoomForHalves(const FastPages& pages, int64_t group, const CudaDevice& device);
bool HasRoomForCodes(const FastPages& pages, int64_t group, const CudaDevice& device);

}  // namespace decode

// Puts the states of heads of several pieces together.
void MergeStates(const DecodeParams& params, int num_heads, int dim, CudaDevice& device);

}  // namespace headwise::cuda

#endif  // HEADWISE_BACKEND_CUDA_DECODE_STATES_CUH_
