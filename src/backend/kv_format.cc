#include "backend/kv_format.h"

#include <fmt/format.h>

namespace headwise {
namespace {

struct FormatRow {
  KvFormat format;
  std::string_view name;
  int64_t element_bits;
  int64_t scale_bytes;  // of one row: a key or a value
};

constexpr FormatRow kFormats[] = {
    {KvFormat::kF32, "f32", 32, 0}, {KvFormat::kF16, "f16", 16, 0}, {KvFormat::kBF16, "bf16", 16, 0},
    {KvFormat::kQ8, "q8", 8, 2},    {KvFormat::kQ4, "q4", 4, 0},  // scales: see TokensBytes
};

const FormatRow& RowOf(KvFormat format) {
  return kFormats[static_cast<size_t>(format)];
}

}  // namespace

std::string_view NameOf(KvFormat format) {
  return RowOf(format).name;
}

Result<KvFormat> KvFormatByName(std::string_view name) {
  std::string names;
  for (const FormatRow& row : kFormats) {
    if (row.name == name) return row.format;
    names += fmt::format("{}{}", names.empty() ? "" : &row == std::end(kFormats) - 1 ? " or " : ", ", row.name);
  }
  return Status::InvalidInput(
      fmt::format("kv_dtype: found \"{}\", expected {}, or two with a comma: full heads, bounded heads", name, names));
}

std::string NameOf(const KvFormats& formats) {
  const std::string full(NameOf(formats.full));
  return formats.full == formats.bounded ? full : fmt::format("{},{}", full, NameOf(formats.bounded));
}

Result<KvFormats> KvFormatsByName(std::string_view names) {
  const size_t comma = names.find(',');
  HW_ASSIGN_OR_RETURN(const KvFormat full, KvFormatByName(names.substr(0, comma)));
  if (comma == std::string_view::npos) return KvFormats{full, full};
  HW_ASSIGN_OR_RETURN(const KvFormat bounded, KvFormatByName(names.substr(comma + 1)));
  return KvFormats{full, bounded};
}

KvFormat NewestFormat(KvFormat format) {
  return format == KvFormat::kQ4 ? KvFormat::kQ8 : format;
}

Result<int64_t> PageTokensFor(int64_t asked, KvFormat full) {
  if (asked == 0) return NewestFormat(full) == full ? 32 : 64;
  if (asked >= 16 && asked <= 1024 && asked % 16 == 0) return asked;
  return Status::InvalidInput(fmt::format("page_tokens is {}, expected 0 or a multiple of 16 from 16 to 1024", asked));
}

int64_t TokensBytes(KvFormat format, int64_t head_dim, int64_t num_tokens) {
  const FormatRow& row = RowOf(format);
  const int64_t bytes = 2 * num_tokens * (head_dim * row.element_bits + 8 * row.scale_bytes) / 8;
  if (format != KvFormat::kQ4) return bytes;
  // A scale and a low: of every key dimension, and of 32 dimensions of every value.
  return bytes + 4 * head_dim + num_tokens * 4 * ((head_dim + 31) / 32);
}

}  // namespace headwise
