// Text to token ids and back, as the model's own files define it: tokenizer.json (byte-level BPE, SentencePiece-style
// BPE with byte fallback, or Unigram), tokenizer.model, or what a .gguf file has in their place. It is held to
// the ids that Hugging Face's implementation gives. Where it differs on purpose: text that cannot be encoded is an
// error instead of being dropped, and a run of byte tokens that is not UTF-8 shows one U+FFFD per maximal invalid
// prefix, whatever follows, so that a stream never takes text back. Characters have the classes that PCRE2's and
// utf8proc's version of Unicode gives them, which may be newer or older than those of that implementation.
#ifndef HEADWISE_TOKENIZER_H_
#define HEADWISE_TOKENIZER_H_

#include <headwise/byte_range.h>
#include <headwise/status.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headwise {

class TokenizerImpl;    // text/tokenizer_impl.h
struct TokenizerParts;  // text/tokenizer.h

// Whether the text of a special token (a turn marker, start of text) stands for that token, or is text like any other,
// as what people wrote should be.
enum class SpecialText { kParse, kAsText };

enum class SpecialDisplay { kShow, kSkip };

// A program, in the language of Jinja2, that writes conversations as the model was trained on them.
struct ChatTemplateText {
  std::string name;  // "default", "tool_use", "rag"
  std::string source;
  std::string origin;  // which file it stands in, and where there; opens messages about it
};

struct NamedToken {
  std::string name;
  std::string token;
};

// Safe to use from several threads at once.
class Tokenizer {
 public:
  static Result<std::unique_ptr<Tokenizer>> FromParts(TokenizerParts parts);

  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;
  ~Tokenizer();

  // The ids of `text`; nothing is put in front or behind (see AddsBos). An error if the text is not UTF-8, or has a
  // character for which the vocabulary has no token at all.
  Result<std::vector<int32_t>> Encode(std::string_view text, SpecialText special = SpecialText::kAsText) const;
  // The same of a text that several wrote: special tokens stand for themselves outside `ordinary`, the ranges that are
  // text like any other. A token that reaches into one is none; words are cut across the joints. Requires: ranges are
  // sorted, do not overlap, end with characters and lie inside the text.
  Result<std::vector<int32_t>> Encode(std::string_view text, std::span<const ByteRange> ordinary) const;

  // The text of `ids`; bytes that are not UTF-8 become U+FFFD, ids without a token become nothing.
  std::string Decode(std::span<const int32_t> ids, SpecialDisplay special = SpecialDisplay::kSkip) const;

  // One more than the largest id. A model's vocabulary may be padded beyond it.
  int32_t vocab_size() const;
  std::optional<int32_t> IdOf(std::string_view token) const;
  // Null for an id that has no token.
  const std::string* TokenOf(int32_t id) const;
  bool IsSpecial(int32_t id) const;
  // What `id` adds to a text that it does not begin, a special token its name: often only a part of a character. Empty
  // for an id that has no token. Lives as long as the tokenizer.
  std::string_view BytesOf(int32_t id) const;

  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;
  // Whether the files say that a text for the model begins with bos_id().
  bool AddsBos() const;
  // What it begins with in full: bos_id() alone, or for a few families (GLM) more behind it. Empty unless AddsBos().
  std::span<const int32_t> start_ids() const;
  // Whether they say that it begins with no such token. Where they say neither, the model's config counts: BeginOfText.
  bool OmitsBos() const;
  // The chat templates that the model brings; <headwise/chat.h> runs them.
  std::span<const ChatTemplateText> chat_templates() const;
  // Tokens by the names that chat templates know them by: "bos_token", "eos_token", "pad_token".
  std::span<const NamedToken> named_tokens() const;

 private:
  friend class StreamDecoder;
  explicit Tokenizer(std::unique_ptr<const TokenizerImpl> impl);

  std::unique_ptr<const TokenizerImpl> impl_;
};

// Token ids to text while they are being generated. What Push has returned is never taken back, never ends inside a
// character, and all of it together is what Tokenizer::Decode gives for the whole list.
class StreamDecoder {
 public:
  // Borrows the tokenizer.
  explicit StreamDecoder(const Tokenizer& tokenizer, SpecialDisplay special = SpecialDisplay::kSkip);

  // The text that can be shown once `id` is there; often empty inside a character of several tokens.
  std::string Push(int32_t id);

  // What is left at the end: bytes that never became a character are U+FFFD. Ready for a new list afterwards.
  std::string Flush();

 private:
  void Emit(std::string_view character, std::string& out);

  const Tokenizer* tokenizer_;
  SpecialDisplay special_;
  bool at_start_ = true;
  std::string pending_;     // at most 3 bytes of an unfinished character
  size_t strip_left_ = 0;   // how many more strip characters the start of the text may lose
  size_t held_ = 0;         // strip characters that are lost if the text ends here
  std::string strip_text_;  // the strip character
};

// The tokenizer of a model, a Hugging Face folder or a .gguf file, without its weights. kNotFound if it has none.
// `on_warning` is told what its files leave open.
Result<std::unique_ptr<Tokenizer>> OpenTokenizer(const std::string& model,
                                                 std::function<void(std::string_view)> on_warning = {});

}  // namespace headwise

#endif  // HEADWISE_TOKENIZER_H_
