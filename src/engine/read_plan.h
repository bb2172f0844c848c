// A plan file for the model of an engine.
#ifndef HEADWISE_ENGINE_READ_PLAN_H_
#define HEADWISE_ENGINE_READ_PLAN_H_

#include <headwise/engine.h>
#include <headwise/head_plan.h>
#include <headwise/status.h>

#include <string>

namespace headwise {

// The word for "every head full" where a plan is expected.
inline constexpr const char* kFullPlan = "full";

// A plan for another model is an error; one that was made on other weights of this shape is used, and Engine::Warn
// told. `origin` opens the messages.
Status CheckPlanFor(const Engine& engine, const HeadPlan& plan, const std::string& origin);

// The plan in the file `path`, checked so.
Result<HeadPlan> ReadPlanFor(const Engine& engine, const std::string& path);

}  // namespace headwise

#endif  // HEADWISE_ENGINE_READ_PLAN_H_
