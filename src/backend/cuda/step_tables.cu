#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <span>

#include "backend/cuda/launch.cuh"
#include "backend/cuda/step_tables.h"

namespace headwise::cuda {
namespace {

// A changed entry and its place, one behind the other in host memory.
template <typename T>
struct Change {
  uint32_t place;
  T value;
};

template <typename T>
__global__ void ApplyChanges(T* entries, const Change<T>* changes, int num_changes) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < num_changes) entries[changes[i].place] = changes[i].value;
}

}  // namespace

FastPages FastPagesOf(const KvStep& step) {
  FastPages pages;
  for (size_t i = 0; i < step.spaces.size(); ++i) {
    if (static_cast<int32_t>(i) == step.states) continue;
    const KvLayout& layout = step.spaces[i].layout;
    const bool has_kernels = layout.head_dim == 64 || layout.head_dim == 128 || layout.head_dim == 256;
    if (!has_kernels ||
        (pages.present() && (layout.head_dim != pages.head_dim || layout.page_tokens != pages.page_tokens))) {
      return {};
    }
    pages.head_dim = layout.head_dim;
    pages.page_tokens = layout.page_tokens;
    switch (layout.format) {
      case KvFormat::kF32:
        return {};
      case KvFormat::kF16:
      case KvFormat::kBF16:
        if (pages.has_halves && pages.halves != layout.format) return {};
        pages.halves = layout.format;
        pages.has_halves = true;
        break;
      case KvFormat::kQ4:
        pages.has_aged = true;
        [[fallthrough]];
      case KvFormat::kQ8:
        pages.has_codes = true;
        break;
    }
  }
  return pages;
}

StepTables::~StepTables() {
  for (Mirror* mirror : {&heads_, &pages_, &extents_, &spaces_}) device_.Free(mirror->data, 0);
  for (const PageKind kind : kPageKinds) {
    device_.Free(head_plans_[static_cast<size_t>(kind)].data, 0);
    device_.Free(runs_[static_cast<size_t>(kind)].data, 0);
  }
}

bool StepTables::MakeRoom(Mirror& mirror, size_t num_entries, size_t entry_bytes) {
  if (num_entries <= mirror.capacity) return true;
  device_.Free(mirror.data, 0);
  mirror = {};
  const size_t capacity = std::max<size_t>(1024, num_entries * 3 / 2);
  const Result<std::byte*> memory = device_.Allocate(capacity * entry_bytes);
  if (!memory.ok()) return device_.Note(cudaErrorMemoryAllocation, "take memory for tables");
  mirror.data = *memory;
  mirror.capacity = capacity;
  return true;
}

void StepTables::MakeDecodeTables(const KvStep& step, int num_blocks, PageKind kind) {
  const auto num_layers = static_cast<size_t>(step.num_layers);
  const auto num_heads = static_cast<size_t>(step.num_heads());
  Mirror& heads = head_plans_[static_cast<size_t>(kind)];
  Mirror& runs = runs_[static_cast<size_t>(kind)];
  const bool has_room = MakeRoom(heads, num_layers * num_heads, sizeof(HeadPlan)) &&
                        MakeRoom(runs, num_layers * (static_cast<size_t>(num_blocks) + 1), sizeof(RunStart));
  if (!has_room) return;
  decode_[static_cast<size_t>(kind)] = {.heads = reinterpret_cast<HeadPlan*>(heads.data),
                                        .runs = reinterpret_cast<RunStart*>(runs.data)};
}

// Positions alone bound the pieces of a sequence's heads; in powers of two, so that many steps are launched alike.
void StepTables::CountDecodeStates(const KvStep& step, int64_t page_tokens) {
  decode_states_ = {};
  for (const StepRows& rows : step.sequences) {
    const int64_t max_visits = CeilDiv(rows.first_pos + 1, page_tokens) + 1;
    const auto pieces = static_cast<uint64_t>(MaxPieces(max_visits, page_tokens));
    decode_states_.has_pieces = decode_states_.has_pieces || pieces > 1;
    decode_states_.count += step.num_kv_heads * static_cast<int64_t>(std::bit_ceil(pieces));
  }
}

template <typename T>
void StepTables::Follow(Mirror& mirror, std::span<const T> entries, std::span<const uint32_t> changed) {
  constexpr size_t kChangesAtOnce = (size_t{1} << 20) / sizeof(Change<T>);
  if (!device_.ok()) {
    mirror.size = 0;  // what was meant to be there is not known to be
    return;
  }
  if (!MakeRoom(mirror, entries.size(), sizeof(T))) return;
  if (mirror.size == 0 || changed.size() > entries.size() / 4) {
    device_.CopyFromHost(mirror.data, entries.data(), entries.size_bytes());
    mirror.size = device_.ok() ? entries.size() : 0;
    return;
  }
  mirror.size = 0;  // unless all changes are on their way
  std::vector<Change<T>> changes;
  for (size_t begin = 0; begin < changed.size(); begin += changes.size()) {
    changes.clear();
    for (size_t i = begin; i < std::min(changed.size(), begin + kChangesAtOnce); ++i) {
      changes.push_back({changed[i], entries[changed[i]]});
    }
    const auto* uploaded = device_.Upload(std::span<const Change<T>>(changes));
    if (uploaded == nullptr) return;
    const int count = static_cast<int>(changes.size());
    Launch(device_, "update tables", {.grid = dim3(Blocks(count, 128)), .threads = 128}, ApplyChanges<T>,
           reinterpret_cast<T*>(mirror.data), uploaded, count);
    if (!device_.ok()) return;
  }
  mirror.size = entries.size();
}

