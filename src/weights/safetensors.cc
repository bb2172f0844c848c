#include "weights/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/file.h"
#include "base/json.h"
#include "weights/weight_source.h"

namespace headwise {
namespace {

using EntryMap = std::map<std::string, SafetensorsEntry, std::less<>>;

static_assert(std::endian::native == std::endian::little, "tensors are read in place, in the file's byte order");

struct FormatDType {
  std::string_view name;
  int64_t bytes;
  std::optional<DType> dtype;  // absent: may stand in a file, but is not usable
};
constexpr FormatDType kDTypes[] = {
    {"F32", 4, DType::kF32}, {"F16", 2, DType::kF16}, {"BF16", 2, DType::kBF16},
    {"I32", 4, DType::kI32}, {"F64", 8, {}},          {"I64", 8, {}},
    {"U64", 8, {}},          {"U32", 4, {}},          {"I16", 2, {}},
    {"U16", 2, {}},          {"I8", 1, {}},           {"U8", 1, {}},
    {"BOOL", 1, {}},         {"F8_E4M3", 1, {}},      {"F8_E5M2", 1, {}},
    {"F8_E8M0", 1, {}},      {"C64", 8, {}},
};

const FormatDType* FindDType(std::string_view name) {
  const auto* it =
      std::find_if(std::begin(kDTypes), std::end(kDTypes), [&](const FormatDType& d) { return d.name == name; });
  return it == std::end(kDTypes) ? nullptr : it;
}

std::string_view FormatName(DType dtype) {
  const auto* it =
      std::find_if(std::begin(kDTypes), std::end(kDTypes), [&](const FormatDType& d) { return d.dtype == dtype; });
  HW_CHECK(it != std::end(kDTypes), "dtype {}", NameOf(dtype));
  return it->name;
}

// Where a name would stand, free text about the file.
constexpr std::string_view kMetadataKey = "__metadata__";

// An integer array of a header, every element at least 0.
Result<std::vector<int64_t>> ReadSizes(const JsonObject& object, const char* key) {
  const auto wrong = [&] {
    return Status::InvalidInput(
        fmt::format("{}: \"{}\" is missing or not a list of whole numbers from 0", object.origin(), key));
  };
  if (!object.Has(key) || !object.At(key).is_array()) return wrong();
  std::vector<int64_t> sizes;
  for (const Json& value : object.At(key)) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > (uint64_t{1} << 62)) return wrong();
    sizes.push_back(static_cast<int64_t>(value.get<uint64_t>()));
  }
  return sizes;
}

Result<SafetensorsEntry> ReadEntry(const Json& json, const std::string& where, size_t data_begin, size_t file_bytes) {
  HW_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(json, where));
  SafetensorsEntry entry;
  HW_ASSIGN_OR_RETURN(entry.dtype, object.String("dtype"));
  HW_ASSIGN_OR_RETURN(entry.shape, ReadSizes(object, "shape"));
  HW_ASSIGN_OR_RETURN(const std::vector<int64_t> offsets, ReadSizes(object, "data_offsets"));
  const auto data_bytes = static_cast<int64_t>(file_bytes - data_begin);
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data_bytes) {
    return Status::InvalidInput(fmt::format("{}: data_offsets are [{}], expected a range within the {} bytes of data",
                                            where, fmt::join(offsets, ", "), data_bytes));
  }
  entry.begin = data_begin + static_cast<size_t>(offsets[0]);
  entry.end = data_begin + static_cast<size_t>(offsets[1]);
  const FormatDType* dtype = FindDType(entry.dtype);
  if (dtype == nullptr) return entry;  // sizes of a format we do not know cannot be checked
  int64_t bytes = dtype->bytes;
  for (const int64_t dim : entry.shape) {
    if (__builtin_mul_overflow(bytes, dim, &bytes)) {
      return Status::InvalidInput(
          fmt::format("{}: shape [{}] has too many elements", where, fmt::join(entry.shape, ", ")));
    }
  }
  if (bytes != offsets[1] - offsets[0]) {
    return Status::InvalidInput(fmt::format("{}: {} [{}] takes {} bytes, data_offsets hold {}", where, entry.dtype,
                                            fmt::join(entry.shape, ", "), bytes, offsets[1] - offsets[0]));
  }
  return entry;
}

Status CheckNoOverlap(const EntryMap& entries, const std::string& origin) {
  std::vector<std::pair<const SafetensorsEntry*, const std::string*>> by_begin;
  for (const auto& [name, entry] : entries) {
    if (entry.begin < entry.end) by_begin.emplace_back(&entry, &name);
  }
  std::sort(by_begin.begin(), by_begin.end(),
            [](const auto& a, const auto& b) { return a.first->begin < b.first->begin; });
  for (size_t i = 1; i < by_begin.size(); ++i) {
    if (by_begin[i].first->begin < by_begin[i - 1].first->end) {
      return Status::InvalidInput(
          fmt::format("{}: tensors \"{}\" and \"{}\" overlap", origin, *by_begin[i - 1].second, *by_begin[i].second));
    }
  }
  return Status::Ok();
}

