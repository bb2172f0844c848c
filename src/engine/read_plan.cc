#include "engine/read_plan.h"

#include <fmt/format.h>

namespace headwise {

Status CheckPlanFor(const Engine& engine, const HeadPlan& plan, const std::string& origin) {
  HW_RETURN_IF_ERROR(CheckPlanFits(plan, engine.shape(), origin));
  if (plan.source_hash && *plan.source_hash != engine.source_hash()) {
    engine.Warn(fmt::format("{}: the plan was made on other weights of this shape (hash {}, this model's is {})",
                            origin, *plan.source_hash, engine.source_hash()));
  }
  return Status::Ok();
}

Result<HeadPlan> ReadPlanFor(const Engine& engine, const std::string& path) {
  HW_ASSIGN_OR_RETURN(HeadPlan plan, ReadHeadPlan(path));
  HW_RETURN_IF_ERROR(CheckPlanFor(engine, plan, path));
  return plan;
}

}  // namespace headwise
