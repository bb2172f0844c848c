// Files: read whole, map read-only, write atomically. Every error names the path and what the system said.
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

// A read-only memory-mapped file. Owns the mapping; move-only. An empty file maps to an empty span.
class MappedFile {
 public:
  static Result<MappedFile> Open(const std::filesystem::path& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_bytes_}; }

 private:
  void* data_ = nullptr;
  size_t size_bytes_ = 0;
};

// The whole file as text or bytes. A folder, a missing or an unreadable file is an error.
Result<std::string> ReadFile(const std::filesystem::path& path);

// Replaces `path` by `content` in one step: written beside it, flushed to disk, renamed. When anything fails (a full
// disk, say) the old file is intact and no partial file is left.
Status WriteFileAtomically(const std::filesystem::path& path, std::string_view content);

}  // namespace headwise

#endif  // HEADWISE_BASE_FILE_H_
