// Text that knows, byte range by byte range, whether the template said it or it came in with the context. That is what
// "no message can forge a marker" rests on: special tokens are looked for in the template's own text alone.
//
// A MarkedString is a range of a shared buffer: copies, slices and trimmed strings share its bytes. Appending to the
// string that ends where its buffer ends goes on in the same buffer, so that a text put together piece by piece is
// copied a constant number of times, whoever else still reads a beginning of it.
#ifndef HEADWISE_TEXT_JINJA_MARKED_STRING_H_
#define HEADWISE_TEXT_JINJA_MARKED_STRING_H_

#include <headwise/byte_range.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace headwise::jinja {

enum class Origin : uint8_t {
  kTemplate,  // literals and text of the template, and what the caller vouches for
  kContext,   // what people wrote: messages, tools, documents
};

// The context's where either is: what was computed from both is not the template's own.
inline Origin Either(Origin a, Origin b) {
  return a == Origin::kContext ? a : b;
}

// Bytes and the places where their origin changes. Being written: a string under construction, the output.
class MarkedBuffer {
 public:
  const std::string& text() const { return text_; }
  size_t size() const { return text_.size(); }

  void Append(std::string_view text, Origin origin);
  // Requires: text is not a view into this buffer.
  void Append(const class MarkedString& text);
  Origin OriginAt(size_t at) const;
  void Reserve(size_t size_bytes) { text_.reserve(size_bytes); }
  size_t num_bytes() const { return text_.size() + cuts_.size() * sizeof(size_t); }

  // Calls visit(begin, end, origin) for the runs of [begin, end), in order.
  template <typename Visit>
  void ForEachRun(size_t begin, size_t end, Visit visit) const {
    if (begin == end) return;
    size_t run = RunAt(begin);
    while (begin < end) {
      const size_t run_end = run < cuts_.size() && cuts_[run] < end ? cuts_[run] : end;
      visit(begin, run_end, OriginOfRun(run));
      begin = run_end;
      ++run;
    }
  }

  // The ranges that are the context's, sorted.
  std::vector<ByteRange> ContextRanges() const;
  std::string TakeText() { return std::move(text_); }

 private:
  friend class MarkedString;
  // Runs take turns: run i ends at cuts_[i], the last at the end. No run is empty. A text of one origin has no cuts.
  size_t RunAt(size_t at) const;
  Origin OriginOfRun(size_t run) const { return static_cast<Origin>(static_cast<size_t>(first_) ^ (run & 1)); }

  std::string text_;
  Origin first_ = Origin::kTemplate;
  std::vector<size_t> cuts_;
};

class MarkedString {
 public:
  MarkedString() = default;
  MarkedString(std::string_view text, Origin origin);
  explicit MarkedString(MarkedBuffer buffer);

  std::string_view view() const {
    return buffer_ ? std::string_view(buffer_->text_).substr(begin_, end_ - begin_) : std::string_view();
  }
  size_t size() const { return end_ - begin_; }
  bool empty() const { return begin_ == end_; }

  // By bytes; `end` may not lie before `begin` nor behind the end.
  MarkedString Substr(size_t begin, size_t end) const;
  // The part that `part` is. Requires: part is a view into view().
  MarkedString Part(std::string_view part) const;
  Origin OriginAt(size_t at) const { return buffer_->OriginAt(begin_ + at); }
  // kContext where any byte is.
  Origin AnyOrigin() const;
  template <typename Visit>
  void ForEachRun(Visit visit) const {
    if (!buffer_) return;
    buffer_->ForEachRun(begin_, end_, [&](size_t begin, size_t end, Origin origin) {
      visit(std::string_view(buffer_->text_).substr(begin, end - begin), origin);
    });
  }

  // This and `tail`. Goes on in this one's buffer where it may. Ends views into it (not strings).
  MarkedString Concat(const MarkedString& tail) const;
  // What Concat would copy.
  size_t ConcatCost(const MarkedString& tail) const { return tail.size() + (CanTake(tail) ? 0 : size()); }

 private:
  bool CanTake(const MarkedString& tail) const {
    return can_grow_ && end_ == buffer_->size() && tail.buffer_ != buffer_;
  }

  std::shared_ptr<MarkedBuffer> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
  // Only of what Concat made: strings of a template and of a context are read by several threads.
  bool can_grow_ = false;
};

}  // namespace headwise::jinja

#endif  // HEADWISE_TEXT_JINJA_MARKED_STRING_H_
