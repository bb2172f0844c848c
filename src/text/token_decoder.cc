#include "text/token_decoder.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <utility>

#include "text/byte_level.h"
#include "text/normalizer.h"
#include "text/utf8.h"

namespace headwise {
namespace {

Result<std::string> ReplaceText(std::string_view text, std::string_view pattern, std::string_view content,
                                size_t original_bytes, std::string_view origin) {
  // Before there is such a text.
  size_t num_found = 0;
  for (size_t at = 0; (at = text.find(pattern, at)) != std::string_view::npos; at += pattern.size()) ++num_found;
  const size_t size_bytes = text.size() - num_found * pattern.size() + num_found * content.size();
  HW_RETURN_IF_ERROR(CheckGrowth(size_bytes, original_bytes, origin));
  std::string out;
  for (size_t found; (found = text.find(pattern)) != std::string_view::npos;) {
    out.append(text.substr(0, found)).append(content);
    text.remove_prefix(found + pattern.size());
  }
  return out.append(text);
}

std::string_view StripEnds(std::string_view text, const TokenDecoder::Strip& strip) {
  for (size_t i = 0; i < strip.start && !text.empty(); ++i) {
    const Utf8Character character = FirstCharacter(text);
    if (character.code != strip.content) break;
    text.remove_prefix(character.size_bytes);
  }
  for (size_t i = 0; i < strip.stop && !text.empty(); ++i) {
    const Utf8Character character = LastCharacter(text);
    if (character.code != strip.content) break;
    text.remove_suffix(character.size_bytes);
  }
  return text;
}

// The byte that a token like <0x0A> stands for.
std::optional<char> ByteOf(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  unsigned byte = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  if (error != std::errc() || end != token.data() + 5) return std::nullopt;
  return static_cast<char>(static_cast<unsigned char>(byte));
}

}  // namespace

Result<TokenDecoder> TokenDecoder::FromJson(const Json& value, std::string_view origin) {
  TokenDecoder decoder;
  decoder.origin_ = fmt::format("{}: decoder", origin);
  if (value.is_null()) {
    decoder.joins_by_space_ = decoder.first_differs_ = true;
  } else {
    HW_RETURN_IF_ERROR(decoder.Add(value, decoder.origin_, 0));
  }
  return decoder;
}

Status TokenDecoder::Add(const Json& value, std::string_view origin, int depth) {
  if (depth > kMaxPipelineDepth || steps_.size() > kMaxPipelineSteps) {
    return Status::Unsupported(fmt::format("{}: nested too deeply or too long", origin));
  }
  HW_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(value, origin));
  HW_ASSIGN_OR_RETURN(const std::string type, object.String("type"));
  if (type == "Sequence") {
    if (!object.Has("decoders") || !object.At("decoders").is_array()) {
      return Status::InvalidInput(fmt::format("{}: a Sequence without a list \"decoders\"", origin));
    }
    for (const Json& part : object.At("decoders")) HW_RETURN_IF_ERROR(Add(part, origin, depth + 1));
    return Status::Ok();
  }
  if (type == "Strip") return AddStrip(object);
  if (type == "Fuse") {
    fused_ = true;
    return Status::Ok();
  }
  if (fused_) {
    return Status::Unsupported(fmt::format("{}: \"{}\" after the tokens are joined is not supported", origin, type));
  }
  if (type == "Replace") return AddReplace(object);
  if (type == "Metaspace") return AddMetaspace(object);
  if (type == "ByteFallback") {
    steps_.push_back({.kind = Kind::kByteFallback});
  } else if (type == "ByteLevel") {
    steps_.push_back({.kind = Kind::kByteLevel});
    fused_ = true;  // it joins all tokens before it looks for characters
  } else {
    return Status::Unsupported(fmt::format("{}: type \"{}\" is not supported", origin, type));
  }
  return Status::Ok();
}

