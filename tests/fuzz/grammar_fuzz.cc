// Any bytes as a schema, a grammar and an expression: an error that can be shown, or a constraint that goes on to an
// end or says why it cannot. The first byte says which.
#include <headwise/grammar.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "grammar/gbnf_check.h"
#include "text/byte_level.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace headwise {
namespace {

constexpr int64_t kVocabSize = 256;

std::unique_ptr<Tokenizer> ByteTokenizer() {
  Json vocab = Json::object();
  for (int byte = 0; byte < kVocabSize; ++byte) {
    std::string token;
    AppendByteLevel(std::string(1, static_cast<char>(byte)), token);
    vocab[token] = byte;
  }
  const Json json = {{"added_tokens", Json::array()},
                     {"decoder", {{"type", "ByteLevel"}}},
                     {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}}};
  auto tokenizer = ParseTokenizerJson(json.dump(), "bytes");
  HW_CHECK(tokenizer.ok(), "{}", tokenizer.status().message());
  return *std::move(tokenizer);
}

const GrammarCompiler& Compiler() {
  static const std::unique_ptr<Tokenizer> tokenizer = ByteTokenizer();
  static const auto compiler = GrammarCompiler::Create(*tokenizer, kVocabSize);
  return **compiler;
}

void Check(const Status& status) {
  if (status.ok()) return;
  HW_CHECK(!status.message().empty());
}

// Takes the first, the last, the first, ... of what may come.
void Walk(const TokenConstraint& constraint) {
  auto state = constraint.Begin();
  HW_CHECK(state.ok(), "{}", state.status().message());
  std::vector<uint32_t> mask(kVocabSize / 32);
  for (int step = 0; step < 16; ++step) {
    const Result<bool> may_end = (*state)->FillMask(mask);
    if (!may_end.ok()) return Check(may_end.status());
    int32_t chosen = -1;
    for (int32_t i = 0; i < kVocabSize && chosen < 0; ++i) {
      const int32_t id = step % 2 == 0 ? i : static_cast<int32_t>(kVocabSize) - 1 - i;
      if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) chosen = id;
    }
    if (chosen < 0) return;
    const Status accepted = (*state)->Accept(chosen);
    HW_CHECK(accepted.ok(), "{}", accepted.message());
  }
}

}  // namespace
}  // namespace headwise

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using headwise::GrammarKind;
  if (size == 0) return 0;
  constexpr GrammarKind kKinds[] = {GrammarKind::kJsonSchema, GrammarKind::kGbnf, GrammarKind::kRegex};
  headwise::GrammarSource source;
  source.kind = kKinds[data[0] % 3];
  source.strict = data[0] % 2 == 1;
  source.text.assign(reinterpret_cast<const char*>(data) + 1, size - 1);
  const headwise::Status checked = headwise::CheckGrammar(source);
  headwise::Check(checked);
  if (!checked.ok() || !headwise::GrammarCompiler::IsBuilt()) return 0;
  const auto constraint = headwise::Compiler().Compile(source);
  headwise::Check(constraint.status());
  if (constraint.ok()) headwise::Walk(**constraint);
  return 0;
}
