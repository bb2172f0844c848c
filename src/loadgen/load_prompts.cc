#include "loadgen/load_prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/json_lines.h"
#include "base/mix_seed.h"
#include "data/filler.h"
#include "data/words.h"

namespace headwise {
namespace {

// Streams of MixSeed: what belongs to requests, to beginnings, to warm-ups.
constexpr int64_t kRequestStream = 1;
constexpr int64_t kPrefixStream = 2;
constexpr int64_t kWarmupStream = 3;
constexpr int64_t kMostOutputTokens = int64_t{1} << 31;
constexpr int64_t kPoolTextBytes = 8192;

int64_t DrawLength(Rng& rng, int64_t length, double ratio) {
  const auto wide = static_cast<double>(length);
  const int64_t least = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(wide * (1 - ratio) - 1e-9)));
  const int64_t most = std::max(least, static_cast<int64_t>(std::floor(wide * (1 + ratio) + 1e-9)));
  return least + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(most - least + 1)));
}

bool IsId(const Json& json) {
  return json.is_number_integer() && json >= 0 && json <= std::numeric_limits<int32_t>::max();
}

}  // namespace

RandomPrompts::RandomPrompts(const RandomPromptOptions& options, std::vector<int32_t> pool)
    : options_(options), pool_(std::move(pool)) {
  if (options_.prefix_tokens == 0) return;
  for (int64_t i = 0; i < options_.num_prefixes; ++i) {
    Rng rng(MixSeed(options_.seed, kPrefixStream, i));
    prefixes_.push_back(DrawPlaces(rng, options_.prefix_tokens));
  }
}

std::vector<int32_t> RandomPrompts::DrawPlaces(Rng& rng, int64_t count) const {
  const uint64_t limit = pool_.empty() ? PlainNouns().size() : pool_.size();
  std::vector<int32_t> places(static_cast<size_t>(count));
  for (int32_t& place : places) place = static_cast<int32_t>(rng.Below(limit));
  return places;
}

LoadPrompt RandomPrompts::Draw(Rng& rng, const std::vector<int32_t>& prefix_places) const {
  LoadPrompt prompt;
  const int64_t num_own = DrawLength(rng, options_.input_tokens, options_.range_ratio);
  prompt.output_tokens = DrawLength(rng, options_.output_tokens, options_.range_ratio);
  std::vector<int32_t> places = prefix_places;
  const std::vector<int32_t> own = DrawPlaces(rng, num_own);
  places.insert(places.end(), own.begin(), own.end());
  if (!pool_.empty()) {
    for (int32_t& place : places) place = pool_[static_cast<size_t>(place)];
    prompt.num_ids = static_cast<int64_t>(places.size());
    prompt.prompt = std::move(places);
    return prompt;
  }
  std::string text;
  for (const int32_t place : places) {
    if (!text.empty()) text += ' ';
    text += PlainNouns()[static_cast<size_t>(place)];
  }
  prompt.prompt = std::move(text);
  return prompt;
}

LoadPrompt RandomPrompts::Make(int64_t request) const {
  Rng rng(MixSeed(options_.seed, kRequestStream, request));
  static const std::vector<int32_t> kNone;
  return Draw(rng, prefixes_.empty() ? kNone : prefixes_[rng.Below(prefixes_.size())]);
}

LoadPrompt RandomPrompts::MakeWarmup(int64_t number) const {
  Rng rng(MixSeed(options_.seed, kWarmupStream, number));
  return Draw(rng, DrawPlaces(rng, options_.prefix_tokens));
}

Result<std::vector<LoadPrompt>> ParseLoadPrompts(std::string_view text, const std::string& origin,
                                                 int64_t output_tokens) {
  std::vector<LoadPrompt> prompts;
  HW_RETURN_IF_ERROR(ForEachJsonLine(text, origin, [&](const JsonObject& line) {
    LoadPrompt prompt;
    if (!line.Has("prompt")) {
      return Status::InvalidInput(
          fmt::format("{}: prompt is missing, expected a text or a list of token ids", line.origin()));
    }
    prompt.prompt = line.At("prompt");
    const bool is_list = prompt.prompt.is_array() && !prompt.prompt.empty() && std::ranges::all_of(prompt.prompt, IsId);
    if (!is_list && !prompt.prompt.is_string()) {
      return Status::InvalidInput(fmt::format(
          "{}: prompt: found {}, expected a text or a list of token ids", line.origin(),
          prompt.prompt.is_array() ? "a list of something else, or of nothing" : prompt.prompt.type_name()));
    }
    prompt.num_ids = is_list ? static_cast<int64_t>(prompt.prompt.size()) : 0;
    HW_ASSIGN_OR_RETURN(prompt.output_tokens, line.IntOr("max_tokens", output_tokens));
    if (prompt.output_tokens < 1 || prompt.output_tokens > kMostOutputTokens) {
      return Status::InvalidInput(fmt::format("{}: max_tokens is {}, expected 1 to {}", line.origin(),
                                              prompt.output_tokens, kMostOutputTokens));
    }
    prompts.push_back(std::move(prompt));
    return Status::Ok();
  }));
  if (prompts.empty()) return Status::InvalidInput(fmt::format("{}: has no line, expected a prompt or more", origin));
  return prompts;
}

std::string TextOfManyTokens() {
  Rng rng(0);
  std::string text = MakeFiller(rng, kPoolTextBytes);
  for (const std::string_view noun : PlainNouns()) text += fmt::format(" {}", noun);
  return text;
}

std::vector<int32_t> IdsOfTokenizeReply(std::string_view body) {
  const Json json = Json::parse(body, nullptr, false);
  if (!json.is_object() || !json.contains("tokens") || !json["tokens"].is_array()) return {};
  std::vector<int32_t> ids;
  for (const Json& token : json["tokens"]) {
    if (!IsId(token)) return {};
    ids.push_back(token.get<int32_t>());
  }
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace headwise
