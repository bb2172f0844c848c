// What operations are timed on: activations, matrices and KV pages with random numbers, in so many copies that a call
// finds its weights and pages where a model's layer finds them, in memory.
#ifndef HEADWISE_BENCH_OP_DATA_H_
#define HEADWISE_BENCH_OP_DATA_H_

#include <headwise/status.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "bench/random_weights.h"
#include "kv/kv_bytes.h"
#include "kv/rule.h"
#include "model/model_weights.h"

namespace headwise {

// An error, in words, where so much memory would leave the device without any.
Status CheckMemory(const Device& device, int64_t bytes, const char* what);

// Begins a step whose tables are all new to the backend, and waits: what is put behind it, and steps of the same tables
// later, find them there.
Status TakeTables(Backend& backend, KvStep& step);

// f32 in a backend's memory, uniform with deviation 1.
class RandomTensor {
 public:
  static Result<RandomTensor> Make(Backend& backend, const Shape& shape, uint64_t seed);
  const TensorView& view() const { return view_; }

 private:
  DeviceBuffer memory_;
  TensorView view_;
};

// Launches of the same shape, each with its own matrices: what a call meets in one layer after the other.
struct MatrixCycle {
  std::shared_ptr<Backend> backend;  // that can read them
  std::vector<std::vector<LinearWeights>> launches;
  std::vector<std::unique_ptr<std::byte[]>> owned;

  int64_t bytes() const;
};
// Copies of the launch `shapes`, of which only weights' shapes are looked at, until they take `min_bytes`. They live in
// a backend of their own, because a backend keeps what it adopts.
Result<MatrixCycle> MakeRandomCycle(RandomWeights& random, std::unique_ptr<Backend> backend,
                                    const std::vector<LinearWeights>& shapes, int64_t min_bytes);

// Pages of every KV head of one layer, and of more layers until they take `min_bytes`: those that its rule holds while
// it reads the tokens [first_pos, first_pos + num_rows), and the token that falls out before.
class RandomPages {
 public:
  struct Wanted {
    KvLayout layout;                  // names the heads' format: pages that are aged by now are in it
    std::vector<ResolvedRule> rules;  // [Hkv]
    int64_t first_pos = 0;
    int64_t num_rows = 0;
  };
  static Result<RandomPages> Make(Backend& backend, const Wanted& wanted, int64_t min_bytes, uint64_t seed);

  int64_t num_layers() const { return static_cast<int64_t>(heads_.size()) / num_kv_heads(); }
  int64_t pages_of_head(int64_t kv_head) const { return places_[static_cast<size_t>(kv_head)].num_pages(); }
  int64_t bytes() const { return bytes_; }
  // Steps over them: `rows` is the one sequence, from first_pos on. Valid as long as pages and rows are where they are.
  KvStep Step(std::span<const StepRows> rows) const;
  StepRows Rows(int64_t num_rows) const { return {.num_rows = num_rows, .first_pos = wanted_.first_pos}; }

 private:
  // Where a KV head's pages are in the text.
  struct Places {
    PageRange aged;
    int64_t num_sink = 0;      // sink pages
    int64_t num_recent = 0;    // other pages
    int64_t recent_first = 0;  // page index of the first of these
    int64_t num_pages() const { return num_sink + num_recent; }
    bool IsAged(int64_t idx) const {  // its page number `idx`
      return aged.Contains(idx < num_sink ? idx : recent_first + idx - num_sink);
    }
  };

  RandomPages(const Backend& backend, const Wanted& wanted);
  int64_t num_kv_heads() const { return static_cast<int64_t>(wanted_.rules.size()); }
  Places PlacesOf(const ResolvedRule& rule) const;
  int64_t LayerBytes() const;
  void Place(int64_t num_layers);
  Status Fill(Backend& backend, uint64_t seed);

  Wanted wanted_;
  KvLayout newest_;
  PageSizes page_sizes_;
  std::vector<Places> places_;  // [Hkv]
  int64_t bytes_ = 0;
  DeviceBuffer memory_;
  std::vector<StepHead> heads_;        // [layers * Hkv]
  std::vector<std::byte*> addresses_;  // of all pages, one head's after the other: each is an extent of its own
  std::vector<uint32_t> numbers_;      // places in addresses_: the page table
  std::vector<PageSpace> spaces_;      // newest, and aged where the format ages
};

}  // namespace headwise

#endif  // HEADWISE_BENCH_OP_DATA_H_