using ShardMap = std::map<std::string, std::vector<std::string>>;  // file name -> names of its tensors

// model.safetensors.index.json.
Result<ShardMap> ParseIndex(std::string_view text, const std::string& origin) {
  HW_ASSIGN_OR_RETURN(const Json root, ParseJson(text, origin));
  HW_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(root, origin));
  HW_RETURN_IF_ERROR(object.Object("weight_map").status());
  ShardMap names_of;
  for (const auto& [name, shard] : object.At("weight_map").items()) {
    const std::string file = shard.is_string() ? shard.get<std::string>() : "";
    // A shard is a file beside its index: nothing elsewhere is opened.
    if (file.empty() || file == ".." || file.find_first_of(std::string_view("/\0", 2)) != std::string::npos) {
      return Status::InvalidInput(fmt::format("{}: the shard of \"{}\" is {}, expected a file name", origin, name,
                                              shard.dump(-1, ' ', false, Json::error_handler_t::replace)));
    }
    names_of[file].push_back(name);
  }
  if (names_of.empty()) return Status::InvalidInput(fmt::format("{}: \"weight_map\" is empty", origin));
  return names_of;
}

// One or more mapped files as one source.
class SafetensorsSource final : public WeightSource {
 public:
  SafetensorsSource(std::string origin, FileAccess access) : origin_(std::move(origin)), access_(access) {}

  // Each of `expected_names` must be there. With an index, a tensor that it places in another file is taken from there.
  Status AddFile(const std::string& path, const std::vector<std::string>* expected_names) {
    HW_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path, access_));
    HW_ASSIGN_OR_RETURN(EntryMap entries, ParseSafetensorsHeader(file.bytes(), path));
    const std::byte* data = file.bytes().data();
    files_.push_back(std::move(file));
    if (expected_names == nullptr) {
      for (auto& [name, entry] : entries) tensors_.emplace(name, Located{std::move(entry), data});
      return Status::Ok();
    }
    for (const std::string& name : *expected_names) {
      const auto it = entries.find(name);
      if (it == entries.end()) {
        return Status::InvalidInput(fmt::format("{}: tensor \"{}\" is missing, the index says it is here", path, name));
      }
      tensors_.emplace(name, Located{std::move(it->second), data});
      entries.erase(it);
    }
    for (auto& [name, entry] : entries) unlisted_.emplace(name, Located{std::move(entry), data});
    return Status::Ok();
  }
  // After the last file: what is in one of them and in no index is a part of the model too.
  void AddUnlisted() { tensors_.merge(unlisted_); }

  const std::string& origin() const override { return origin_; }
  std::vector<std::string> Names() const override {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) names.push_back(name);
    return names;
  }
  bool Has(std::string_view name) const override { return tensors_.find(name) != tensors_.end(); }

  using WeightSource::Get;
  Result<ConstTensorView> Get(std::string_view name) const override {
    const auto it = tensors_.find(name);
    if (it == tensors_.end()) return Status::NotFound(fmt::format("{}: tensor \"{}\" is missing", origin_, name));
    const SafetensorsEntry& entry = it->second.entry;
    const FormatDType* dtype = FindDType(entry.dtype);
    if (dtype == nullptr || !dtype->dtype) {
      return Status::Unsupported(
          fmt::format("{}: tensor \"{}\" has dtype {}, expected F32, F16 or BF16", origin_, name, entry.dtype));
    }
    if (entry.shape.size() > Shape::kMaxRank) {
      return Status::Unsupported(fmt::format("{}: tensor \"{}\" has {} dimensions, at most {} are supported", origin_,
                                             name, entry.shape.size(), Shape::kMaxRank));
    }
    const std::byte* data = it->second.file + entry.begin;
    if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(dtype->bytes) != 0) {
      return Status::InvalidInput(
          fmt::format("{}: tensor \"{}\" starts at byte {}, which is not a multiple of its {} bytes per element",
                      origin_, name, entry.begin, dtype->bytes));
    }
    return ConstTensorView(data, *dtype->dtype, Shape(std::span<const int64_t>(entry.shape)));
  }

  std::optional<RawTensor> FindRaw(std::string_view name) const override {
    const auto it = tensors_.find(name);
    if (it == tensors_.end()) return std::nullopt;
    const SafetensorsEntry& entry = it->second.entry;
    return RawTensor{.dtype = entry.dtype,
                     .shape = entry.shape,
                     .data = it->second.file + entry.begin,
                     .num_bytes = entry.end - entry.begin};
  }

 private:
  struct Located {
    SafetensorsEntry entry;
    const std::byte* file;
  };
  std::string origin_;
  FileAccess access_;
  std::vector<MappedFile> files_;
  std::map<std::string, Located, std::less<>> tensors_;
  std::map<std::string, Located, std::less<>> unlisted_;
};

}  // namespace

