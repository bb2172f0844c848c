#include "data/filler.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/file.h"
#include "base/sha256.h"
#include "text/utf8.h"

namespace headwise {
namespace {

// Part of the hash in plans: another template, word or order of draws is another version.
constexpr int kGeneratorVersion = 1;

using Words = std::span<const std::string_view>;

constexpr auto kPeople = std::to_array<std::string_view>(
    {"the baker",     "the old sailor", "a young teacher",  "her brother",  "his neighbour",  "the shepherd",
     "the librarian", "my aunt",        "the clockmaker",   "our guide",    "a tired porter", "the innkeeper",
     "the gardener",  "a quiet clerk",  "the schoolmaster", "the ferryman", "their cousin",   "the doctor",
     "the miller",    "a stranger",     "the housekeeper",  "the carpenter"});
constexpr auto kPlaces = std::to_array<std::string_view>(
    {"by the river",       "near the old mill",     "behind the church",   "at the edge of the wood",
     "in the market",      "on the high road",      "beside the fire",     "under the chestnut trees",
     "in the long garden", "at the harbour",        "across the meadow",   "on the stone bridge",
     "in the upper room",  "below the castle hill", "outside the station", "at the corner of the square",
     "in the kitchen",     "along the canal",       "over the hills",      "beyond the last cottage"});
constexpr auto kTimes = std::to_array<std::string_view>(
    {"in the early morning", "before supper", "at dusk", "on market day", "late in the spring", "after the rain",
     "that winter", "towards midnight", "at the end of the week", "soon after breakfast", "during the harvest",
     "on the first warm day", "one evening", "when the bells rang", "while the kettle boiled", "in the autumn"});
constexpr auto kAdjectives = std::to_array<std::string_view>(
    {"broken", "heavy",    "small",      "painted", "wooden",  "forgotten", "bright", "dusty",    "narrow",
     "silver", "crooked",  "ancient",    "plain",   "curious", "warm",      "faded",  "handsome", "useful",
     "green",  "borrowed", "unfinished", "gentle",  "worn",    "hollow",    "modest", "splendid"});
constexpr auto kThings = std::to_array<std::string_view>(
    {"basket", "letter",   "clock",  "lantern", "boat",   "coat",    "ladder",   "map",      "kettle", "chair",
     "ribbon", "painting", "wagon",  "mirror",  "bell",   "blanket", "fence",    "window",   "saddle", "notebook",
     "violin", "umbrella", "parcel", "teapot",  "cradle", "anchor",  "cupboard", "portrait", "barrel", "candle"});
constexpr auto kActs = std::to_array<std::string_view>(
    {"carried", "repaired", "found",    "sold",   "examined", "lost",     "described", "borrowed", "cleaned",
     "admired", "hid",      "measured", "bought", "painted",  "lifted",   "wanted",    "returned", "promised",
     "noticed", "wrapped",  "ignored",  "kept",   "drew",     "polished", "broke",     "brought"});
constexpr auto kMoves = std::to_array<std::string_view>({"walked", "waited", "sat", "worked", "rested", "stood",
                                                         "wandered", "slept", "sang", "talked", "hurried", "lingered",
                                                         "stopped", "laughed", "dreamed", "listened"});
constexpr auto kManners = std::to_array<std::string_view>(
    {"slowly", "without a word", "with great care", "cheerfully", "for a long while", "as usual", "in silence",
     "with some doubt", "patiently", "for no clear reason", "almost by accident", "in good humour", "alone",
     "with both hands", "rather badly", "as if nothing had happened"});
constexpr auto kWeather = std::to_array<std::string_view>(
    {"the wind rose", "the sky cleared", "a thin fog came in", "snow began to fall", "the light faded",
     "the sun came out", "a light rain fell", "the clouds moved off", "the air grew colder", "the tide turned",
     "the moon was up", "the dust settled", "the leaves turned brown", "the streets were empty"});
constexpr auto kThoughts = std::to_array<std::string_view>(
    {"it was too late to turn back", "nobody would ask for it again", "the price had been fair",
     "the road would be open by then", "such things never last", "the story had been told before",
     "the house needed a new roof", "the others had already left", "there was still enough bread",
     "every family has its secrets", "the work could wait", "the answer was simple", "the summer would be short",
     "a promise is a promise", "the door had been left open", "the music came from far away"});
constexpr auto kLinks = std::to_array<std::string_view>({"and", "but", "so", "yet", "for"});

// What a letter in a template stands for.
Words WordsOf(char slot) {
  switch (slot) {
    case 'P':
      return kPeople;
    case 'L':
      return kPlaces;
    case 'T':
      return kTimes;
    case 'A':
      return kAdjectives;
    case 'N':
      return kThings;
    case 'V':
      return kActs;
    case 'M':
      return kMoves;
    case 'H':
      return kManners;
    case 'W':
      return kWeather;
    case 'Q':
      return kThoughts;
    case 'C':
      return kLinks;
    default:
      HW_CHECK(false, "slot {}", slot);
  }
  return {};
}

constexpr auto kTemplates = std::to_array<std::string_view>({
    "%T, %P %V the %A %N %L.",
    "%P %M %L %H, %C %W.",
    "%W, %C %P %V the %N %H.",
    "It was %P who %V the %A %N %T.",
    "%P said that %Q, %C %P %M %H.",
    "Nobody knew why %P %V the %N, %C %W.",
    "%L there was the %A %N which %P %V %T.",
    "%T %W, and %P %M %L.",
    "Everyone agreed that %Q.",
    "%P had the %A %N and the %A %N, %C %P %V them %H.",
    "When %W, %P %M %H and thought that %Q.",
    "%P never %V the %N again, %C %Q.",
    "The %N was %A and the %N was %A, just as %P remembered.",
    "Perhaps %Q; %P only %M %L.",
    "%P and %P %M %L until %W.",
    "Of all the things %L, %P %V only the %A %N.",
    "If %Q, why had %P %V the %A %N %T?",
    "\"%Q,\" said %P, and %M %H.",
});

std::string_view Pick(Rng& rng, Words words) {
  return words[rng.Below(words.size())];
}

void AppendSentence(Rng& rng, std::string& text) {
  const std::string_view pattern = Pick(rng, kTemplates);
  const size_t begin = text.size();
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '%') {
      text += Pick(rng, WordsOf(pattern[++i]));
    } else {
      text += pattern[i];
    }
  }
  char& first = text[text[begin] == '"' ? begin + 1 : begin];
  if (first >= 'a' && first <= 'z') first = static_cast<char>(first - 'a' + 'A');
}