Status TokenDecoder::AddReplace(const JsonObject& object) {
  HW_ASSIGN_OR_RETURN(const JsonObject pattern, object.Object("pattern"));
  if (pattern.Has("Regex")) {
    return Status::Unsupported(fmt::format("{}: a Replace by Regex is not supported", object.origin()));
  }
  Step step{.kind = Kind::kReplace};
  HW_ASSIGN_OR_RETURN(step.pattern, pattern.String("String"));
  HW_ASSIGN_OR_RETURN(step.content, object.String("content"));
  if (step.pattern.empty()) return Status::InvalidInput(fmt::format("{}: a Replace of nothing", object.origin()));
  steps_.push_back(std::move(step));
  return Status::Ok();
}

Status TokenDecoder::AddStrip(const JsonObject& object) {
  HW_ASSIGN_OR_RETURN(const std::string content, object.String("content"));
  HW_ASSIGN_OR_RETURN(const int64_t start, object.IntOr("start", 0));
  HW_ASSIGN_OR_RETURN(const int64_t stop, object.IntOr("stop", 0));
  if (content.empty() || FirstCharacter(content).size_bytes != content.size() || start < 0 || stop < 0) {
    return Status::InvalidInput(fmt::format("{}: a Strip of {} and {} \"{}\", expected counts and one character",
                                            object.origin(), start, stop, content));
  }
  const Strip strip{
      .content = FirstCharacter(content).code, .start = static_cast<size_t>(start), .stop = static_cast<size_t>(stop)};
  if (!fused_) {
    steps_.push_back({.kind = Kind::kStrip, .strip = strip});
    return Status::Ok();
  }
  if (strip_.start != 0 || strip_.stop != 0) {
    return Status::Unsupported(fmt::format("{}: two Strips of the whole text are not supported", object.origin()));
  }
  strip_ = strip;
  return Status::Ok();
}

Status TokenDecoder::AddMetaspace(const JsonObject& object) {
  Step step{.kind = Kind::kMetaspace};
  HW_ASSIGN_OR_RETURN(step.pattern, object.StringOr("replacement", "\u2581"));
  HW_ASSIGN_OR_RETURN(const bool add_prefix_space, object.BoolOr("add_prefix_space", true));
  HW_ASSIGN_OR_RETURN(const std::string scheme,
                      object.StringOr("prepend_scheme", add_prefix_space ? "always" : "never"));
  if (step.pattern.empty()) return Status::InvalidInput(fmt::format("{}: an empty replacement", object.origin()));
  step.drops_first_mark = scheme != "never";
  first_differs_ = first_differs_ || step.drops_first_mark;
  steps_.push_back(std::move(step));
  return Status::Ok();
}

Result<std::string> TokenDecoder::BytesOf(std::string_view token, TokenPosition position) const {
  const bool first = position == TokenPosition::kFirst;
  std::string text(token);
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Kind::kReplace:
      case Kind::kMetaspace: {
        const bool drops = step.kind == Kind::kMetaspace && first && step.drops_first_mark;
        const std::string_view content = step.kind == Kind::kReplace ? std::string_view(step.content)
                                         : drops                     ? ""
                                                                     : " ";
        HW_ASSIGN_OR_RETURN(text, ReplaceText(text, step.pattern, content, token.size(), origin_));
        break;
      }
      case Kind::kStrip:
        text = std::string(StripEnds(text, step.strip));
        break;
      case Kind::kByteFallback:
        // A lone byte is text for no later step.
        if (const auto byte = ByteOf(text)) return std::string(1, *byte);
        break;
      case Kind::kByteLevel: {
        std::string bytes;
        AppendFromByteLevel(text, bytes);
        text = std::move(bytes);
        break;
      }
    }
    HW_RETURN_IF_ERROR(CheckGrowth(text.size(), token.size(), origin_));
  }
  if (joins_by_space_ && !first) text.insert(text.begin(), ' ');
  return text;
}

}  // namespace headwise
