#include "data/variables.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "data/filler.h"
#include "data/option_range.h"
#include "data/words.h"

namespace headwise {
namespace {

// These only bound what a caller can ask for: far more than an answer holds.
constexpr int64_t kMaxChains = 1000;
constexpr int64_t kMaxHops = 1000;

constexpr int kLettersPerName = 5;
constexpr uint64_t kNumLetters = 26;
constexpr uint64_t kNumNames = kNumLetters * kNumLetters * kNumLetters * kNumLetters * kNumLetters;

constexpr int64_t kFirstValue = 10'000;
constexpr uint64_t kNumValues = 90'000;

std::string NameOf(uint64_t id) {
  std::string name;
  for (int i = 0; i < kLettersPerName; ++i) {
    name += static_cast<char>('A' + id % kNumLetters);
    id /= kNumLetters;
  }
  return name;
}

}  // namespace

Status ValidateVariableOptions(const VariableOptions& options) {
  HW_RETURN_IF_ERROR(CheckOption("number of chains", options.num_chains, 1, kMaxChains));
  return CheckOption("number of hops", options.num_hops, 0, kMaxHops);
}

std::vector<VariableChain> DrawVariableChains(Rng& rng, const VariableOptions& options) {
  HW_CHECK(ValidateVariableOptions(options).ok());
  const int64_t names_per_chain = options.num_hops + 1;
  const std::vector<uint64_t> values = DrawDistinct(rng, options.num_chains, kNumValues);
  const std::vector<uint64_t> names = DrawDistinct(rng, options.num_chains * names_per_chain, kNumNames);
  auto name = names.begin();
  std::vector<VariableChain> chains;
  for (const uint64_t value : values) {
    VariableChain& chain = chains.emplace_back();
    chain.value = kFirstValue + static_cast<int64_t>(value);
    for (int64_t i = 0; i < names_per_chain; ++i) {
      chain.names.push_back(NameOf(*name++));
      chain.depths.push_back(rng.Uniform());
    }
    std::sort(chain.depths.begin(), chain.depths.end());
  }
  return chains;
}

AskedText MakeVariables(std::string_view filler, std::span<const VariableChain> chains) {
  HW_CHECK(!chains.empty());
  std::vector<HiddenSentence> sentences;
  for (const VariableChain& chain : chains) {
    for (size_t i = 0; i < chain.names.size(); ++i) {
      const std::string assigned = i == 0 ? fmt::format("{}", chain.value) : "VAR " + chain.names[i - 1];
      sentences.push_back({.text = fmt::format("VAR {} = {}.", chain.names[i], assigned), .depth = chain.depths[i]});
    }
  }
  AskedText text = {.context = std::string(WithoutSpaceAtEnd(HideSentences(filler, sentences))), .questions = {}};
  text.questions.push_back(
      {.text = fmt::format("\n\nFind all variables that are assigned the value {} in the text above. Answer: the "
                           "variables are",
                           chains[0].value),
       .expected = chains[0].names});
  return text;
}

}  // namespace headwise
