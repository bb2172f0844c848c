#include "kv/kv_snapshot_bytes.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "kv/kv_bytes.h"

namespace headwise {
namespace {

void PutRule(ByteWriter& to, const ResolvedRule& rule) {
  to.Put(rule.sink);
  to.Put(rule.recent);
  to.Put(rule.sink_reach);
  to.Put(static_cast<uint8_t>(rule.compensate));
  to.Put(static_cast<uint8_t>(rule.positions == Positions::kCache));
  to.Put(rule.holds_from);
  to.Put(rule.recent_before);
}

ResolvedRule GetRule(ByteReader& from) {
  ResolvedRule rule;
  rule.sink = from.Get<int64_t>();
  rule.recent = from.Get<int64_t>();
  rule.sink_reach = from.Get<int64_t>();
  rule.compensate = from.GetBool();
  rule.positions = from.GetBool() ? Positions::kCache : Positions::kText;
  rule.holds_from = from.Get<int64_t>();
  rule.recent_before = from.Get<int64_t>();
  return rule;
}

int64_t PagesOf(int64_t num_tokens, int64_t page_tokens) {
  return num_tokens / page_tokens + (num_tokens % page_tokens == 0 ? 0 : 1);
}

// What the pages of a head say of themselves, but for those of sinks, of which a model's window may leave none.
std::string WrongPages(const KvSnapshot::Head& head, int64_t sink_pages, int64_t num_pages) {
  if (head.begin < sink_pages || head.begin > std::max(sink_pages, num_pages)) {
    return fmt::format("begins at page {} of {}", head.begin, num_pages);
  }
  if (num_pages - head.begin > head.ring_pages)
    return fmt::format("has more pages than its ring of {}", head.ring_pages);
  int64_t before = -1;
  int64_t num_behind = 0;
  for (const int64_t p : head.pages) {
    const bool is_place = p < sink_pages || p >= head.begin;
    if (p <= before || p >= num_pages || !is_place) return fmt::format("has a page {} behind page {}", p, before);
    if (p >= head.begin) ++num_behind;
    before = p;
  }
  const int64_t expected = std::max<int64_t>(0, num_pages - head.begin);
  return num_behind == expected ? "" : fmt::format("has {} pages behind its sinks, expected {}", num_behind, expected);
}

}  // namespace

void PutSnapshot(ByteWriter& to, const KvSnapshot& snapshot) {
  to.Put(snapshot.num_kv_heads);
  to.Put(snapshot.num_tokens);
  to.Put(snapshot.peak_bytes);
  to.Put(snapshot.bytes);
  to.Put(static_cast<uint64_t>(snapshot.heads.size()));
  for (size_t i = 0; i < snapshot.heads.size(); ++i) {
    const KvSnapshot::Head& head = snapshot.heads[i];
    PutRule(to, snapshot.rules[i]);
    to.PutAll(std::span<const int64_t>(head.pages));
    to.Put(head.begin);
    to.Put(head.ring_pages);
    to.Put(head.aged.begin);
    to.Put(head.aged.end);
    to.Put(static_cast<uint8_t>(head.has_state));
  }
}

KvSnapshot GetSnapshot(ByteReader& from) {
  KvSnapshot snapshot;
  snapshot.num_kv_heads = from.Get<int64_t>();
  snapshot.num_tokens = from.Get<int64_t>();
  snapshot.peak_bytes = from.Get<int64_t>();
  snapshot.bytes = from.Get<int64_t>();
  const auto num_heads = from.Get<uint64_t>();
  // Each takes bytes, so that a count out of nowhere ends here too.
  for (uint64_t i = 0; i < num_heads && from.ok(); ++i) {
    snapshot.rules.push_back(GetRule(from));
    KvSnapshot::Head& head = snapshot.heads.emplace_back();
    head.pages = from.GetAll<int64_t>();
    head.begin = from.Get<int64_t>();
    head.ring_pages = from.Get<int64_t>();
    head.aged.begin = from.Get<int64_t>();
    head.aged.end = from.Get<int64_t>();
    head.has_state = from.GetBool();
  }
  return snapshot;
}

Status CheckSnapshot(const KvPools& pools, int64_t num_kv_heads, const std::vector<ResolvedRule>& rules,
                     const KvSnapshot& snapshot) {
  const auto wrong = [](const std::string& what) { return Status::InvalidInput("snapshot: " + what); };
  if (snapshot.num_kv_heads != num_kv_heads || snapshot.heads.size() != rules.size()) {
    return wrong(fmt::format("has {} heads, {} a layer, expected {} and {}", snapshot.heads.size(),
                             snapshot.num_kv_heads, rules.size(), num_kv_heads));
  }
  // Their notes would have to be believed. Bounds are not written of rules, as no text under such a plan is kept.
  if (std::any_of(rules.begin(), rules.end(),
                  [](const ResolvedRule& rule) { return rule.SelectsByScore() || rule.ReadsBlocks(); })) {
    return wrong("of a plan whose heads select by score, expected heads that keep tokens by position");
  }
  if (snapshot.rules != rules) return wrong("was read under other rules");
  // So long that no sum here overflows.
  if (snapshot.num_tokens < 1 || snapshot.num_tokens > std::numeric_limits<int64_t>::max() / 4) {
    return wrong(fmt::format("has {} tokens", snapshot.num_tokens));
  }
  const int64_t page_tokens = pools.full.newest->layout().page_tokens;
  const int64_t num_pages = PagesOf(snapshot.num_tokens, page_tokens);
  int64_t bytes = 0;
  for (size_t i = 0; i < rules.size(); ++i) {
    const ResolvedRule& rule = rules[i];
    const KvSnapshot::Head& head = snapshot.heads[i];
    const HeadPools& of_rule = rule.Bounded() ? pools.bounded : pools.full;
    const int64_t recent = snapshot.num_tokens < rule.holds_from ? rule.recent_before : rule.recent;
    const PageRange aged = of_rule.aged == nullptr ? PageRange() : AgedPages(rule, snapshot.num_tokens, page_tokens);
    if (head.ring_pages != RingPages(recent, rule.compensate, page_tokens)) {
      return wrong(fmt::format("head {}: has a ring of {} pages", i, head.ring_pages));
    }
    if (head.aged != aged) return wrong(fmt::format("head {}: other pages have aged than its rule says", i));
    if (head.has_state && !(rule.compensate && rule.Bounded())) {
      return wrong(fmt::format("head {}: has a compensation token that its rule does not know", i));
    }
    const std::string pages = WrongPages(head, PagesOf(rule.sink, page_tokens), num_pages);
    if (!pages.empty()) return wrong(fmt::format("head {}: {}", i, pages));
    for (const int64_t p : head.pages) {
      bytes = AddSizes(bytes, (aged.Contains(p) ? of_rule.aged : of_rule.newest)->page_bytes());
    }
    if (head.has_state) bytes = AddSizes(bytes, pools.states->page_bytes());
  }
  if (bytes == snapshot.bytes) return Status::Ok();
  return wrong(fmt::format("has {} bytes of pages, expected {}", snapshot.bytes, bytes));
}

}  // namespace headwise
