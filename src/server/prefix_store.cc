#include "server/prefix_store.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"

namespace headwise {
namespace {

// Of a lookup: whoever is refused the longest of them will hardly be given the tenth.
constexpr size_t kMostFound = 8;

bool IsFullUntilTheEnd(const HeadRule& rule) {
  return rule.kind == HeadRule::Kind::kFull || rule.start == RuleStart::kEndOfPrompt;
}

// Whether every prompt is read alike under both.
bool ReadAlike(const HeadPlan& a, const HeadPlan& b) {
  return a.shape == b.shape && std::ranges::equal(a.rules, b.rules, [](const HeadRule& x, const HeadRule& y) {
           return x == y || (IsFullUntilTheEnd(x) && IsFullUntilTheEnd(y));
         });
}

}  // namespace

// The ids from the parent's end to this one's. But for the root, which has none, a node has an entry or a choice of
// children.
struct PrefixStore::Node {
  Node* parent = nullptr;
  std::vector<int32_t> edge;
  std::map<int32_t, std::unique_ptr<Node>> children;  // by the first id of their edges
  int64_t entry = 0;                                  // 0: none
};

const char* NameOf(PrefixMiss miss) {
  switch (miss) {
    case PrefixMiss::kUnknown:
      return "unknown";
    case PrefixMiss::kRules:
      return "rules";
    case PrefixMiss::kPositions:
      return "positions";
    case PrefixMiss::kMemory:
      return "memory";
    case PrefixMiss::kSelection:
      return "selection";
  }
  return "";
}

PrefixStore::PrefixStore(int64_t budget_bytes, std::unique_ptr<SavedTexts> saved, Sharing sharing)
    : budget_bytes_(budget_bytes), saved_(std::move(saved)), sharing_(sharing) {}

PrefixStore::~PrefixStore() {
  Clear();
}

bool PrefixStore::AreAlike(const HeadPlan& a, const HeadPlan& b) const {
  return &a == &b || (sharing_ == Sharing::kReadAlike && ReadAlike(a, b));
}

PrefixStore::Node* PrefixStore::RootOf(const HeadPlan& plan) const {
  const auto tree = std::ranges::find_if(trees_, [&](const Tree& each) { return AreAlike(*each.plan, plan); });
  return tree == trees_.end() ? nullptr : tree->root.get();
}

PrefixStore::Walk PrefixStore::WalkDown(Node& root, std::span<const int32_t> ids) {
  Walk walk{.node = &root, .num_common = 0, .num_in_edge = 0, .seen = {}};
  while (walk.num_common < ids.size()) {
    const auto child = walk.node->children.find(ids[walk.num_common]);
    if (child == walk.node->children.end()) break;
    walk.node = child->second.get();
    const std::vector<int32_t>& edge = walk.node->edge;
    const auto rest = ids.subspan(walk.num_common);
    walk.num_in_edge = static_cast<size_t>(std::ranges::mismatch(edge, rest).in1 - edge.begin());
    walk.num_common += walk.num_in_edge;
    if (walk.num_in_edge < edge.size()) break;
    if (walk.node->entry != 0) walk.seen.push_back(walk.node->entry);
  }
  return walk;
}

PrefixCache::Lookup PrefixStore::Find(const HeadPlan& plan, std::span<const int32_t> ids) {
  return FindEverywhere(plan, ids, SavedTexts::Look::kTake);
}

PrefixCache::Lookup PrefixStore::Peek(const HeadPlan& plan, std::span<const int32_t> ids) {
  return FindEverywhere(plan, ids, SavedTexts::Look::kLeave);
}

PrefixCache::Lookup PrefixStore::FindEverywhere(const HeadPlan& plan, std::span<const int32_t> ids,
                                                SavedTexts::Look look) {
  Lookup lookup = FindInMemory(plan, ids);
  if (saved_ == nullptr) return lookup;
  const int64_t num_tokens = lookup.kept.empty() ? 0 : lookup.kept.front().num_tokens;
  std::optional<Kept> saved = saved_->Find(plan, ids, num_tokens, look);
  if (!saved) return lookup;
  lookup.common_tokens = std::max(lookup.common_tokens, saved->num_tokens);
  lookup.kept.insert(lookup.kept.begin(), *std::move(saved));
  return lookup;
}

PrefixCache::Lookup PrefixStore::FindInMemory(const HeadPlan& plan, std::span<const int32_t> ids) {
  const std::lock_guard lock(mutex_);
  Lookup lookup;
  Node* const root = RootOf(plan);
  if (root == nullptr) return lookup;
  const Walk walk = WalkDown(*root, ids);
  lookup.common_tokens = static_cast<int64_t>(walk.num_common);
  for (auto id = walk.seen.rbegin(); id != walk.seen.rend() && lookup.kept.size() < kMostFound; ++id) {
    const Entry& entry = entries_.at(*id);
    // Something is left to be read.
    if (entry.num_tokens == static_cast<int64_t>(ids.size())) continue;
    lookup.kept.push_back({.id = *id, .sequence = entry.sequence, .num_tokens = entry.num_tokens});
  }
  return lookup;
}

void PrefixStore::NoteHit(const Kept& used, int64_t num_ids) {
  const std::lock_guard lock(mutex_);
  stats_.query_tokens += num_ids;
  stats_.hit_tokens += used.num_tokens;
  ++stats_.num_hits;
  if (used.saved != nullptr) {
    ++stats_.num_disk_hits;
    stats_.disk_hit_tokens += used.num_tokens;
  }
  const auto it = entries_.find(used.id);
  if (it != entries_.end()) Touch(it->first, it->second);
}

void PrefixStore::NoteMiss(PrefixMiss why, int64_t num_ids) {
  const std::lock_guard lock(mutex_);
  stats_.query_tokens += num_ids;
  ++stats_.num_misses[static_cast<size_t>(why)];
}

void PrefixStore::NoteWait() {
  const std::lock_guard lock(mutex_);
  ++stats_.num_waits;
}

void PrefixStore::NoteWaitHit() {
  const std::lock_guard lock(mutex_);
  ++stats_.num_wait_hits;
}

bool PrefixStore::Wants(const HeadPlan& plan, std::span<const int32_t> ids, int64_t bytes) {
  if (bytes > budget_bytes_) return false;
  const std::lock_guard lock(mutex_);
  Node* const root = RootOf(plan);
  if (root == nullptr) return true;
  const Walk walk = WalkDown(*root, ids);
  if (walk.seen.empty()) return true;
  Entry& longest = entries_.at(walk.seen.back());
  if (longest.num_tokens < static_cast<int64_t>(ids.size())) return true;
  Touch(walk.seen.back(), longest);
  return false;
}

void PrefixStore::Keep(std::shared_ptr<const HeadPlan> plan, std::span<const int32_t> ids,
                       std::shared_ptr<const Sequence> sequence, int64_t bytes) {
  if (bytes > budget_bytes_ || ids.empty()) return;
  if (saved_ != nullptr) saved_->Save(*plan, ids, *sequence, PrefixDir::Room::kNow);
  Dropped dropped;
  const std::lock_guard lock(mutex_);
  Shrink(budget_bytes_ - bytes, dropped);
  // What takes memory comes first: an entry is there with all that belongs to it, or not at all.
  dropped.reserve(dropped.size() + 1);
  const int64_t id = ++last_id_;
  const auto it = entries_
                      .emplace(id, Entry{.node = nullptr,
                                         .plan = plan,
                                         .sequence = std::move(sequence),
                                         .num_tokens = static_cast<int64_t>(ids.size()),
                                         .bytes = bytes,
                                         .rank = {}})
                      .first;
  try {
    Touch(id, it->second);
    Node* root = RootOf(*plan);
    if (root == nullptr) {
      trees_.push_back({.plan = plan, .root = std::make_unique<Node>()});
      root = trees_.back().root.get();
    }
    it->second.node = &NodeAt(*root, ids);
  } catch (...) {
    std::erase_if(trees_, [](const Tree& tree) { return tree.root->children.empty(); });
    ranks_.erase(it->second.rank);
    entries_.erase(it);
    throw;
  }
  stats_.bytes += bytes;
  // Its node stays: it is the new one's.
  const int64_t before = std::exchange(it->second.node->entry, id);
  if (before != 0) Remove(before, dropped);
}

bool PrefixStore::Reclaim(int64_t bytes) {
  Dropped dropped;
  const std::lock_guard lock(mutex_);
  if (stats_.bytes < bytes) return false;
  Shrink(stats_.bytes - bytes, dropped);
  return true;
}

void PrefixStore::Fetch(const HeadPlan& plan, std::span<const int32_t> ids) {
  if (saved_ == nullptr) return;
  int64_t most_tokens = 0;
  {
    const std::lock_guard lock(mutex_);
    // The engine has its own plan for requests that name none.
    for (const Tree& tree : trees_) {
      if (!AreAlike(*tree.plan, plan) && (tree.plan->shape != plan.shape || tree.plan->rules != plan.rules)) continue;
      for (const int64_t id : WalkDown(*tree.root, ids).seen) {
        const int64_t num_tokens = entries_.at(id).num_tokens;
        if (num_tokens < static_cast<int64_t>(ids.size())) most_tokens = std::max(most_tokens, num_tokens);
      }
    }
  }
  saved_->Fetch(plan, ids, most_tokens);
}

void PrefixStore::SaveAll() {
  if (saved_ == nullptr) return;
  struct ToSave {
    std::shared_ptr<const HeadPlan> plan;
    std::shared_ptr<const Sequence> sequence;
    std::vector<int32_t> ids;
  };
  std::vector<ToSave> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, entry] : entries_) all.push_back({entry.plan, entry.sequence, IdsOf(*entry.node)});
  }
  for (const ToSave& text : all) saved_->Save(*text.plan, text.ids, *text.sequence, PrefixDir::Room::kWaits);
  saved_->Flush();
}

