// Attention of the cpu backend: one work list per layer over heads of all kinds, cut into pieces that do not depend on
// the number of threads, and spread over the pool by size.
#ifndef HEADWISE_BACKEND_CPU_ATTENTION_H_
#define HEADWISE_BACKEND_CPU_ATTENTION_H_

#include <memory>
#include <vector>

#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/row_sums.h"
#include "backend/ops.h"
#include "base/thread_pool.h"

namespace headwise::cpu {

// Memory that attention keeps between calls. Grows to what a call needs.
class AttentionScratch {
 public:
  // `bytes` of 64-byte aligned memory for each of `num_threads`.
  void ReservePerThread(int num_threads, size_t bytes);
  std::byte* OfThread(int thread_idx) { return per_thread_[static_cast<size_t>(thread_idx)].get(); }
  // 64-byte aligned floats shared by all threads.
  float* Shared(size_t floats);

 private:
  struct AlignedDelete {
    void operator()(std::byte* memory) const;
  };
  using Block = std::unique_ptr<std::byte[], AlignedDelete>;
  static Block NewBlock(size_t bytes);

  std::vector<Block> per_thread_;
  size_t per_thread_bytes_ = 0;
  Block shared_;
  size_t shared_bytes_ = 0;
};

size_t PageBytes(const KvLayout& layout);
void AppendKv(const AppendKvArgs& args, const KernelTable& kernels, ThreadPool& pool);
void CopyPages(const CopyPagesArgs& args, ThreadPool& pool);
void AgeKv(const AgeKvArgs& args, const KernelTable& kernels, ThreadPool& pool);
void Attention(const AttentionArgs& args, const KernelTable& kernels, ThreadPool& pool, AttentionScratch& scratch,
               RowSums sums = RowSums::kFastest);
void Compensate(const CompensateArgs& args, const KernelTable& kernels, ThreadPool& pool);

// select.cc
void SelectKv(const SelectKvArgs& args, const KernelTable& kernels, ThreadPool& pool, AttentionScratch& scratch);

// Where a head's pages are, as kernels are told.
KvPages PagesOf(const HeadWork& work);

}  // namespace headwise::cpu

#endif  // HEADWISE_BACKEND_CPU_ATTENTION_H_
