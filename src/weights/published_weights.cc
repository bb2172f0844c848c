#include "weights/published_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/sha256.h"
#include "weights/published_matrix.h"

namespace headwise {
namespace {

using Method = PublishedFormat::Method;

constexpr const char* kKey = "quantization_config";
constexpr int64_t kGroupUnit = 32;   // elements of the block formats that groups become
constexpr int64_t kColumnUnit = 64;  // likewise of 8-bit floats

// What names end with: of the tensor that has the codes, and of those that belong to it.
struct Suffixes {
  std::string_view codes;
  std::string_view matrix;  // of the matrix that they become
  std::vector<std::string_view> others;
};
const Suffixes& SuffixesOf(Method method) {
  static const Suffixes kFloats = {
      ".weight", ".weight", {".weight_scale", ".weight_scale_inv", ".input_scale", ".input_scale_ub"}};
  static const Suffixes kTurned = {".qweight", ".weight", {".qzeros", ".scales", ".g_idx"}};
  static const Suffixes kRows = {
      ".weight_packed", ".weight", {".weight_scale", ".weight_zero_point", ".weight_shape", ".weight_g_idx"}};
  static const Suffixes kBlocks = {"_blocks", "", {"_scales"}};
  static const Suffixes kTable = {".weight",
                                  ".weight",
                                  {".weight.absmax", ".weight.quant_map", ".weight.nested_absmax",
                                   ".weight.nested_quant_map", ".weight.quant_state.bitsandbytes__nf4"}};
  switch (method) {
    case Method::kFp8:
      return kFloats;
    case Method::kPacked:
      return kRows;
    case Method::kMxfp4:
      return kBlocks;
    case Method::kNf4:
      return kTable;
    default:
      return kTurned;
  }
}

// ---- what the config says -------------------------------------------------------------------------------------------

Status Expect(const JsonObject& object, const char* key, const std::string& found, std::string_view expected) {
  return Status::Unsupported(fmt::format("{}: \"{}\" is {}, expected {}", object.origin(), key, found, expected));
}

Status RequireFourBits(const JsonObject& object, const char* key) {
  HW_ASSIGN_OR_RETURN(const int64_t bits, object.Int(key));
  return bits == 4 ? Status::Ok() : Expect(object, key, std::to_string(bits), "4");
}

Status ReadGroupSize(const JsonObject& object, PublishedFormat& format) {
  HW_ASSIGN_OR_RETURN(const int64_t size, object.Int("group_size"));
  if (size == -1) return Status::Ok();
  if (size < kGroupUnit || size % kGroupUnit != 0) {
    return Expect(object, "group_size", std::to_string(size), fmt::format("-1 or a multiple of {}", kGroupUnit));
  }
  format.group_size = size;
  return Status::Ok();
}

Status ReadBlockSize(const JsonObject& object, const char* key, PublishedFormat& format) {
  if (!object.Has(key)) return Status::Ok();
  HW_ASSIGN_OR_RETURN(const std::vector<double> sizes, object.Doubles(key));
  const auto is_size = [](double size) { return size >= 1 && size <= 1 << 20 && size == std::floor(size); };
  const bool fits =
      sizes.size() == 2 && std::ranges::all_of(sizes, is_size) && static_cast<int64_t>(sizes[1]) % kColumnUnit == 0;
  if (!fits) {
    return Expect(object, key, object.At(key).dump(), fmt::format("[rows, a multiple of {}]", kColumnUnit));
  }
  format.block_rows = static_cast<int64_t>(sizes[0]);
  format.block_columns = static_cast<int64_t>(sizes[1]);
  return Status::Ok();
}

Status ReadFloats(const JsonObject& object, PublishedFormat& format) {
  HW_ASSIGN_OR_RETURN(const std::string kind, object.StringOr("fmt", "e4m3"));
  if (kind != "e4m3" && kind != "float8_e4m3fn") return Expect(object, "fmt", fmt::format("\"{}\"", kind), "\"e4m3\"");
  return ReadBlockSize(object, "weight_block_size", format);
}

Status ReadGptqConfig(const JsonObject& object, PublishedFormat& format) {
  HW_RETURN_IF_ERROR(RequireFourBits(object, "bits"));
  HW_RETURN_IF_ERROR(ReadGroupSize(object, format));
  HW_ASSIGN_OR_RETURN(const std::string layout, object.StringOr("checkpoint_format", "gptq"));
  if (layout != "gptq" && layout != "gptq_v2") {
    return Expect(object, "checkpoint_format", fmt::format("\"{}\"", layout), "\"gptq\" or \"gptq_v2\"");
  }
  format.zeros_less_one = layout == "gptq";
  return Status::Ok();
}

Status ReadAwqConfig(const JsonObject& object, PublishedFormat& format) {
  HW_RETURN_IF_ERROR(RequireFourBits(object, object.Has("bits") ? "bits" : "w_bit"));
  HW_RETURN_IF_ERROR(ReadGroupSize(object, format));
  HW_ASSIGN_OR_RETURN(std::string version, object.StringOr("version", "gemm"));
  for (char& c : version) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return version == "gemm" ? Status::Ok() : Expect(object, "version", fmt::format("\"{}\"", version), "\"gemm\"");
}

// Keys with an underscore in front are those of newer versions beside the others.
Status ReadBitsAndBytes(const JsonObject& object, PublishedFormat& format) {
  HW_ASSIGN_OR_RETURN(const bool is_8bit, object.BoolOr("load_in_8bit", false));
  if (is_8bit) return Expect(object, "load_in_8bit", "true", "false: 4 bits alone are read");
  HW_ASSIGN_OR_RETURN(const bool is_4bit, object.BoolOr("load_in_4bit", false));
  if (!is_4bit) return Expect(object, "load_in_4bit", "false", "true");
  HW_ASSIGN_OR_RETURN(const std::string type, object.StringOr("bnb_4bit_quant_type", "fp4"));
  format.method = Method::kNf4;
  return type == "nf4" ? Status::Ok() : Expect(object, "bnb_4bit_quant_type", fmt::format("\"{}\"", type), "\"nf4\"");
}

// compressed-tensors names a format for the whole, and its numbers for groups of modules, of which it may have several
// of one kind.
Status ReadCompressed(const JsonObject& object, PublishedFormat& format) {
  HW_ASSIGN_OR_RETURN(const std::string kind, object.String("format"));
  if (kind != "pack-quantized" && kind != "float-quantized" && kind != "naive-quantized") {
    return Expect(object, "format", fmt::format("\"{}\"", kind), "\"pack-quantized\" or \"float-quantized\"");
  }
  format.method = kind == "pack-quantized" ? Method::kPacked : Method::kFp8;
  HW_ASSIGN_OR_RETURN(const JsonObject groups, object.Object("config_groups"));
  for (const auto& [name, unused] : groups.json().items()) {
    HW_ASSIGN_OR_RETURN(const JsonObject of_group, groups.Object(name.c_str()));
    HW_ASSIGN_OR_RETURN(const JsonObject weights, of_group.Object("weights"));
    HW_ASSIGN_OR_RETURN(const std::string type, weights.StringOr("type", "int"));
    const bool is_packed = format.method == Method::kPacked;
    if (type != (is_packed ? "int" : "float")) {
      return Expect(weights, "type", fmt::format("\"{}\"", type), is_packed ? "\"int\"" : "\"float\"");
    }
    if (is_packed) {
      HW_RETURN_IF_ERROR(RequireFourBits(weights, "num_bits"));
    } else {
      HW_ASSIGN_OR_RETURN(const int64_t bits, weights.Int("num_bits"));
      if (bits != 8) return Expect(weights, "num_bits", std::to_string(bits), "8");
      HW_RETURN_IF_ERROR(ReadBlockSize(weights, "block_structure", format));
    }
  }
  return Status::Ok();
}

// ---- the source -----------------------------------------------------------------------------------------------------

class PublishedSource final : public WeightSource {
 public:
  PublishedSource(std::unique_ptr<WeightSource> folder, PublishedFormat format)
      : folder_(std::move(folder)), format_(std::move(format)) {
    const Suffixes& suffixes = SuffixesOf(format_.method);
    for (const std::string& name : folder_->Names()) {
      if (!name.ends_with(suffixes.codes)) continue;
      if (!IsQuantised(name)) continue;
      const std::string stem = name.substr(0, name.size() - suffixes.codes.size());
      stems_.emplace(stem + std::string(suffixes.matrix), stem);
      parts_.insert(name);
      for (const std::string_view other : suffixes.others) parts_.insert(stem + std::string(other));
    }
    for (const std::string& name : folder_->Names()) {
      if (!parts_.contains(name)) names_.insert(name);
    }
    for (const auto& [name, stem] : stems_) names_.insert(name);
  }

