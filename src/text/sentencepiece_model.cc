// tokenizer.model through the SentencePiece library. The library encodes; control tokens in the text are looked for
// here, and decoding is ours, so that streams work as for every other tokenizer.
#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <algorithm>
#include <limits>
#include <unordered_set>
#include <utility>

#include "text/sentencepiece_loader.h"
#include "text/tokenizer_files.h"

namespace headwise {
namespace {

constexpr std::string_view kSpaceMark = "\u2581";

class SentencePieceEncoder final : public WordEncoder {
 public:
  SentencePieceEncoder(std::unique_ptr<sentencepiece::SentencePieceProcessor> processor,
                       std::unordered_set<int32_t> reserved, std::string origin)
      : processor_(std::move(processor)), reserved_(std::move(reserved)), origin_(std::move(origin)) {}

  Status Encode(std::string_view word, std::vector<int32_t>& ids) const override {
    if (word.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
      return Status::InvalidInput(
          fmt::format("{}: a text of {} bytes, expected less than 2 GiB", origin_, word.size()));
    }
    std::vector<int> found;
    if (const auto status = processor_->Encode(absl::string_view(word.data(), word.size()), &found); !status.ok()) {
      return Status::InvalidInput(fmt::format("{}: cannot encode: {}", origin_, status.ToString()));
    }
    // The library finds user-defined symbols in any text. One that is special would let untrusted text forge a marker.
    for (const int id : found) {
      if (reserved_.contains(id)) {
        return Status::Unsupported(fmt::format("{}: this tokenizer cannot take the text \"{}\" as ordinary text",
                                               origin_, processor_->IdToPiece(id)));
      }
    }
    ids.insert(ids.end(), found.begin(), found.end());
    return Status::Ok();
  }

 private:
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
  std::unordered_set<int32_t> reserved_;
  std::string origin_;
};

// Whether the model puts a space in front of a text, which decoding must take away again.
SpacePrefix PrefixOf(const sentencepiece::SentencePieceProcessor& processor) {
  std::vector<std::string> pieces;
  const bool adds = processor.Encode("a", &pieces).ok() && !pieces.empty() && pieces[0].starts_with(kSpaceMark);
  return adds ? SpacePrefix::kAdded : SpacePrefix::kNone;
}

}  // namespace

Result<TokenDecoder> SentencePieceDecoder(SpacePrefix prefix, std::string_view origin) {
  Json steps = Json::array({{{"type", "Replace"}, {"pattern", {{"String", kSpaceMark}}}, {"content", " "}},
                            {{"type", "ByteFallback"}},
                            {{"type", "Fuse"}}});
  if (prefix == SpacePrefix::kAdded) steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return TokenDecoder::FromJson({{"type", "Sequence"}, {"decoders", std::move(steps)}}, origin);
}

Result<TokenizerParts> ReadSentencePieceModel(std::string_view bytes, const std::vector<AddedToken>& more,
                                              std::string_view origin) {
  HW_ASSIGN_OR_RETURN(auto processor, LoadSentencePiece(bytes, origin));
  TokenizerParts parts;
  parts.origin = origin;
  std::unordered_set<int32_t> reserved;
  for (int id = 0; id < processor->GetPieceSize(); ++id) {
    const std::string& piece = processor->IdToPiece(id);
    parts.entries.push_back({piece, id});
    if (processor->IsControl(id) || processor->IsUnknown(id)) {
      parts.added_tokens.push_back({.content = piece, .id = id, .special = true});
    }
  }
  parts.added_tokens.insert(parts.added_tokens.end(), more.begin(), more.end());
  for (const AddedToken& token : more) {
    const int id = processor->PieceToId(token.content);
    if (token.special && !processor->IsUnknown(id)) reserved.insert(id);
  }
  const auto known = [&](int id) { return id >= 0 ? std::optional<int32_t>(id) : std::nullopt; };
  parts.bos_id = known(processor->bos_id());
  parts.eos_id = known(processor->eos_id());
  HW_ASSIGN_OR_RETURN(parts.decoder, SentencePieceDecoder(PrefixOf(*processor), origin));
  parts.word_encoder =
      std::make_unique<SentencePieceEncoder>(std::move(processor), std::move(reserved), std::string(origin));
  return parts;
}

}  // namespace headwise
