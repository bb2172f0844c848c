#include "text/gguf_tokenizer_export.h"

#include <fmt/format.h>

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "text/escape.h"
#include "text/gguf_splitting.h"
#include "text/gguf_tokenizer.h"
#include "text/sentencepiece_loader.h"
#include "text/tokenizer.h"

namespace headwise {
namespace {

namespace fs = std::filesystem;

Status PutToken(GgufTokenizerArrays& arrays, int64_t id, const std::string& token, GgufTokenType type,
                std::string_view origin) {
  if (id < 0 || id >= static_cast<int64_t>(arrays.tokens.size())) {
    return Status::InvalidInput(
        fmt::format("{}: token \"{}\" has the id {}, expected one below {}, the vocabulary of the "
                    "model",
                    origin, token, id, arrays.tokens.size()));
  }
  arrays.tokens[static_cast<size_t>(id)] = token;
  arrays.token_types[static_cast<size_t>(id)] = static_cast<int64_t>(type);
  return Status::Ok();
}

void NameTheUnused(GgufTokenizerArrays& arrays) {
  for (size_t id = 0; id < arrays.tokens.size(); ++id) {
    if (!arrays.tokens[id].empty()) continue;
    arrays.tokens[id] = fmt::format("[PAD{}]", id);
    arrays.token_types[id] = static_cast<int64_t>(GgufTokenType::kUnused);
  }
}

bool IsByteToken(std::string_view token) {
  return token.size() == 6 && token.starts_with("<0x") && token.ends_with(">");
}

// "left right", however the file writes it.
Result<std::string> MergeText(const Json& merge, std::string_view origin) {
  if (merge.is_string()) return merge.get<std::string>();
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  }
  return Status::InvalidInput(fmt::format("{}: a merge is {}, expected two tokens", origin, merge.dump()));
}

// The name of how the file cuts words, if all else that goes with the name is as in the file too.
Result<std::string> SplittingOf(const JsonObject& root, const JsonObject& model, std::string_view architecture) {
  const std::string name = NameOfGgufSplitting(root.Has("pre_tokenizer") ? root.At("pre_tokenizer") : Json());
  if (name.empty()) return name;
  for (const char* key : {"unk_token", "continuing_subword_prefix", "end_of_word_suffix"}) {
    HW_ASSIGN_OR_RETURN(const std::string value, model.StringOr(key, ""));
    if (!value.empty()) return std::string();
  }
  for (const char* key : {"fuse_unk", "byte_fallback"}) {
    HW_ASSIGN_OR_RETURN(const bool value, model.BoolOr(key, false));
    if (value) return std::string();
  }
  HW_ASSIGN_OR_RETURN(const FoundSplitting found, FindGgufSplitting(name, architecture, root.origin()));
  HW_ASSIGN_OR_RETURN(const bool ignores_merges, model.BoolOr("ignore_merges", false));
  const bool composes = root.Has("normalizer");
  const bool is_nfc = composes && root.At("normalizer").value("type", Json()) == "NFC";
  const bool fits = ignores_merges == found.splitting->ignore_merges && composes == is_nfc &&
                    composes == ComposesCharacters(*found.splitting, architecture);
  return fits ? name : std::string();
}

Status ExportByteLevel(const JsonObject& model, GgufTokenizerArrays& arrays) {
  arrays.kind = "gpt2";
  if (!model.Has("merges") || !model.At("merges").is_array()) {
    return Status::InvalidInput(fmt::format("{}: no list \"merges\"", model.origin()));
  }
  for (const Json& merge : model.At("merges")) {
    HW_ASSIGN_OR_RETURN(std::string text, MergeText(merge, model.origin()));
    arrays.merges.push_back(std::move(text));
  }
  return Status::Ok();
}

// Tokens stand in the order in which they were learnt, so that a later one has a lower score.
Status ExportByteFallback(const JsonObject& model, GgufTokenizerArrays& arrays) {
  arrays.kind = "llama";
  HW_ASSIGN_OR_RETURN(const std::string unknown, model.StringOr("unk_token", ""));
  for (size_t id = 0; id < arrays.tokens.size(); ++id) {
    arrays.scores.push_back(-static_cast<double>(id));
    if (IsByteToken(arrays.tokens[id])) arrays.token_types[id] = static_cast<int64_t>(GgufTokenType::kByte);
    if (!unknown.empty() && arrays.tokens[id] == unknown) {
      arrays.token_types[id] = static_cast<int64_t>(GgufTokenType::kUnknown);
      arrays.unknown_id = static_cast<int64_t>(id);
    }
  }
  return Status::Ok();
}

// Pieces and scores as they are; the name is the format's for models of this kind, whatever they are used for.
Status ExportUnigram(const JsonObject& model, GgufTokenizerArrays& arrays) {
  arrays.kind = "t5";
  arrays.scores.assign(arrays.tokens.size(), 0.0);
  int64_t id = 0;
  for (const Json& piece : model.At("vocab")) {
    // The tokenizer has been read: these are pairs of a text and a score.
    const auto& text = piece[0].get_ref<const std::string&>();
    const GgufTokenType type = IsByteToken(text) ? GgufTokenType::kByte : GgufTokenType::kNormal;
    HW_RETURN_IF_ERROR(PutToken(arrays, id, text, type, model.origin()));
    arrays.scores[static_cast<size_t>(id++)] = piece[1].get<double>();
  }
  if (!model.Has("unk_id")) return Status::Ok();
  HW_ASSIGN_OR_RETURN(arrays.unknown_id, model.Int("unk_id"));
  arrays.token_types[static_cast<size_t>(*arrays.unknown_id)] = static_cast<int64_t>(GgufTokenType::kUnknown);
  return Status::Ok();
}

Status ExportBpeVocabulary(const JsonObject& model, GgufTokenizerArrays& arrays) {
  if (!model.Has("vocab") || !model.At("vocab").is_object()) {
    return Status::Unsupported(
        fmt::format("{}: no object \"vocab\", expected a BPE or a Unigram model", model.origin()));
  }
  for (const auto& [token, id] : model.At("vocab").items()) {
    if (!id.is_number_integer()) {
      return Status::InvalidInput(fmt::format("{}: token \"{}\" has no id", model.origin(), token));
    }
    HW_RETURN_IF_ERROR(PutToken(arrays, id.get<int64_t>(), token, GgufTokenType::kNormal, model.origin()));
  }
  return Status::Ok();
}

// Whether any step of a pipeline fits.
template <typename Fits>
bool AnyStep(const Json& pipeline, const Fits& fits) {
  if (pipeline.is_object() && fits(pipeline)) return true;
  if (!pipeline.is_structured()) return false;
  for (const Json& part : pipeline) {
    if (AnyStep(part, fits)) return true;
  }
  return false;
}

bool PrependsSpace(const Json& step) {
  const Json type = step.value("type", Json());
  return type == "Prepend" || (type == "Metaspace" && step.value("prepend_scheme", Json("always")) != "never" &&
                               step.value("add_prefix_space", Json(true)) != false);
}

bool IsByteLevel(const Json& step) {
  return step.value("type", Json()) == "ByteLevel";
}

// What the arrays have no place for: white space that a token swallows, words it must not be part of, normalization.
bool HasFlags(const Json& added_token) {
  const bool special = added_token.value("special", Json(false)) == true;
  return added_token.value("lstrip", Json(false)) == true || added_token.value("rstrip", Json(false)) == true ||
         added_token.value("single_word", Json(false)) == true ||
         added_token.value("normalized", Json(!special)) != Json(!special);
}

Status ExportAddedTokens(const JsonObject& root, GgufTokenizerArrays& arrays) {
  if (!root.Has("added_tokens") || !root.At("added_tokens").is_array()) return Status::Ok();
  for (const Json& value : root.At("added_tokens")) {
    HW_ASSIGN_OR_RETURN(const JsonObject token, JsonObject::Of(value, root.origin()));
    HW_ASSIGN_OR_RETURN(const int64_t id, token.Int("id"));
    HW_ASSIGN_OR_RETURN(const std::string content, token.String("content"));
    HW_ASSIGN_OR_RETURN(const bool special, token.BoolOr("special", false));
    if (id == arrays.unknown_id) continue;
    const GgufTokenType type = special ? GgufTokenType::kControl : GgufTokenType::kUserDefined;
    HW_RETURN_IF_ERROR(PutToken(arrays, id, content, type, root.origin()));
  }
  return Status::Ok();
}

// `tokenizer` is what was read from `path`.
Status ExportTokenizerJson(const fs::path& path, std::string_view architecture, const Tokenizer& tokenizer,
                           GgufTokenizerArrays& arrays) {
  const std::string origin = path.string();
  HW_ASSIGN_OR_RETURN(std::string text, ReadFile(path));
  HW_ASSIGN_OR_RETURN(const Json json, ParseJson(text, origin));
  HW_ASSIGN_OR_RETURN(const JsonObject root, JsonObject::Of(json, origin));
  HW_ASSIGN_OR_RETURN(const JsonObject model, root.Object("model"));
  const bool is_unigram = model.Has("type") && model.At("type") == "Unigram";
  if (!is_unigram) HW_RETURN_IF_ERROR(ExportBpeVocabulary(model, arrays));
  const auto any_step = [&](bool (*fits)(const Json&)) {
    return (root.Has("normalizer") && AnyStep(root.At("normalizer"), fits)) ||
           (root.Has("pre_tokenizer") && AnyStep(root.At("pre_tokenizer"), fits));
  };
  const bool is_byte_level = !is_unigram && any_step(IsByteLevel);
  HW_RETURN_IF_ERROR(is_unigram      ? ExportUnigram(model, arrays)
                     : is_byte_level ? ExportByteLevel(model, arrays)
                                     : ExportByteFallback(model, arrays));
  HW_RETURN_IF_ERROR(ExportAddedTokens(root, arrays));
  if (is_byte_level) {
    HW_ASSIGN_OR_RETURN(arrays.splitting, SplittingOf(root, model, architecture));
  } else {
    arrays.adds_space_prefix = any_step(PrependsSpace);
  }
  // What the arrays cannot say is said whole. Merges as scores are near, and no more.
  const bool has_flags = root.Has("added_tokens") && AnyStep(root.At("added_tokens"), HasFlags);
  const bool begins_with_more = tokenizer.start_ids().size() > 1;
  if (arrays.splitting.empty() || has_flags || begins_with_more) arrays.tokenizer_json = std::move(text);
  return Status::Ok();
}

Status ExportSentencePiece(const fs::path& path, GgufTokenizerArrays& arrays) {
  const std::string origin = path.string();
  HW_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path));
  HW_ASSIGN_OR_RETURN(const auto loaded, LoadSentencePiece(bytes, origin));
  const sentencepiece::SentencePieceProcessor& processor = *loaded;
  arrays.kind = "llama";
  arrays.scores.assign(arrays.tokens.size(), 0.0);
  for (int id = 0; id < processor.GetPieceSize(); ++id) {
    const GgufTokenType type = processor.IsUnknown(id)   ? GgufTokenType::kUnknown
                               : processor.IsControl(id) ? GgufTokenType::kControl
                               : processor.IsUnused(id)  ? GgufTokenType::kUnused
                               : processor.IsByte(id)    ? GgufTokenType::kByte
                                                         : GgufTokenType::kNormal;
    HW_RETURN_IF_ERROR(PutToken(arrays, id, processor.IdToPiece(id), type, origin));
    arrays.scores[static_cast<size_t>(id)] = static_cast<double>(processor.GetScore(id));
  }
  if (processor.unk_id() >= 0) arrays.unknown_id = processor.unk_id();
  std::vector<std::string> pieces;
  arrays.adds_space_prefix = processor.Encode("a", &pieces).ok() && !pieces.empty() && pieces[0].starts_with("\u2581");
  return Status::Ok();
}

