// Mixtures of experts on the cpu backend: rows are sorted by expert, and the products of all experts that have about as
// many rows are one region of the pool each, so that a chosen expert's weights come from memory once for all its rows.
#ifndef HEADWISE_BACKEND_CPU_EXPERTS_H_
#define HEADWISE_BACKEND_CPU_EXPERTS_H_

#include <cstdint>
#include <vector>

#include "backend/choose_experts.h"
#include "backend/cpu/expert_store.h"
#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/matmul.h"
#include "backend/cpu/row_sums.h"
#include "backend/ops.h"
#include "base/thread_pool.h"

namespace headwise::cpu {

// Memory that mixtures keep between calls. Grows to what a call needs.
struct ExpertsScratch {
  std::vector<ChosenExpert> chosen;  // [T, num_chosen]
  std::vector<int32_t> slots;        // [T * num_chosen]: places in `chosen`, those of an expert side by side
  std::vector<RowRange> slots_of;    // [X]: the expert's in `slots`
  std::vector<int32_t> used;         // experts that somebody chose, those of many rows first
  std::vector<int32_t> gathered;     // rows of x in the order of the products
  std::vector<RowRange> ranges;      // rows of the products, by part
  std::vector<MatMulPart> parts;
  std::vector<ExpertWeights> weights;  // of the products that are made together
  std::vector<float> gate, up;         // [rows of the products, F]
  std::vector<float> outputs;          // [T * num_chosen, E], in the order of `slots`
  std::vector<int32_t> output_of;      // [T * num_chosen]: the row of `outputs` that belongs to a place in `chosen`
};

// Experts that `store` has are fetched from it. Requires: Validate(args) passed.
void RunExperts(const ExpertsArgs& args, const KernelTable& kernels, ThreadPool& pool, MatMulScratch& matmul_scratch,
                ExpertsScratch& scratch, ExpertStore& store, RowSums sums);

}  // namespace headwise::cpu

#endif  // HEADWISE_BACKEND_CPU_EXPERTS_H_
