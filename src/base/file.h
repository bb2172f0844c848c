// Files: read whole, map read-only, write atomically. Every error names the path and what the system said. What is read
// is a regular file: a folder, a FIFO or a device is an error.
#ifndef HEADWISE_BASE_FILE_H_
#define HEADWISE_BASE_FILE_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include <headwise/status.h>

namespace headwise {

enum class FileAccess {
  kMap,  // read where it lies, as its bytes are needed; a file that becomes shorter meanwhile ends the process (SIGBUS)
  kRead,  // all of it into memory first; what becomes of the file afterwards does not matter
};

// A read-only memory-mapped file, or a copy of one. Owns the memory; move-only. An empty file gives an empty span.
class MappedFile {
 public:
  static Result<MappedFile> Open(const std::filesystem::path& path, FileAccess access = FileAccess::kMap);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  // Lets go of the memory that holds pages of the file which lie whole inside `range`, a part of bytes(). What is read
  // there again comes from the file again. Of a copy nothing goes.
  void Release(std::span<const std::byte> range) const;

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_bytes_}; }

 private:
  void* data_ = nullptr;
  size_t size_bytes_ = 0;
  FileAccess access_ = FileAccess::kMap;
};

// The path of the file that is mapped at `address`, cut where it is very long; null if none is, or if there are
// hundreds of others. For a handler of SIGBUS: async-signal-safe. Lives as long as the mapping.
const char* PathOfMapping(const void* address);

// The whole file as text or bytes.
Result<std::string> ReadFile(const std::filesystem::path& path);

// Replaces a file in one step, for content too large to hold: written in pieces beside it, flushed to disk, renamed.
// Whatever fails (a full disk, say) or is given up, the old file is intact and no partial file is left; nor is one
// where the process is killed, but on file systems without files that have no name (O_TMPFILE). Links are followed, the
// mode of the old file is kept, and what is no regular file is refused. Move-only.
class AtomicFileWriter {
 public:
  static Result<AtomicFileWriter> Create(const std::filesystem::path& path);

  AtomicFileWriter(AtomicFileWriter&& other) noexcept;
  AtomicFileWriter& operator=(AtomicFileWriter&& other) noexcept;
  AtomicFileWriter(const AtomicFileWriter&) = delete;
  AtomicFileWriter& operator=(const AtomicFileWriter&) = delete;
  // Without a Commit that succeeded, as if nothing had been written.
  ~AtomicFileWriter();

  // Appends. After an error all that is left to do is to destroy the writer.
  Status Write(std::span<const std::byte> bytes);
  // Puts the new file in place of the old one. Called last, and once.
  Status Commit();

 private:
  AtomicFileWriter() = default;

  std::filesystem::path path_;
  std::string partial_path_;  // empty while there is nothing to remove
  int fd_ = -1;
};

// Whether `path` can be written, by who knows its content only after long work.
Status CheckWritable(const std::filesystem::path& path);

// Replaces `path` by `content`, as AtomicFileWriter does.
Status WriteFileAtomically(const std::filesystem::path& path, std::string_view content);

}  // namespace headwise

#endif  // HEADWISE_BASE_FILE_H_