std::vector<int32_t> PrefixStore::IdsOf(const Node& node) {
  std::vector<const Node*> path;
  for (const Node* each = &node; each != nullptr; each = each->parent) path.push_back(each);
  std::vector<int32_t> ids;
  for (auto it = path.rbegin(); it != path.rend(); ++it) ids.insert(ids.end(), (*it)->edge.begin(), (*it)->edge.end());
  return ids;
}

void PrefixStore::Clear() {
  Dropped dropped;
  const std::lock_guard lock(mutex_);
  while (!entries_.empty()) Remove(entries_.begin()->first, dropped);
}

void PrefixStore::Forget(const HeadPlan& plan) {
  Dropped dropped;
  const std::lock_guard lock(mutex_);
  for (auto it = entries_.begin(); it != entries_.end();) {
    const int64_t id = it->first;
    const bool is_its = it->second.plan.get() == &plan;
    ++it;
    if (is_its) Remove(id, dropped);
  }
}

PrefixStats PrefixStore::stats() const {
  const std::lock_guard lock(mutex_);
  PrefixStats stats = stats_;
  stats.num_entries = static_cast<int64_t>(entries_.size());
  stats.budget_bytes = budget_bytes_;
  if (saved_ == nullptr) return stats;
  const PrefixDirStats on_disk = saved_->stats();
  stats.num_disk_entries = on_disk.num_entries;
  stats.disk_bytes = on_disk.bytes;
  stats.num_disk_saved = on_disk.num_saved;
  stats.num_disk_failed = on_disk.num_failed;
  return stats;
}

