// A backend whose memory the host cannot read and whose queue runs behind: every address that it hands out is off by a
// constant, so that whoever dereferences one crashes, and operations are done by another thread, in order, some time
// after they were put on the queue. Tables are read from copies that follow what a step says has changed, and nothing
// else. What passes on it touches no device memory and counts on nothing being done; another backend does the
// computing.
#ifndef HEADWISE_TESTS_SUPPORT_FAR_BACKEND_H_
#define HEADWISE_TESTS_SUPPORT_FAR_BACKEND_H_

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "backend/backend.h"

namespace headwise {

// Beyond what a process can have: an address of this machine's plus this is none of its own.
inline constexpr uintptr_t kFarOffset = uintptr_t{1} << 47;

template <typename T>
T* Far(T* near) {
  return near == nullptr ? nullptr : reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(near) + kFarOffset);
}
template <typename T>
T* Near(T* far) {
  return far == nullptr ? nullptr : reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(far) - kFarOffset);
}
inline TensorView Near(TensorView view) {
  view.data = Near(view.data);
  return view;
}
inline ConstTensorView Near(ConstTensorView view) {
  view.data = Near(view.data);
  return view;
}
inline WeightMatrix Near(WeightMatrix matrix) {
  for (const void*& plane : matrix.planes) plane = Near(plane);
  return matrix;
}

// Work of one thread for another, in order.
class LateQueue {
 public:
  LateQueue() : worker_([this] { Run(); }) {}
  ~LateQueue() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    worker_.join();
  }
  void Put(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      work_.push_back(std::move(work));
    }
    changed_.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return work_.empty(); });
  }
  void WaitFor(const std::atomic<int64_t>& count, int64_t least) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return count >= least; });
  }

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return ends_ || !work_.empty(); });
      if (work_.empty()) return;
      const std::function<void()> work = std::move(work_.front());
      lock.unlock();
      work();
      lock.lock();
      work_.pop_front();  // only now: Wait counts what is being done
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  bool ends_ = false;
  std::thread worker_;
};

class FarDevice final : public Device {
 public:
  LateQueue& queue() { return queue_; }

  // Allocations from here on that succeed before all others are refused; below 0: none is refused.
  void RefuseAfter(int64_t num_granted) { num_granted_ = num_granted; }
  bool is_exhausted() const { return num_granted_ == 0; }

  Result<std::byte*> Allocate(size_t bytes) override {
    if (num_granted_ == 0) return Status::OutOfMemory("the far device is full");
    if (num_granted_ > 0) --num_granted_;
    HW_ASSIGN_OR_RETURN(std::byte* const memory, host_.Allocate(bytes));
    return Far(memory);
  }
  void Free(std::byte* memory, size_t bytes) override {
    queue_.Put([=, this] { host_.Free(Near(memory), bytes); });
  }
  void CopyFromHost(void* to, const void* host, size_t bytes) override {
    const auto* begin = static_cast<const std::byte*>(host);
    queue_.Put([to, content = std::vector<std::byte>(begin, begin + bytes)] {
      if (!content.empty()) std::memcpy(Near(to), content.data(), content.size());
    });
  }
  void CopyToHost(void* host, const void* from, size_t bytes) override {
    queue_.Put([=] {
      if (bytes > 0) std::memcpy(host, Near(from), bytes);
    });
  }
  void Copy(void* to, const void* from, size_t bytes) override {
    queue_.Put([=] {
      if (bytes > 0) std::memcpy(Near(to), Near(from), bytes);
    });
  }
  Status Wait() override {
    queue_.Wait();
    num_waited_ = num_marks_;
    return Status::Ok();
  }
  void Mark() override {
    ++num_marks_;
    queue_.Put([this] { ++num_reached_; });
  }
  Status WaitForMark() override {
    if (num_waited_ == num_marks_) return Wait();
    queue_.WaitFor(num_reached_, ++num_waited_);
    return Status::Ok();
  }

