// What tests of texts ask of them.
#ifndef HEADWISE_TESTS_SUPPORT_TEXT_H_
#define HEADWISE_TESTS_SUPPORT_TEXT_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace headwise {

// Places at which `what` stands in `text`. Requires: `what` is not empty.
inline std::vector<size_t> PlacesOf(std::string_view what, std::string_view text) {
  std::vector<size_t> places;
  for (size_t at = text.find(what); at != std::string_view::npos; at = text.find(what, at + 1)) places.push_back(at);
  return places;
}

inline size_t CountOf(std::string_view what, std::string_view text) {
  return PlacesOf(what, text).size();
}

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_TEXT_H_
