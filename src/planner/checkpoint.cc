#include "planner/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/file.h"
#include "grad/grad_decoder.h"

namespace headwise {
namespace {

constexpr const char* kUsualCompute = "f32";

}  // namespace

Checkpoint::Checkpoint(const PlannerInput& input, Json identity)
    : path_(input.checkpoint),
      resume_(input.resume == PlannerInput::Resume::kYes),
      should_stop_(input.should_stop),
      on_warning_(input.on_warning),
      identity_(std::move(identity)),
      compute_(input.options.StringOr("compute", kUsualCompute)),
      arithmetic_({GradArithmetic(compute_ == kUsualCompute ? Compute::kF32 : Compute::kBF16)}) {
  identity_["source_hash"] = input.source_hash ? Json(*input.source_hash) : Json();
  identity_["compute"] = compute_;
}

Result<std::optional<Json>> Checkpoint::Load() {
  if (!resume_) return std::optional<Json>();
  HW_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path_));
  HW_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(json, path_));
  if (!object.Has("identity") || !object.Has("state")) {
    return Status::InvalidInput(fmt::format("{}: this is not a planner's checkpoint", path_));
  }
  const Json& found = object.At("identity");
  for (const auto& [key, expected] : identity_.items()) {
    // Older files do not name what was the only one.
    const Json absent = key == "compute" ? Json(kUsualCompute) : Json();
    const Json value = found.is_object() && found.contains(key) ? found.at(key) : absent;
    if (value == expected) continue;
    return Status::InvalidInput(fmt::format("{}: was made with {} {}, this run has {}; expected the same to resume",
                                            path_, key, value.dump(), expected.dump()));
  }
  TakeUpArithmetic(object);
  return std::optional<Json>(object.At("state"));
}

void Checkpoint::TakeUpArithmetic(const JsonObject& saved) {
  std::vector<std::string> earlier;
  if (saved.Has("arithmetic") && saved.At("arithmetic").is_array()) {
    for (const Json& each : saved.At("arithmetic")) {
      if (each.is_string()) earlier.push_back(each.get<std::string>());
    }
  }
  if (earlier.empty()) earlier.emplace_back("code that it does not name");  // an older file
  std::erase(earlier, arithmetic_.back());
  if (earlier.empty()) return;
  if (on_warning_) {
    on_warning_(
        fmt::format("{}: was computed with {}, this machine goes on with {}: digits behind the last of an "
                    "uninterrupted run's differ",
                    path_, fmt::join(earlier, "; "), arithmetic_.back()));
  }
  arithmetic_.insert(arithmetic_.begin(), earlier.begin(), earlier.end());
}

std::vector<std::string> Checkpoint::Notes() const {
  if (arithmetic_.size() == 1) return {};
  return {fmt::format("computed in parts, on machines of different arithmetic: {}", fmt::join(arithmetic_, "; "))};
}

Status Checkpoint::Stopped() const {
  return Status::Cancelled(path_.empty() ? std::string("stopped before the plan was made")
                                         : fmt::format("stopped; the work so far is in {}, --resume goes on", path_));
}

Status Checkpoint::Save(const Json& state) {
  last_save_ = Clock::now();
  if (path_.empty()) return Status::Ok();
  const Json json = {{"identity", identity_}, {"arithmetic", arithmetic_}, {"state", state}};
  return WriteFileAtomically(path_, json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace headwise
