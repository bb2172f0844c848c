// Attention of the cpu backend: one work list per layer over heads of all kinds, cut into pieces that do not depend on
// the number of threads, and spread over the pool by size.
#ifndef HEADWISE_BACKEND_CPU_ATTENTION_H_
#define HEADWISE_BACKEND_CPU_ATTENTION_H_

#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/row_sums.h"
#include "backend/ops.h"
#include "base/scratch_memory.h"
#include "base/thread_pool.h"

namespace headwise::cpu {

// Memory that attention keeps between calls.
class AttentionScratch {
 public:
  // `bytes` for each of `num_threads`.
  void ReservePerThread(int num_threads, size_t bytes) { per_thread_.Reserve(num_threads, bytes); }
  std::byte* OfThread(int thread_idx) { return per_thread_.OfThread(thread_idx); }
  // Shared by all threads.
  float* Shared(size_t floats) { return reinterpret_cast<float*>(shared_.Reserve(floats * sizeof(float))); }

 private:
  static constexpr const char* kPurpose = "the scores of attention";
  ThreadScratchMemory per_thread_{kPurpose};
  ScratchMemory shared_{kPurpose};
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
