#include "weights/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "base/file.h"
#include "weights/gguf_format.h"

namespace headwise {
namespace {

using TensorMap = std::map<std::string, GgufTensorInfo, std::less<>>;

// The fewest bytes that an entry of a list can take, so that a count can be refused before it is believed.
constexpr size_t kLeastStringBytes = 8;                  // its length
constexpr size_t kLeastKeyBytes = 8 + 4 + 1;             // key, type, a value of one byte
constexpr size_t kLeastTensorBytes = 8 + 4 + 8 + 4 + 8;  // name, rank, one dimension, type, offset

template <typename T>
T Load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

// Reads front to back. What it hands out lies inside the file.
class Cursor {
 public:
  Cursor(std::span<const std::byte> file, const std::string& origin) : file_(file), origin_(origin) {}

  // Names what is read from here on: "the header", "key \"a\"".
  void Enter(std::string part) { where_ = origin_ + ": " + std::move(part); }
  const std::string& where() const { return where_; }
  size_t position() const { return position_; }

  Result<const std::byte*> Take(uint64_t bytes) {
    if (bytes > left()) {
      return Status::InvalidInput(
          fmt::format("{}: needs {} bytes at byte {}, but only {} follow: is the file cut short?", where_, bytes,
                      position_, left()));
    }
    const std::byte* taken = file_.data() + position_;
    position_ += bytes;
    return taken;
  }
  template <typename T>
  Result<T> Number() {
    HW_ASSIGN_OR_RETURN(const std::byte* at, Take(sizeof(T)));
    return Load<T>(at);
  }
  Result<std::string> String() {
    HW_ASSIGN_OR_RETURN(const auto length, Number<uint64_t>());
    HW_ASSIGN_OR_RETURN(const std::byte* at, Take(length));
    return std::string(reinterpret_cast<const char*>(at), length);
  }
  // An error unless `count` things of at least so many bytes each can follow.
  Status CheckCount(uint64_t count, size_t least_bytes, std::string_view things) const {
    if (count <= left() / least_bytes) return Status::Ok();
    return Status::InvalidInput(fmt::format("{}: says {} {} follow, the {} bytes that do hold at most {}", where_,
                                            count, things, left(), left() / least_bytes));
  }

 private:
  size_t left() const { return file_.size() - position_; }

  std::span<const std::byte> file_;
  const std::string& origin_;
  std::string where_;
  size_t position_ = 0;
};

// Requires: an integer type or bool.
int64_t LoadInteger(GgufType type, const std::byte* at) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kBool:
      return Load<uint8_t>(at);
    case GgufType::kI8:
      return Load<int8_t>(at);
    case GgufType::kU16:
      return Load<uint16_t>(at);
    case GgufType::kI16:
      return Load<int16_t>(at);
    case GgufType::kU32:
      return Load<uint32_t>(at);
    case GgufType::kI32:
      return Load<int32_t>(at);
    case GgufType::kU64:
    case GgufType::kI64:
      return Load<int64_t>(at);
    default:
      break;
  }
  HW_CHECK(false, "{} is no integer type", NameOf(type));
}

Result<std::vector<int64_t>> ReadIntegers(Cursor& cursor, GgufType type, uint64_t count) {
  const size_t width = GgufScalarBytes(type);
  HW_RETURN_IF_ERROR(cursor.CheckCount(count, width, "numbers"));
  HW_ASSIGN_OR_RETURN(const std::byte* at, cursor.Take(count * width));
  std::vector<int64_t> integers(count);
  for (int64_t& integer : integers) {
    integer = LoadInteger(type, at);
    at += width;
    if (type == GgufType::kU64 && integer < 0) {
      return Status::InvalidInput(fmt::format("{}: holds {}, expected whole numbers below 2^63", cursor.where(),
                                              std::bit_cast<uint64_t>(integer)));
    }
    if (type == GgufType::kBool && integer > 1) {
      return Status::InvalidInput(fmt::format("{}: holds a bool of {}, expected 0 or 1", cursor.where(), integer));
    }
  }
  return integers;
}

Result<std::vector<double>> ReadDoubles(Cursor& cursor, GgufType type, uint64_t count) {
  const size_t width = GgufScalarBytes(type);
  HW_RETURN_IF_ERROR(cursor.CheckCount(count, width, "numbers"));
  HW_ASSIGN_OR_RETURN(const std::byte* at, cursor.Take(count * width));
  std::vector<double> numbers(count);
  for (double& number : numbers) {
    number = type == GgufType::kF32 ? double{Load<float>(at)} : Load<double>(at);
    at += width;
  }
  return numbers;
}

