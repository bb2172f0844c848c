#include "weights/published_matrix.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "tensor/block_reader.h"
#include "tensor/dtype.h"

namespace headwise {
namespace {

using Method = PublishedFormat::Method;
using Sizes = std::vector<int64_t>;

constexpr int64_t kBlock = 32;       // elements of q4_0, u4 and mxfp4
constexpr int64_t kCodesOfWord = 8;  // 4 bits each
constexpr uint8_t kMiddleCode = 8;   // the zero point of q4_0
constexpr uint8_t kMostZero = 15;    // stored as such where zero points are kept less one: 0

Status Wrong(const WeightSource& folder, const std::string& name, const RawTensor& found, std::string_view expected) {
  return Status::InvalidInput(fmt::format("{}: tensor \"{}\" is {} [{}], expected {}", folder.origin(), name,
                                          found.dtype, fmt::join(found.shape, ", "), expected));
}

Result<RawTensor> Find(const WeightSource& folder, const std::string& name) {
  const std::optional<RawTensor> found = folder.FindRaw(name);
  if (found) return *found;
  return Status::NotFound(fmt::format("{}: tensor \"{}\" is missing", folder.origin(), name));
}

Result<RawTensor> FindMatrix(const WeightSource& folder, const std::string& name, std::string_view dtype) {
  HW_ASSIGN_OR_RETURN(RawTensor found, Find(folder, name));
  const bool fits = found.dtype == dtype && found.shape.size() == 2 && found.shape[0] > 0 && found.shape[1] > 0;
  if (fits) return found;
  return Wrong(folder, name, found, fmt::format("a matrix of {}", dtype));
}

uint32_t WordAt(const RawTensor& tensor, int64_t idx) {
  uint32_t word;
  std::memcpy(&word, tensor.data + 4 * idx, sizeof(word));
  return word;
}

// Scales as f32, whatever plain format they have; finite.
Result<std::vector<float>> Scales(const WeightSource& folder, const std::string& name, const RawTensor& tensor) {
  DType dtype = DType::kF32;
  if (tensor.dtype == "F16") {
    dtype = DType::kF16;
  } else if (tensor.dtype == "BF16") {
    dtype = DType::kBF16;
  } else if (tensor.dtype != "F32") {
    return Wrong(folder, name, tensor, "F32, F16 or BF16");
  }
  const auto size = static_cast<size_t>(SizeOf(dtype));
  std::vector<float> scales(tensor.num_bytes / size);
  for (size_t i = 0; i < scales.size(); ++i) {
    alignas(float) std::array<std::byte, 4> element{};  // tensors of a file may lie at any address
    std::memcpy(element.data(), tensor.data + i * size, size);
    scales[i] = LoadAsF32(dtype, element.data(), 0);
    if (!std::isfinite(scales[i])) {
      return Status::InvalidInput(fmt::format("{}: tensor \"{}\" holds {} at place {}, expected finite numbers",
                                              folder.origin(), name, scales[i], i));
    }
  }
  return scales;
}

PublishedMatrix NewMatrix(DType dtype, const Shape& shape) {
  const auto bytes = static_cast<size_t>(BytesOf(dtype, shape.num_elements()));
  return {.bytes = std::make_unique_for_overwrite<std::byte[]>(bytes), .dtype = dtype, .shape = shape};
}

// ---- 8-bit floats ---------------------------------------------------------------------------------------------------

// The scales of a matrix [rows, columns]: of element (n, k) that at [n / block_rows * stride + k / block_columns].
struct FloatScales {
  std::vector<float> values;
  int64_t block_rows = 1;
  int64_t block_columns = 1;
  int64_t stride = 1;
};

Result<FloatScales> ReadFloatScales(const WeightSource& folder, const PublishedFormat& format, const std::string& stem,
                                    int64_t rows, int64_t columns) {
  FloatScales scales;
  const std::string of_blocks = stem + ".weight_scale_inv";
  const bool has_blocks = folder.Has(of_blocks) || format.block_rows > 0;
  const std::string name = folder.Has(of_blocks) ? of_blocks : stem + ".weight_scale";
  HW_ASSIGN_OR_RETURN(const RawTensor tensor, Find(folder, name));
  HW_ASSIGN_OR_RETURN(scales.values, Scales(folder, name, tensor));
  if (!has_blocks) {
    scales.block_columns = columns;
    if (scales.values.size() == 1) {
      scales.block_rows = rows;
      return scales;
    }
    const bool is_of_rows = tensor.shape == Sizes{rows} || tensor.shape == Sizes{rows, 1};
    if (is_of_rows) return scales;
    return Wrong(folder, name, tensor, fmt::format("one scale or [{}, 1]", rows));
  }
  if (format.block_rows == 0) {
    return Status::InvalidInput(
        fmt::format("{}: tensor \"{}\" has scales of blocks, but \"quantization_config\" has no \"weight_block_size\"",
                    folder.origin(), name));
  }
  scales.block_rows = format.block_rows;
  scales.block_columns = format.block_columns;
  scales.stride = (columns + format.block_columns - 1) / format.block_columns;
  const Sizes expected = {(rows + format.block_rows - 1) / format.block_rows, scales.stride};
  if (tensor.shape == expected) return scales;
  return Wrong(folder, name, tensor,
               fmt::format("[{}, {}], one for each {} x {} of \"{}.weight\" [{}, {}]", expected[0], expected[1],
                           format.block_rows, format.block_columns, stem, rows, columns));
}

Result<PublishedMatrix> MakeFp8(const WeightSource& folder, const PublishedFormat& format, const std::string& stem) {
  const std::string name = stem + ".weight";
  HW_ASSIGN_OR_RETURN(const RawTensor weight, FindMatrix(folder, name, "F8_E4M3"));
  const int64_t rows = weight.shape[0], columns = weight.shape[1];
  const int64_t block = BlockElements(DType::kF8E4M3);
  if (columns % block != 0) return Wrong(folder, name, weight, fmt::format("rows of a multiple of {}", block));
  HW_ASSIGN_OR_RETURN(const FloatScales scales, ReadFloatScales(folder, format, stem, rows, columns));
  PublishedMatrix matrix = NewMatrix(DType::kF8E4M3, {rows, columns});
  std::byte* to = matrix.bytes.get();
  const std::byte* from = weight.data;
  for (int64_t row = 0; row < rows; ++row) {
    const float* of_row = scales.values.data() + row / scales.block_rows * scales.stride;
    for (int64_t k = 0; k < columns; k += block, from += block) {
      std::memcpy(to, of_row + k / scales.block_columns, sizeof(float));
      to = std::copy_n(from, block, to + sizeof(float));
    }
  }
  const auto is_nan = [](std::byte code) { return (static_cast<uint8_t>(code) & 0x7F) == 0x7F; };
  if (std::none_of(weight.data, from, is_nan)) return matrix;
  return Status::InvalidInput(
      fmt::format("{}: tensor \"{}\" holds a NaN, expected finite numbers", folder.origin(), name));
}

// ---- 4-bit integers -------------------------------------------------------------------------------------------------

// A matrix of 4-bit codes, whoever packed it: element (n, k) stands for scale * (code - zero), which are those of the
// group of column k.
struct GroupedCodes {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<uint8_t> codes;   // [rows, columns / 2]: two to a byte, the first in the low half
  std::vector<float> scales;    // [rows, groups]
  std::vector<uint8_t> zeros;   // likewise
  std::vector<int32_t> groups;  // [columns / 32]: of the column runs; of all columns where these are apart
  int64_t num_groups = 0;
  bool is_apart = false;
};

void PutCode(GroupedCodes& grouped, int64_t row, int64_t column, uint32_t code) {
  uint8_t& byte = grouped.codes[static_cast<size_t>((row * grouped.columns + column) / 2)];
  byte = static_cast<uint8_t>(byte | (code << (4 * (column % 2))));
}
uint8_t CodeAt(const GroupedCodes& grouped, int64_t row, int64_t column) {
  return (grouped.codes[static_cast<size_t>((row * grouped.columns + column) / 2)] >> (4 * (column % 2))) & 15;
}

void SetSize(GroupedCodes& grouped, int64_t rows, int64_t columns, int64_t num_groups) {
  grouped.rows = rows;
  grouped.columns = columns;
  grouped.num_groups = num_groups;
  grouped.codes.assign(static_cast<size_t>(rows * columns / 2), 0);
  grouped.zeros.assign(static_cast<size_t>(rows * num_groups), kMiddleCode);
  grouped.groups.resize(static_cast<size_t>(columns / kBlock));
  for (size_t run = 0; run < grouped.groups.size(); ++run) {
    grouped.groups[run] = static_cast<int32_t>(static_cast<int64_t>(run) * kBlock / (columns / num_groups));
  }
}

// Whether so many groups divide the columns into runs of whole blocks, of the size that the config has.
Status CheckGroups(const WeightSource& folder, const PublishedFormat& format, const std::string& name,
                   const RawTensor& scales, int64_t columns, int64_t num_groups) {
  const bool divides = num_groups > 0 && columns % num_groups == 0 && columns / num_groups % kBlock == 0;
  const bool is_size = divides && (format.group_size == 0 ? num_groups == 1 || format.method == Method::kPacked
                                                          : columns / num_groups == format.group_size);
  if (is_size) return Status::Ok();
  return Wrong(folder, name, scales,
               format.group_size == 0
                   ? fmt::format("groups that divide rows of {} into multiples of {}", columns, kBlock)
                   : fmt::format("one for each {} of rows of {} (\"group_size\")", format.group_size, columns));
}

// Words [rows, columns / 8] of what lies [groups or columns, rows] otherwise: scales and zero points turned round.
Status ReadTurnedScales(const WeightSource& folder, const PublishedFormat& format, const std::string& stem,
                        GroupedCodes& grouped, int64_t rows, int64_t columns) {
  const std::string name = stem + ".scales";
  HW_ASSIGN_OR_RETURN(const RawTensor tensor, Find(folder, name));
  if (tensor.shape.size() != 2 || tensor.shape[1] != rows) {
    return Wrong(folder, name, tensor, fmt::format("[groups, {}]", rows));
  }
  const int64_t num_groups = tensor.shape[0];
  HW_RETURN_IF_ERROR(CheckGroups(folder, format, name, tensor, columns, num_groups));
  HW_ASSIGN_OR_RETURN(const std::vector<float> scales, Scales(folder, name, tensor));
  SetSize(grouped, rows, columns, num_groups);
  grouped.scales.resize(scales.size());
  for (int64_t group = 0; group < num_groups; ++group) {
    for (int64_t row = 0; row < rows; ++row) {
      grouped.scales[static_cast<size_t>(row * num_groups + group)] = scales[static_cast<size_t>(group * rows + row)];
    }
  }
  return Status::Ok();
}

Result<RawTensor> FindZeros(const WeightSource& folder, const std::string& stem, const GroupedCodes& grouped) {
  const std::string name = stem + ".qzeros";
  HW_ASSIGN_OR_RETURN(const RawTensor zeros, FindMatrix(folder, name, "I32"));
  if (zeros.shape == Sizes{grouped.num_groups, grouped.rows / kCodesOfWord}) return zeros;
  return Wrong(folder, name, zeros, fmt::format("[{}, {}]", grouped.num_groups, grouped.rows / kCodesOfWord));
}

// AWQ: a word has eight neighbouring rows of one column, in this order.
constexpr int64_t kAwqOrder[kCodesOfWord] = {0, 2, 4, 6, 1, 3, 5, 7};

Result<GroupedCodes> ReadAwq(const WeightSource& folder, const PublishedFormat& format, const std::string& stem) {
  HW_ASSIGN_OR_RETURN(const RawTensor words, FindMatrix(folder, stem + ".qweight", "I32"));
  const int64_t columns = words.shape[0], num_words = words.shape[1];
  GroupedCodes grouped;
  HW_RETURN_IF_ERROR(ReadTurnedScales(folder, format, stem, grouped, num_words * kCodesOfWord, columns));
  HW_ASSIGN_OR_RETURN(const RawTensor zeros, FindZeros(folder, stem, grouped));
  for (int64_t word = 0; word < num_words; ++word) {
    for (int64_t column = 0; column < columns; ++column) {
      const uint32_t bits = WordAt(words, column * num_words + word);
      for (int64_t i = 0; i < kCodesOfWord; ++i) {
        PutCode(grouped, word * kCodesOfWord + kAwqOrder[i], column, (bits >> (4 * i)) & 15);
      }
    }
    for (int64_t group = 0; group < grouped.num_groups; ++group) {
      const uint32_t bits = WordAt(zeros, group * num_words + word);
      for (int64_t i = 0; i < kCodesOfWord; ++i) {
        const int64_t row = word * kCodesOfWord + kAwqOrder[i];
        grouped.zeros[static_cast<size_t>(row * grouped.num_groups + group)] = (bits >> (4 * i)) & 15;
      }
    }
  }
  return grouped;
}

// The group of every column, where these are not those of neighbours.
Status ReadActOrder(const WeightSource& folder, const std::string& stem, GroupedCodes& grouped) {
  const std::string name = stem + ".g_idx";
  if (!folder.Has(name)) return Status::Ok();
  HW_ASSIGN_OR_RETURN(const RawTensor tensor, Find(folder, name));
  if (tensor.dtype != "I32" || tensor.shape != Sizes{grouped.columns}) {
    return Wrong(folder, name, tensor, fmt::format("I32 [{}]", grouped.columns));
  }
  std::vector<int32_t> groups(static_cast<size_t>(grouped.columns));
  const int64_t group_size = grouped.columns / grouped.num_groups;
  for (int64_t column = 0; column < grouped.columns; ++column) {
    const auto group = static_cast<int32_t>(WordAt(tensor, column));
    if (group < 0 || group >= grouped.num_groups) {
      return Status::InvalidInput(fmt::format("{}: tensor \"{}\" has {} at place {}, expected groups below {}",
                                              folder.origin(), name, group, column, grouped.num_groups));
    }
    groups[static_cast<size_t>(column)] = group;
    grouped.is_apart = grouped.is_apart || group != column / group_size;
  }
  if (grouped.is_apart) grouped.groups = std::move(groups);
  return Status::Ok();
}

// GPTQ: a word has eight neighbouring columns of one row of the matrix.
Result<GroupedCodes> ReadGptq(const WeightSource& folder, const PublishedFormat& format, const std::string& stem) {
  HW_ASSIGN_OR_RETURN(const RawTensor words, FindMatrix(folder, stem + ".qweight", "I32"));
  const int64_t columns = words.shape[0] * kCodesOfWord, rows = words.shape[1];
  if (rows % kCodesOfWord != 0) {
    return Wrong(folder, stem + ".qweight", words, fmt::format("a multiple of {} columns", kCodesOfWord));
  }
  GroupedCodes grouped;
  HW_RETURN_IF_ERROR(ReadTurnedScales(folder, format, stem, grouped, rows, columns));
  HW_ASSIGN_OR_RETURN(const RawTensor zeros, FindZeros(folder, stem, grouped));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t word = 0; word < words.shape[0]; ++word) {
      const uint32_t bits = WordAt(words, word * rows + row);
      for (int64_t i = 0; i < kCodesOfWord; ++i) {
        PutCode(grouped, row, word * kCodesOfWord + i, (bits >> (4 * i)) & 15);
      }
    }
    for (int64_t group = 0; group < grouped.num_groups; ++group) {
      const uint32_t bits = WordAt(zeros, group * (rows / kCodesOfWord) + row / kCodesOfWord);
      const uint32_t stored = (bits >> (4 * (row % kCodesOfWord))) & 15;
      const uint32_t zero = !format.zeros_less_one ? stored : stored == kMostZero ? 0 : stored + 1;
      grouped.zeros[static_cast<size_t>(row * grouped.num_groups + group)] = static_cast<uint8_t>(zero);
    }
  }
  HW_RETURN_IF_ERROR(ReadActOrder(folder, stem, grouped));
  return grouped;
}

