#include <xgrammar/xgrammar.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "grammar/grammar_engine.h"
#include "grammar/xgrammar_hooks.h"

namespace headwise {
namespace {

constexpr int64_t kCacheBytes = int64_t{256} << 20;
// Of white space between the parts of JSON: endless ones are a habit of small models.
constexpr int kMaxSpaces = 16;
constexpr size_t kMaxReason = 300;
// Of one token, on the engine's thread: all requests wait for it. What is meant to be used takes microseconds.
constexpr std::chrono::milliseconds kMaskTime(500);

DLTensor MaskTensor(std::span<uint32_t> mask, int64_t& size) {
  size = static_cast<int64_t>(mask.size());
  return {.data = mask.data(),
          .device = {kDLCPU, 0},
          .ndim = 1,
          .dtype = xgrammar::GetBitmaskDLType(),
          .shape = &size,
          .strides = nullptr,
          .byte_offset = 0};
}

// Calls into xgrammar: what it throws becomes a status, but for memory that it could not have.
template <typename Function>
auto Guard(std::string_view what, std::chrono::milliseconds limit, const Function& function) -> decltype(function()) {
  const auto status = [&](std::string reason) {
    while (!reason.empty() && reason.back() == '\n') reason.pop_back();
    if (reason.size() > kMaxReason) reason = reason.substr(0, kMaxReason) + "...";
    return Status::InvalidInput(fmt::format("{}: {}", what, reason));
  };
  XgrammarWork work(limit);
  try {
    auto result = function();
    if (!work.warning().empty()) return status(work.warning());
    return result;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    return status(error.what());
  }
}

xgrammar::GrammarMatcher MatcherOf(const xgrammar::CompiledGrammar& grammar) {
  return xgrammar::GrammarMatcher(grammar, std::nullopt, /*terminate_without_stop_token=*/true);
}

// What a grammar's texts stand behind, where a token that is no text begins calls.
struct Before {
  std::optional<int32_t> marker;
  bool is_free = false;                           // any text may come before it
  std::optional<xgrammar::CompiledGrammar> form;  // of the text that may come in place of it, and of what follows it
};

class State : public ConstraintState {
 public:
  State(const xgrammar::CompiledGrammar& grammar, int64_t vocab_size, const Before& before)
      : matcher_(MatcherOf(grammar)), vocab_size_(vocab_size), marker_(before.marker), is_free_(before.is_free) {
    if (before.form) form_ = MatcherOf(*before.form);
  }

  Result<bool> FillMask(std::span<uint32_t> mask) override {
    const auto num_words = static_cast<size_t>(xgrammar::GetBitmaskSize(static_cast<int>(vocab_size_)));
    HW_CHECK(mask.size() >= num_words);
    if (marker_ && !form_) return FillBeforeMarker(mask);
    xgrammar::GrammarMatcher& matcher = form_ ? *form_ : matcher_;
    Result<bool> may_end = Guard("grammar", kMaskTime, [&]() -> Result<bool> {
      int64_t size = 0;
      DLTensor tensor = MaskTensor(mask.first(num_words), size);
      matcher.FillNextTokenBitmask(&tensor);
      return matcher.IsCompleted();
    });
    if (marker_) AllowMarker(mask);
    return may_end;
  }

  Status Accept(int32_t id) override {
    if (marker_ && id == *marker_) {
      marker_.reset();
      form_.reset();
      return Status::Ok();
    }
    if (marker_ && !form_) return Status::Ok();
    if (form_) {
      matcher_ = *std::exchange(form_, std::nullopt);
      marker_.reset();
    }
    const Result<bool> accepted =
        Guard("grammar", kMaskTime, [&]() -> Result<bool> { return matcher_.AcceptToken(id); });
    if (!accepted.ok()) return accepted.status();
    if (*accepted) return Status::Ok();
    return Status::InvalidInput(fmt::format("grammar: token {} cannot come here", id));
  }

 private:
  // Where text may come before the marker, anything may; otherwise the marker comes first.
  bool FillBeforeMarker(std::span<uint32_t> mask) const {
    std::ranges::fill(mask, is_free_ ? ~uint32_t{0} : 0);
    AllowMarker(mask);
    return is_free_;
  }
  void AllowMarker(std::span<uint32_t> mask) const {
    mask[static_cast<size_t>(*marker_) / 32] |= uint32_t{1} << (static_cast<uint32_t>(*marker_) % 32);
  }

