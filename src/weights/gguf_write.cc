// Writing GGUF files, tensor by tensor.
#include <fmt/format.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "weights/gguf.h"
#include "weights/gguf_format.h"

namespace headwise {
namespace {

constexpr uint32_t kVersion = 3;
constexpr auto kAlignment = static_cast<size_t>(kGgufDefaultAlignment);
// The format's limit of keys, and what readers that keep a name in 64 bytes with a closing zero can hold.
constexpr size_t kMaxKeyBytes = 65535;
constexpr size_t kMaxNameBytes = 63;

size_t Padded(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

template <typename T>
void AppendNumber(T number, std::string* out) {
  out->append(reinterpret_cast<const char*>(&number), sizeof(number));
}
void AppendText(std::string_view text, std::string* out) {
  AppendNumber<uint64_t>(text.size(), out);
  out->append(text);
}

struct IntegerRange {
  int64_t least = 0;
  int64_t most = -1;
};
template <typename T>
constexpr IntegerRange RangeOf() {
  return {std::numeric_limits<T>::min(), std::numeric_limits<T>::max()};
}
// Empty for types that hold no integers.
IntegerRange RangeOf(GgufType type) {
  switch (type) {
    case GgufType::kU8:
      return RangeOf<uint8_t>();
    case GgufType::kI8:
      return RangeOf<int8_t>();
    case GgufType::kU16:
      return RangeOf<uint16_t>();
    case GgufType::kI16:
      return RangeOf<int16_t>();
    case GgufType::kU32:
      return RangeOf<uint32_t>();
    case GgufType::kI32:
      return RangeOf<int32_t>();
    case GgufType::kI64:
      return RangeOf<int64_t>();
    case GgufType::kU64:
      return {0, std::numeric_limits<int64_t>::max()};
    case GgufType::kBool:
      return {0, 1};
    default:
      return {};
  }
}

Status DoesNotFit(const std::string& where, GgufType type, const std::string& what) {
  return Status::InvalidInput(fmt::format("{}: {} does not fit the type {}", where, what, NameOf(type)));
}

Status AppendScalar(const std::string& where, GgufType type, int64_t value, std::string* out) {
  const IntegerRange range = RangeOf(type);
  if (value < range.least || value > range.most) return DoesNotFit(where, type, fmt::format("{}", value));
  out->append(reinterpret_cast<const char*>(&value), GgufScalarBytes(type));  // the low bytes come first
  return Status::Ok();
}
Status AppendScalar(const std::string& where, GgufType type, bool value, std::string* out) {
  if (type != GgufType::kBool) return DoesNotFit(where, type, value ? "true" : "false");
  AppendNumber<uint8_t>(value ? 1 : 0, out);
  return Status::Ok();
}
Status AppendScalar(const std::string& where, GgufType type, double value, std::string* out) {
  if (type == GgufType::kF64) {
    AppendNumber(value, out);
    return Status::Ok();
  }
  if (type != GgufType::kF32 || (std::isfinite(value) && std::abs(value) > double{FLT_MAX})) {
    return DoesNotFit(where, type, fmt::format("the float {}", value));
  }
  AppendNumber(static_cast<float>(value), out);
  return Status::Ok();
}
Status AppendScalar(const std::string& where, GgufType type, const std::string& value, std::string* out) {
  if (type != GgufType::kString) return DoesNotFit(where, type, GgufQuoted(value));
  AppendText(value, out);
  return Status::Ok();
}

template <typename T>
Status AppendValue(const std::string& where, GgufType type, const T& value, std::string* out) {
  // As an integer it would be read back as a bool.
  if (std::is_same_v<T, int64_t> && type == GgufType::kBool) return DoesNotFit(where, type, "a whole number");
  AppendNumber(type, out);
  return AppendScalar(where, type, value, out);
}
template <typename T>
Status AppendValue(const std::string& where, GgufType type, const std::vector<T>& list, std::string* out) {
  AppendNumber(GgufType::kArray, out);
  AppendNumber(type, out);
  AppendNumber<uint64_t>(list.size(), out);
  for (const T& value : list) HW_RETURN_IF_ERROR(AppendScalar(where, type, value, out));
  return Status::Ok();
}

Status AppendKey(const std::string& path, const std::string& key, const GgufValue& value, std::string* out) {
  const std::string where = fmt::format("{}: {}", path, GgufQuoted(key));
  if (key.size() > kMaxKeyBytes) {
    return Status::InvalidInput(
        fmt::format("{}: the key has {} bytes, expected at most {}", where, key.size(), kMaxKeyBytes));
  }
  AppendText(key, out);
  if (key == kGgufAlignmentKey) return AppendValue(where, GgufType::kU32, kGgufDefaultAlignment, out);
  return std::visit([&](const auto& held) { return AppendValue(where, value.type, held, out); }, value.value);
}

Result<size_t> TensorBytes(const std::string& path, const GgufTensor& tensor) {
  HW_CHECK(tensor.fill != nullptr, "tensor {}", tensor.name);
  const std::string where = fmt::format("{}: tensor {}", path, GgufQuoted(tensor.name));
  if (tensor.name.size() > kMaxNameBytes) {
    return Status::InvalidInput(
        fmt::format("{}: the name has {} bytes, expected at most {}", where, tensor.name.size(), kMaxNameBytes));
  }
  if (tensor.shape.rank() < 1) {
    return Status::InvalidInput(fmt::format("{}: has no dimensions, expected 1 to {}", where, Shape::kMaxRank));
  }
  HW_ASSIGN_OR_RETURN(const int64_t bytes, GgufTensorBytes(where, tensor.dtype, tensor.shape));
  return static_cast<size_t>(bytes);
}

// Everything before the data, and the bytes of each tensor.
Status MakeHeader(const std::string& path, const GgufMetadata& metadata, std::span<const GgufTensor> tensors,
                  std::string* header, std::vector<size_t>* tensor_bytes) {
  constexpr std::string_view kFirstKey = "general.architecture";
  header->append(kGgufMagic);
  AppendNumber(kVersion, header);
  AppendNumber<uint64_t>(tensors.size(), header);
  AppendNumber<uint64_t>(metadata.values().size(), header);
  const auto first = metadata.values().find(kFirstKey);
  if (first != metadata.values().end()) HW_RETURN_IF_ERROR(AppendKey(path, first->first, first->second, header));
  for (const auto& [key, value] : metadata.values()) {
    if (key != kFirstKey) HW_RETURN_IF_ERROR(AppendKey(path, key, value, header));
  }
  std::set<std::string_view> names;
  uint64_t offset = 0;
  for (const GgufTensor& tensor : tensors) {
    HW_ASSIGN_OR_RETURN(const size_t bytes, TensorBytes(path, tensor));
    if (!names.insert(tensor.name).second) {
      return Status::InvalidInput(fmt::format("{}: tensor {} is given twice", path, GgufQuoted(tensor.name)));
    }
    AppendText(tensor.name, header);
    AppendNumber(static_cast<uint32_t>(tensor.shape.rank()), header);
    for (int dim = tensor.shape.rank() - 1; dim >= 0; --dim) AppendNumber(tensor.shape[dim], header);
    AppendNumber(GgufNumberOf(tensor.dtype), header);
    AppendNumber(offset, header);
    offset += Padded(bytes);
    tensor_bytes->push_back(bytes);
  }
  header->resize(Padded(header->size()), '\0');
  return Status::Ok();
}

}  // namespace

Status WriteGguf(const std::string& path, const GgufMetadata& metadata, std::span<const GgufTensor> tensors,
                 const std::function<void(const GgufTensor&)>& on_tensor) {
  std::string header;
  std::vector<size_t> tensor_bytes;
  HW_RETURN_IF_ERROR(MakeHeader(path, metadata, tensors, &header, &tensor_bytes));
  HW_ASSIGN_OR_RETURN(AtomicFileWriter writer, AtomicFileWriter::Create(path));
  HW_RETURN_IF_ERROR(writer.Write(std::as_bytes(std::span(header))));
  const auto largest = std::max_element(tensor_bytes.begin(), tensor_bytes.end());
  std::vector<std::byte> buffer(largest == tensor_bytes.end() ? 0 : Padded(*largest));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::span<std::byte> bytes(buffer.data(), tensor_bytes[i]);
    HW_RETURN_IF_ERROR(
        tensors[i].fill(bytes).Annotate(fmt::format("{}: tensor {}", path, GgufQuoted(tensors[i].name))));
    // Padding follows the last tensor too: there are readers that expect it.
    const std::span<std::byte> padded(buffer.data(), Padded(bytes.size()));
    std::fill(padded.begin() + static_cast<std::ptrdiff_t>(bytes.size()), padded.end(), std::byte{0});
    HW_RETURN_IF_ERROR(writer.Write(padded));
    if (on_tensor) on_tensor(tensors[i]);
  }
  return writer.Commit();
}

}  // namespace headwise