// Few, and they change where a pool takes or returns an extent: sent whole.
void StepTables::FollowSpaces(const KvStep& step) {
  // Compared where they are: there are thousands of a long text, and in nearly every step they are as they were.
  size_t num_extents = 0;
  bool are_known = extents_.size > 0;
  for (const PageSpace& space : step.spaces) {
    const size_t end = num_extents + space.extents.size();
    are_known = are_known && end <= known_extents_.size() &&
                std::equal(space.extents.begin(), space.extents.end(),
                           known_extents_.begin() + static_cast<std::ptrdiff_t>(num_extents));
    num_extents = end;
  }
  if (!are_known || num_extents != known_extents_.size()) {
    known_extents_.clear();
    for (const PageSpace& space : step.spaces) {
      known_extents_.insert(known_extents_.end(), space.extents.begin(), space.extents.end());
    }
    extents_.size = 0;
    Follow(extents_, std::span<std::byte* const>(known_extents_), {});
  }
  std::vector<SpaceView> spaces;
  auto* const* first = reinterpret_cast<std::byte* const*>(extents_.data);
  for (const PageSpace& space : step.spaces) {
    spaces.push_back({.format = space.layout.format,
                      .head_dim = static_cast<int32_t>(space.layout.head_dim),
                      .page_tokens = static_cast<int32_t>(space.layout.page_tokens),
                      .extent_shift = space.extent_shift,
                      .page_bytes = space.page_bytes,
                      .extents = first});
    first += space.extents.size();
  }
  const bool is_known =
      spaces.size() == known_spaces_.size() && spaces_.size > 0 &&
      std::equal(spaces.begin(), spaces.end(), known_spaces_.begin(), [](const SpaceView& a, const SpaceView& b) {
        return a.format == b.format && a.head_dim == b.head_dim && a.page_tokens == b.page_tokens &&
               a.extent_shift == b.extent_shift && a.page_bytes == b.page_bytes && a.extents == b.extents;
      });
  if (is_known) return;
  spaces_.size = 0;
  Follow(spaces_, std::span<const SpaceView>(spaces), {});
  known_spaces_ = spaces;
}

void StepTables::Begin(const KvStep& step) {
  blocks_.clear();
  for (DecodeTables& tables : decode_) tables = {};
  Follow(heads_, step.heads, step.changed_heads);
  Follow(pages_, step.pages, step.changed_pages);
  FollowSpaces(step);
  device_.AlignUploads();
  view_ = {.heads = reinterpret_cast<const StepHead*>(heads_.data),
           .pages = reinterpret_cast<const uint32_t*>(pages_.data),
           .sequences = device_.Upload(step.sequences),
           .spaces = reinterpret_cast<const SpaceView*>(spaces_.data),
           .states = step.states,
           .num_sequences = static_cast<int32_t>(step.sequences.size()),
           .num_kv_heads = static_cast<int32_t>(step.num_kv_heads)};
  decoding_.clear();
  std::ranges::copy_if(step.sequences, std::back_inserter(decoding_),
                       [](const StepRows& rows) { return rows.num_rows == 1; });
  decoding_view_ = view_;
  if (decoding_.size() == step.sequences.size() || decoding_.empty()) return;
  decoding_view_.sequences = device_.Upload(std::span<const StepRows>(decoding_));
  decoding_view_.num_sequences = static_cast<int32_t>(decoding_.size());
}

KvStep StepTables::Decoding(const KvStep& step) const {
  KvStep decoding = step;
  decoding.sequences = decoding_;
  return decoding;
}

LayerBlocks StepTables::AttentionBlocks(const KvStep& step, int64_t layer_idx, int64_t group, Kernels kernels) {
  if (blocks_.empty()) {
    const auto num_heads = static_cast<size_t>(step.num_heads());
    ends_.clear();
    for (int64_t layer = 0; layer < step.num_layers; ++layer) {
      LayerBlocks& blocks = blocks_.emplace_back();
      const size_t at = ends_.size();
      ends_.resize(at + 3 * num_heads);
      for (size_t i = 0; i < num_heads; ++i) {
        const HeadWork work = step.Head(layer, static_cast<int64_t>(i));
        if (kernels.has_prefill && work.num_rows > kMaxCutRows) {
          blocks.num_prefill_blocks += static_cast<int32_t>(CeilDiv(work.num_rows * group, kPrefillPairs));
        } else if (!kernels.has_decode || work.num_rows > 1) {
          const AttentionCut cut = CutOf(work.mask(), work.first_pos, work.num_rows, group);
          blocks.num_blocks += static_cast<int32_t>(cut.num_blocks());
          if (cut.num_pieces > 1) blocks.num_tiles += static_cast<int32_t>(cut.num_tiles);
        }
        ends_[at + i] = blocks.num_blocks;
        ends_[at + num_heads + i] = blocks.num_tiles;
        ends_[at + 2 * num_heads + i] = blocks.num_prefill_blocks;
      }
    }
    const int32_t* uploaded = device_.Upload(std::span<const int32_t>(ends_));
    for (LayerBlocks& blocks : blocks_) {
      if (uploaded == nullptr) break;
      blocks.ends = uploaded;
      blocks.tile_ends = uploaded + num_heads;
      blocks.prefill_ends = uploaded + 2 * num_heads;
      uploaded += 3 * num_heads;
    }
  }
  return blocks_[static_cast<size_t>(layer_idx)];
}

}  // namespace headwise::cuda
