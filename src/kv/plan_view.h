// A plan as text for a terminal.
#ifndef HEADWISE_KV_PLAN_VIEW_H_
#define HEADWISE_KV_PLAN_VIEW_H_

#include <headwise/head_plan.h>

#include <string>

namespace headwise {

// A map of layers x KV heads, one character a head, and a legend of the rules with how many heads have each. Full heads
// are '#', the other rules letters in order of first appearance.
std::string FormatPlanMap(const HeadPlan& plan);

// The plan's scores as shades, layers x KV heads, full heads marked, with the scale and the highest scores by name;
// empty for a plan without scores.
std::string FormatScoreMap(const HeadPlan& plan);

// One rule in words: "sink 16, recent 128".
std::string DescribeRule(const HeadRule& rule);

}  // namespace headwise

#endif  // HEADWISE_KV_PLAN_VIEW_H_