// That the arrays alone give the ids that the folder's tokenizer gives: tokens beside each other, and what
// normalization would change. A SentencePiece model has rules, and a folder tokens, for which they have no place.
Status CheckSameIds(const Tokenizer& tokenizer, const GgufTokenizerArrays& arrays, const fs::path& path) {
  HW_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> again,
                      MakeGgufTokenizer({.origin = path.string(),
                                         .kind = arrays.kind,
                                         .tokens = arrays.tokens,
                                         .token_types = arrays.token_types,
                                         .scores = arrays.scores,
                                         .bos_id = arrays.bos_id,
                                         .eos_id = arrays.eos_id,
                                         .unknown_id = arrays.unknown_id,
                                         .adds_bos = arrays.adds_bos,
                                         .adds_space_prefix = arrays.adds_space_prefix}));
  std::vector<std::string> texts = {" a  b   c ", "a\n\n\tb", "\uFB01 A\u030A \u2460\u00A0\uFF21"};
  constexpr int64_t kTokensOfText = 8;
  for (int64_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (id % kTokensOfText == 0) texts.emplace_back();
    texts.back() += tokenizer.Decode(std::array{static_cast<int32_t>(id)}, SpecialDisplay::kShow);
  }
  for (const std::string& text : texts) {
    HW_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, tokenizer.Encode(text, SpecialText::kParse));
    HW_ASSIGN_OR_RETURN(const std::vector<int32_t> found, again->Encode(text, SpecialText::kParse));
    if (ids == found) continue;
    return Status::Unsupported(
        fmt::format("{}: the arrays of a .gguf file cannot say all of this tokenizer: \"{}\" would become other ids; "
                    "expected a folder with a tokenizer.json",
                    path.string(), EscapeControls(text)));
  }
  return Status::Ok();
}

}  // namespace

