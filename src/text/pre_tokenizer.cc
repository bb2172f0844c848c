#include "text/pre_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "text/byte_level.h"
#include "text/normalizer.h"
#include "text/utf8.h"

namespace headwise {
namespace {

// GPT-2's own splitting, which "use_regex" of ByteLevel stands for.
constexpr std::string_view kGpt2Pattern = R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace

Result<PreTokenizer> PreTokenizer::FromJson(const Json& value, std::string_view origin) {
  PreTokenizer pre_tokenizer;
  pre_tokenizer.origin_ = fmt::format("{}: pre_tokenizer", origin);
  if (!value.is_null()) HW_RETURN_IF_ERROR(pre_tokenizer.Add(value, pre_tokenizer.origin_, 0));
  return pre_tokenizer;
}

Status PreTokenizer::AddStep(Step step, std::string_view origin) {
  if (steps_.size() == kMaxPipelineSteps) {
    return Status::Unsupported(fmt::format("{}: more than {} steps", origin, kMaxPipelineSteps));
  }
  steps_.push_back(std::move(step));
  return Status::Ok();
}

Result<PreTokenizer::Behavior> PreTokenizer::BehaviorFromJson(const JsonObject& object, const char* otherwise) {
  HW_ASSIGN_OR_RETURN(const std::string name, object.StringOr("behavior", otherwise));
  constexpr std::pair<std::string_view, Behavior> kNames[] = {
      {"Removed", Behavior::kRemoved},
      {"Isolated", Behavior::kIsolated},
      {"MergedWithPrevious", Behavior::kMergedWithPrevious},
      {"MergedWithNext", Behavior::kMergedWithNext},
      {"Contiguous", Behavior::kContiguous},
  };
  for (const auto& [known, behavior] : kNames) {
    if (name == known) return behavior;
  }
  return Status::Unsupported(fmt::format("{}: behavior \"{}\" is not supported", object.origin(), name));
}

Status PreTokenizer::Add(const Json& value, std::string_view origin, int depth) {
  if (depth > kMaxPipelineDepth) return Status::Unsupported(fmt::format("{}: nested too deeply", origin));
  HW_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(value, origin));
  HW_ASSIGN_OR_RETURN(const std::string type, object.String("type"));
  if (type == "Sequence") {
    if (!object.Has("pretokenizers") || !object.At("pretokenizers").is_array()) {
      return Status::InvalidInput(fmt::format("{}: a Sequence without a list \"pretokenizers\"", origin));
    }
    for (const Json& part : object.At("pretokenizers")) HW_RETURN_IF_ERROR(Add(part, origin, depth + 1));
    return Status::Ok();
  }
  if (type == "ByteLevel") return AddByteLevel(object);
  if (type == "Split") return AddSplit(object);
  if (type == "Metaspace") return AddMetaspace(object);
  Step step{.kind = Kind::kCharacters};
  if (type == "Digits") {
    HW_ASSIGN_OR_RETURN(const bool individual, object.BoolOr("individual_digits", false));
    step.behavior = individual ? Behavior::kIsolated : Behavior::kContiguous;
    step.character_class = IsNumeric;
  } else if (type == "Punctuation") {
    HW_ASSIGN_OR_RETURN(step.behavior, BehaviorFromJson(object, "Isolated"));
    step.character_class = IsPunctuation;
  } else if (type == "WhitespaceSplit" || type == "Whitespace") {
    step.behavior = Behavior::kRemoved;
    step.character_class = IsWhitespace;
    if (type == "Whitespace") {
      HW_RETURN_IF_ERROR(AddStep(std::move(step), origin));
      // Runs of word characters and runs of others, once the spaces are gone.
      step = {.kind = Kind::kCharacters, .behavior = Behavior::kContiguous, .character_class = IsWord};
    }
  } else {
    return Status::Unsupported(fmt::format("{}: type \"{}\" is not supported", origin, type));
  }
  return AddStep(std::move(step), origin);
}

Status PreTokenizer::AddSplit(const JsonObject& object) {
  if (!object.Has("pattern")) {
    return Status::InvalidInput(fmt::format("{}: a Split without \"pattern\"", object.origin()));
  }
  Step step{.kind = Kind::kSplit};
  HW_ASSIGN_OR_RETURN(step.behavior, BehaviorFromJson(object, ""));
  HW_ASSIGN_OR_RETURN(step.invert, object.BoolOr("invert", false));
  HW_ASSIGN_OR_RETURN(Regex pattern, PatternFromJson(object.At("pattern"), object.origin()));
  step.pattern.push_back(std::move(pattern));
  return AddStep(std::move(step), object.origin());
}

Status PreTokenizer::AddByteLevel(const JsonObject& object) {
  Step step{.kind = Kind::kByteLevel};
  HW_ASSIGN_OR_RETURN(step.add_prefix_space, object.BoolOr("add_prefix_space", true));
  HW_ASSIGN_OR_RETURN(const bool use_regex, object.BoolOr("use_regex", true));
  if (use_regex) {
    HW_ASSIGN_OR_RETURN(Regex pattern, Regex::Compile(kGpt2Pattern, object.origin()));
    step.pattern.push_back(std::move(pattern));
  }
  return AddStep(std::move(step), object.origin());
}

Status PreTokenizer::AddMetaspace(const JsonObject& object) {
  Step step{.kind = Kind::kMetaspace};
  HW_ASSIGN_OR_RETURN(step.content, object.StringOr("replacement", "\u2581"));
  // Before there were schemes a flag told always from never.
  HW_ASSIGN_OR_RETURN(const bool add_prefix_space, object.BoolOr("add_prefix_space", true));
  HW_ASSIGN_OR_RETURN(const std::string scheme,
                      object.StringOr("prepend_scheme", add_prefix_space ? "always" : "never"));
  HW_ASSIGN_OR_RETURN(step.split, object.BoolOr("split", true));
  if (scheme == "always") {
    step.prepend_scheme = PrependScheme::kAlways;
  } else if (scheme == "first") {
    step.prepend_scheme = PrependScheme::kFirst;
  } else if (scheme == "never") {
    step.prepend_scheme = PrependScheme::kNever;
  } else {
    return Status::InvalidInput(
        fmt::format("{}: prepend_scheme \"{}\", expected always, first or never", object.origin(), scheme));
  }
  if (step.content.empty() || FirstCharacter(step.content).size_bytes != step.content.size()) {
    return Status::InvalidInput(
        fmt::format("{}: replacement \"{}\", expected one character", object.origin(), step.content));
  }
  return AddStep(std::move(step), object.origin());
}

std::vector<PreTokenizer::Match> PreTokenizer::Merge(const std::vector<Match>& matches, Behavior behavior) {
  std::vector<Match> merged;
  bool previous = false;
  switch (behavior) {
    case Behavior::kRemoved:
      return matches;
    case Behavior::kIsolated:
      for (const Match& match : matches) merged.push_back({match.span, false});
      break;
    case Behavior::kContiguous:
    case Behavior::kMergedWithPrevious:
      for (const Match& match : matches) {
        const bool joins = behavior == Behavior::kContiguous ? match.is_match == previous : match.is_match && !previous;
        if (joins && !merged.empty()) {
          merged.back().span.end = match.span.end;
        } else {
          merged.push_back({match.span, false});
        }
        previous = match.is_match;
      }
      break;
    case Behavior::kMergedWithNext:
      for (auto match = matches.rbegin(); match != matches.rend(); ++match) {
        if (match->is_match && !previous && !merged.empty()) {
          merged.back().span.begin = match->span.begin;
        } else {
          merged.push_back({match->span, false});
        }
        previous = match->is_match;
      }
      std::reverse(merged.begin(), merged.end());
      break;
  }
  return merged;
}

template <typename Find>
Result<Words> PreTokenizer::Cut(const Words& words, Behavior behavior, Find find) {
  Words out{.buffer = words.buffer, .spans = {}};
  std::vector<Match> matches;
  for (size_t i = 0; i < words.spans.size(); ++i) {
    matches.clear();
    HW_RETURN_IF_ERROR(find(words.At(i), matches));
    for (const Match& match : Merge(matches, behavior)) {
      if (match.is_match || match.span.begin == match.span.end) continue;
      if (out.spans.empty() && i == 0 && match.span.begin == 0) out.first = words.first;
      const size_t base = words.spans[i].begin;
      out.spans.push_back({base + match.span.begin, base + match.span.end});
    }
  }
  return out;
}

Words PreTokenizer::ApplyByteLevelPrefix(const Words& words) {
  Words out{.buffer = {}, .spans = {}, .first = words.first};
  for (size_t i = 0; i < words.spans.size(); ++i) {
    const size_t begin = out.buffer.size();
    const std::string_view word = words.At(i);
    if (!word.starts_with(' ')) out.buffer.push_back(' ');
    out.buffer.append(word);
    out.spans.push_back({begin, out.buffer.size()});
  }
  return out;
}

Words PreTokenizer::ApplyByteLevelAlphabet(const Words& words) {
  Words out{.buffer = {}, .spans = {}, .first = words.first};
  out.buffer.reserve(words.buffer.size() + words.buffer.size() / 4);
  out.spans.reserve(words.spans.size());
  for (size_t i = 0; i < words.spans.size(); ++i) {
    const size_t begin = out.buffer.size();
    AppendByteLevel(words.At(i), out.buffer);
    out.spans.push_back({begin, out.buffer.size()});
  }
  return out;
}

Words PreTokenizer::ApplyMetaspace(const Step& step, const Words& words) {
  Words out{.buffer = {}, .spans = {}, .first = words.first};
  for (size_t i = 0; i < words.spans.size(); ++i) {
    const size_t begin = out.buffer.size();
    const std::string_view word = words.At(i);
    const bool at_start = i == 0 && words.first == TextPosition::kStartOfText;
    const bool marked = word.starts_with(' ') || word.starts_with(step.content);
    const bool prepends =
        step.prepend_scheme == PrependScheme::kAlways || (step.prepend_scheme == PrependScheme::kFirst && at_start);
    if (prepends && !marked) out.buffer.append(step.content);
    for (const char c : word) {
      if (c == ' ') {
        out.buffer.append(step.content);
      } else {
        out.buffer.push_back(c);
      }
    }
    out.spans.push_back({begin, out.buffer.size()});
  }
  return out;
}

Result<Words> PreTokenizer::ApplyStep(const Step& step, const Words& words, PatternBudget& budget) {
  // Each match, and each stretch between matches.
  const auto find_pattern = [&step, &budget](std::string_view word, std::vector<Match>& matches) {
    std::vector<TextSpan> spans;
    HW_RETURN_IF_ERROR(step.pattern.front().FindAll(word, budget, spans));
    size_t at = 0;
    for (const TextSpan& span : spans) {
      if (span.begin > at) matches.push_back({{at, span.begin}, step.invert});
      matches.push_back({span, !step.invert});
      at = span.end;
    }
    if (at < word.size()) matches.push_back({{at, word.size()}, step.invert});
    return Status::Ok();
  };
  switch (step.kind) {
    case Kind::kSplit:
      return Cut(words, step.behavior, find_pattern);
    case Kind::kCharacters:
      return Cut(words, step.behavior, [&step](std::string_view word, std::vector<Match>& matches) {
        for (size_t at = 0; at < word.size();) {
          const Utf8Character character = FirstCharacter(word.substr(at));
          const bool is_match = step.character_class(character.code);
          const size_t end = at + character.size_bytes;
          // Characters that match stand alone, those between them stay together.
          if (!is_match && !matches.empty() && !matches.back().is_match) {
            matches.back().span.end = end;
          } else {
            matches.push_back({{at, end}, is_match});
          }
          at = end;
        }
        return Status::Ok();
      });
    case Kind::kByteLevel: {
      Words prefixed = step.add_prefix_space ? ApplyByteLevelPrefix(words) : words;
      if (step.pattern.empty()) return ApplyByteLevelAlphabet(prefixed);
      HW_ASSIGN_OR_RETURN(const Words cut, Cut(prefixed, Behavior::kIsolated, find_pattern));
      return ApplyByteLevelAlphabet(cut);
    }
    case Kind::kMetaspace: {
      Words marked = ApplyMetaspace(step, words);
      if (!step.split) return marked;
      return Cut(marked, Behavior::kMergedWithNext, [&step](std::string_view word, std::vector<Match>& matches) {
        size_t at = 0;
        for (size_t found; (found = word.find(step.content, at)) != std::string_view::npos;) {
          if (found > at) matches.push_back({{at, found}, false});
          at = found + step.content.size();
          matches.push_back({{found, at}, true});
        }
        if (at < word.size()) matches.push_back({{at, word.size()}, false});
        return Status::Ok();
      });
    }
  }
  return words;
}

Result<Words> PreTokenizer::Split(std::string text, TextPosition position) const {
  Words words{.buffer = std::move(text), .spans = {}, .first = position};
  const size_t original_bytes = words.buffer.size();
  PatternBudget budget(original_bytes);  // of all steps together
  if (original_bytes > 0) words.spans.push_back({0, original_bytes});
  for (const Step& step : steps_) {
    HW_ASSIGN_OR_RETURN(words, ApplyStep(step, words, budget));
    HW_RETURN_IF_ERROR(CheckGrowth(words.buffer.size(), original_bytes, origin_));
  }
  return words;
}

}  // namespace headwise