 private:
  HostDevice host_;
  int64_t num_marks_ = 0;
  int64_t num_waited_ = 0;
  std::atomic<int64_t> num_reached_ = 0;
  int64_t num_granted_ = -1;
  LateQueue queue_;  // goes first: what is on it still uses the rest
};

class FarBackend final : public Backend {
 public:
  explicit FarBackend(std::unique_ptr<Backend> near) : near_(std::move(near)) {}
  ~FarBackend() override { device_.queue().Wait(); }

  std::string_view name() const override { return "far"; }
  std::string Description() const override { return "far from " + near_->Description(); }
  bool IsFast(Compute compute) const override { return near_->IsFast(compute); }
  std::string_view isa() const override { return near_->isa(); }
  bool is_batch_invariant() const override { return near_->is_batch_invariant(); }
  // One that it shall lack.
  void Lack(Feature feature) { lacking_ = feature; }
  bool Has(Feature feature) const override { return lacking_ != feature && near_->Has(feature); }
  FarDevice& device() override { return device_; }

  Result<WeightMatrix> AdoptWeights(const WeightMatrix& host) override {
    device_.queue().Wait();
    HW_ASSIGN_OR_RETURN(WeightMatrix adopted, near_->AdoptWeights(host));
    if (adopted == host) {
      HW_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Make(device_, static_cast<size_t>(host.size_bytes())));
      device_.CopyFromHost(buffer.data(), host.rows().data, buffer.size_bytes());
      adopted.planes = {buffer.data()};
      weights_.push_back(std::move(buffer));
    } else {
      for (const void*& plane : adopted.planes) plane = Far(plane);
    }
    return adopted;
  }

  void Embed(const EmbedArgs& args) override {
    num_followed_ += args.chosen.present() ? 1 : 0;
    const auto copy = [](std::span<const int32_t> ids) { return std::vector<int32_t>(ids.begin(), ids.end()); };
    device_.queue().Put([this, near = args, ids = copy(args.ids), positions = copy(args.position_ids)]() mutable {
      near.table = Near(near.table);
      near.ids = ids;
      near.chosen = Near(near.chosen);
      near.positions = Near(near.positions);
      near.position_ids = positions;
      near.out = Near(near.out);
      near_->Embed(near);
    });
  }
  void Norm(const NormArgs& args) override {
    device_.queue().Put([this, near = args]() mutable {
      near.x = Near(near.x);
      near.weight = Near(near.weight);
      near.bias = Near(near.bias);
      near.out = Near(near.out);
      near_->Norm(near);
    });
  }
  void MatMul(const MatMulArgs& args) override {
    device_.queue().Put(
        [this, near = args, parts = std::vector<MatMulPart>(args.parts.begin(), args.parts.end())]() mutable {
          near.x = Near(near.x);
          for (MatMulPart& part : parts) part = {Near(part.weight), Near(part.bias), Near(part.out)};
          near.parts = parts;
          near_->MatMul(near);
        });
  }
  void Rope(const RopeArgs& args) override {
    device_.queue().Put([this, near = args, rows = std::vector<int32_t>(args.rows.begin(), args.rows.end())]() mutable {
      near.x = Near(near.x);
      near.out = Near(near.out);
      near.angles = Near(near.angles);
      near.rows = rows;
      near_->Rope(near);
    });
  }
  void Activate(const ActivateArgs& args) override {
    device_.queue().Put([this, near = args]() mutable {
      near.gate = Near(near.gate);
      near.x = Near(near.x);
      near_->Activate(near);
    });
  }
  void Experts(const ExpertsArgs& args) override {
    device_.queue().Put(
        [this, near = args, experts = std::vector<ExpertWeights>(args.experts.begin(), args.experts.end())]() mutable {
          near.x = Near(near.x);
          near.logits = Near(near.logits);
          near.routing.selection_bias = Near(near.routing.selection_bias);
          near.out = Near(near.out);
          for (ExpertWeights& expert : experts) {
            for (LinearWeights* linear : {&expert.gate, &expert.up, &expert.down}) {
              *linear = {Near(linear->weight), Near(linear->bias)};
            }
          }
          near.experts = experts;
          near_->Experts(near);
        });
  }
  void GateRows(const GateRowsArgs& args) override {
    device_.queue().Put([this, near = args]() mutable {
      near.gate = Near(near.gate);
      near.x = Near(near.x);
      near_->GateRows(near);
    });
  }
  void Clamp(const ClampArgs& args) override {
    device_.queue().Put([this, near = args]() mutable {
      near.x = Near(near.x);
      near_->Clamp(near);
    });
  }
  void SoftCap(const SoftCapArgs& args) override {
    device_.queue().Put([this, near = args]() mutable {
      near.x = Near(near.x);
      near_->SoftCap(near);
    });
  }
  void GatherRows(const GatherRowsArgs& args) override {
    device_.queue().Put([this, near = args, rows = std::vector<int32_t>(args.rows.begin(), args.rows.end())]() mutable {
      near.x = Near(near.x);
      near.rows = rows;
      near.out = Near(near.out);
      near_->GatherRows(near);
    });
  }
  void DrawTokens(const DrawTokensArgs& args) override {
    std::vector<TokenDraw> draws(args.draws.begin(), args.draws.end());
    std::vector<std::vector<LogitEdit>> edits;
    for (const TokenDraw& draw : draws) edits.emplace_back(draw.edits.begin(), draw.edits.end());
    device_.queue().Put([this, near = args, draws = std::move(draws), edits = std::move(edits)]() mutable {
      for (size_t i = 0; i < draws.size(); ++i) draws[i].edits = edits[i];
      near.logits = Near(near.logits);
      near.draws = draws;
      near.ids = Near(near.ids);
      near.logprobs = Near(near.logprobs);
      near.top_ids = Near(near.top_ids);
      near_->DrawTokens(near);
    });
  }

  size_t PageBytes(const KvLayout& layout) const override { return near_->PageBytes(layout); }

  void BeginStep(const KvStep& step) override {
    num_changes_ +=
        static_cast<int64_t>(step.changed_heads.size() + step.changed_selections.size() + step.changed_pages.size());
    begun_ = std::make_shared<StepCopy>(step);
    device_.queue().Put([this, copy = begun_] {
      StepHead unknown;
      unknown.table = kNoPage;  // beyond every table
      Follow(copy->new_heads, heads_, copy->num_heads, unknown);
      Follow(copy->new_selections, selections_, copy->num_selections, KvSelection());
      Follow(copy->new_pages, pages_, copy->num_pages, kNoPage);
      copy->step.heads = heads_;
      copy->step.selections = selections_;
      copy->step.pages = pages_;
      near_->BeginStep(copy->step);
    });
  }
  void CopyPages(const CopyPagesArgs& args) override {
    PutOverStep(args, &Backend::CopyPages, [](auto&) {});
  }
  void AppendKv(const AppendKvArgs& args) override {
    PutOverStep(args, &Backend::AppendKv, [](AppendKvArgs& near) {
      near.k = Near(near.k);
      near.v = Near(near.v);
    });
  }
  void AgeKv(const AgeKvArgs& args) override {
    PutOverStep(args, &Backend::AgeKv, [](auto&) {});
  }
  void Attention(const AttentionArgs& args) override {
    PutOverStep(args, &Backend::Attention, [](AttentionArgs& near) {
      near.q = Near(near.q);
      near.q_sink = Near(near.q_sink);
      near.out = Near(near.out);
      near.lse = Near(near.lse);
      near.alibi_slopes = Near(near.alibi_slopes);
      near.sink_logits = Near(near.sink_logits);
    });
  }
  void Compensate(const CompensateArgs& args) override {
    PutOverStep(args, &Backend::Compensate, [](CompensateArgs& near) {
      near.q = Near(near.q);
      near.out = Near(near.out);
      near.lse = Near(near.lse);
      near.alibi_slopes = Near(near.alibi_slopes);
    });
  }
  void SelectKv(const SelectKvArgs& args) override {
    PutOverStep(args, &Backend::SelectKv, [](SelectKvArgs& near) {
      near.q = Near(near.q);
      near.q_ahead = Near(near.q_ahead);
      near.lse = Near(near.lse);
    });
  }

  // Steps so far whose tokens nobody but the device knew when they were put on the queue.
  int64_t num_followed() const { return num_followed_; }
  // Entries of tables that steps have handed over so far.
  int64_t num_changes() const { return num_changes_; }

 private:
  // What a step says, but for the tables, of which only changes are kept.
  struct StepCopy {
    explicit StepCopy(const KvStep& from)
        : step(from),
          rows(from.sequences.begin(), from.sequences.end()),
          spaces(from.spaces.begin(), from.spaces.end()),
          copies(from.copies.begin(), from.copies.end()),
          ages(from.ages.begin(), from.ages.end()),
          age_ends(from.age_ends.begin(), from.age_ends.end()),
          num_heads(from.heads.size()),
          num_selections(from.selections.size()),
          num_pages(from.pages.size()) {
      for (const uint32_t place : from.changed_heads) new_heads.emplace_back(place, from.heads[place]);
      for (const uint32_t place : from.changed_selections) new_selections.emplace_back(place, from.selections[place]);
      for (const uint32_t place : from.changed_pages) new_pages.emplace_back(place, from.pages[place]);
      for (PageSpace& space : spaces) {
        std::vector<std::byte*>& near = extents.emplace_back();
        for (std::byte* base : space.extents) near.push_back(Near(base));
        space.extents = near;
      }
      step.sequences = rows;
      step.spaces = spaces;
      step.copies = copies;
      step.ages = ages;
      step.age_ends = age_ends;
      step.changed_heads = {};
      step.changed_selections = {};
      step.changed_pages = {};
    }
    StepCopy(const StepCopy&) = delete;

    KvStep step;
    std::vector<StepRows> rows;
    std::vector<PageSpace> spaces;
    std::deque<std::vector<std::byte*>> extents;
    std::vector<PageMove> copies, ages;
    std::vector<int64_t> age_ends;
    size_t num_heads, num_selections, num_pages;
    std::vector<std::pair<uint32_t, StepHead>> new_heads;
    std::vector<std::pair<uint32_t, KvSelection>> new_selections;
    std::vector<std::pair<uint32_t, uint32_t>> new_pages;
  };

  template <typename Entry>
  static void Follow(const std::vector<std::pair<uint32_t, Entry>>& changes, std::vector<Entry>& table, size_t size,
                     const Entry& unknown) {
    table.resize(std::max(size, table.size()), unknown);
    for (const auto& [place, entry] : changes) table[place] = entry;
  }

  template <typename Args, typename Translate>
  void PutOverStep(const Args& args, void (Backend::*op)(const Args&), const Translate& translate) {
    device_.queue().Put([this, op, translate, near = args, copy = begun_]() mutable {
      near.step = &copy->step;
      translate(near);
      (near_.get()->*op)(near);
    });
  }

  std::unique_ptr<Backend> near_;
  std::optional<Feature> lacking_;
  std::shared_ptr<StepCopy> begun_;
  std::atomic<int64_t> num_changes_ = 0;
  std::atomic<int64_t> num_followed_ = 0;
  // The queue's thread alone.
  std::vector<StepHead> heads_;
  std::vector<KvSelection> selections_;
  std::vector<uint32_t> pages_;
  FarDevice device_;
  std::vector<DeviceBuffer> weights_;
};

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_FAR_BACKEND_H_
