// Heads that keep every token and read blocks of them, literally as backend/ops.h says: what the keys of a block lie
// between, and which blocks a query reads.
#ifndef HEADWISE_BACKEND_REF_BLOCK_READS_H_
#define HEADWISE_BACKEND_REF_BLOCK_READS_H_

#include <cstdint>
#include <vector>

#include "backend/ops.h"

namespace headwise::ref {

// Of the blocks that this step wrote to. Requires: work.blocks, without representatives.
void BoundKeys(const HeadWork& work);

// Adds the step's queries to the sums of their blocks, and notes the representatives of blocks that leave the newest.
// Requires: work.blocks, with representatives.
void NoteQueries(const AttentionArgs& args, const HeadWork& work);

// By block, up to the newest, which ends with the query's own token; empty where the query reads whatever its mask
// says.
std::vector<bool> BlocksRead(const AttentionArgs& args, const HeadWork& work, int64_t row_idx);

}  // namespace headwise::ref

#endif  // HEADWISE_BACKEND_REF_BLOCK_READS_H_
