#include "eval/run_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/file.h"

namespace headwise {
namespace {

namespace fs = std::filesystem;

constexpr const char* kManifest = "manifest.json";
constexpr const char* kResults = "results.jsonl";
constexpr const char* kSummary = "summary.json";

Status CheckSameManifest(const Json& found, const Json& expected, const std::string& origin) {
  if (found == expected) return Status::Ok();
  for (const auto& [key, value] : expected.items()) {
    const Json other = found.is_object() && found.contains(key) ? found[key] : Json();
    if (other != value) {
      return Status::InvalidInput(fmt::format("{}: the run there has \"{}\" {}, this one {}; choose another folder",
                                              origin, key, other.dump(), value.dump()));
    }
  }
  return Status::InvalidInput(fmt::format("{}: the run there is another one; choose another folder", origin));
}

// Reads the finished lines and cuts off a last line that an interruption left incomplete.
Result<std::vector<Json>> ReadFinished(const fs::path& path) {
  std::vector<Json> finished;
  std::error_code error;
  if (!fs::exists(path, error)) return finished;
  HW_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  size_t begin = 0;
  int64_t line_number = 0;
  for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    const std::string where = fmt::format("{}:{}", path.string(), ++line_number);
    HW_ASSIGN_OR_RETURN(Json line, ParseJson(std::string_view(text).substr(begin, end - begin), where));
    finished.push_back(std::move(line));
    begin = end + 1;
  }
  if (begin < text.size()) fs::resize_file(path, begin, error);
  if (error)
    return Status::Io(fmt::format("{}: cannot cut the incomplete last line: {}", path.string(), error.message()));
  return finished;
}

Status CannotWrite(const fs::path& path) {
  return Status::Io(fmt::format("{}: cannot write: {}", path.string(), std::strerror(errno)));
}

}  // namespace

Result<RunFolder> RunFolder::Open(const fs::path& path, const Json& manifest, Mode mode) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return Status::Io(fmt::format("{}: cannot create the folder: {}", path.string(), error.message()));

  const fs::path manifest_path = path / kManifest;
  RunFolder folder;
  folder.path_ = path;
  if (fs::exists(manifest_path, error)) {
    if (mode == Mode::kNew) {
      return Status::InvalidInput(fmt::format(
          "{}: already holds a run; give --resume to go on with it, or choose another folder", path.string()));
    }
    HW_ASSIGN_OR_RETURN(const Json found, ReadJsonFile(manifest_path.string()));
    HW_RETURN_IF_ERROR(CheckSameManifest(found, manifest, manifest_path.string()));
    HW_ASSIGN_OR_RETURN(folder.finished_, ReadFinished(path / kResults));
  } else if (!fs::is_empty(path, error)) {
    return Status::InvalidInput(fmt::format(
        "{}: is not empty and holds no run, expected a new folder or one of an earlier run", path.string()));
  } else {
    HW_RETURN_IF_ERROR(WriteFileAtomically(manifest_path, manifest.dump(2) + "\n"));
  }
  const fs::path results_path = path / kResults;
  folder.results_.reset(std::fopen(results_path.c_str(), "ae"));
  if (folder.results_ == nullptr) return CannotWrite(results_path);
  return folder;
}

Status RunFolder::Append(const Json& result) {
  // Answers are model output and may end inside a character.
  const std::string line = result.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  std::FILE* file = results_.get();
  const bool is_written = std::fwrite(line.data(), 1, line.size(), file) == line.size() && std::fflush(file) == 0 &&
                          fdatasync(fileno(file)) == 0;
  return is_written ? Status::Ok() : CannotWrite(path_ / kResults);
}

Status RunFolder::WriteSummary(const Json& summary) {
  return WriteFileAtomically(path_ / kSummary, summary.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace headwise
