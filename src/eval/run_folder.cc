#include "eval/run_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/file.h"

namespace headwise {
namespace {

namespace fs = std::filesystem;

std::string Line(const Json& json) {
  // Answers are model output and may end inside a character.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string Page(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

// Names the innermost value that differs.
Status CheckSame(const std::string& key, const Json& found, const Json& expected, const std::string& origin) {
  if (found == expected) return Status::Ok();
  if (found.is_object() && expected.is_object()) {
    for (const auto& [name, value] : expected.items()) {
      HW_RETURN_IF_ERROR(CheckSame(name, found.contains(name) ? found[name] : Json(), value, origin));
    }
  }
  return Status::InvalidInput(fmt::format("{}: the run there has \"{}\" {}, this one {}; choose another folder", origin,
                                          key, found.dump(), expected.dump()));
}

// What was asked for may be "auto": results depend on what became of it on the machine of then. The error has the flags
// with which this machine computes like that one.
Status CheckSameArithmetic(const Json& found, const Json& expected, const std::string& origin) {
  std::vector<std::string> then, now, flags;
  for (const auto& [name, value] : expected.items()) {
    // Older runs know nothing of this one, and did without.
    const Json missing = name == kBatchInvariantKey ? Json(false) : value;
    const Json was = found.value(name, missing);
    if (was == value) continue;
    then.push_back(fmt::format("{} {}", name, was.dump()));
    now.push_back(fmt::format("{} {}", name, value.dump()));
    std::string flag = "--" + name;
    std::ranges::replace(flag, '_', '-');
    if (was.is_boolean()) {
      flags.push_back(was.get<bool>() ? flag : "no " + flag);
    } else {
      flags.push_back(fmt::format("{} {}", flag, was.is_string() ? was.get<std::string>() : was.dump()));
    }
  }
  if (then.empty()) return Status::Ok();
  return Status::InvalidInput(fmt::format(
      "{}: the run there was computed with {}, this one is with {}; give {} to go on in the arithmetic it began in, or "
      "choose another folder",
      origin, fmt::join(then, ", "), fmt::join(now, ", "), fmt::join(flags, " ")));
}

// Of a manifest: "arithmetic" says what the other options became, which are only compared where it is missing.
void EraseAskedArithmetic(Json& manifest) {
  for (const char* key : {kArithmeticKey, "backend", "compute", "kv_dtype"}) manifest["options"].erase(key);
}

// The environment decides speed, not results: a run may go on on another machine, if it computes alike there. What
// stays in doubt is written to `warning`.
Status CheckSameRun(Json found, Json expected, const std::string& origin, std::string& warning) {
  if (!found.is_object()) found = Json::object();
  found.erase("environment");
  expected.erase("environment");
  if (expected["options"].contains(kArithmeticKey) && found.contains("options") && found["options"].is_object()) {
    const Json now = expected["options"][kArithmeticKey];
    const Json then = found["options"].value(kArithmeticKey, Json());
    if (then.is_object()) {
      HW_RETURN_IF_ERROR(CheckSameArithmetic(then, now, origin));
      EraseAskedArithmetic(found);
      EraseAskedArithmetic(expected);
    } else {
      expected["options"].erase(kArithmeticKey);
      warning = fmt::format(
          "{}: the run there does not say what \"auto\" became on its machine, as older ones do not; it goes on in {}, "
          "and results may differ in their last digits from those there",
          origin, now.dump());
    }
  }
  // What a person asked for differs for a reason; the rest often follows from it.
  HW_RETURN_IF_ERROR(CheckSame("options", found.value("options", Json()), expected["options"], origin));
  return CheckSame("run", found, expected, origin);
}

// Results of an earlier run; a last line that an interruption left incomplete is cut off.
Result<std::vector<CaseResult>> TakeUpResults(const fs::path& folder) {
  HW_ASSIGN_OR_RETURN(RunData run, ReadRun(folder));
  const fs::path path = folder / kResultsFile;
  std::error_code error;
  if (!fs::exists(path, error)) return std::move(run.results);
  HW_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const size_t end = text.rfind('\n') + 1;
  if (end < text.size()) fs::resize_file(path, end, error);
  if (!error) return std::move(run.results);
  return Status::Io(fmt::format("{}: cannot cut the incomplete last line: {}", path.string(), error.message()));
}

// Whether a folder without a manifest is somebody's. Of a run that was killed while it began there may be the manifest
// under the name that it had until it was complete (base/file.h).
bool HoldsOtherThings(const fs::path& folder) {
  std::error_code error;
  const std::string beginning = std::string(kManifestFile) + ".";
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const bool is_left_over = name.starts_with(beginning) &&
                              name.find_first_not_of("0123456789abcdef", beginning.size()) == std::string::npos;
    if (!is_left_over) return true;
  }
  return static_cast<bool>(error);
}

Status CannotWrite(const fs::path& path) {
  return Status::Io(fmt::format("{}: cannot write: {}", path.string(), std::strerror(errno)));
}

}  // namespace

Result<RunFolder> RunFolder::Open(const fs::path& path, const RunInfo& info, std::span<const CaseText> cases,
                                  Mode mode) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return Status::Io(fmt::format("{}: cannot create the folder: {}", path.string(), error.message()));