  xgrammar::GrammarMatcher matcher_;
  int64_t vocab_size_;
  std::optional<int32_t> marker_;  // that has not come yet
  bool is_free_;
  std::optional<xgrammar::GrammarMatcher> form_;  // while nothing has come
};

class Compiled : public TokenConstraint {
 public:
  Compiled(xgrammar::CompiledGrammar grammar, int64_t vocab_size, Before before)
      : grammar_(std::move(grammar)), vocab_size_(vocab_size), before_(std::move(before)) {}

  int64_t vocab_size() const override { return vocab_size_; }
  Result<std::unique_ptr<ConstraintState>> Begin() const override {
    return Guard("grammar", kMaskTime, [&]() -> Result<std::unique_ptr<ConstraintState>> {
      return std::unique_ptr<ConstraintState>(std::make_unique<State>(grammar_, vocab_size_, before_));
    });
  }

 private:
  xgrammar::CompiledGrammar grammar_;
  int64_t vocab_size_;
  Before before_;
};

xgrammar::Grammar SchemaGrammar(const std::string& schema) {
  return xgrammar::Grammar::FromJSONSchema(schema, /*any_whitespace=*/true, std::nullopt, std::nullopt,
                                           /*strict_mode=*/true, kMaxSpaces);
}

// Of a source's prepared text.
xgrammar::Grammar MakeGrammar(GrammarKind kind, const std::string& text) {
  switch (kind) {
    case GrammarKind::kJson:
    case GrammarKind::kJsonSchema:
      return SchemaGrammar(text);
    case GrammarKind::kRegex:
      return xgrammar::Grammar::FromRegex(text);
    case GrammarKind::kGbnf:
    case GrammarKind::kChoice:
      break;
  }
  return xgrammar::Grammar::FromEBNF(text);
}

// Parts of a structural tag, xgrammar's language for answers that mix text and structure.
Json ConstText(const std::string& text) {
  return {{"type", "const_string"}, {"value", text}};
}

// `open`, calls with separators between them, `close`.
Json CallList(const CallGrammar& calls, const Json& tags) {
  Json elements = Json::array();
  // Vocabularies of words have tokens that begin with a space, and those are the ones that models know.
  if (calls.marker) elements.push_back({{"type", "optional"}, {"content", ConstText(" ")}});
  if (!calls.open.empty()) elements.push_back(ConstText(calls.open));
  elements.push_back({{"type", "tags_with_separator"},
                      {"tags", tags},
                      {"separator", calls.separator},
                      {"at_least_one", true},
                      {"stop_after_first", !calls.several}});
  if (!calls.close.empty()) elements.push_back(ConstText(calls.close));
  return {{"type", "sequence"}, {"elements", std::move(elements)}};
}

Json FormatOf(const CallGrammar& calls) {
  Json tags = Json::array();
  for (const CallGrammar::Call& call : calls.calls) {
    const Json content = {{"type", "grammar"}, {"grammar", SchemaGrammar(call.schema).ToString()}};
    tags.push_back({{"type", "tag"}, {"begin", call.begin}, {"content", content}, {"end", call.end}});
  }
  if (calls.marker || calls.text == CallGrammar::Text::kNone) return CallList(calls, tags);
  if (calls.text == CallGrammar::Text::kBefore && !calls.open.empty()) {
    // The whole list is what the trigger begins.
    const Json list = {{"type", "tags_with_separator"},
                       {"tags", std::move(tags)},
                       {"separator", calls.separator},
                       {"at_least_one", true},
                       {"stop_after_first", !calls.several}};
    tags = {{{"type", "tag"}, {"begin", calls.open}, {"content", list}, {"end", calls.close}}};
  }
  if (calls.text == CallGrammar::Text::kBefore) {
    return {{"type", "triggered_tags"},
            {"triggers", {calls.trigger}},
            {"tags", std::move(tags)},
            {"at_least_one", false},
            {"stop_after_first", !calls.several}};
  }
  const bool has_form = calls.text == CallGrammar::Text::kForm;
  const std::string other =
      has_form ? MakeGrammar(calls.form.kind, calls.form.text).ToString() : R"(root ::= "" | [^{] [^]*)";
  const Json text = {{"type", "grammar"}, {"grammar", other}};
  return {{"type", "or"}, {"elements", {CallList(calls, tags), text}}};
}

class XgrammarEngine : public GrammarEngine {
 public:
  XgrammarEngine(xgrammar::TokenizerInfo vocabulary, int64_t vocab_size, std::chrono::milliseconds compile_time)
      : vocabulary_(std::move(vocabulary)), vocab_size_(vocab_size), compile_time_(compile_time) {}