// compressed-tensors: rows as they are, codes less 8 where they are signed; zero points packed along rows.
Result<GroupedCodes> ReadPacked(const WeightSource& folder, const PublishedFormat& format, const std::string& stem) {
  HW_ASSIGN_OR_RETURN(const RawTensor words, FindMatrix(folder, stem + ".weight_packed", "I32"));
  const int64_t rows = words.shape[0], columns = words.shape[1] * kCodesOfWord;
  const std::string scale_name = stem + ".weight_scale";
  HW_ASSIGN_OR_RETURN(const RawTensor scales, Find(folder, scale_name));
  if (scales.shape.size() != 2 || scales.shape[0] != rows) {
    return Wrong(folder, scale_name, scales, fmt::format("[{}, groups]", rows));
  }
  const int64_t num_groups = scales.shape[1];
  HW_RETURN_IF_ERROR(CheckGroups(folder, format, scale_name, scales, columns, num_groups));
  if (folder.Has(stem + ".weight_g_idx")) {
    return Status::Unsupported(
        fmt::format("{}: tensor \"{}.weight_g_idx\": groups of columns that are apart are read "
                    "of GPTQ folders alone",
                    folder.origin(), stem));
  }
  GroupedCodes grouped;
  SetSize(grouped, rows, columns, num_groups);
  HW_ASSIGN_OR_RETURN(grouped.scales, Scales(folder, scale_name, scales));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t word = 0; word < words.shape[1]; ++word) {
      const uint32_t bits = WordAt(words, row * words.shape[1] + word);
      for (int64_t i = 0; i < kCodesOfWord; ++i) PutCode(grouped, row, word * kCodesOfWord + i, (bits >> (4 * i)) & 15);
    }
  }
  const std::string zero_name = stem + ".weight_zero_point";
  if (!folder.Has(zero_name)) return grouped;
  HW_ASSIGN_OR_RETURN(const RawTensor zeros, FindMatrix(folder, zero_name, "I32"));
  if (zeros.shape != Sizes{(rows + kCodesOfWord - 1) / kCodesOfWord, num_groups}) {
    return Wrong(folder, zero_name, zeros,
                 fmt::format("[{}, {}]", (rows + kCodesOfWord - 1) / kCodesOfWord, num_groups));
  }
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t group = 0; group < num_groups; ++group) {
      const uint32_t bits = WordAt(zeros, row / kCodesOfWord * num_groups + group);
      grouped.zeros[static_cast<size_t>(row * num_groups + group)] = (bits >> (4 * (row % kCodesOfWord))) & 15;
    }
  }
  return grouped;
}