Result<std::vector<std::string>> ReadStrings(Cursor& cursor, uint64_t count) {
  HW_RETURN_IF_ERROR(cursor.CheckCount(count, kLeastStringBytes, "strings"));
  std::vector<std::string> strings;
  strings.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    HW_ASSIGN_OR_RETURN(std::string text, cursor.String());
    strings.push_back(std::move(text));
  }
  return strings;
}

Result<GgufType> ReadType(Cursor& cursor) {
  HW_ASSIGN_OR_RETURN(const auto number, cursor.Number<uint32_t>());
  const auto type = GgufTypeByNumber(number);
  if (type) return *type;
  return Status::InvalidInput(fmt::format("{}: has value type {}, expected 0 ({}) to {} ({})", cursor.where(), number,
                                          NameOf(GgufType::kU8), static_cast<uint32_t>(GgufType::kF64),
                                          NameOf(GgufType::kF64)));
}

// A scalar was read as a list of one.
template <typename T>
void SetListOrOnly(bool is_array, std::vector<T> list, GgufValue* value) {
  if (is_array) {
    value->value = std::move(list);
  } else {
    value->value = std::move(list[0]);
  }
}

Result<GgufValue> ReadValue(Cursor& cursor) {
  HW_ASSIGN_OR_RETURN(GgufType type, ReadType(cursor));
  const bool is_array = type == GgufType::kArray;
  uint64_t count = 1;
  if (is_array) {
    HW_ASSIGN_OR_RETURN(type, ReadType(cursor));
    if (type == GgufType::kArray) {
      return Status::Unsupported(
          fmt::format("{}: is an array of arrays, expected an array of scalars", cursor.where()));
    }
    HW_ASSIGN_OR_RETURN(count, cursor.Number<uint64_t>());
  }
  GgufValue value;
  value.type = type;
  if (type == GgufType::kString) {
    HW_ASSIGN_OR_RETURN(std::vector<std::string> strings, ReadStrings(cursor, count));
    SetListOrOnly(is_array, std::move(strings), &value);
  } else if (type == GgufType::kF32 || type == GgufType::kF64) {
    HW_ASSIGN_OR_RETURN(std::vector<double> numbers, ReadDoubles(cursor, type, count));
    SetListOrOnly(is_array, std::move(numbers), &value);
  } else {
    HW_ASSIGN_OR_RETURN(std::vector<int64_t> integers, ReadIntegers(cursor, type, count));
    if (type == GgufType::kBool && !is_array) {
      value.value = integers[0] != 0;
    } else {
      SetListOrOnly(is_array, std::move(integers), &value);
    }
  }
  return value;
}

Status ReadMetadata(Cursor& cursor, uint64_t count, GgufMetadata* metadata) {
  for (uint64_t i = 0; i < count; ++i) {
    cursor.Enter(fmt::format("metadata key {} of {}", i + 1, count));
    HW_ASSIGN_OR_RETURN(std::string key, cursor.String());
    cursor.Enter(GgufQuoted(key));
    if (metadata->Has(key)) return Status::InvalidInput(fmt::format("{}: stands there twice", cursor.where()));
    HW_ASSIGN_OR_RETURN(GgufValue value, ReadValue(cursor));
    metadata->Set(std::move(key), std::move(value));
  }
  return Status::Ok();
}

Result<int64_t> ReadAlignment(const GgufMetadata& metadata) {
  // A huge page. Nothing aligns to more, and larger numbers are more likely to be damage.
  constexpr int64_t kMaxAlignment = int64_t{1} << 21;
  HW_ASSIGN_OR_RETURN(const int64_t alignment, metadata.IntOr(kGgufAlignmentKey, kGgufDefaultAlignment));
  if (alignment < 1 || alignment > kMaxAlignment || !std::has_single_bit(static_cast<uint64_t>(alignment))) {
    return Status::InvalidInput(fmt::format("{}: \"{}\" is {}, expected a power of two up to {}", metadata.origin(),
                                            kGgufAlignmentKey, alignment, kMaxAlignment));
  }
  return alignment;
}

