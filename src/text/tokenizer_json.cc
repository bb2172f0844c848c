// Reads a Hugging Face tokenizer.json. Whatever would change the ids and is not supported is an error that names it.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/json.h"
#include "text/bpe.h"
#include "text/tokenizer.h"
#include "text/tokenizer_files.h"
#include "text/unigram.h"

namespace headwise {
namespace {

const Json& AtOrNull(const JsonObject& object, const char* key) {
  static const Json kNull;
  return object.Has(key) ? object.At(key) : kNull;
}

Result<std::vector<AddedToken>> ReadAddedTokens(const JsonObject& root) {
  std::vector<AddedToken> tokens;
  if (!root.Has("added_tokens")) return tokens;
  const std::string origin = fmt::format("{}: added_tokens", root.origin());
  if (!root.At("added_tokens").is_array()) return Status::InvalidInput(fmt::format("{}: expected a list", origin));
  for (const Json& value : root.At("added_tokens")) {
    HW_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(value, origin));
    HW_ASSIGN_OR_RETURN(const int64_t id, object.Int("id"));
    HW_ASSIGN_OR_RETURN(AddedToken token, ReadAddedToken(object, id));
    if (!token.content.empty()) tokens.push_back(std::move(token));
  }
  return tokens;
}

// What a post-processor would put in front of a text, in order. What it would put behind one ends the text, which a
// prompt does not do.
using StartTokens = std::vector<std::string>;

Status ReadTemplate(const JsonObject& object, StartTokens& start) {
  if (!object.Has("single") || !object.At("single").is_array()) {
    return Status::InvalidInput(fmt::format("{}: a TemplateProcessing without a list \"single\"", object.origin()));
  }
  start.clear();
  for (const Json& part : object.At("single")) {
    if (!part.is_object() || !part.contains("SpecialToken")) break;
    HW_ASSIGN_OR_RETURN(const JsonObject piece, JsonObject::Of(part, object.origin()));
    HW_ASSIGN_OR_RETURN(const JsonObject token, piece.Object("SpecialToken"));
    HW_ASSIGN_OR_RETURN(std::string name, token.String("id"));
    start.push_back(std::move(name));
  }
  return Status::Ok();
}

Status ReadPostProcessor(const Json& value, const std::string& origin, int depth, StartTokens& start) {
  if (depth > kMaxPipelineDepth) return Status::Unsupported(fmt::format("{}: nested too deeply", origin));
  HW_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(value, origin));
  HW_ASSIGN_OR_RETURN(const std::string type, object.String("type"));
  if (type == "ByteLevel") return Status::Ok();  // it only moves offsets
  if (type == "TemplateProcessing") return ReadTemplate(object, start);
  if (type == "Sequence") {
    if (!object.Has("processors") || !object.At("processors").is_array()) {
      return Status::InvalidInput(fmt::format("{}: a Sequence without a list \"processors\"", origin));
    }
    for (const Json& part : object.At("processors")) {
      HW_RETURN_IF_ERROR(ReadPostProcessor(part, origin, depth + 1, start));
    }
    return Status::Ok();
  }
  return Status::Unsupported(fmt::format("{}: type \"{}\" is not supported", origin, type));
}

}  // namespace

Result<AddedToken> ReadAddedToken(const JsonObject& object, int64_t id) {
  if (id < 0 || id > kMaxTokenId) {
    return Status::InvalidInput(fmt::format("{}: id {}, expected 0 to {}", object.origin(), id, kMaxTokenId));
  }
  AddedToken token{.content = {}, .id = static_cast<int32_t>(id)};
  HW_ASSIGN_OR_RETURN(token.content, object.String("content"));
  HW_ASSIGN_OR_RETURN(token.special, object.BoolOr("special", false));
  HW_ASSIGN_OR_RETURN(token.normalized, object.BoolOr("normalized", !token.special));
  HW_ASSIGN_OR_RETURN(token.left_strip, object.BoolOr("lstrip", false));
  HW_ASSIGN_OR_RETURN(token.right_strip, object.BoolOr("rstrip", false));
  HW_ASSIGN_OR_RETURN(token.single_word, object.BoolOr("single_word", false));
  return token;
}

