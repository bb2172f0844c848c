#include "backend/kv_format.h"

#include <fmt/format.h>

namespace headwise {
namespace {

struct FormatRow {
  KvFormat format;
  std::string_view name;
  int64_t element_bytes;
  int64_t scale_bytes;  // of one row: a key or a value
};

constexpr FormatRow kFormats[] = {
    {KvFormat::kF32, "f32", 4, 0},
    {KvFormat::kF16, "f16", 2, 0},
    {KvFormat::kBF16, "bf16", 2, 0},
    {KvFormat::kQ8, "q8", 1, 2},
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
  return Status::InvalidInput(fmt::format("kv_dtype: found \"{}\", expected {}", name, names));
}

int64_t TokenBytes(KvFormat format, int64_t head_dim) {
  return 2 * (head_dim * RowOf(format).element_bytes + RowOf(format).scale_bytes);
}

}  // namespace headwise
