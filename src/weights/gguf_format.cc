#include "weights/gguf_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace headwise {
namespace {

struct ScalarType {
  std::string_view name;
  size_t bytes;
};

// In the order of GgufType.
constexpr ScalarType kScalarTypes[] = {
    {"u8", 1},   {"i8", 1},     {"u16", 2},   {"i16", 2}, {"u32", 4}, {"i32", 4}, {"f32", 4},
    {"bool", 1}, {"string", 0}, {"array", 0}, {"u64", 8}, {"i64", 8}, {"f64", 8},
};

struct TensorType {
  uint32_t number;
  std::string_view name;       // in the words of those who make such files
  std::optional<DType> dtype;  // absent: cannot be read
};
constexpr TensorType kTensorTypes[] = {
    {0, "F32", DType::kF32},
    {1, "F16", DType::kF16},
    {2, "Q4_0", DType::kQ4_0},
    {3, "Q4_1", DType::kQ4_1},
    {4, "Q4_2", {}},
    {5, "Q4_3", {}},
    {6, "Q5_0", DType::kQ5_0},
    {7, "Q5_1", DType::kQ5_1},
    {8, "Q8_0", DType::kQ8_0},
    {9, "Q8_1", {}},
    {10, "Q2_K", DType::kQ2_K},
    {11, "Q3_K", DType::kQ3_K},
    {12, "Q4_K", DType::kQ4_K},
    {13, "Q5_K", DType::kQ5_K},
    {14, "Q6_K", DType::kQ6_K},
    {15, "Q8_K", {}},
    {16, "IQ2_XXS", {}},
    {17, "IQ2_XS", {}},
    {18, "IQ3_XXS", {}},
    {19, "IQ1_S", {}},
    {20, "IQ4_NL", DType::kIQ4_NL},
    {21, "IQ3_S", {}},
    {22, "IQ2_S", {}},
    {23, "IQ4_XS", DType::kIQ4_XS},
    {24, "I8", {}},
    {25, "I16", {}},
    {26, "I32", DType::kI32},
    {27, "I64", {}},
    {28, "F64", {}},
    {29, "IQ1_M", {}},
    {30, "BF16", DType::kBF16},
    {34, "TQ1_0", DType::kTQ1_0},
    {35, "TQ2_0", DType::kTQ2_0},
    {39, "MXFP4", DType::kMXFP4},
    {40, "NVFP4", {}},
    {41, "Q1_0", {}},
};

const TensorType* FindTensorType(uint32_t number) {
  const auto* it = std::find_if(std::begin(kTensorTypes), std::end(kTensorTypes),
                                [&](const TensorType& type) { return type.number == number; });
  return it == std::end(kTensorTypes) ? nullptr : it;
}

}  // namespace

std::optional<GgufType> GgufTypeByNumber(uint32_t number) {
  if (number >= std::size(kScalarTypes)) return std::nullopt;
  return static_cast<GgufType>(number);
}

std::string_view NameOf(GgufType type) {
  return kScalarTypes[static_cast<size_t>(type)].name;
}

size_t GgufScalarBytes(GgufType type) {
  return kScalarTypes[static_cast<size_t>(type)].bytes;
}

std::optional<DType> DTypeByGgufNumber(uint32_t number) {
  const TensorType* type = FindTensorType(number);
  return type == nullptr ? std::nullopt : type->dtype;
}

uint32_t GgufNumberOf(DType dtype) {
  const auto* it = std::find_if(std::begin(kTensorTypes), std::end(kTensorTypes),
                                [&](const TensorType& type) { return type.dtype == dtype; });
  HW_CHECK(it != std::end(kTensorTypes), "dtype {}", NameOf(dtype));
  return it->number;
}

std::string DescribeGgufTensorType(uint32_t number) {
  const TensorType* type = FindTensorType(number);
  return type == nullptr ? fmt::format("{}", number) : fmt::format("{} ({})", number, type->name);
}

Result<int64_t> GgufTensorBytes(const std::string& where, DType dtype, const Shape& shape) {
  int64_t num_elements = 1;
  for (int dim = 0; dim < shape.rank(); ++dim) {
    if (shape[dim] < 1) {
      return Status::InvalidInput(
          fmt::format("{}: shape is {}, expected dimensions of at least 1", where, shape.ToString()));
    }
    if (__builtin_mul_overflow(num_elements, shape[dim], &num_elements)) {
      return Status::InvalidInput(fmt::format("{}: shape {} has too many elements", where, shape.ToString()));
    }
  }
  const int64_t row = shape.rank() == 0 ? 1 : shape[shape.rank() - 1];
  if (row % BlockElements(dtype) != 0) {
    return Status::InvalidInput(fmt::format("{}: rows have {} elements, expected whole blocks of {} ({})", where, row,
                                            BlockElements(dtype), NameOf(dtype)));
  }
  int64_t bytes = 0;
  if (__builtin_mul_overflow(num_elements / BlockElements(dtype), BlockBytes(dtype), &bytes)) {
    return Status::InvalidInput(fmt::format("{}: shape {} has too many elements", where, shape.ToString()));
  }
  return bytes;
}

std::string GgufQuoted(std::string_view text) {
  constexpr size_t kMaxShown = 64;
  if (text.size() <= kMaxShown) return fmt::format("{:?}", text);
  return fmt::format("{:?}...", text.substr(0, kMaxShown));
}

}  // namespace headwise