bool FitsHalf(float value) {
  return F16ToF32(F32ToF16(value)) == value;
}

// As plain numbers, where no block format has them.
PublishedMatrix MakePlain(const GroupedCodes& grouped, DType dtype) {
  PublishedMatrix matrix = NewMatrix(dtype, {grouped.rows, grouped.columns});
  for (int64_t row = 0; row < grouped.rows; ++row) {
    for (int64_t column = 0; column < grouped.columns; ++column) {
      const int32_t group = grouped.groups[static_cast<size_t>(grouped.is_apart ? column : column / kBlock)];
      const auto at = static_cast<size_t>(row * grouped.num_groups + group);
      const auto steps = static_cast<float>(CodeAt(grouped, row, column) - grouped.zeros[at]);
      StoreF32As(dtype, matrix.bytes.get(), row * grouped.columns + column, grouped.scales[at] * steps);
    }
  }
  return matrix;
}

PublishedMatrix MakeBlocks(const GroupedCodes& grouped) {
  if (!std::ranges::all_of(grouped.scales, FitsHalf)) return MakePlain(grouped, DType::kF32);
  if (grouped.is_apart) return MakePlain(grouped, DType::kF16);
  const bool is_symmetric = std::ranges::all_of(grouped.zeros, [](uint8_t zero) { return zero == kMiddleCode; });
  PublishedMatrix matrix = NewMatrix(is_symmetric ? DType::kQ4_0 : DType::kU4, {grouped.rows, grouped.columns});
  auto* to = reinterpret_cast<uint8_t*>(matrix.bytes.get());
  for (int64_t row = 0; row < grouped.rows; ++row) {
    for (int64_t run = 0; run < grouped.columns / kBlock; ++run) {
      const auto at = static_cast<size_t>(row * grouped.num_groups + grouped.groups[static_cast<size_t>(run)]);
      const uint16_t scale = F32ToF16(grouped.scales[at]);
      std::memcpy(to, &scale, sizeof(scale));
      to += sizeof(scale);
      if (!is_symmetric) *to++ = grouped.zeros[at];
      for (int64_t i = 0; i < kBlock / 2; ++i) {
        const int64_t column = run * kBlock + i;
        *to++ = static_cast<uint8_t>(CodeAt(grouped, row, column) | (CodeAt(grouped, row, column + kBlock / 2) << 4));
      }
    }
  }
  return matrix;
}

