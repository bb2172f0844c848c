#include "backend/ref/kv_page.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/ref/block_reads.h"
#include "backend/ref/ref_ops.h"

namespace headwise::ref {
namespace {

constexpr int64_t kGroupDims = 32;  // of a value in q4

// What a plain format's numbers are.
DType ElementType(KvFormat format) {
  return format == KvFormat::kF32 ? DType::kF32 : format == KvFormat::kBF16 ? DType::kBF16 : DType::kF16;
}

// Where there is no number to divide by, scale and low alone say what the elements are.
bool HasCodes(float scale) {
  return scale > 0 && std::isfinite(scale);
}

}  // namespace

void KvPage::Set(int64_t slot, const float* key, const float* value) {
  Store(slot, key);
  Store(layout_.page_tokens + slot, value);
}

void KvPage::Take(int64_t slot, const KvPage& from, int64_t from_slot) {
  const int64_t element_bytes =
      layout_.format == KvFormat::kQ8 ? 1 : static_cast<int64_t>(TokensBytes(layout_.format, 1, 1)) / 2;
  const int64_t row_bytes = layout_.head_dim * element_bytes;
  for (const int64_t half : {int64_t{0}, layout_.page_tokens}) {
    const int64_t to_row = half + slot;
    const int64_t from_row = half + from_slot;
    std::memcpy(data_ + to_row * row_bytes, from.data_ + from_row * row_bytes, static_cast<size_t>(row_bytes));
    if (layout_.format == KvFormat::kQ8) std::memcpy(Scales() + 2 * to_row, from.Scales() + 2 * from_row, 2);
  }
}

std::byte* KvPage::Scales() const {
  const int64_t num_codes = 2 * layout_.page_tokens * layout_.head_dim;
  return data_ + (layout_.format == KvFormat::kQ8 ? num_codes : num_codes / 2);
}

int64_t KvPage::GroupIndex(int64_t row, int64_t d) const {
  if (row < layout_.page_tokens) return d;
  const int64_t groups_per_value = (layout_.head_dim + kGroupDims - 1) / kGroupDims;
  return layout_.head_dim + (row - layout_.page_tokens) * groups_per_value + d / kGroupDims;
}

float KvPage::Load(int64_t row, int64_t d) const {
  const int64_t idx = row * layout_.head_dim + d;
  switch (layout_.format) {
    case KvFormat::kQ8:
      return LoadAsF32(DType::kF16, Scales(), row) * reinterpret_cast<const int8_t*>(data_)[idx];
    case KvFormat::kQ4: {
      const int64_t group = GroupIndex(row, d);
      const auto code = static_cast<float>(static_cast<int>(data_[idx / 2]) >> (idx % 2 * 4) & 15);
      return LoadAsF32(DType::kF16, Scales(), 2 * group) * code + LoadAsF32(DType::kF16, Scales(), 2 * group + 1);
    }
    default:
      return LoadAsF32(ElementType(layout_.format), data_, idx);
  }
}

void KvPage::Store(int64_t row, const float* x) {
  HW_CHECK(layout_.format != KvFormat::kQ4, "tokens are not written in q4");
  if (layout_.format == KvFormat::kQ8) return StoreQ8(row, x);
  for (int64_t d = 0; d < layout_.head_dim; ++d) {
    StoreF32As(ElementType(layout_.format), data_, row * layout_.head_dim + d, x[d]);
  }
}

void KvPage::StoreQ8(int64_t row, const float* x) {
  float largest = 0;
  for (int64_t d = 0; d < layout_.head_dim; ++d) {
    if (std::abs(x[d]) > largest || std::isnan(x[d])) largest = std::abs(x[d]);
  }
  StoreF32As(DType::kF16, Scales(), row, largest / 127.0f);
  const float scale = LoadAsF32(DType::kF16, Scales(), row);
  for (int64_t d = 0; d < layout_.head_dim; ++d) {
    const float code = HasCodes(scale) ? std::clamp(std::nearbyint(x[d] / scale), -127.0f, 127.0f) : 0.0f;
    reinterpret_cast<int8_t*>(data_)[row * layout_.head_dim + d] = static_cast<int8_t>(code);
  }
}

void KvPage::Age(const KvPage& from) {
  const int64_t num_tokens = layout_.page_tokens;
  for (int64_t d = 0; d < layout_.head_dim; ++d) AgeGroup(from, {.num_rows = num_tokens, .first_dim = d});
  for (int64_t row = num_tokens; row < 2 * num_tokens; ++row) {
    for (int64_t d = 0; d < layout_.head_dim; d += kGroupDims) {
      AgeGroup(from, {.first_row = row, .first_dim = d, .num_dims = std::min(kGroupDims, layout_.head_dim - d)});
    }
  }
}

void KvPage::AgeGroup(const KvPage& from, const Group& group) {
  const auto for_each = [&](const auto& body) {
    for (int64_t row = group.first_row; row < group.first_row + group.num_rows; ++row) {
      for (int64_t d = group.first_dim; d < group.first_dim + group.num_dims; ++d) body(row, d, from.Load(row, d));
    }
  };
  float low = std::numeric_limits<float>::infinity();
  float high = -low;
  bool has_nan = false;
  for_each([&](int64_t, int64_t, float x) {
    low = std::min(low, x);
    high = std::max(high, x);
    has_nan = has_nan || std::isnan(x);
  });
  if (has_nan) low = high = std::numeric_limits<float>::quiet_NaN();
  const int64_t idx = GroupIndex(group.first_row, group.first_dim);
  StoreF32As(DType::kF16, Scales(), 2 * idx, (high - low) / 15.0f);
  StoreF32As(DType::kF16, Scales(), 2 * idx + 1, low);
  // Codes are the nearest under scale and low as they will be read.
  const float scale = LoadAsF32(DType::kF16, Scales(), 2 * idx);
  const float stored_low = LoadAsF32(DType::kF16, Scales(), 2 * idx + 1);
  const bool has_codes = HasCodes(scale) && std::isfinite(stored_low);
  for_each([&](int64_t row, int64_t d, float x) {
    const float code = has_codes ? std::clamp(std::nearbyint((x - stored_low) / scale), 0.0f, 15.0f) : 0.0f;
    const int64_t code_idx = row * layout_.head_dim + d;
    const int shift = static_cast<int>(code_idx % 2) * 4;
    const auto others = data_[code_idx / 2] & static_cast<std::byte>(0xF0 >> shift);
    data_[code_idx / 2] = others | static_cast<std::byte>(static_cast<int>(code) << shift);
  });
}

size_t PageBytes(const KvLayout& layout) {
  return static_cast<size_t>((TokensBytes(layout.format, layout.head_dim, layout.page_tokens) + 63) / 64 * 64);
}

void AppendKv(const AppendKvArgs& args) {
  Validate(args);
  const int64_t row_floats = args.k.shape[1];
  for (int64_t idx = 0; idx < args.step->num_heads(); ++idx) {
    const HeadWork work = args.step->Head(args.layer_idx, idx);
    const int64_t dim = work.layout().head_dim;
    for (int64_t i = 0; i < work.num_rows; ++i) {
      const int64_t pos = work.first_pos + i;
      const int64_t offset = (work.first_row + i) * row_floats + work.kv_head * dim;
      KvPage page(work.Page(pos / work.page_tokens()), work.layout());
      page.Set(pos % work.page_tokens(), F32(args.k) + offset, F32(args.v) + offset);
    }
    if (work.HasBounds() && work.num_rows > 0) BoundKeys(work);
  }
}

void CopyPages(const CopyPagesArgs& args) {
  Validate(args);
  for (const PageMove& move : args.step->copies) {
    const PageSpace& space = args.step->spaces[static_cast<size_t>(move.from_space)];
    std::memcpy(space.Page(move.to), space.Page(move.from), static_cast<size_t>(space.page_bytes));
  }
}

void AgeKv(const AgeKvArgs& args) {
  Validate(args);
  for (const PageMove& move : args.step->AgesOf(args.layer_idx)) {
    const PageSpace& from = args.step->spaces[static_cast<size_t>(move.from_space)];
    const PageSpace& to = args.step->spaces[static_cast<size_t>(move.to_space)];
    KvPage(to.Page(move.to), to.layout).Age(KvPage(from.Page(move.from), from.layout));
  }
}

}  // namespace headwise::ref
