// Which blocks the queries of a step read, of heads that keep every token and read some: AttentionArgs in
// backend/ops.h.
#ifndef HEADWISE_BACKEND_CPU_BLOCK_CHOICE_H_
#define HEADWISE_BACKEND_CPU_BLOCK_CHOICE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cpu/attention.h"

namespace headwise::cpu {

// Thread-safety: none but of Of.
class BlockChoice {
 public:
  // Settles it for all rows of a layer; first their queries are noted where blocks have representatives.
  BlockChoice(const AttentionArgs& args, const KernelTable& kernels, ThreadPool& pool, AttentionScratch& scratch);

  // Positions of the groups of 16 tokens that row `row_idx` of head number `idx` of the layer reads, ascending; none
  // where it reads whatever its mask says.
  std::span<const int64_t> Of(int64_t idx, int64_t row_idx) const {
    if (rows_.empty() || first_rows_[static_cast<size_t>(idx)] < 0) return {};
    return rows_[static_cast<size_t>(first_rows_[static_cast<size_t>(idx)] + row_idx)].groups;
  }

 private:
  struct Row {
    HeadWork work;
    int64_t row_idx = 0;
    std::vector<int64_t> groups = {};
  };

  void NoteQueries(const AttentionArgs& args, const KernelTable& kernels, ThreadPool& pool) const;
  void Choose(const AttentionArgs& args, const KernelTable& kernels, std::byte* scratch, Row& row) const;

  std::vector<int64_t> first_rows_;  // by head, into rows_; -1: it does not choose
  std::vector<Row> rows_;
};

}  // namespace headwise::cpu

#endif  // HEADWISE_BACKEND_CPU_BLOCK_CHOICE_H_
