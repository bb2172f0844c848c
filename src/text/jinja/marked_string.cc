#include "text/jinja/marked_string.h"

#include <algorithm>

#include "base/check.h"

namespace headwise::jinja {

void MarkedBuffer::Append(std::string_view text, Origin origin) {
  if (text.empty()) return;
  if (text_.empty()) {
    first_ = origin;
  } else if (OriginOfRun(cuts_.size()) != origin) {
    cuts_.push_back(text_.size());
  }
  text_.append(text);
}

void MarkedBuffer::Append(const MarkedString& text) {
  text.ForEachRun([&](std::string_view run, Origin origin) { Append(run, origin); });
}

size_t MarkedBuffer::RunAt(size_t at) const {
  return static_cast<size_t>(std::upper_bound(cuts_.begin(), cuts_.end(), at) - cuts_.begin());
}

Origin MarkedBuffer::OriginAt(size_t at) const {
  return OriginOfRun(RunAt(at));
}

std::vector<ByteRange> MarkedBuffer::ContextRanges() const {
  std::vector<ByteRange> ranges;
  ForEachRun(0, size(), [&](size_t begin, size_t end, Origin origin) {
    if (origin == Origin::kContext) ranges.push_back({begin, end});
  });
  return ranges;
}

MarkedString::MarkedString(std::string_view text, Origin origin) {
  if (text.empty()) return;
  buffer_ = std::make_shared<MarkedBuffer>();
  buffer_->Append(text, origin);
  end_ = text.size();
}

MarkedString::MarkedString(MarkedBuffer buffer) {
  if (buffer.text_.empty()) return;
  buffer_ = std::make_shared<MarkedBuffer>(std::move(buffer));
  end_ = buffer_->size();
}

MarkedString MarkedString::Substr(size_t begin, size_t end) const {
  HW_CHECK(begin <= end && end <= size(), "[{}, {}) of {}", begin, end, size());
  MarkedString part = *this;
  part.begin_ = begin_ + begin;
  part.end_ = begin_ + end;
  return part;
}

MarkedString MarkedString::Part(std::string_view part) const {
  if (part.empty()) return {};
  const size_t begin = static_cast<size_t>(part.data() - view().data());
  return Substr(begin, begin + part.size());
}

Origin MarkedString::AnyOrigin() const {
  Origin any = Origin::kTemplate;
  ForEachRun([&](std::string_view, Origin origin) { any = Either(any, origin); });
  return any;
}

MarkedString MarkedString::Concat(const MarkedString& tail) const {
  if (tail.empty()) return *this;
  if (empty()) return tail;
  MarkedString joined;
  if (CanTake(tail)) {
    joined = *this;
  } else {
    joined.buffer_ = std::make_shared<MarkedBuffer>();
    joined.buffer_->Append(*this);
    joined.can_grow_ = true;
  }
  joined.buffer_->Append(tail);
  joined.end_ = joined.buffer_->size();
  return joined;
}

}  // namespace headwise::jinja