Result<Shape> ReadShape(Cursor& cursor) {
  HW_ASSIGN_OR_RETURN(const auto rank, cursor.Number<uint32_t>());
  if (rank < 1 || rank > Shape::kMaxRank) {
    return Status::InvalidInput(
        fmt::format("{}: has {} dimensions, expected 1 to {}", cursor.where(), rank, Shape::kMaxRank));
  }
  std::vector<int64_t> dims(rank);
  // Innermost first in the file.
  for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) {
    HW_ASSIGN_OR_RETURN(const auto size, cursor.Number<uint64_t>());
    if (size > uint64_t{std::numeric_limits<int64_t>::max()}) {
      return Status::InvalidInput(fmt::format("{}: a dimension of {} has too many elements", cursor.where(), size));
    }
    *dim = static_cast<int64_t>(size);
  }
  return Shape(std::span<const int64_t>(dims));
}

// `begin` and `end` of what it gives count from the start of the data, which is known only after the last entry.
Result<GgufTensorInfo> ReadTensorInfo(Cursor& cursor, int64_t alignment) {
  GgufTensorInfo info;
  HW_ASSIGN_OR_RETURN(info.shape, ReadShape(cursor));
  HW_ASSIGN_OR_RETURN(const auto number, cursor.Number<uint32_t>());
  HW_ASSIGN_OR_RETURN(const auto offset, cursor.Number<uint64_t>());
  const auto dtype = DTypeByGgufNumber(number);
  if (!dtype) {
    return Status::Unsupported(
        fmt::format("{}: has tensor type {}, which cannot be read", cursor.where(), DescribeGgufTensorType(number)));
  }
  info.dtype = *dtype;
  HW_ASSIGN_OR_RETURN(const int64_t bytes, GgufTensorBytes(cursor.where(), info.dtype, info.shape));
  if (offset % static_cast<uint64_t>(alignment) != 0) {
    return Status::InvalidInput(
        fmt::format("{}: has offset {}, expected a multiple of {}", cursor.where(), offset, alignment));
  }
  info.begin = offset;
  // Beyond every file where it overflows, and refused as that.
  if (__builtin_add_overflow(offset, bytes, &info.end)) info.end = std::numeric_limits<size_t>::max();
  return info;
}

Result<TensorMap> ReadTensors(Cursor& cursor, uint64_t count, int64_t alignment) {
  TensorMap tensors;
  for (uint64_t i = 0; i < count; ++i) {
    cursor.Enter(fmt::format("tensor {} of {}", i + 1, count));
    HW_ASSIGN_OR_RETURN(std::string name, cursor.String());
    cursor.Enter("tensor " + GgufQuoted(name));
    if (tensors.contains(name)) return Status::InvalidInput(fmt::format("{}: stands there twice", cursor.where()));
    HW_ASSIGN_OR_RETURN(GgufTensorInfo info, ReadTensorInfo(cursor, alignment));
    tensors.emplace(std::move(name), info);
  }
  return tensors;
}

// From offsets within the data, which begins at `data_begin` or would if there were any, to offsets within the file.
Status Place(size_t data_begin, size_t file_bytes, const std::string& origin, TensorMap* tensors) {
  const size_t data_bytes = file_bytes - std::min(data_begin, file_bytes);
  std::vector<std::pair<const GgufTensorInfo*, const std::string*>> by_begin;
  for (auto& [name, info] : *tensors) {
    if (info.end > data_bytes) {
      return Status::InvalidInput(
          fmt::format("{}: tensor {} is {} {} at offset {}, beyond the {} bytes of data: is the file cut short?",
                      origin, GgufQuoted(name), NameOf(info.dtype), info.shape.ToString(), info.begin, data_bytes));
    }
    info.begin += data_begin;
    info.end += data_begin;
    by_begin.emplace_back(&info, &name);
  }
  std::sort(by_begin.begin(), by_begin.end(),
            [](const auto& a, const auto& b) { return a.first->begin < b.first->begin; });
  for (size_t i = 1; i < by_begin.size(); ++i) {
    if (by_begin[i].first->begin < by_begin[i - 1].first->end) {
      return Status::InvalidInput(fmt::format("{}: tensors {} and {} overlap", origin,
                                              GgufQuoted(*by_begin[i - 1].second), GgufQuoted(*by_begin[i].second)));
    }
  }
  return Status::Ok();
}

