// The two directions between tokens and ids.
#ifndef HEADWISE_TEXT_VOCABULARY_H_
#define HEADWISE_TEXT_VOCABULARY_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <headwise/status.h>

namespace headwise {

class Vocabulary {
 public:
  struct Entry {
    std::string token;
    int32_t id;
  };

  Vocabulary() = default;
  // Ids may have holes, but not so many that the table would be mostly holes.
  static Result<Vocabulary> Of(const std::vector<Entry>& entries, std::string_view origin);

  // One more than the largest id.
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  std::optional<int32_t> IdOf(std::string_view token) const {
    const auto it = ids_.find(token);
    return it == ids_.end() ? std::nullopt : std::optional<int32_t>(it->second);
  }
  // Null for an id that has no token.
  const std::string* TokenOf(int32_t id) const {
    if (id < 0 || id >= size() || !used_[static_cast<size_t>(id)]) return nullptr;
    return &tokens_[static_cast<size_t>(id)];
  }

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids_;
  std::vector<std::string> tokens_;
  std::vector<bool> used_;
};

}  // namespace headwise

#endif  // HEADWISE_TEXT_VOCABULARY_H_