  const std::string& origin() const override { return folder_->origin(); }
  std::vector<std::string> Names() const override { return {names_.begin(), names_.end()}; }
  bool Has(std::string_view name) const override { return names_.contains(name); }

  using WeightSource::Get;
  Result<ConstTensorView> Get(std::string_view name) const override {
    const auto stem = stems_.find(name);
    if (stem == stems_.end()) return folder_->Get(name);
    const std::lock_guard lock(mutex_);
    const auto made = made_.find(name);
    if (made != made_.end()) return made->second.view();
    HW_ASSIGN_OR_RETURN(PublishedMatrix matrix, MakePublishedMatrix(*folder_, format_, stem->second));
    return made_.emplace(std::string(name), Made{.matrix = std::move(matrix)}).first->second.view();
  }

  // Parts of a matrix are released one by one, some perhaps twice.
  void Release(const ConstTensorView& view) const override {
    const std::lock_guard lock(mutex_);
    const auto* data = static_cast<const std::byte*>(view.data);
    const auto holds = [&](const auto& each) {
      const std::byte* begin = each.second.matrix.bytes.get();
      return begin <= data && data < begin + each.second.view().size_bytes();
    };
    const auto made = std::find_if(made_.begin(), made_.end(), holds);
    if (made == made_.end()) return folder_->Release(view);
    if (!made->second.released.insert(data).second) return;
    made->second.num_released += view.size_bytes();
    if (made->second.num_released >= made->second.view().size_bytes()) made_.erase(made);
  }

