#include "text/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>

namespace headwise {

Result<Vocabulary> Vocabulary::Of(const std::vector<Entry>& entries, std::string_view origin) {
  int64_t size = 0;
  for (const Entry& entry : entries) size = std::max<int64_t>(size, int64_t{entry.id} + 1);
  // Published vocabularies have a few hundred holes at most; padding to round numbers stays far below this too.
  const int64_t limit = 4 * static_cast<int64_t>(entries.size()) + 65536;
  if (size > limit) {
    return Status::InvalidInput(
        fmt::format("{}: id {} among {} tokens, expected less than {}", origin, size - 1, entries.size(), limit));
  }
  Vocabulary vocabulary;
  vocabulary.tokens_.resize(static_cast<size_t>(size));
  vocabulary.used_.resize(static_cast<size_t>(size));
  vocabulary.ids_.reserve(entries.size());
  for (const Entry& entry : entries) {
    if (entry.id < 0) {
      return Status::InvalidInput(
          fmt::format("{}: token \"{}\" has id {}, expected 0 or more", origin, entry.token, entry.id));
    }
    const auto at = static_cast<size_t>(entry.id);
    if (vocabulary.used_[at]) {
      return Status::InvalidInput(fmt::format("{}: id {} belongs to \"{}\" and to \"{}\"", origin, entry.id,
                                              vocabulary.tokens_[at], entry.token));
    }
    vocabulary.used_[at] = true;
    vocabulary.tokens_[at] = entry.token;
    vocabulary.ids_.emplace(entry.token, entry.id);
  }
  return vocabulary;
}

}  // namespace headwise
