// What the reader and the writer of GGUF files share: numbers as they stand in files, and what both must check.
#ifndef HEADWISE_WEIGHTS_GGUF_FORMAT_H_
#define HEADWISE_WEIGHTS_GGUF_FORMAT_H_

#include <headwise/status.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tensor/tensor.h"
#include "weights/gguf.h"

namespace headwise {

static_assert(std::endian::native == std::endian::little, "files are read and written in the memory's byte order");

inline constexpr std::string_view kGgufMagic = "GGUF";
inline constexpr std::string_view kGgufAlignmentKey = "general.alignment";
inline constexpr int64_t kGgufDefaultAlignment = 32;

std::optional<GgufType> GgufTypeByNumber(uint32_t number);
std::string_view NameOf(GgufType type);  // "u8", "string", ...
// Bytes of a scalar in a file. 0 for strings and arrays, which bring their own length.
size_t GgufScalarBytes(GgufType type);

// The format of tensors with this number; nothing for those that DType does not have.
std::optional<DType> DTypeByGgufNumber(uint32_t number);
uint32_t GgufNumberOf(DType dtype);
// "10 (Q2_K)", or the number alone where it is not known what it stands for.
std::string DescribeGgufTensorType(uint32_t number);

// The bytes that a tensor takes. An error, opened by `where`, unless all dimensions are at least 1, rows are whole
// blocks, and the bytes can be counted in 63 bits.
Result<int64_t> GgufTensorBytes(const std::string& where, DType dtype, const Shape& shape);

// A name or text of a file for a message: in quotes, shortened, what cannot be printed escaped.
std::string GgufQuoted(std::string_view text);

}  // namespace headwise

#endif  // HEADWISE_WEIGHTS_GGUF_FORMAT_H_