PrefixStore::Node& PrefixStore::NodeAt(Node& root, std::span<const int32_t> ids) {
  const Walk walk = WalkDown(root, ids);
  Node& above = walk.num_in_edge < walk.node->edge.size() ? Split(*walk.node, walk.num_in_edge) : *walk.node;
  const auto rest = ids.subspan(walk.num_common);
  if (rest.empty()) return above;
  auto leaf = std::make_unique<Node>();
  leaf->parent = &above;
  leaf->edge.assign(rest.begin(), rest.end());
  return *(above.children[rest.front()] = std::move(leaf));
}

// A new node above `node`, which gets the first `num_ids` of its edge. Requires: 0 < num_ids < its size.
PrefixStore::Node& PrefixStore::Split(Node& node, size_t num_ids) {
  std::unique_ptr<Node>& place = node.parent->children.at(node.edge.front());
  const auto cut = node.edge.begin() + static_cast<std::ptrdiff_t>(num_ids);
  auto above = std::make_unique<Node>();
  above->parent = node.parent;
  above->edge.assign(node.edge.begin(), cut);
  std::unique_ptr<Node>& below = above->children[*cut];  // from here on nothing takes memory
  node.edge.erase(node.edge.begin(), cut);
  node.parent = above.get();
  below = std::move(place);
  place = std::move(above);
  return *place;
}

void PrefixStore::Touch(int64_t id, Entry& entry) {
  const auto bytes = static_cast<double>(std::max<int64_t>(1, entry.bytes));
  const Rank rank{worth_gone_ + static_cast<double>(entry.num_tokens) / bytes, ++num_uses_, id};
  if (auto known = ranks_.extract(entry.rank)) {  // moved, so that using an entry takes no memory
    known.value() = rank;
    ranks_.insert(std::move(known));
  } else {
    ranks_.insert(rank);
  }
  entry.rank = rank;
}

void PrefixStore::Remove(int64_t id, Dropped& dropped) {
  const auto it = entries_.find(id);
  HW_CHECK(it != entries_.end());
  Entry& entry = it->second;
  Entry& gone = dropped.emplace_back();  // first: it may fail
  ranks_.erase(entry.rank);
  stats_.bytes -= entry.bytes;
  if (entry.node->entry == id) {
    entry.node->entry = 0;
    RemoveNode(*entry.node);
  }
  gone = std::move(entry);
  entries_.erase(it);
}

// What has neither an entry nor a choice of children goes.
void PrefixStore::RemoveNode(Node& node) {
  if (node.entry != 0 || node.children.size() > 1) return;
  if (node.parent == nullptr) {
    if (node.children.empty()) std::erase_if(trees_, [&](const Tree& tree) { return tree.root.get() == &node; });
    return;
  }
  Node& parent = *node.parent;
  const auto place = parent.children.find(node.edge.front());
  if (node.children.empty()) {
    parent.children.erase(place);
    return RemoveNode(parent);
  }
  try {
    std::vector<int32_t>& edge = node.children.begin()->second->edge;
    edge.reserve(edge.size() + node.edge.size());
  } catch (const std::bad_alloc&) {
    return;  // two nodes say what one could
  }
  std::unique_ptr<Node> child = std::move(node.children.begin()->second);
  child->edge.insert(child->edge.begin(), node.edge.begin(), node.edge.end());
  child->parent = &parent;
  place->second = std::move(child);
}

void PrefixStore::Shrink(int64_t most_bytes, Dropped& dropped) {
  while (stats_.bytes > most_bytes) {
    const auto [worth, use, id] = *ranks_.begin();
    worth_gone_ = worth;
    ++stats_.num_evicted;
    Remove(id, dropped);
  }
}

}  // namespace headwise
