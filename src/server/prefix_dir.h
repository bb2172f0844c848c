// A folder of kept texts (prefix_file.h), so that a server that starts anew goes on from what the one before it has
// read. What is in it is known by heads alone; a text is read where a request begins with it.
#ifndef HEADWISE_SERVER_PREFIX_DIR_H_
#define HEADWISE_SERVER_PREFIX_DIR_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <tuple>

#include "server/prefix_file.h"

namespace headwise {

struct PrefixDirStats {
  int64_t num_entries = 0;
  int64_t bytes = 0;      // of their files
  int64_t num_saved = 0;  // texts that are on the disk for certain, since it was opened
  int64_t num_failed = 0;
  int64_t num_evicted = 0;
};

// Files are written by a thread of its own, each under its name only once it is whole. One server at a time has a
// folder: its lock ends with the process, however that ends. Which text has to go is found as in PrefixStore, by tokens
// for each byte; of equals the one that was not used for longest, over restarts too (the file's time).
//
// Thread-safe.
class PrefixDir {
 public:
  struct Options {
    std::filesystem::path path;  // made where it is not there, its parent has to be
    int64_t limit_bytes = int64_t{4} << 30;
    std::function<void(const std::string&)> warn = [](const std::string&) {};  // on any thread
  };
  // Reads the head of every file: torn ones are removed, others that it cannot use are left as they are. kIo where the
  // folder cannot be written, kInvalidInput where another server has it.
  static Result<std::unique_ptr<PrefixDir>> Open(Options options);
  PrefixDir(const PrefixDir&) = delete;
  // Once all is written that was begun.
  ~PrefixDir();

  struct Found {
    std::string name;
    int64_t num_tokens = 0;
  };
  // The longest text that `ids` begin with and go beyond.
  std::optional<Found> Longest(const std::string& identity, const std::string& plan,
                               std::span<const int32_t> ids) const;
  // Null where it is there no more or is torn, when it is removed.
  std::shared_ptr<const SavedText> Load(const std::string& name);

  // Whether a file of about `bytes` is to be written of this text now: not where it is there already or waits to be,
  // nor where too much waits. kWaits: waits until that is written.
  enum class Room { kNow, kWaits };
  bool Wants(const std::string& name, const std::string& reading, int64_t bytes, Room room);
  // Leaves it to the thread that writes.
  void Write(PrefixFileHead head, std::shared_ptr<const SavedText> text);
  // Until nothing waits to be written.
  void Flush();

  // Of texts under these weights and this arithmetic.
  PrefixDirStats StatsOf(const std::string& identity) const;
  int64_t num_entries() const;
  int64_t bytes() const;  // of all files

 private:
  // Worth, time of the last use, name: the first has to go first.
  using Rank = std::tuple<double, int64_t, std::string>;
  struct Entry {
    PrefixFileHead head;
    int64_t bytes = 0;
    Rank rank;
  };
  struct Job {
    std::string name;
    PrefixFileHead head;
    std::shared_ptr<const SavedText> text;
  };

  explicit PrefixDir(Options options) : options_(std::move(options)) {}
  Status Lock();
  Status ReadHeads();
  std::filesystem::path PathOf(const std::string& name) const;
  void WriteAll();
  void WriteOne(Job& job);
  // Requires: mutex_, as the next three.
  void Add(const std::string& name, const PrefixFileHead& head);
  void Touch(const std::string& name, Entry& entry);
  void Forget(const std::string& name);
  void Shrink(int64_t most_bytes);

  const Options options_;
  int lock_fd_ = -1;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Entry> entries_;  // by name
  std::set<Rank> ranks_;
  std::deque<Job> queue_;                        // the first is being written
  std::map<std::string, std::string> in_queue_;  // names, with their readings
  int64_t queued_bytes_ = 0;
  std::map<std::string, PrefixDirStats> stats_;  // by identity
  int64_t bytes_ = 0;                            // of entries_
  double worth_gone_ = 0;
  int64_t num_uses_ = 0;
  bool has_warned_ = false;
  bool is_closing_ = false;
  std::thread writer_;
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_PREFIX_DIR_H_
