// StreamEval [stream §4.3, §C]: lines as in data/lines.h without an end, and after every few of them a question for the
// line that stands a given number of lines back. Whatever has been read before, a cache that keeps so many lines
// suffices.
#ifndef HEADWISE_DATA_STREAM_LINES_H_
#define HEADWISE_DATA_STREAM_LINES_H_

#include <headwise/status.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"

namespace headwise {

struct LineStreamOptions {
  int64_t lines_between = 10;             // two questions: 1 to 100,000
  std::vector<int64_t> distances = {20};  // asked for in turn, again and again; 1 is the line before the question
};

// What is read until an answer is due: `text`, then `question`. The next block follows the answer directly.
struct LineBlock {
  std::string text;  // of the first block, with what is to be done in front; the others begin with an empty line
  std::string question;
  int64_t expected_number = 0;
  std::string answer;     // a sentence with that number
  int64_t distance = 0;   // of the asked line in lines
  int64_t num_lines = 0;  // in this block
};

// An error if an option is out of range.
Status ValidateLineStreamOptions(const LineStreamOptions& options);

// Draws values of which any `window` in a row are all different.
class RecentlyDistinct {
 public:
  // Requires: 1 <= window <= limit.
  RecentlyDistinct(uint64_t limit, size_t window) : window_(window), is_recent_(limit) {}

  // Below the limit.
  uint64_t Draw(Rng& rng);
  // The value drawn `distance` draws ago; 1 is the last. Requires: 1 <= distance <= window, and so many draws.
  uint64_t Back(size_t distance) const;

 private:
  size_t window_;
  std::deque<uint64_t> recent_;  // the last `window_` draws
  std::vector<bool> is_recent_;  // by value
};

// Memory does not grow with the number of blocks. Names, and numbers, are all different among any lines as many as the
// largest distance and 100 more, so that a right answer cannot come from a wrong line; in a longer stream they come
// again.
class LineStream {
 public:
  // The same options and seed give the same stream on every machine. Requires: valid options.
  LineStream(LineStreamOptions options, uint64_t seed);

  // A block has lines_between lines, and as many more as it takes until the asked line is there and has not been asked
  // for before: with its answer it stands in the stream again, closer than the distance says.
  LineBlock Next();

 private:
  LineStreamOptions options_;
  int64_t max_distance_;
  Rng rng_;
  RecentlyDistinct name_ids_;
  RecentlyDistinct numbers_;
  int64_t num_lines_ = 0;
  int64_t num_questions_ = 0;
  std::set<int64_t> asked_;  // lines that have been asked for, of those that still can be
};

}  // namespace headwise

#endif  // HEADWISE_DATA_STREAM_LINES_H_