// ---- MXFP4 ----------------------------------------------------------------------------------------------------------

// Blocks of 32 along rows, of which neighbours share a byte; GGUF's have elements i and 16 + i in one.
Result<PublishedMatrix> MakeMxfp4(const WeightSource& folder, const std::string& stem) {
  const std::string block_name = stem + "_blocks", scale_name = stem + "_scales";
  HW_ASSIGN_OR_RETURN(const RawTensor blocks, Find(folder, block_name));
  HW_ASSIGN_OR_RETURN(const RawTensor scales, Find(folder, scale_name));
  const size_t rank = blocks.shape.size();
  if (blocks.dtype != "U8" || rank < 3 || rank > 4 || blocks.shape.back() != kBlock / 2) {
    return Wrong(folder, block_name, blocks,
                 fmt::format("U8 [..., rows, blocks, {}]: {} elements, two to a byte", kBlock / 2, kBlock));
  }
  const Sizes of_scales(blocks.shape.begin(), blocks.shape.end() - 1);
  if (scales.dtype != "U8" || scales.shape != of_scales) {
    return Wrong(folder, scale_name, scales, fmt::format("U8 [{}]", fmt::join(of_scales, ", ")));
  }
  Sizes sizes(of_scales);
  sizes.back() *= kBlock;
  PublishedMatrix matrix = NewMatrix(DType::kMXFP4, Shape(std::span<const int64_t>(sizes)));
  auto* to = reinterpret_cast<uint8_t*>(matrix.bytes.get());
  const auto* from = reinterpret_cast<const uint8_t*>(blocks.data);
  for (size_t block = 0; block < scales.num_bytes; ++block, from += kBlock / 2) {
    const auto code = [&](int64_t i) { return (from[i / 2] >> (4 * (i % 2))) & 15; };
    *to++ = static_cast<uint8_t>(scales.data[block]);
    if (static_cast<uint8_t>(scales.data[block]) == 0xFF) {
      return Status::InvalidInput(fmt::format("{}: tensor \"{}\" holds a NaN (255) at place {}, expected finite scales",
                                              folder.origin(), scale_name, block));
    }
    for (int64_t i = 0; i < kBlock / 2; ++i) *to++ = static_cast<uint8_t>(code(i) | (code(i + kBlock / 2) << 4));
  }
  return matrix;
}

