// The check that all options of generators need.
#ifndef HEADWISE_DATA_OPTION_RANGE_H_
#define HEADWISE_DATA_OPTION_RANGE_H_

#include <fmt/format.h>
#include <headwise/status.h>

#include <string_view>
#include <type_traits>

namespace headwise {

// An error that says what was found and what was expected, unless least <= value <= most; for one that is no number,
// too.
template <typename T>
Status CheckOption(std::string_view what, T value, std::type_identity_t<T> least, std::type_identity_t<T> most) {
  if (value >= least && value <= most) return Status::Ok();
  return Status::InvalidInput(fmt::format("{} is {}, expected {} to {}", what, value, least, most));
}

}  // namespace headwise

#endif  // HEADWISE_DATA_OPTION_RANGE_H_
