#include "text/gguf_tokenizer.h"

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/json.h"
#include "text/bpe.h"
#include "text/gguf_splitting.h"
#include "text/tokenizer_files.h"
#include "text/utf8.h"

namespace headwise {
namespace {

using enum GgufTokenType;

GgufTokenType TypeOf(const GgufTokenizer& file, size_t id) {
  return file.token_types.empty() ? kNormal : static_cast<GgufTokenType>(file.token_types[id]);
}

Status CheckArrays(const GgufTokenizer& file) {
  if (file.tokens.empty() || file.tokens.size() > static_cast<size_t>(kMaxTokenId)) {
    return Status::InvalidInput(
        fmt::format("{}: {} tokens, expected 1 to {}", file.origin, file.tokens.size(), kMaxTokenId));
  }
  const auto check = [&](const char* what, size_t size) {
    if (size == 0 || size == file.tokens.size()) return Status::Ok();
    return Status::InvalidInput(fmt::format("{}: {} {} for {} tokens", file.origin, size, what, file.tokens.size()));
  };
  HW_RETURN_IF_ERROR(check("token types", file.token_types.size()));
  HW_RETURN_IF_ERROR(check("scores", file.scores.size()));
  for (size_t id = 0; id < file.tokens.size(); ++id) {
    if (const auto at = FindInvalidUtf8(file.tokens[id])) {
      return Status::InvalidInput(fmt::format("{}: token {} has invalid UTF-8 at byte {}", file.origin, id, *at));
    }
  }
  return Status::Ok();
}

Result<std::optional<int32_t>> CheckId(const GgufTokenizer& file, const char* what, std::optional<int64_t> id) {
  if (!id) return std::optional<int32_t>();
  // A file with a tokenizer.json may do without the array.
  const int64_t limit = file.tokens.empty() ? kMaxTokenId + 1 : static_cast<int64_t>(file.tokens.size());
  if (*id >= 0 && *id < limit) {
    return std::optional<int32_t>(static_cast<int32_t>(*id));
  }
  return Status::InvalidInput(
      fmt::format("{}: the {} token is {}, expected an id below {}", file.origin, what, *id, limit));
}

// What both kinds have: the tokens, and which of them are no text. Unused ones fill up the model's vocabulary.
BpeParts AddTokens(const GgufTokenizer& file, TokenizerParts& parts) {
  BpeParts bpe;
  bpe.origin = file.origin;
  for (size_t i = 0; i < file.tokens.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::string& token = file.tokens[i];
    const GgufTokenType type = TypeOf(file, i);
    if (type == kUnused || token.empty()) continue;
    bpe.entries.push_back({token, id});
    if (type == kUnknown || type == kControl || type == kUserDefined) {
      parts.added_tokens.push_back({.content = token, .id = id, .special = type != kUserDefined});
      bpe.reserved.insert(token);
    }
  }
  return bpe;
}

Result<BpeModel> ReadByteLevel(const GgufTokenizer& file, TokenizerParts& parts) {
  HW_ASSIGN_OR_RETURN(const FoundSplitting found, FindGgufSplitting(file.splitting, file.architecture, file.origin));
  const GgufSplitting* splitting = found.splitting;
  if (found.is_guess && file.on_warning) {
    file.on_warning(fmt::format(
        "{}: \"tokenizer.ggml.pre\" does not say how text is cut into words, so it is cut as GPT-2 does: expect worse "
        "answers where the model was trained otherwise",
        file.origin));
  }
  BpeParts bpe = AddTokens(file, parts);
  for (const std::string& merge : file.merges) {
    const auto rank = static_cast<uint32_t>(bpe.merges.size());
    HW_ASSIGN_OR_RETURN(const BpeParts::Merge cut, CutMerge(merge, rank, file.origin));
    bpe.merges.push_back(cut);
  }
  bpe.ignore_merges = splitting->ignore_merges;
  parts.adds_bos = splitting->adds_bos;
  const bool composes = ComposesCharacters(*splitting, file.architecture);
  HW_ASSIGN_OR_RETURN(parts.normalizer, Normalizer::FromJson(composes ? Json{{"type", "NFC"}} : Json(), file.origin));
  HW_ASSIGN_OR_RETURN(
      parts.pre_tokenizer,
      PreTokenizer::FromJson(SplittingJson(*splitting, file.adds_space_prefix.value_or(false)), file.origin));
  HW_ASSIGN_OR_RETURN(parts.decoder, TokenDecoder::FromJson({{"type", "ByteLevel"}}, file.origin));
  return BpeModel::FromParts(std::move(bpe));
}

// Two neighbours become a token where one has their text, the best score first, whatever the two are: every way to cut
// a token into two others is a merge, and its rank is the token's.
Result<std::vector<BpeParts::Merge>> MergesByScore(const GgufTokenizer& file) {
  // Every cut of a token hashes all of it, so that a token costs its length squared.
  constexpr size_t kMaxPieceBytes = 1024;
  std::map<double, uint32_t, std::greater<>> ranks;
  std::unordered_map<std::string_view, double> pieces;
  for (size_t id = 0; id < file.tokens.size(); ++id) {
    const std::string& token = file.tokens[id];
    const GgufTokenType type = TypeOf(file, id);
    if (type == kUnknown || type == kControl || type == kUserDefined || type == kUnused || type == kByte) continue;
    if (token.size() > kMaxPieceBytes || !std::isfinite(file.scores[id])) {
      return Status::InvalidInput(
          fmt::format("{}: token {} has {} bytes and the score {}, expected at most {} bytes "
                      "and a finite score",
                      file.origin, id, token.size(), file.scores[id], kMaxPieceBytes));
    }
    pieces.emplace(token, file.scores[id]);
    ranks.emplace(file.scores[id], 0);
  }
  uint32_t next = 0;
  for (auto& [score, rank] : ranks) rank = next++;
  std::vector<BpeParts::Merge> merges;
  for (const auto& [piece, score] : pieces) {
    const uint32_t rank = ranks.at(score);
    for (size_t at = 1; at < piece.size(); ++at) {
      const std::string_view left = piece.substr(0, at);
      const std::string_view right = piece.substr(at);
      if (pieces.contains(left) && pieces.contains(right)) merges.push_back({left, right, rank});
    }
  }
  return merges;
}

Result<BpeModel> ReadSentencePiece(const GgufTokenizer& file, TokenizerParts& parts) {
  if (file.scores.empty()) {
    return Status::InvalidInput(fmt::format("{}: a tokenizer of kind \"llama\" without scores", file.origin));
  }
  BpeParts bpe = AddTokens(file, parts);
  HW_ASSIGN_OR_RETURN(bpe.merges, MergesByScore(file));
  HW_ASSIGN_OR_RETURN(bpe.unknown_id, CheckId(file, "unknown", file.unknown_id));
  for (size_t id = 0; id < file.tokens.size(); ++id) {
    if (TypeOf(file, id) == kByte) bpe.byte_fallback = true;
    if (TypeOf(file, id) == kUnknown && !bpe.unknown_id) bpe.unknown_id = static_cast<int32_t>(id);
  }
  bpe.fuse_unknown = true;
  parts.adds_bos = true;
  const bool prefix = file.adds_space_prefix.value_or(true);
  constexpr const char* kSpaceMark = "\u2581";
  Json steps = Json::array();
  if (prefix) steps.push_back({{"type", "Prepend"}, {"prepend", kSpaceMark}});
  steps.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpaceMark}});
  HW_ASSIGN_OR_RETURN(parts.normalizer,
                      Normalizer::FromJson({{"type", "Sequence"}, {"normalizers", std::move(steps)}}, file.origin));
  HW_ASSIGN_OR_RETURN(parts.decoder,
                      SentencePieceDecoder(prefix ? SpacePrefix::kAdded : SpacePrefix::kNone, file.origin));
  return BpeModel::FromParts(std::move(bpe));
}

