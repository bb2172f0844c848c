// The GGUF format, versions 2 and 3 (little endian): metadata by key, a table of tensors, then their aligned bytes.
// Read in place from a mapped file; nothing of a file is trusted. This is the container alone: what keys and tensor
// names mean for a model is in model/gguf_model.h.
#ifndef HEADWISE_WEIGHTS_GGUF_H_
#define HEADWISE_WEIGHTS_GGUF_H_

#include <headwise/status.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tensor/tensor.h"
#include "weights/weight_source.h"

namespace headwise {

// Types of metadata values, numbered as in files.
enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

// One value: a scalar, or an array of scalars of one type. Integers of every width are held as int64_t (unsigned ones
// beyond it are refused), both float types as double, booleans in arrays as integers. Arrays of arrays are refused.
struct GgufValue {
  GgufType type = GgufType::kU32;  // of the scalar, or of the array's elements
  std::variant<bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<double>, std::vector<std::string>>
      value;
};

// Typed access; errors name the file, the key, what was found and what was expected. Integer getters take any integer
// type, Ints arrays of booleans too, Double any number; floats that are not finite are refused.
class GgufMetadata {
 public:
  explicit GgufMetadata(std::string origin = "") : origin_(std::move(origin)) {}

  const std::string& origin() const { return origin_; }
  const std::map<std::string, GgufValue, std::less<>>& values() const { return values_; }
  bool Has(std::string_view key) const { return values_.contains(key); }

  Result<int64_t> Int(std::string_view key) const;
  Result<int64_t> IntOr(std::string_view key, int64_t otherwise) const;
  Result<double> Double(std::string_view key) const;
  Result<double> DoubleOr(std::string_view key, double otherwise) const;
  Result<bool> BoolOr(std::string_view key, bool otherwise) const;
  Result<std::string> String(std::string_view key) const;
  Result<std::string> StringOr(std::string_view key, std::string otherwise) const;
  // Borrowed from this object.
  Result<std::span<const int64_t>> Ints(std::string_view key) const;
  Result<std::span<const double>> Doubles(std::string_view key) const;
  Result<std::span<const std::string>> Strings(std::string_view key) const;

  // Replaces what was there.
  void Set(std::string key, GgufValue value) { values_.insert_or_assign(std::move(key), std::move(value)); }
  void SetU32(std::string key, int64_t value) { Set(std::move(key), {GgufType::kU32, value}); }
  void SetF32(std::string key, double value) { Set(std::move(key), {GgufType::kF32, value}); }
  void SetBool(std::string key, bool value) { Set(std::move(key), {GgufType::kBool, value}); }
  void SetString(std::string key, std::string value) { Set(std::move(key), {GgufType::kString, std::move(value)}); }

 private:
  std::string origin_;  // opens messages
  std::map<std::string, GgufValue, std::less<>> values_;
};

struct GgufTensorInfo {
  DType dtype = DType::kF32;
  Shape shape;       // outermost first, as everywhere here; the file has it the other way round
  size_t begin = 0;  // bytes from the start of the file
  size_t end = 0;
};

struct GgufContents {
  uint32_t version = 3;
  int64_t alignment = 32;
  GgufMetadata metadata;
  std::map<std::string, GgufTensorInfo, std::less<>> tensors;
};

// Every offset is inside the file and aligned, no two tensors overlap, rows are whole blocks, and sizes agree with
// shape and dtype. A tensor of a type that DType does not have is refused by name, as are files of the other byte
// order.
Result<GgufContents> ParseGguf(std::span<const std::byte> file, const std::string& origin);

// A .gguf file, mapped. Tensors have the names of the file.
class GgufFile : public WeightSource {
 public:
  virtual const GgufMetadata& metadata() const = 0;
};
Result<std::unique_ptr<GgufFile>> OpenGgufFile(const std::string& path, FileAccess access = FileAccess::kMap);

// A tensor to be written: its bytes are made when their turn comes, so that a model never has to be in memory twice.
struct GgufTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;  // outermost first
  // Fills `bytes`, all of the tensor; called once, in the order of the tensors.
  std::function<Status(std::span<std::byte> bytes)> fill;
};

// Version 3, alignment 32 (what general.alignment says, where it is given), metadata in the order of keys but
// general.architecture first. Values must fit their types, names of tensors 63 bytes. Replaces `path` in one step: a
// write that fails leaves what was there. `on_tensor` is told of every tensor written, for progress.
Status WriteGguf(const std::string& path, const GgufMetadata& metadata, std::span<const GgufTensor> tensors,
                 const std::function<void(const GgufTensor&)>& on_tensor = {});

}  // namespace headwise

#endif  // HEADWISE_WEIGHTS_GGUF_H_