Result<uint32_t> ReadVersion(Cursor& cursor) {
  HW_ASSIGN_OR_RETURN(const std::byte* at, cursor.Take(kGgufMagic.size()));
  const std::string_view magic(reinterpret_cast<const char*>(at), kGgufMagic.size());
  if (magic != kGgufMagic) {
    return Status::InvalidInput(
        fmt::format("{}: starts with {}, expected {}", cursor.where(), GgufQuoted(magic), GgufQuoted(kGgufMagic)));
  }
  HW_ASSIGN_OR_RETURN(const auto version, cursor.Number<uint32_t>());
  // A version that fits the highest byte alone was written by a machine of the other byte order.
  if (version != 0 && (version & 0xFFFFFFu) == 0) {
    return Status::Unsupported(fmt::format("{}: is big endian, expected a little-endian file", cursor.where()));
  }
  if (version != 2 && version != 3) {
    return Status::Unsupported(fmt::format("{}: has version {}, expected 2 or 3", cursor.where(), version));
  }
  return version;
}

class MappedGguf final : public GgufFile {
 public:
  MappedGguf(std::string origin, MappedFile file, GgufContents contents)
      : origin_(std::move(origin)), file_(std::move(file)), contents_(std::move(contents)) {}

  const std::string& origin() const override { return origin_; }
  const GgufMetadata& metadata() const override { return contents_.metadata; }
  std::vector<std::string> Names() const override {
    std::vector<std::string> names;
    for (const auto& [name, info] : contents_.tensors) names.push_back(name);
    return names;
  }
  bool Has(std::string_view name) const override { return contents_.tensors.contains(name); }

  using WeightSource::Get;
  Result<ConstTensorView> Get(std::string_view name) const override {
    const auto it = contents_.tensors.find(name);
    if (it == contents_.tensors.end()) {
      return Status::NotFound(fmt::format("{}: tensor {} is missing", origin_, GgufQuoted(name)));
    }
    const GgufTensorInfo& info = it->second;
    const std::byte* data = file_.bytes().data() + info.begin;
    // Blocks are read by their scales, which are of two bytes.
    const int64_t element_bytes = IsBlockFormat(info.dtype) ? 2 : SizeOf(info.dtype);
    if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(element_bytes) != 0) {
      return Status::InvalidInput(fmt::format("{}: tensor {} starts at byte {}, which is not a multiple of {} ({})",
                                              origin_, GgufQuoted(name), info.begin, element_bytes,
                                              NameOf(info.dtype)));
    }
    return ConstTensorView(data, info.dtype, info.shape);
  }
  void Release(const ConstTensorView& view) const override {
    file_.Release({static_cast<const std::byte*>(view.data), static_cast<size_t>(view.size_bytes())});
  }
  // Not the copies that a family makes.
  bool LiesInFile(const ConstTensorView& view) const override {
    const auto address = reinterpret_cast<uintptr_t>(view.data);
    const auto begin = reinterpret_cast<uintptr_t>(file_.bytes().data());
    return begin <= address && address < begin + file_.bytes().size();
  }

 private:
  std::string origin_;
  MappedFile file_;
  GgufContents contents_;
};

}  // namespace

Result<GgufContents> ParseGguf(std::span<const std::byte> file, const std::string& origin) {
  GgufContents contents;
  contents.metadata = GgufMetadata(origin);
  Cursor cursor(file, origin);
  cursor.Enter("GGUF header");
  HW_ASSIGN_OR_RETURN(contents.version, ReadVersion(cursor));
  HW_ASSIGN_OR_RETURN(const auto num_tensors, cursor.Number<uint64_t>());
  HW_ASSIGN_OR_RETURN(const auto num_keys, cursor.Number<uint64_t>());
  HW_RETURN_IF_ERROR(cursor.CheckCount(num_tensors, kLeastTensorBytes, "tensors"));
  HW_RETURN_IF_ERROR(cursor.CheckCount(num_keys, kLeastKeyBytes, "metadata keys"));
  HW_RETURN_IF_ERROR(ReadMetadata(cursor, num_keys, &contents.metadata));
  HW_ASSIGN_OR_RETURN(contents.alignment, ReadAlignment(contents.metadata));
  HW_ASSIGN_OR_RETURN(contents.tensors, ReadTensors(cursor, num_tensors, contents.alignment));
  const auto alignment = static_cast<size_t>(contents.alignment);
  const size_t data_begin = (cursor.position() + alignment - 1) / alignment * alignment;
  HW_RETURN_IF_ERROR(Place(data_begin, file.size(), origin, &contents.tensors));
  return contents;
}

Result<std::unique_ptr<GgufFile>> OpenGgufFile(const std::string& path, FileAccess access) {
  HW_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path, access));
  HW_ASSIGN_OR_RETURN(GgufContents contents, ParseGguf(file.bytes(), path));
  return std::unique_ptr<GgufFile>(std::make_unique<MappedGguf>(path, std::move(file), std::move(contents)));
}

}  // namespace headwise