Result<GgufTokenizerArrays> ExportTokenizer(const fs::path& model_folder, int64_t vocab_size,
                                            std::string_view architecture) {
  // Read as every other command reads it: what tokenizer_config.json adds is in there.
  HW_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, LoadTokenizer(model_folder));
  GgufTokenizerArrays arrays;
  arrays.tokens.resize(static_cast<size_t>(vocab_size));
  arrays.token_types.assign(static_cast<size_t>(vocab_size), static_cast<int64_t>(GgufTokenType::kNormal));
  const fs::path json = model_folder / "tokenizer.json";
  std::error_code ignored;
  HW_RETURN_IF_ERROR(fs::exists(json, ignored) ? ExportTokenizerJson(json, architecture, *tokenizer, arrays)
                                               : ExportSentencePiece(model_folder / "tokenizer.model", arrays));
  NameTheUnused(arrays);
  arrays.bos_id = tokenizer->bos_id();
  arrays.eos_id = tokenizer->eos_id();
  if (tokenizer->AddsBos() || tokenizer->OmitsBos()) arrays.adds_bos = tokenizer->AddsBos();
  for (const NamedToken& token : tokenizer->named_tokens()) {
    if (token.name == "pad_token") arrays.padding_id = tokenizer->IdOf(token.token);
    if (token.name == "unk_token" && !arrays.unknown_id) arrays.unknown_id = tokenizer->IdOf(token.token);
  }
  if (arrays.kind == "llama" && arrays.tokenizer_json.empty()) {
    HW_RETURN_IF_ERROR(CheckSameIds(*tokenizer, arrays, model_folder / "tokenizer.model"));
  }
  const auto templates = tokenizer->chat_templates();
  arrays.chat_templates.assign(templates.begin(), templates.end());
  return arrays;
}

}  // namespace headwise
