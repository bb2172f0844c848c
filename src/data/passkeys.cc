#include "data/passkeys.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "base/check.h"
#include "data/filler.h"
#include "data/option_range.h"

namespace headwise {
namespace {

constexpr auto kNato = std::to_array<std::string_view>(
    {"alpha",  "bravo", "charlie", "delta",  "echo",     "foxtrot", "golf",   "hotel",  "india",
     "juliet", "kilo",  "lima",    "mike",   "november", "oscar",   "papa",   "quebec", "romeo",
     "sierra", "tango", "uniform", "victor", "whiskey",  "xray",    "yankee", "zulu"});

constexpr auto kOrdinals = std::to_array<std::string_view>(
    {"first",     "second",    "third",       "fourth",     "fifth",      "sixth",      "seventh",
     "eighth",    "ninth",     "tenth",       "eleventh",   "twelfth",    "thirteenth", "fourteenth",
     "fifteenth", "sixteenth", "seventeenth", "eighteenth", "nineteenth", "twentieth"});
static_assert(kOrdinals.size() == kMaxPasskeys);

// The paper's training code keeps passkeys off the ends of the text.
constexpr double kMinDepth = 0.05;
constexpr double kMaxDepth = 0.95;

// Only bounds what a caller can ask for: far more than a prompt holds.
constexpr int64_t kMaxWords = 100'000;

std::string Reminder(size_t passkey_idx, const Passkey& passkey) {
  return fmt::format("Remember this sequence of words, it's the {} passkey to the vault: {}", kOrdinals[passkey_idx],
                     passkey.words);
}

std::string Question(size_t passkey_idx) {
  return fmt::format("\n\nBased on the content of the book, what is the {} passkey to the vault?\nThe {} passkey is:",
                     kOrdinals[passkey_idx], kOrdinals[passkey_idx]);
}

// The filler with the passkeys in it.
std::string HidePasskeys(std::string_view filler, std::span<const Passkey> passkeys) {
  std::vector<size_t> by_depth(passkeys.size());
  std::iota(by_depth.begin(), by_depth.end(), size_t{0});
  std::stable_sort(by_depth.begin(), by_depth.end(),
                   [&](size_t a, size_t b) { return passkeys[a].depth < passkeys[b].depth; });
  std::string text;
  size_t num_used = 0;  // of the filler
  const auto append = [&](std::string_view paragraph) {
    paragraph = WithoutSpaceAtEnd(paragraph);
    if (paragraph.empty()) return;
    if (!text.empty()) text += "\n\n";
    text += paragraph;
  };
  for (const size_t idx : by_depth) {
    const auto offset = static_cast<size_t>(passkeys[idx].depth * static_cast<double>(filler.size()));
    const size_t cut = std::max(num_used, BoundaryBefore(filler, offset, TextBoundary::kSentence));
    append(filler.substr(num_used, cut - num_used));
    append(Reminder(idx, passkeys[idx]));
    num_used = cut;
  }
  append(filler.substr(num_used));
  return text;
}

}  // namespace

std::span<const std::string_view> PasskeyWords() {
  return kNato;
}

Status ValidatePasskeyOptions(const PasskeyOptions& options) {
  HW_RETURN_IF_ERROR(CheckOption("number of passkeys", options.num_passkeys, 1, kMaxPasskeys));
  return CheckOption("words per passkey", options.words_per_passkey, 1, kMaxWords);
}

std::vector<Passkey> DrawPasskeys(Rng& rng, const PasskeyOptions& options) {
  HW_CHECK(ValidatePasskeyOptions(options).ok());
  std::vector<Passkey> passkeys(static_cast<size_t>(options.num_passkeys));
  for (Passkey& passkey : passkeys) {
    passkey.depth = kMinDepth + (kMaxDepth - kMinDepth) * rng.Uniform();
    for (int64_t i = 0; i < options.words_per_passkey; ++i) {
      if (i > 0) passkey.words += ' ';
      passkey.words += kNato[rng.Below(kNato.size())];
    }
  }
  return passkeys;
}

RecallPrompt MakePasskeyPrompt(std::string_view filler, std::span<const Passkey> passkeys) {
  HW_CHECK(!passkeys.empty() && passkeys.size() <= kMaxPasskeys, "{} passkeys", passkeys.size());
  RecallPrompt prompt;
  for (size_t i = 0; i < passkeys.size(); ++i) {
    // The context and the first question are one part, so that they are tokenised as one text.
    const std::string before = i == 0 ? HidePasskeys(filler, passkeys) : "";
    prompt.push_back({.text = before + Question(i), .is_answer = false});
    prompt.push_back({.text = " " + passkeys[i].words, .is_answer = true});
  }
  return prompt;
}

}  // namespace headwise
