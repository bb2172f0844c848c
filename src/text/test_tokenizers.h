// Tiny tokenizers that tests write by hand.
#ifndef HEADWISE_TEXT_TEST_TOKENIZERS_H_
#define HEADWISE_TEXT_TEST_TOKENIZERS_H_

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/byte_level.h"
#include "text/tokenizer.h"

namespace headwise {

inline std::unique_ptr<Tokenizer> MustParse(const Json& json) {
  auto tokenizer = ParseTokenizerJson(json.dump(), "test.json");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return tokenizer.ok() ? std::move(tokenizer).value() : nullptr;
}

// One token per byte, no merges; special tokens follow from 256 on.
inline Json ByteTokenizerJson(const std::vector<std::string>& special) {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) {
    std::string token;
    AppendByteLevel(std::string(1, static_cast<char>(byte)), token);
    vocab[token] = byte;
  }
  Json added = Json::array();
  for (size_t i = 0; i < special.size(); ++i) {
    added.push_back({{"id", 256 + i}, {"content", special[i]}, {"special", true}, {"normalized", false}});
  }
  const Json level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  return {{"added_tokens", added},
          {"pre_tokenizer", level},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}}};
}

// SentencePiece style: <unk> <s> </s>, the 256 byte tokens, then `pieces`, whose merges are `merges`.
inline Json PieceTokenizerJson(const std::vector<std::string>& pieces, const std::vector<std::string>& merges) {
  Json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < 256; ++byte) vocab[fmt::format("<0x{:02X}>", byte)] = 3 + byte;
  for (size_t i = 0; i < pieces.size(); ++i) vocab[pieces[i]] = 259 + i;
  Json added = Json::array();
  for (const auto& [id, content] : {std::pair(0, "<unk>"), std::pair(1, "<s>"), std::pair(2, "</s>")}) {
    added.push_back({{"id", id}, {"content", content}, {"special", true}, {"normalized", false}});
  }
  const Json normalizers = Json::array({{{"type", "Prepend"}, {"prepend", "\u2581"}},
                                        {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}});
  const Json decoders = Json::array({{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
                                     {{"type", "ByteFallback"}},
                                     {{"type", "Fuse"}},
                                     {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}});
  return {{"added_tokens", added},
          {"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers}}},
          {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"vocab", vocab},
            {"merges", merges}}}};
}

}  // namespace headwise

#endif  // HEADWISE_TEXT_TEST_TOKENIZERS_H_