// ---- NF4 ------------------------------------------------------------------------------------------------------------

// What a tensor of text says of a matrix [rows, columns]: codes that share a scale are `block` neighbours of its rows
// one behind the other; scales that are codes themselves share one of their own by `scale_block`.
struct Nf4State {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t block = 0;
  int64_t scale_block = 0;  // 0: scales are numbers
  float scale_offset = 0;   // what all of them have beside their codes
};

constexpr int64_t kMostOfSide = int64_t{1} << 30;  // so that products do not overflow

Result<Nf4State> ReadNf4State(const WeightSource& folder, const std::string& stem, bool has_nested) {
  const std::string name = stem + ".weight.quant_state.bitsandbytes__nf4";
  HW_ASSIGN_OR_RETURN(const RawTensor tensor, Find(folder, name));
  if (tensor.dtype != "U8" || tensor.shape.size() != 1) return Wrong(folder, name, tensor, "U8 [bytes] of JSON");
  const std::string origin = fmt::format("{}: tensor \"{}\"", folder.origin(), name);
  const std::string_view text(reinterpret_cast<const char*>(tensor.data), tensor.num_bytes);
  HW_ASSIGN_OR_RETURN(const Json json, ParseJsonUniqueKeys(text, origin));
  HW_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(json, origin));
  const auto wrong = [&](const char* key, const std::string& expected) {
    return Status::InvalidInput(fmt::format("{}: \"{}\" is {}, expected {}", origin, key,
                                            object.At(key).dump(-1, ' ', false, Json::error_handler_t::replace),
                                            expected));
  };
  Nf4State state;
  HW_ASSIGN_OR_RETURN(const std::string type, object.String("quant_type"));
  if (type != "nf4") return wrong("quant_type", "\"nf4\"");
  const int64_t unit = BlockElements(DType::kNF4);
  HW_ASSIGN_OR_RETURN(state.block, object.Int("blocksize"));
  if (state.block < unit || state.block % unit != 0) return wrong("blocksize", fmt::format("a multiple of {}", unit));
  HW_ASSIGN_OR_RETURN(const std::vector<double> shape, object.Doubles("shape"));
  const auto is_size = [](double size) { return size >= 1 && size <= kMostOfSide && size == std::floor(size); };
  if (shape.size() != 2 || !std::ranges::all_of(shape, is_size) || static_cast<int64_t>(shape[1]) % unit != 0) {
    return wrong("shape", fmt::format("[rows, a multiple of {}]", unit));
  }
  state.rows = static_cast<int64_t>(shape[0]);
  state.columns = static_cast<int64_t>(shape[1]);
  if (!has_nested) return state;
  HW_ASSIGN_OR_RETURN(state.scale_block, object.Int("nested_blocksize"));
  if (state.scale_block < 1) return wrong("nested_blocksize", "at least 1");
  HW_ASSIGN_OR_RETURN(const double offset, object.Double("nested_offset"));
  state.scale_offset = static_cast<float>(offset);
  if (!std::isfinite(state.scale_offset)) return wrong("nested_offset", "a number that f32 holds");
  return state;
}