std::optional<int32_t> FindSpecial(const TokenizerParts& parts, std::string_view content) {
  for (const AddedToken& token : parts.added_tokens) {
    if (!token.special || token.content != content) continue;
    for (const Vocabulary::Entry& entry : parts.entries) {
      if (entry.token == content) return entry.id;
    }
    return token.id;
  }
  return std::nullopt;
}

void NameToken(std::string_view name, std::optional<int64_t> id, const TokenizerParts& parts,
               std::vector<NamedToken>& tokens) {
  if (!id) return;
  const auto entry = std::ranges::find_if(parts.entries, [&](const auto& each) { return each.id == id; });
  const auto added = std::ranges::find_if(parts.added_tokens, [&](const auto& each) { return each.id == id; });
  if (entry != parts.entries.end()) {
    tokens.push_back({std::string(name), entry->token});
  } else if (added != parts.added_tokens.end()) {
    tokens.push_back({std::string(name), added->content});
  }
}

void GuessBosAndEos(TokenizerParts& parts) {
  for (const char* name : {"<|begin_of_text|>", "<s>", "<bos>"}) {
    if (!parts.bos_id) parts.bos_id = FindSpecial(parts, name);
  }
  for (const char* name : {"<|end_of_text|>", "</s>", "<eos>", "<|endoftext|>"}) {
    if (!parts.eos_id) parts.eos_id = FindSpecial(parts, name);
  }
}

Result<TokenizerParts> ReadTokenizerJson(std::string_view text, std::string_view origin) {
  HW_ASSIGN_OR_RETURN(const Json json, ParseJson(text, origin));
  HW_ASSIGN_OR_RETURN(const JsonObject root, JsonObject::Of(json, origin));
  HW_ASSIGN_OR_RETURN(const JsonObject model, root.Object("model"));
  HW_ASSIGN_OR_RETURN(const std::string type, model.StringOr("type", "BPE"));
  TokenizerParts parts;
  parts.origin = origin;
  HW_ASSIGN_OR_RETURN(parts.added_tokens, ReadAddedTokens(root));
  std::unordered_set<std::string> reserved;
  for (const AddedToken& token : parts.added_tokens) {
    if (token.special) reserved.insert(token.content);
  }
  if (type == "BPE") {
    HW_ASSIGN_OR_RETURN(BpeModel bpe, BpeModel::FromJson(model, std::move(reserved)));
    parts.entries = bpe.entries();
    parts.word_encoder = std::make_unique<BpeModel>(std::move(bpe));
  } else if (type == "Unigram") {
    HW_ASSIGN_OR_RETURN(UnigramModel unigram, UnigramModel::FromJson(model, reserved));
    parts.entries = unigram.entries();
    parts.word_encoder = std::make_unique<UnigramModel>(std::move(unigram));
  } else {
    return Status::Unsupported(fmt::format("{}: model of type \"{}\", expected \"BPE\" or \"Unigram\"", origin, type));
  }
  HW_ASSIGN_OR_RETURN(parts.normalizer, Normalizer::FromJson(AtOrNull(root, "normalizer"), origin));
  HW_ASSIGN_OR_RETURN(parts.pre_tokenizer, PreTokenizer::FromJson(AtOrNull(root, "pre_tokenizer"), origin));
  HW_ASSIGN_OR_RETURN(parts.decoder, TokenDecoder::FromJson(AtOrNull(root, "decoder"), origin));
  if (root.Has("post_processor")) {
    StartTokens start;
    HW_RETURN_IF_ERROR(
        ReadPostProcessor(root.At("post_processor"), fmt::format("{}: post_processor", origin), 0, start));
    for (const std::string& token : start) {
      const auto id = FindSpecial(parts, token);
      if (!id) break;
      parts.start_ids.push_back(*id);
    }
    if (!parts.start_ids.empty()) parts.bos_id = parts.start_ids.front();
    if (parts.bos_id || start.empty()) parts.adds_bos = parts.bos_id.has_value();
  }
  return parts;
}

Result<std::unique_ptr<Tokenizer>> ParseTokenizerJson(std::string_view text, std::string_view origin) {
  HW_ASSIGN_OR_RETURN(TokenizerParts parts, ReadTokenizerJson(text, origin));
  GuessBosAndEos(parts);
  NameToken("bos_token", parts.bos_id, parts, parts.named_tokens);
  NameToken("eos_token", parts.eos_id, parts, parts.named_tokens);
  return Tokenizer::FromParts(std::move(parts));
}

}  // namespace headwise