bool IsSpace(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

bool IsWordStart(std::string_view text, size_t offset) {
  return offset == 0 || (IsSpace(text[offset - 1]) && (offset == text.size() || !IsSpace(text[offset])));
}

bool IsBoundary(std::string_view text, size_t offset, TextBoundary boundary) {
  if (offset == 0) return true;
  if (!IsWordStart(text, offset)) return false;
  if (boundary == TextBoundary::kWord) return true;
  size_t end = offset;  // of the text before the white space
  int num_newlines = 0;
  while (end > 0 && IsSpace(text[end - 1])) num_newlines += text[--end] == '\n' ? 1 : 0;
  if (end == 0 || num_newlines >= 2) return true;
  if (boundary == TextBoundary::kParagraph) return false;
  if (text[end - 1] == '"' || text[end - 1] == '\'' || text[end - 1] == ')') --end;
  return end > 0 && (text[end - 1] == '.' || text[end - 1] == '!' || text[end - 1] == '?');
}

std::optional<size_t> FindBoundaryBefore(std::string_view text, size_t offset, TextBoundary boundary, size_t reach) {
  const size_t last = offset > reach ? offset - reach : 0;
  for (size_t i = offset + 1; i-- > last;) {
    if (IsBoundary(text, i, boundary)) return i;
  }
  return std::nullopt;
}

// How far back a boundary is looked for: a few paragraphs, a long sentence, a long word.
constexpr size_t kParagraphReach = 2048;
constexpr size_t kSentenceReach = 512;
constexpr size_t kWordReach = 44;

}  // namespace

