#include "base/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace headwise {
namespace {

constexpr auto kRedrawInterval = std::chrono::milliseconds(100);
constexpr int kMaxBarColumns = 40;

std::string FormatTime(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

}  // namespace

std::string FormatProgress(std::string_view label, int64_t done, int64_t total, double elapsed_seconds, int width) {
  const double share = total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0) : 1.0;
  std::string time;
  if (share > 0) time = fmt::format("  {} left", FormatTime(elapsed_seconds * (1 - share) / share));
  const std::string counts = fmt::format("  {}/{}{}", done, total, time);
  const int bar_columns =
      std::min(kMaxBarColumns, width - static_cast<int>(label.size() + counts.size()) - 4);  // "  [" and "]"
  std::string line(label);
  if (bar_columns >= 4) {
    const int filled = static_cast<int>(share * bar_columns);
    line += fmt::format("  [{:#<{}}{:.<{}}]", "", filled, "", bar_columns - filled);
  }
  line += counts;
  if (static_cast<int>(line.size()) > width) line.resize(static_cast<size_t>(std::max(0, width)));
  return line;
}

ProgressBar::ProgressBar(ProgressLine* line, std::string label, int64_t total)
    : line_(line), label_(std::move(label)), total_(total), start_(Clock::now()) {}

ProgressBar::~ProgressBar() {
  if (drawn_) line_->Wipe();
}

void ProgressBar::Update(int64_t done) {
  if (line_ == nullptr) return;
  const auto now = Clock::now();
  if (told_ && now - last_told_ < kRedrawInterval) return;
  told_ = true;
  last_told_ = now;
  line_->Count(label_, done, total_);
  const int columns = line_->Columns();
  if (columns <= 0) return;
  drawn_ = true;
  const double elapsed_seconds = std::chrono::duration<double>(now - start_).count();
  line_->Draw(FormatProgress(label_, done, total_, elapsed_seconds, columns));
}

}  // namespace headwise
