#include "server/prefix_dir.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/no_memory.h"

namespace headwise {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEnding = ".prefix";
constexpr const char* kLockName = "lock";
// Of pages in host memory that wait for the disk; one text may be more.
constexpr int64_t kMostQueuedBytes = int64_t{256} << 20;

// What AtomicFileWriter calls a file before it gets its name: some eight digits behind it.
bool IsUnfinished(const fs::path& path) {
  constexpr size_t kNumDigits = 8;
  const std::string digits = path.extension().string();
  return path.stem().extension() == kEnding && digits.size() == 1 + kNumDigits &&
         digits.find_first_not_of("0123456789abcdef", 1) == std::string::npos;
}

}  // namespace

Result<std::unique_ptr<PrefixDir>> PrefixDir::Open(Options options) {
  std::error_code error;
  fs::create_directory(options.path, error);
  if (!fs::is_directory(options.path)) {
    return Status::Io(fmt::format("{}: is no folder, and none can be made there{}", options.path.string(),
                                  error ? ": " + error.message() : ""));
  }
  std::unique_ptr<PrefixDir> dir(new PrefixDir(std::move(options)));
  HW_RETURN_IF_ERROR(dir->Lock());
  HW_RETURN_IF_ERROR(dir->ReadHeads());
  dir->writer_ = std::thread([raw = dir.get()] { raw->WriteAll(); });
  return dir;
}

PrefixDir::~PrefixDir() {
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  changed_.notify_all();
  if (writer_.joinable()) writer_.join();
  if (lock_fd_ >= 0) ::close(lock_fd_);
}

// A lock of the open file: it goes with the process, so that a server that was killed leaves none behind.
Status PrefixDir::Lock() {
  const fs::path path = options_.path / kLockName;
  lock_fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (lock_fd_ < 0) return Status::Io(fmt::format("{}: cannot be written: {}", path.string(), std::strerror(errno)));
  if (::flock(lock_fd_, LOCK_EX | LOCK_NB) == 0) return Status::Ok();
  if (errno != EWOULDBLOCK)
    return Status::Io(fmt::format("{}: cannot be locked: {}", path.string(), std::strerror(errno)));
  return Status::InvalidInput(
      fmt::format("{}: another server has this folder, expected one of its own", options_.path.string()));
}

Status PrefixDir::ReadHeads() {
  struct File {
    fs::file_time_type time;
    fs::path path;
  };
  std::vector<File> files;
  std::error_code error;
  for (fs::directory_iterator it(options_.path, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (!it->is_regular_file(ignored)) continue;
    // No server but ours has the folder: whoever wrote it was killed.
    if (IsUnfinished(it->path())) {
      options_.warn(fmt::format("removed: {}: was never finished", it->path().string()));
      fs::remove(it->path(), ignored);
    }
    if (it->path().extension() != kEnding) continue;
    files.push_back({it->last_write_time(ignored), it->path()});
  }
  if (error) return Status::Io(fmt::format("{}: cannot be read: {}", options_.path.string(), error.message()));
  // The order in which they were used.
  std::ranges::sort(files,
                    [](const File& a, const File& b) { return std::tie(a.time, a.path) < std::tie(b.time, b.path); });
  const std::lock_guard lock(mutex_);
  for (const File& file : files) {
    Result<PrefixFileHead> head = ReadPrefixFileHead(file.path);
    if (!head.ok()) {
      const bool is_torn = head.status().code() == StatusCode::kInvalidInput;
      options_.warn(fmt::format("{}: {}", is_torn ? "removed" : "left alone", head.status().message()));
      if (is_torn) fs::remove(file.path, error);
      continue;
    }
    const std::string name = file.path.stem().string();
    if (name != PrefixFileName(head->identity, head->plan, head->ids)) {
      options_.warn(fmt::format("left alone: {}: is not called as its text is", file.path.string()));
      continue;
    }
    Add(name, *head);
  }
  Shrink(options_.limit_bytes);
  return Status::Ok();
}

fs::path PrefixDir::PathOf(const std::string& name) const {
  return options_.path / (name + kEnding);
}

std::optional<PrefixDir::Found> PrefixDir::Longest(const std::string& identity, const std::string& plan,
                                                   std::span<const int32_t> ids) const {
  const std::lock_guard lock(mutex_);
  std::optional<Found> longest;
  for (const auto& [name, entry] : entries_) {
    const std::vector<int32_t>& known = entry.head.ids;
    if (known.size() >= ids.size() || (longest && static_cast<int64_t>(known.size()) <= longest->num_tokens)) continue;
    if (entry.head.plan != plan || entry.head.identity != identity) continue;
    if (!std::ranges::equal(known, ids.first(known.size()))) continue;
    longest = {.name = name, .num_tokens = static_cast<int64_t>(known.size())};
  }
  return longest;
}

std::shared_ptr<const SavedText> PrefixDir::Load(const std::string& name) {
  {
    const std::lock_guard lock(mutex_);
    const auto it = entries_.find(name);
    if (it == entries_.end()) return nullptr;
    Touch(name, it->second);
  }
  const fs::path path = PathOf(name);
  Result<std::shared_ptr<const SavedText>> text =
      CatchNoMemory("a text from a file", [&] { return ReadPrefixFile(path); });
  if (text.ok()) {
    std::error_code ignored;
    fs::last_write_time(path, fs::file_time_type::clock::now(), ignored);
    return *text;
  }
  if (text.status().code() == StatusCode::kOutOfMemory) return nullptr;
  const std::lock_guard lock(mutex_);
  if (!entries_.contains(name)) return nullptr;  // it had to go meanwhile
  const bool is_torn = text.status().code() == StatusCode::kInvalidInput;
  options_.warn(fmt::format("{}: {}", is_torn ? "removed" : "not used", text.status().message()));
  if (is_torn) Forget(name);
  return nullptr;
}

bool PrefixDir::Wants(const std::string& name, const std::string& reading, int64_t bytes, Room room) {
  std::unique_lock lock(mutex_);
  if (bytes > options_.limit_bytes) return false;
  const auto known = entries_.find(name);
  if (known != entries_.end() && known->second.head.reading == reading) {
    Touch(name, known->second);
    return false;
  }
  const auto has_room = [&] { return queue_.empty() || queued_bytes_ + bytes <= kMostQueuedBytes; };
  if (room == Room::kWaits) changed_.wait(lock, has_room);
  const auto waiting = in_queue_.find(name);
  return has_room() && (waiting == in_queue_.end() || waiting->second != reading);
}

void PrefixDir::Write(PrefixFileHead head, std::shared_ptr<const SavedText> text) {
  Job job{.name = PrefixFileName(head.identity, head.plan, head.ids), .head = std::move(head), .text = std::move(text)};
  {
    const std::lock_guard lock(mutex_);
    in_queue_[job.name] = job.head.reading;
    queued_bytes_ += job.text->snapshot.bytes;
    queue_.push_back(std::move(job));
  }
  changed_.notify_all();
}

void PrefixDir::Flush() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.empty(); });
}

