#include "planner/checkpoint.h"

#include <fmt/format.h>

#include "base/file.h"

namespace headwise {

Checkpoint::Checkpoint(const PlannerInput& input, Json identity)
    : path_(input.checkpoint),
      resume_(input.resume == PlannerInput::Resume::kYes),
      should_stop_(input.should_stop),
      identity_(std::move(identity)) {
  identity_["source_hash"] = input.source_hash ? Json(*input.source_hash) : Json();
}

Result<std::optional<Json>> Checkpoint::Load() const {
  if (!resume_) return std::optional<Json>();
  HW_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path_));
  HW_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(json, path_));
  if (!object.Has("identity") || !object.Has("state")) {
    return Status::InvalidInput(fmt::format("{}: this is not a planner's checkpoint", path_));
  }
  const Json& found = object.At("identity");
  for (const auto& [key, expected] : identity_.items()) {
    const Json value = found.is_object() && found.contains(key) ? found.at(key) : Json();
    if (value == expected) continue;
    return Status::InvalidInput(fmt::format("{}: was made with {} {}, this run has {}; expected the same to resume",
                                            path_, key, value.dump(), expected.dump()));
  }
  return std::optional<Json>(object.At("state"));
}

Status Checkpoint::Stopped() const {
  return Status::Cancelled(path_.empty() ? std::string("stopped before the plan was made")
                                         : fmt::format("stopped; the work so far is in {}, --resume goes on", path_));
}

Status Checkpoint::Save(const Json& state) {
  last_save_ = Clock::now();
  if (path_.empty()) return Status::Ok();
  const Json json = {{"identity", identity_}, {"state", state}};
  return WriteFileAtomically(path_, json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace headwise