  Result<Constraint> Compile(GrammarKind kind, const std::string& text) override {
    return Compile(WhatOf(kind), [&](xgrammar::GrammarCompiler& compiler) {
      return std::pair(compiler.CompileGrammar(MakeGrammar(kind, text)), Before());
    });
  }

  Result<Constraint> Compile(const CallGrammar& calls) override {
    HW_CHECK(!calls.calls.empty());
    return Compile("tools", [&](xgrammar::GrammarCompiler& compiler) {
      Before before{.marker = calls.marker,
                    .is_free = calls.text == CallGrammar::Text::kBefore || calls.text == CallGrammar::Text::kOr,
                    .form = std::nullopt};
      if (calls.marker && calls.text == CallGrammar::Text::kForm) {
        before.form = compiler.CompileGrammar(MakeGrammar(calls.form.kind, calls.form.text));
      }
      const Json tag = {{"type", "structural_tag"}, {"format", FormatOf(calls)}};
      auto made = xgrammar::Grammar::FromStructuralTag(tag.dump());
      if (auto* error = std::get_if<xgrammar::StructuralTagError>(&made)) {
        std::visit([](const auto& each) { throw std::runtime_error(each.what()); }, *error);
      }
      return std::pair(compiler.CompileGrammar(std::get<xgrammar::Grammar>(made)), std::move(before));
    });
  }

 private:
  static const char* WhatOf(GrammarKind kind) {
    switch (kind) {
      case GrammarKind::kRegex:
        return "regex";
      case GrammarKind::kGbnf:
      case GrammarKind::kChoice:
        return "grammar";
      case GrammarKind::kJson:
      case GrammarKind::kJsonSchema:
        break;
    }
    return "schema";
  }

  template <typename Make>
  Result<Constraint> Compile(const char* what, const Make& make) {
    // One at a time: what two would take at once is memory, and threads that others decode on.
    const std::lock_guard lock(mutex_);
    try {
      return Guard(what, compile_time_, [&]() -> Result<Constraint> {
        if (!compiler_) compiler_.emplace(vocabulary_, /*max_threads=*/1, /*cache_enabled=*/true, kCacheBytes);
        auto [grammar, before] = make(*compiler_);
        return Constraint(std::make_shared<Compiled>(std::move(grammar), vocab_size_, std::move(before)));
      });
    } catch (const std::bad_alloc&) {
      // Its cache would go on giving the error to who asks for the same.
      compiler_.reset();
      throw;
    }
  }

  xgrammar::TokenizerInfo vocabulary_;
  int64_t vocab_size_;
  std::chrono::milliseconds compile_time_;
  std::mutex mutex_;
  std::optional<xgrammar::GrammarCompiler> compiler_;  // guarded by mutex_
};

}  // namespace

bool HasGrammarEngine() {
  return true;
}

Result<std::unique_ptr<GrammarEngine>> MakeGrammarEngine(const Tokenizer& tokenizer, int64_t vocab_size,
                                                         std::chrono::milliseconds compile_time) {
  // An empty text is a token that stands for none: ids without one, and special ones.
  std::vector<std::string> texts;
  const int64_t num_known = std::min<int64_t>(tokenizer.vocab_size(), vocab_size);
  for (int64_t id = 0; id < num_known; ++id) {
    const auto token = static_cast<int32_t>(id);
    texts.emplace_back(tokenizer.IsSpecial(token) ? std::string_view() : tokenizer.BytesOf(token));
  }
  return Guard("vocabulary", kCompileTime, [&]() -> Result<std::unique_ptr<GrammarEngine>> {
    xgrammar::TokenizerInfo vocabulary(texts, xgrammar::VocabType::RAW, static_cast<int>(vocab_size),
                                       std::vector<int32_t>());
    return std::unique_ptr<GrammarEngine>(
        std::make_unique<XgrammarEngine>(std::move(vocabulary), vocab_size, compile_time));
  });
}

}  // namespace headwise