  // Matrices in block formats are made here, and perhaps copied by a family.
  bool LiesInFile(const ConstTensorView& /*view*/) const override { return false; }

  // Of the tensors as they lie in the folder, so that nothing has to be made for it.
  std::string RecordedHash() const override {
    constexpr size_t kHashedBytes = 4096;
    Sha256 hash;
    for (const std::string& name : folder_->Names()) {
      const auto tensor = folder_->FindRaw(name);
      if (!tensor) continue;
      hash.Update(fmt::format("{} {}\n", name, tensor->dtype));
      hash.Update(tensor->data, std::min(kHashedBytes, tensor->num_bytes));
    }
    return hash.Hex();
  }

 private:
  struct Made {
    PublishedMatrix matrix;
    std::set<const std::byte*> released = {};
    int64_t num_released = 0;

    ConstTensorView view() const { return {matrix.bytes.get(), matrix.dtype, matrix.shape}; }
  };

  // Where the matrices that are not have names that end like those that are.
  bool IsQuantised(const std::string& name) const {
    if (format_.method == Method::kNf4) {
      const auto has = [&](const char* part) { return folder_->Has(name + part); };
      return has(".absmax") || has(".quant_state.bitsandbytes__nf4");
    }
    if (format_.method != Method::kFp8) return true;
    const auto tensor = folder_->FindRaw(name);
    return tensor && tensor->dtype.starts_with("F8_");
  }

  std::unique_ptr<WeightSource> folder_;
  PublishedFormat format_;
  std::map<std::string, std::string, std::less<>> stems_;  // by the matrix's name
  std::set<std::string, std::less<>> parts_;               // names that matrices are made of
  std::set<std::string, std::less<>> names_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, Made, std::less<>> made_;
};

}  // namespace

Result<std::optional<PublishedFormat>> ReadPublishedFormat(const JsonObject& config) {
  if (!config.Has(kKey)) return std::optional<PublishedFormat>();
  HW_ASSIGN_OR_RETURN(const JsonObject object, config.Object(kKey));
  PublishedFormat format;
  format.origin = config.origin();
  HW_ASSIGN_OR_RETURN(const std::string method, object.String("quant_method"));
  if (method == "fp8" || method == "fbgemm_fp8") {
    format.method = Method::kFp8;
    HW_RETURN_IF_ERROR(ReadFloats(object, format));
  } else if (method == "awq") {
    format.method = Method::kAwq;
    HW_RETURN_IF_ERROR(ReadAwqConfig(object, format));
  } else if (method == "gptq") {
    format.method = Method::kGptq;
    HW_RETURN_IF_ERROR(ReadGptqConfig(object, format));
  } else if (method == "compressed-tensors") {
    HW_RETURN_IF_ERROR(ReadCompressed(object, format));
  } else if (method == "mxfp4") {
    format.method = Method::kMxfp4;
  } else if (method == "bitsandbytes") {
    HW_RETURN_IF_ERROR(ReadBitsAndBytes(object, format));
  } else {
    return Status::Unsupported(
        fmt::format("{}: \"{}.quant_method\" is \"{}\", expected one of: awq, bitsandbytes, compressed-tensors, "
                    "fbgemm_fp8, fp8, gptq, mxfp4",
                    config.origin(), kKey, method));
  }
  return std::optional(std::move(format));
}

std::unique_ptr<WeightSource> MakePublishedSource(std::unique_ptr<WeightSource> folder, PublishedFormat format) {
  return std::make_unique<PublishedSource>(std::move(folder), std::move(format));
}

Result<std::unique_ptr<WeightSource>> OpenWeightsFolder(const std::string& folder, FileAccess access) {
  HW_ASSIGN_OR_RETURN(std::unique_ptr<WeightSource> source, OpenSafetensorsFolder(folder, access));
  const std::string path = (std::filesystem::path(folder) / "config.json").string();
  HW_ASSIGN_OR_RETURN(const Json root, ReadJsonFile(path));
  HW_ASSIGN_OR_RETURN(const JsonObject config, JsonObject::Of(root, path));
  HW_ASSIGN_OR_RETURN(auto format, ReadPublishedFormat(config));
  if (!format) return source;
  return MakePublishedSource(std::move(source), *std::move(format));
}

}  // namespace headwise
