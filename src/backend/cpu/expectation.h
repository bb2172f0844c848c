// Of heads that select by what queries to come are expected to look at: KvSelection::Scores::kExpected, as SelectKvArgs
// in backend/ops.h defines it [expected §3].
#ifndef HEADWISE_BACKEND_CPU_EXPECTATION_H_
#define HEADWISE_BACKEND_CPU_EXPECTATION_H_

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cpu/kernels/kernels.h"
#include "backend/kv_step.h"
#include "backend/ops.h"

namespace headwise::cpu {

// What one query head of a head's group leads one to expect by the queries of a step that are observed.
struct Expectation {
  HeadWork work;
  int64_t first_row, num_rows;  // of the step's rows of the sequence; at least one
  int64_t q_idx;                // in the group
  std::vector<float> shares;    // [slots, or more] of the attention; those that always stay have none
};

// Makes the shares. `tile`: as SelectScoreArgs has it.
void Expect(const SelectKvArgs& args, const KernelTable& kernels, float* tile, Expectation& expectation);

// Adds to the notes of a head what the query heads of its group lead one to expect.
void AddExpectations(std::span<const Expectation> group);

// Where tokens go: scores times the lengths of the tokens' values.
void WeighByValues(const HeadWork& work, const KernelTable& kernels);

}  // namespace headwise::cpu

#endif  // HEADWISE_BACKEND_CPU_EXPECTATION_H_