Result<std::vector<float>> FloatsOf(const WeightSource& folder, const std::string& name, int64_t count) {
  HW_ASSIGN_OR_RETURN(const RawTensor tensor, Find(folder, name));
  if (tensor.dtype != "F32" || tensor.shape != Sizes{count}) {
    return Wrong(folder, name, tensor, fmt::format("F32 [{}]", count));
  }
  return Scales(folder, name, tensor);
}

int64_t CeilOf(int64_t size, int64_t block) {
  return size / block + (size % block != 0 ? 1 : 0);
}

// Scales are numbers, or places in a table times a scale of their own and more by an offset.
Result<std::vector<float>> ReadNf4Scales(const WeightSource& folder, const std::string& stem, const Nf4State& state) {
  const std::string name = stem + ".weight.absmax";
  const int64_t num_scales = CeilOf(state.rows * state.columns, state.block);
  if (state.scale_block == 0) return FloatsOf(folder, name, num_scales);
  HW_ASSIGN_OR_RETURN(const RawTensor codes, Find(folder, name));
  if (codes.dtype != "U8" || codes.shape != Sizes{num_scales}) {
    return Wrong(folder, name, codes, fmt::format("U8 [{}], of which \"nested_absmax\" has the scales", num_scales));
  }
  constexpr int64_t kCodes = 256;
  HW_ASSIGN_OR_RETURN(const std::vector<float> table, FloatsOf(folder, stem + ".weight.nested_quant_map", kCodes));
  HW_ASSIGN_OR_RETURN(const std::vector<float> outer,
                      FloatsOf(folder, stem + ".weight.nested_absmax", CeilOf(num_scales, state.scale_block)));
  std::vector<float> scales(static_cast<size_t>(num_scales));
  for (int64_t i = 0; i < num_scales; ++i) {
    const float of_code = table[static_cast<size_t>(codes.data[i])];
    const float product = of_code * outer[static_cast<size_t>(i / state.scale_block)];
    const float scale = product + state.scale_offset;
    if (!std::isfinite(scale)) {
      return Status::InvalidInput(fmt::format("{}: tensor \"{}\" stands for {} at place {}, expected finite numbers",
                                              folder.origin(), name, scale, i));
    }
    scales[static_cast<size_t>(i)] = scale;
  }
  return scales;
}