PrefixDirStats PrefixDir::StatsOf(const std::string& identity) const {
  const std::lock_guard lock(mutex_);
  const auto it = stats_.find(identity);
  return it == stats_.end() ? PrefixDirStats() : it->second;
}

int64_t PrefixDir::num_entries() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(entries_.size());
}

int64_t PrefixDir::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

void PrefixDir::WriteAll() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return is_closing_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Job& job = queue_.front();
    lock.unlock();
    static_cast<void>(CatchNoMemory("a file of a kept text", [&] { return WriteOne(job), Status::Ok(); }));
    lock.lock();
    queued_bytes_ -= job.text->snapshot.bytes;
    // Another of the same text may wait behind it.
    const auto waiting = in_queue_.find(job.name);
    if (waiting != in_queue_.end() && waiting->second == job.head.reading) in_queue_.erase(waiting);
    queue_.pop_front();
    changed_.notify_all();
  }
}

void PrefixDir::WriteOne(Job& job) {
  job.head.payload_bytes = PayloadBytes(*job.text);
  const int64_t bytes = PrefixFileBytes(job.head);
  {
    // First: the folder is within its limit while it is written too.
    const std::lock_guard lock(mutex_);
    if (bytes > options_.limit_bytes) return;
    Shrink(options_.limit_bytes - bytes);
  }
  const Status status = WritePrefixFile(PathOf(job.name), job.head, *job.text);
  const std::lock_guard lock(mutex_);
  PrefixDirStats& stats = stats_[job.head.identity];
  if (status.ok()) {
    Add(job.name, job.head);
    ++stats.num_saved;
    return;
  }
  ++stats.num_failed;
  if (std::exchange(has_warned_, true)) return;
  options_.warn(fmt::format("a text is not kept on disk, nor may others be: {}", status.message()));
}

void PrefixDir::Add(const std::string& name, const PrefixFileHead& head) {
  PrefixDirStats& stats = stats_[head.identity];
  const auto [it, is_new] = entries_.try_emplace(name);
  Entry& entry = it->second;
  if (is_new) ++stats.num_entries;
  const int64_t more_bytes = PrefixFileBytes(head) - entry.bytes;
  entry.head = head;
  entry.bytes += more_bytes;
  stats.bytes += more_bytes;
  bytes_ += more_bytes;
  Touch(name, entry);
}

void PrefixDir::Touch(const std::string& name, Entry& entry) {
  ranks_.erase(entry.rank);
  const auto bytes = static_cast<double>(std::max<int64_t>(1, entry.bytes));
  entry.rank = {worth_gone_ + static_cast<double>(entry.head.ids.size()) / bytes, ++num_uses_, name};
  ranks_.insert(entry.rank);
}

void PrefixDir::Forget(const std::string& name) {
  const auto it = entries_.find(name);
  if (it == entries_.end()) return;
  std::error_code ignored;
  fs::remove(PathOf(name), ignored);
  ranks_.erase(it->second.rank);
  PrefixDirStats& stats = stats_[it->second.head.identity];
  --stats.num_entries;
  stats.bytes -= it->second.bytes;
  bytes_ -= it->second.bytes;
  entries_.erase(it);
}

void PrefixDir::Shrink(int64_t most_bytes) {
  while (bytes_ > most_bytes) {
    const std::string name = std::get<std::string>(*ranks_.begin());
    worth_gone_ = std::get<double>(*ranks_.begin());
    ++stats_[entries_.at(name).head.identity].num_evicted;
    Forget(name);
  }
}

}  // namespace headwise
