// A step's tables as they lie on the device: kept from step to step, and brought up to date by what a step says has
// changed. Kernels index them (kv_page.cuh).
#ifndef HEADWISE_BACKEND_CUDA_STEP_TABLES_H_
#define HEADWISE_BACKEND_CUDA_STEP_TABLES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "backend/cuda/attention_cut.h"
#include "backend/cuda/cuda_device.h"
#include "backend/cuda/decode_plan.h"
#include "backend/kv_step.h"

namespace headwise::cuda {

// A PageSpace with its extents on the device.
struct SpaceView {
  KvFormat format = KvFormat::kF32;
  int32_t head_dim = 0;
  int32_t page_tokens = 0;
  int32_t extent_shift = 0;
  int64_t page_bytes = 0;
  std::byte* const* extents = nullptr;
};

// All in the device's memory; passed to kernels by value.
struct StepView {
  const StepHead* heads = nullptr;
  const uint32_t* pages = nullptr;
  const StepRows* sequences = nullptr;  // [B]
  const SpaceView* spaces = nullptr;
  int32_t states = -1;
  int32_t num_sequences = 0;
  int32_t num_kv_heads = 0;

  friend bool operator==(const StepView&, const StepView&) = default;
};

// Which block of a launch works on which head: head i of layer l has the blocks from ends[i - 1] (or 0) to ends[i].
struct LayerBlocks {
  const int32_t* ends = nullptr;  // [B * Hkv], on the device
  int32_t num_blocks = 0;
  int32_t num_tiles = 0;               // of heads whose keys are cut: what is merged
  const int32_t* tile_ends = nullptr;  // [B * Hkv] of those
  // Of the kernel for prompts, which takes the heads of many rows where there is one for them.
  const int32_t* prefill_ends = nullptr;  // [B * Hkv]
  int32_t num_prefill_blocks = 0;
};

// What decoding has a kernel for: heads whose pages hold numbers of 16 bits, and those whose pages hold codes, q8 and
// q4.
enum class PageKind { kHalves, kCodes };
inline constexpr PageKind kPageKinds[] = {PageKind::kHalves, PageKind::kCodes};

// Of a decoding step and the heads of one kind (decode_plan.h), filled on the device as the step begins. Heads of the
// other kind are there, with no pieces.
struct DecodeTables {
  HeadPlan* heads = nullptr;  // [L, B * Hkv]; null: not made for this step
  RunStart* runs = nullptr;   // [L, blocks + 1]

  friend bool operator==(const DecodeTables&, const DecodeTables&) = default;
};

// The pages of a step, where there are kernels for all of them: of one number of tokens and one dimension that kernels
// are made for, 64, 128 or 256, with numbers of 16 bits, all f16 or all bf16, or codes.
struct FastPages {
  int64_t head_dim = 0;  // 0: there are others
  int64_t page_tokens = 0;
  KvFormat halves = KvFormat::kF16;  // of those of that kind
  bool has_halves = false;
  bool has_codes = false;
  bool has_aged = false;  // codes of q4 too

  bool present() const { return head_dim > 0; }
  bool Has(PageKind kind) const { return kind == PageKind::kHalves ? has_halves : has_codes; }

  friend bool operator==(const FastPages&, const FastPages&) = default;
};
FastPages FastPagesOf(const KvStep& step);

// What pieces of heads leave in one layer, at most.
struct DecodeStates {
  int64_t count = 0;
  bool has_pieces = false;  // some head may have several

  friend bool operator==(const DecodeStates&, const DecodeStates&) = default;
};

class StepTables {
 public:
  explicit StepTables(CudaDevice& device) : device_(device) {}
  ~StepTables();
  StepTables(const StepTables&) = delete;
  StepTables& operator=(const StepTables&) = delete;

  void Begin(const KvStep& step);
  const StepView& view() const { return view_; }
  // What Attention does for the step: which heads have a kernel elsewhere. The same for every layer of a step.
  struct Kernels {
    bool has_prefill = false;  // heads of many rows
    bool has_decode = false;   // heads of one row: not among the blocks at all
  };
  // Made at the first call.
  LayerBlocks AttentionBlocks(const KvStep& step, int64_t layer_idx, int64_t group, Kernels kernels);
  // The step of those of its sequences alone that have one row, on the host and on the device.
  KvStep Decoding(const KvStep& step) const;
  const StepView& decoding_view() const { return decoding_view_; }
  const DecodeTables& decode(PageKind kind) const { return decode_[static_cast<size_t>(kind)]; }
  // The same for every layer of a step.
  const DecodeStates& decode_states() const { return decode_states_; }
  void CountDecodeStates(const KvStep& step, int64_t page_tokens);
  // All that launches of a decoding step take from here.
  struct ForLaunches {
    StepView view, decoding_view;
    DecodeTables decode[std::size(kPageKinds)];
    DecodeStates decode_states;

    friend bool operator==(const ForLaunches&, const ForLaunches&) = default;
  };
  ForLaunches for_launches() const {
    ForLaunches all{.view = view_, .decoding_view = decoding_view_, .decode = {}, .decode_states = decode_states_};
    std::copy(std::begin(decode_), std::end(decode_), all.decode);
    return all;
  }
  // Room for them.
  void MakeDecodeTables(const KvStep& step, int num_blocks, PageKind kind);

 private:
  // An array on the device that follows one on the host.
  struct Mirror {
    std::byte* data = nullptr;
    size_t capacity = 0;  // entries
    size_t size = 0;      // entries known to be right
  };
  template <typename T>
  void Follow(Mirror& mirror, std::span<const T> entries, std::span<const uint32_t> changed);
  // At least so many entries of a size.
  bool MakeRoom(Mirror& mirror, size_t num_entries, size_t entry_bytes);
  void FollowSpaces(const KvStep& step);

  CudaDevice& device_;
  Mirror heads_;
  Mirror pages_;
  Mirror extents_;
  Mirror spaces_;
  // By kind of pages.
  Mirror head_plans_[std::size(kPageKinds)];
  Mirror runs_[std::size(kPageKinds)];
  DecodeTables decode_[std::size(kPageKinds)];
  DecodeStates decode_states_;
  std::vector<std::byte*> known_extents_;
  std::vector<SpaceView> known_spaces_;
  StepView view_;
  std::vector<StepRows> decoding_;
  StepView decoding_view_;
  std::vector<LayerBlocks> blocks_;  // [L]; empty: not made yet
  std::vector<int32_t> ends_;
};

}  // namespace headwise::cuda

#endif  // HEADWISE_BACKEND_CUDA_STEP_TABLES_H_
