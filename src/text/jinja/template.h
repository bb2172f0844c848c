// Chat templates: the part of the Jinja2 language that published ones use, as transformers sets it up (trim_blocks,
// lstrip_blocks, loop controls, an immutable sandbox). A template is a program of strangers: it reads what it is given,
// writes text, and is stopped at the limits below, whatever it does.
//
// What a rendering gives is text together with the byte ranges that came in with the context. A special token may be
// looked for in the rest alone: then no message can forge one, whatever the template does with it.
//
// Not there: what needs other files (include, import, extends, block), integers of more than 64 bits (an error), and
// filters that no chat template has use for. strings.h says what of Unicode is not exact.
#ifndef HEADWISE_TEXT_JINJA_TEMPLATE_H_
#define HEADWISE_TEXT_JINJA_TEMPLATE_H_

#include <headwise/status.h>

#include <ctime>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace headwise::jinja {

struct Program;

// The variables of a rendering. It may serve many, on several threads at once.
class Context {
 public:
  void Set(std::string name, Value value) { values_[std::move(name)] = std::move(value); }
  // A JSON value whose every string and number is of one origin. An error names the variable.
  Status SetJson(std::string name, const OrderedJson& json, Origin origin = Origin::kContext);
  // Text that counts as the template's own: bos_token, eos_token and the like. Requires: valid UTF-8.
  void SetTrusted(std::string name, std::string_view text) { Set(std::move(name), Value::String(text)); }

  // A list of objects as the variable `messages`, all of it what people wrote but for the role of a message where it is
  // one of `trusted_roles`: templates put markers together from roles ('<|' + message.role + '|>').
  Status SetMessages(const OrderedJson& messages, std::span<const std::string_view> trusted_roles);

  const Value* Find(const std::string& name) const;

 private:
  std::map<std::string, Value> values_;
};

// Of one rendering. The defaults are far beyond what any conversation needs and stop within seconds.
struct RenderLimits {
  int64_t max_steps = 50'000'000;                 // operations; 64 bytes read in passing are one
  int64_t max_value_bytes = int64_t{512} << 20;   // all values made, the ones forgotten since included
  int64_t max_output_bytes = int64_t{128} << 20;  // the text
  int max_depth = 600;                            // operations, blocks and macros inside one another
};

struct RenderOptions {
  RenderLimits limits;
  // What strftime_now tells; without it a template that asks is an error.
  std::optional<std::tm> now;
};

struct MarkedText {
  std::string text;
  // What came in with the context: sorted, not empty, not touching. All else is the template's own.
  std::vector<ByteRange> from_context;
};

class Template {
 public:
  // A greater one is no chat template.
  static constexpr size_t kMaxBytes = size_t{1} << 20;

  // An error says the line, what was found and what was expected.
  static Result<Template> Parse(std::string_view source);

  // Whether the template reads a variable of that name anywhere: "tools", "documents", "enable_thinking".
  bool Reads(std::string_view name) const;

  // An error says the line; a template that calls raise_exception ends with its words. Thread-safe.
  Result<MarkedText> Render(const Context& context, const RenderOptions& options = {}) const;

 private:
  explicit Template(std::shared_ptr<const Program> program) : program_(std::move(program)) {}

  std::shared_ptr<const Program> program_;
};

}  // namespace headwise::jinja

#endif  // HEADWISE_TEXT_JINJA_TEMPLATE_H_
