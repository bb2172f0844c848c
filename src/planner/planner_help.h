// What --help says about the options of planners; which method takes which is in the planner registry.
#ifndef HEADWISE_PLANNER_PLANNER_HELP_H_
#define HEADWISE_PLANNER_PLANNER_HELP_H_

#include <string>
#include <string_view>

namespace headwise {

// Empty for an option that nobody described.
std::string_view HelpFor(std::string_view method, std::string_view option);

// In the words of the option, or a rule in brackets; empty where nothing stands in its place.
std::string DefaultFor(std::string_view method, std::string_view option);

bool IsRequired(std::string_view method, std::string_view option);

}  // namespace headwise

#endif  // HEADWISE_PLANNER_PLANNER_HELP_H_
