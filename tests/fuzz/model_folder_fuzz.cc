// Reads the input as a whole model: an engine over it is an error, or encodes a text and draws two tokens. The input is
// the files of a folder, one behind the other, each behind a line "==== NAME". Of weights it has the header and bytes
// that are repeated as often as the header wants: so a small input is a model with all its tensors.
#include <headwise/engine.h>
#include <headwise/tokenizer.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/check.h"
#include "model/model_config.h"

namespace headwise {
namespace {

constexpr size_t kMaxWeightBytes = size_t{2} << 20;
constexpr std::string_view kMark = "==== ";

// Only these: nothing of the input becomes a path.
constexpr std::string_view kNames[] = {"config.json",           "weights.json",    "weights.bytes",
                                       "tokenizer.json",        "tokenizer.model", "tokenizer_config.json",
                                       "generation_config.json"};

std::map<std::string, std::string> FilesOf(std::string_view input) {
  std::map<std::string, std::string> files;
  for (size_t at = input.find(kMark); at != std::string_view::npos;) {
    const size_t next = input.find(kMark, at + 1);
    const std::string_view part = input.substr(at + kMark.size(), next - std::min(next, at + kMark.size()));
    const size_t line = std::min(part.find('\n'), part.size());
    const std::string_view name = part.substr(0, line);
    if (std::ranges::find(kNames, name) != std::end(kNames)) files[std::string(name)] = part.substr(line);
    at = next;
  }
  for (auto& [name, content] : files) content.erase(0, 1);  // the end of the line
  return files;
}

// How many bytes of data a header speaks of.
size_t DataBytes(const std::string& header) {
  size_t bytes = 0;
  const nlohmann::json json = nlohmann::json::parse(header, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return 0;
  for (const auto& tensor : json) {
    if (!tensor.is_object() || !tensor.contains("data_offsets")) continue;
    const auto& offsets = tensor["data_offsets"];
    if (!offsets.is_array() || offsets.size() != 2 || !offsets[1].is_number_unsigned()) continue;
    bytes = std::max(bytes, offsets[1].get<size_t>());
  }
  return std::min(bytes, kMaxWeightBytes);
}

std::string Safetensors(const std::string& header, const std::string& bytes) {
  const uint64_t header_bytes = header.size();
  std::string file(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
  file += header;
  const size_t num_bytes = DataBytes(header);
  for (size_t i = 0; i < num_bytes; ++i) file.push_back(bytes.empty() ? '\0' : bytes[i % bytes.size()]);
  return file;
}

class ModelFolder {
 public:
  ModelFolder() : path_(std::filesystem::temp_directory_path() / ("headwise-fuzz-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~ModelFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string path() const { return path_.string(); }

  void Fill(const std::map<std::string, std::string>& files) const {
    for (const auto& entry : std::filesystem::directory_iterator(path_)) std::filesystem::remove(entry.path());
    for (const auto& [name, content] : files) {
      if (!name.starts_with("weights")) Write(name, content);
    }
    const auto header = files.find("weights.json");
    if (header == files.end()) return;
    const auto bytes = files.find("weights.bytes");
    Write("model.safetensors", Safetensors(header->second, bytes == files.end() ? "" : bytes->second));
  }

 private:
  void Write(const std::string& name, const std::string& content) const {
    std::ofstream file(path_ / name, std::ios::binary);
    file << content;
    HW_CHECK(file.flush().good(), "{}", name);
  }

  std::filesystem::path path_;
};

void Run(Engine& engine) {
  Request request;
  request.prompt = {0};
  if (engine.has_tokenizer()) {
    const auto ids = engine.tokenizer().Encode("Hello  world 123", SpecialText::kAsText);
    // A tokenizer may have more ids than the model: that is the request's error.
    if (ids.ok() && !ids->empty())
      request.prompt.assign(ids->begin(), ids->begin() + std::min<ptrdiff_t>(8, std::ssize(*ids)));
  }
  request.max_new_tokens = 2;
  const auto result = engine.Run(std::move(request));
  HW_CHECK(engine.kv_bytes() == 0, "{} bytes are left", engine.kv_bytes());
  if (!result.ok()) return;
  for (const int32_t id : result->tokens) HW_CHECK(id >= 0 && id < engine.config().vocab_size, "id {}", id);
}

}  // namespace
}  // namespace headwise

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const headwise::ModelFolder folder;
  folder.Fill(headwise::FilesOf(std::string_view(reinterpret_cast<const char*>(data), size)));
  headwise::EngineOptions options;
  options.model = folder.path();
  options.num_threads = 1;
  options.kv_limit_bytes = int64_t{16} << 20;
  const auto engine = headwise::Engine::Create(options);
  if (!engine.ok()) {
    HW_CHECK(!engine.status().message().empty());
    return 0;
  }
  headwise::Run(**engine);
  return 0;
}
