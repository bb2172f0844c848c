#include "data/stream_lines.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "data/lines.h"
#include "data/option_range.h"

namespace headwise {
namespace {

// Only bounds what a caller can ask for.
constexpr int64_t kMaxLinesBetween = 100'000;
// Lines beyond the largest distance in which no name comes again.
constexpr int64_t kMargin = 100;
// So many names are always free for the next line: with fewer, finding one takes long.
constexpr int64_t kMinFreeNames = 100;

int64_t NumberOf(uint64_t drawn) {
  return static_cast<int64_t>(drawn) + 1;
}

int64_t MaxDistance(const LineStreamOptions& options) {
  HW_CHECK(ValidateLineStreamOptions(options).ok());
  return *std::max_element(options.distances.begin(), options.distances.end());
}

}  // namespace

Status ValidateLineStreamOptions(const LineStreamOptions& options) {
  HW_RETURN_IF_ERROR(CheckOption("number of lines between questions", options.lines_between, 1, kMaxLinesBetween));
  if (options.distances.empty()) return Status::InvalidInput("no distances, expected one or more");
  for (const int64_t distance : options.distances) {
    HW_RETURN_IF_ERROR(CheckOption("distance in lines", distance, 1, kMaxLines - kMargin - kMinFreeNames));
  }
  return Status::Ok();
}

uint64_t RecentlyDistinct::Draw(Rng& rng) {
  if (recent_.size() == window_) {
    is_recent_[recent_.front()] = false;
    recent_.pop_front();
  }
  uint64_t value = rng.Below(is_recent_.size());
  while (is_recent_[value]) value = rng.Below(is_recent_.size());
  is_recent_[value] = true;
  recent_.push_back(value);
  return value;
}

uint64_t RecentlyDistinct::Back(size_t distance) const {
  HW_CHECK(distance >= 1 && distance <= recent_.size(), "{} back of {}", distance, recent_.size());
  return recent_[recent_.size() - distance];
}

LineStream::LineStream(LineStreamOptions options, uint64_t seed)
    : options_(std::move(options)),
      max_distance_(MaxDistance(options_)),
      rng_(seed),
      name_ids_(static_cast<uint64_t>(kMaxLines), static_cast<size_t>(max_distance_ + kMargin)),
      numbers_(static_cast<uint64_t>(kMaxLineNumber), static_cast<size_t>(max_distance_ + kMargin)) {}

LineBlock LineStream::Next() {
  LineBlock block;
  block.distance = options_.distances[static_cast<size_t>(num_questions_++) % options_.distances.size()];
  block.num_lines = std::max(options_.lines_between, block.distance - num_lines_);
  while (asked_.contains(num_lines_ + block.num_lines - block.distance)) ++block.num_lines;
  block.text = num_lines_ == 0 ? LineOpening("Now and then") : "\n\n";
  for (int64_t i = 0; i < block.num_lines; ++i) {
    const std::string name = LineName(name_ids_.Draw(rng_));
    block.text += LineText(name, NumberOf(numbers_.Draw(rng_)));
  }
  num_lines_ += block.num_lines;
  asked_.insert(num_lines_ - block.distance);
  asked_.erase(asked_.begin(), asked_.lower_bound(num_lines_ - max_distance_));
  const auto distance = static_cast<size_t>(block.distance);
  const std::string name = LineName(name_ids_.Back(distance));
  block.question = "\n" + LineQuestion(name);
  block.expected_number = NumberOf(numbers_.Back(distance));
  block.answer = LineAnswer(name, block.expected_number);
  return block;
}

}  // namespace headwise