  const fs::path manifest_path = path / kManifestFile;
  RunFolder folder;
  folder.path_ = path;
  if (fs::exists(manifest_path, error)) {
    if (mode == Mode::kNew) {
      return Status::InvalidInput(fmt::format(
          "{}: already holds a run; give --resume to go on with it, or choose another folder", path.string()));
    }
    HW_ASSIGN_OR_RETURN(const Json found, ReadJsonFile(manifest_path.string()));
    HW_RETURN_IF_ERROR(CheckSameRun(found, ToJson(info), manifest_path.string(), folder.warning_));
    HW_RETURN_IF_ERROR(folder.OpenResults());
    HW_ASSIGN_OR_RETURN(folder.finished_, TakeUpResults(path));
  } else if (HoldsOtherThings(path)) {
    return Status::InvalidInput(fmt::format(
        "{}: is not empty and holds no run, expected a new folder or one of an earlier run", path.string()));
  } else {
    HW_RETURN_IF_ERROR(WriteFileAtomically(manifest_path, Page(ToJson(info))));
    HW_RETURN_IF_ERROR(folder.OpenResults());
  }
  if (!cases.empty() && !fs::exists(path / kCasesFile, error)) {
    std::string lines;
    for (const CaseText& each : cases) lines += Line(ToJson(each));
    HW_RETURN_IF_ERROR(WriteFileAtomically(path / kCasesFile, lines));
  }
  return folder;
}

// A lock goes with the open file, however the process ends.
Status RunFolder::OpenResults() {
  const fs::path path = path_ / kResultsFile;
  results_.reset(std::fopen(path.c_str(), "ae"));
  if (results_ == nullptr) return CannotWrite(path);
  // A file system that knows no locks is no reason not to work.
  if (::flock(fileno(results_.get()), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return Status::Ok();
  return Status::InvalidInput(
      fmt::format("{}: another process is writing it; wait for it to end, or choose another folder", path.string()));
}

Status RunFolder::Append(const CaseResult& result) {
  const std::string line = Line(ToJson(result));
  std::FILE* file = results_.get();
  const bool is_written = std::fwrite(line.data(), 1, line.size(), file) == line.size() && std::fflush(file) == 0 &&
                          fdatasync(fileno(file)) == 0;
  return is_written ? Status::Ok() : CannotWrite(path_ / kResultsFile);
}

Status RunFolder::WritePlan(const std::string& file, const HeadPlan& plan) {
  const fs::path path = path_ / file;
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) return Status::Io(fmt::format("{}: cannot create the folder: {}", path.string(), error.message()));
  return WriteHeadPlan(plan, path.string());
}

Status RunFolder::WriteSummary(const Json& summary) {
  return WriteFileAtomically(path_ / kSummaryFile, Page(summary));
}

}  // namespace headwise