std::string MakeFiller(Rng& rng, int64_t min_chars) {
  std::string text;
  while (static_cast<int64_t>(text.size()) < min_chars) {
    if (!text.empty()) text += "\n\n";
    const uint64_t num_sentences = 3 + rng.Below(6);
    for (uint64_t i = 0; i < num_sentences; ++i) {
      if (i > 0) text += ' ';
      AppendSentence(rng, text);
    }
  }
  return text;
}

size_t BoundaryBefore(std::string_view text, size_t offset, TextBoundary boundary) {
  HW_CHECK(offset <= text.size(), "offset {} of {}", offset, text.size());
  std::optional<size_t> found;
  if (boundary == TextBoundary::kParagraph) {
    found = FindBoundaryBefore(text, offset, boundary, kParagraphReach);
    if (!found) boundary = TextBoundary::kSentence;
  }
  if (!found && boundary == TextBoundary::kSentence) {
    found = FindBoundaryBefore(text, offset, boundary, kSentenceReach);
  }
  if (!found) found = FindBoundaryBefore(text, offset, TextBoundary::kWord, kWordReach);
  if (found) return *found;
  while (offset > 0 && offset < text.size() && (static_cast<unsigned char>(text[offset]) & 0xC0) == 0x80) --offset;
  return offset;
}

std::string_view WithoutSpaceAtEnd(std::string_view text) {
  while (!text.empty() && IsSpace(text.back())) text.remove_suffix(1);
  return text;
}

std::string HideSentences(std::string_view text, std::span<const HiddenSentence> sentences) {
  std::vector<const HiddenSentence*> by_depth;
  for (const HiddenSentence& sentence : sentences) by_depth.push_back(&sentence);
  std::stable_sort(by_depth.begin(), by_depth.end(), [](const auto* a, const auto* b) { return a->depth < b->depth; });
  std::string result;
  size_t num_used = 0;  // of the text
  for (const HiddenSentence* sentence : by_depth) {
    HW_CHECK(sentence->depth >= 0.0 && sentence->depth <= 1.0, "depth {}", sentence->depth);
    const auto offset = static_cast<size_t>(sentence->depth * static_cast<double>(text.size()));
    const size_t cut = std::max(num_used, BoundaryBefore(text, offset, TextBoundary::kSentence));
    result += text.substr(num_used, cut - num_used);
    result += sentence->text;
    result += ' ';
    num_used = cut;
  }
  result += text.substr(num_used);
  return result;
}

TextSource TextSource::Generator() {
  return {};
}

Result<TextSource> TextSource::FromFile(const std::filesystem::path& path) {
  TextSource source;
  source.path_ = path.string();
  HW_ASSIGN_OR_RETURN(source.text_, ReadFile(path));
  if (const std::optional<size_t> bad = FindInvalidUtf8(source.text_)) {
    return Status::InvalidInput(fmt::format("{}: invalid UTF-8 at byte {}, expected a text", source.path_, *bad));
  }
  return source;
}

Result<std::string> TextSource::Passage(Rng& rng, int64_t num_chars) const {
  HW_CHECK(num_chars >= 0, "{} chars", num_chars);
  const auto wanted = static_cast<size_t>(num_chars);
  std::string passage;
  if (path_.empty()) {
    passage = MakeFiller(rng, num_chars);
  } else {
    if (text_.size() < wanted) {
      return Status::InvalidInput(
          fmt::format("{}: {} bytes of text, expected {} or more", path_, text_.size(), wanted));
    }
    const size_t offset = rng.Below(text_.size() - wanted + 1);
    // One byte more than wanted tells whether a word ends there.
    passage = text_.substr(BoundaryBefore(text_, offset, TextBoundary::kParagraph), wanted + 1);
  }
  if (passage.size() > wanted) passage.resize(BoundaryBefore(passage, wanted, TextBoundary::kWord));
  return passage;
}

std::string TextSource::Hash() const {
  return path_.empty() ? fmt::format("generator-{}", kGeneratorVersion) : Sha256Hex(text_);
}

}  // namespace headwise