Result<TokenizerParts> ReadArrays(const GgufTokenizer& file) {
  if (file.kind != "gpt2" && file.kind != "llama") {
    return Status::Unsupported(
        fmt::format("{}: a tokenizer of kind \"{}\" is not supported, expected gpt2 or llama", file.origin, file.kind));
  }
  HW_RETURN_IF_ERROR(CheckArrays(file));
  TokenizerParts parts;
  parts.origin = file.origin;
  HW_ASSIGN_OR_RETURN(BpeModel bpe, file.kind == "gpt2" ? ReadByteLevel(file, parts) : ReadSentencePiece(file, parts));
  parts.entries = bpe.entries();
  parts.word_encoder = std::make_unique<BpeModel>(std::move(bpe));
  return parts;
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> MakeGgufTokenizer(const GgufTokenizer& file) {
  const bool has_json = !file.tokenizer_json.empty();
  HW_ASSIGN_OR_RETURN(TokenizerParts parts,
                      has_json ? ReadTokenizerJson(file.tokenizer_json, file.origin) : ReadArrays(file));
  HW_ASSIGN_OR_RETURN(const auto bos_id, CheckId(file, "bos", file.bos_id));
  HW_ASSIGN_OR_RETURN(const auto eos_id, CheckId(file, "eos", file.eos_id));
  if (bos_id) parts.bos_id = bos_id;
  if (eos_id) parts.eos_id = eos_id;
  if (file.adds_bos) parts.adds_bos = file.adds_bos;
  parts.chat_templates = file.chat_templates;
  GuessBosAndEos(parts);
  NameToken("bos_token", parts.bos_id, parts, parts.named_tokens);
  NameToken("eos_token", parts.eos_id, parts, parts.named_tokens);
  // Names and no more: an id that has no token names none.
  NameToken("unk_token", file.unknown_id, parts, parts.named_tokens);
  NameToken("pad_token", file.padding_id, parts, parts.named_tokens);
  return Tokenizer::FromParts(std::move(parts));
}

}  // namespace headwise