// Of bitsandbytes: codes of the whole matrix one behind the other, of two in a byte the first in the high half.
Result<PublishedMatrix> MakeNf4(const WeightSource& folder, const std::string& stem) {
  const std::string name = stem + ".weight";
  HW_ASSIGN_OR_RETURN(const Nf4State state, ReadNf4State(folder, stem, folder.Has(name + ".nested_absmax")));
  HW_ASSIGN_OR_RETURN(const RawTensor weight, Find(folder, name));
  // Whatever type they are kept in: "bnb_4bit_quant_storage".
  if (weight.num_bytes != static_cast<size_t>(state.rows * state.columns / 2)) {
    return Wrong(
        folder, name, weight,
        fmt::format("{} bytes for the codes of [{}, {}]", state.rows * state.columns / 2, state.rows, state.columns));
  }
  HW_ASSIGN_OR_RETURN(const std::vector<float> table, FloatsOf(folder, name + ".quant_map", std::size(kNF4Levels)));
  if (!std::ranges::equal(table, kNF4Levels)) {
    return Status::Unsupported(
        fmt::format("{}: tensor \"{}.quant_map\" is another table than that of nf4", folder.origin(), name));
  }
  HW_ASSIGN_OR_RETURN(const std::vector<float> scales, ReadNf4Scales(folder, stem, state));
  PublishedMatrix matrix = NewMatrix(DType::kNF4, {state.rows, state.columns});
  const int64_t unit = BlockElements(DType::kNF4);
  auto* to = reinterpret_cast<uint8_t*>(matrix.bytes.get());
  const auto* from = reinterpret_cast<const uint8_t*>(weight.data);
  for (int64_t at = 0; at < state.rows * state.columns; at += unit, from += unit / 2) {
    std::memcpy(to, &scales[static_cast<size_t>(at / state.block)], sizeof(float));
    to += sizeof(float);
    const auto code = [&](int64_t i) { return (from[i / 2] >> (i % 2 == 0 ? 4 : 0)) & 15; };
    for (int64_t i = 0; i < unit / 2; ++i) *to++ = static_cast<uint8_t>(code(i) | (code(i + unit / 2) << 4));
  }
  return matrix;
}

}  // namespace

Result<PublishedMatrix> MakePublishedMatrix(const WeightSource& folder, const PublishedFormat& format,
                                            const std::string& stem) {
  switch (format.method) {
    case Method::kFp8:
      return MakeFp8(folder, format, stem);
    case Method::kMxfp4:
      return MakeMxfp4(folder, stem);
    case Method::kNf4:
      return MakeNf4(folder, stem);
    default:
      break;
  }
  const auto read = format.method == Method::kAwq ? ReadAwq : format.method == Method::kGptq ? ReadGptq : ReadPacked;
  HW_ASSIGN_OR_RETURN(const GroupedCodes grouped, read(folder, format, stem));
  return MakeBlocks(grouped);
}

}  // namespace headwise