Result<EntryMap> ParseSafetensorsHeader(std::span<const std::byte> file, const std::string& origin) {
  constexpr size_t kLengthBytes = 8;
  if (file.size() < kLengthBytes) {
    return Status::InvalidInput(fmt::format("{}: has {} bytes, expected a safetensors header", origin, file.size()));
  }
  uint64_t header_bytes;
  std::memcpy(&header_bytes, file.data(), kLengthBytes);
  if (header_bytes > file.size() - kLengthBytes) {
    return Status::InvalidInput(
        fmt::format("{}: the header says it has {} bytes, but only {} follow: is the file cut short?", origin,
                    header_bytes, file.size() - kLengthBytes));
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes, header_bytes);
  HW_ASSIGN_OR_RETURN(const Json json, ParseJsonUniqueKeys(text, origin + " (header)"));
  HW_ASSIGN_OR_RETURN(const JsonObject header, JsonObject::Of(json, origin + " (header)"));
  EntryMap entries;
  for (const auto& [name, value] : json.items()) {
    if (name == kMetadataKey) continue;
    HW_ASSIGN_OR_RETURN(SafetensorsEntry entry, ReadEntry(value, fmt::format("{}: tensor \"{}\"", origin, name),
                                                          kLengthBytes + header_bytes, file.size()));
    entries.emplace(name, std::move(entry));
  }
  HW_RETURN_IF_ERROR(CheckNoOverlap(entries, origin));
  return entries;
}

Status WriteSafetensors(const std::string& path, std::span<const NamedTensor> tensors) {
  // Wide elements first: then every tensor starts at a multiple of its element size without holes between them, which
  // other readers refuse.
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& tensor : tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    return SizeOf(a->view.dtype) > SizeOf(b->view.dtype);
  });
  Json header = Json::object();
  int64_t offset = 0;
  for (const NamedTensor* tensor : order) {
    const ConstTensorView& view = tensor->view;
    if (tensor->name == kMetadataKey || header.contains(tensor->name)) {
      return Status::InvalidInput(fmt::format("{}: tensor name \"{}\" is reserved or given twice", path, tensor->name));
    }
    std::vector<int64_t> shape;
    for (int dim = 0; dim < view.shape.rank(); ++dim) shape.push_back(view.shape[dim]);
    header[tensor->name] = {
        {"dtype", FormatName(view.dtype)}, {"shape", shape}, {"data_offsets", {offset, offset + view.size_bytes()}}};
    offset += view.size_bytes();
  }
  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');  // tensors then start at a multiple of 8
  const uint64_t header_bytes = text.size();
  std::string content(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
  content.reserve(content.size() + text.size() + static_cast<size_t>(offset));
  content += text;
  for (const NamedTensor* tensor : order) {
    content.append(static_cast<const char*>(tensor->view.data), static_cast<size_t>(tensor->view.size_bytes()));
  }
  return WriteFileAtomically(path, content);
}

Result<std::unique_ptr<WeightSource>> OpenSafetensorsFile(const std::string& path, FileAccess access) {
  auto source = std::make_unique<SafetensorsSource>(path, access);
  HW_RETURN_IF_ERROR(source->AddFile(path, nullptr));
  return std::unique_ptr<WeightSource>(std::move(source));
}

Result<std::unique_ptr<WeightSource>> OpenSafetensorsFolder(const std::string& folder, FileAccess access) {
  namespace fs = std::filesystem;
  const std::string single = (fs::path(folder) / "model.safetensors").string();
  const std::string index = single + ".index.json";
  // A file that is there but cannot be read is reported by whoever opens it.
  std::error_code ignored;
  if (fs::exists(single, ignored)) return OpenSafetensorsFile(single, access);
  auto text = ReadFile(index);
  if (!text.ok() && text.status().code() == StatusCode::kNotFound) {
    return Status::NotFound(
        fmt::format("{}: no weights found, expected model.safetensors or model.safetensors.index.json", folder));
  }
  if (!text.ok()) return std::move(text).status();
  HW_ASSIGN_OR_RETURN(const ShardMap names_of, ParseIndex(*text, index));
  auto source = std::make_unique<SafetensorsSource>(folder, access);
  for (const auto& [file, names] : names_of) {
    HW_RETURN_IF_ERROR(source->AddFile((fs::path(folder) / file).string(), &names).Annotate(index));
  }
  source->AddUnlisted();
  return std::unique_ptr<WeightSource>(std::move(source));
}

}  // namespace headwise
