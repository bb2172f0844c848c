#include "base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <random>
#include <utility>

namespace headwise {
namespace {

// Closes the descriptor when it leaves scope.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&&) = delete;
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

Status SystemError(const std::filesystem::path& path, const char* doing) {
  const int error = errno;
  const std::string message = fmt::format("{}: cannot {}: {}", path.string(), doing, std::strerror(error));
  return error == ENOENT ? Status::NotFound(message) : Status::Io(message);
}

const char* KindOf(const struct stat& info) {
  if (S_ISDIR(info.st_mode)) return "a folder";
  if (S_ISFIFO(info.st_mode)) return "a FIFO";
  if (S_ISCHR(info.st_mode)) return "a character device";
  if (S_ISBLK(info.st_mode)) return "a block device";
  return "no regular file";
}

struct OpenedFile {
  FileDescriptor fd;
  size_t size_bytes = 0;
};

// Every reader's way to a file. What is no regular file is refused: a FIFO may never have an end or a writer, and a
// device may have no end.
Result<OpenedFile> OpenRegular(const std::filesystem::path& path) {
  // Without O_NONBLOCK to open a FIFO is to wait for its writer; regular files know no difference.
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (fd.get() < 0) return SystemError(path, "open");
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) return SystemError(path, "stat");
  if (!S_ISREG(info.st_mode)) {
    return Status::InvalidInput(fmt::format("{}: is {}, expected a file", path.string(), KindOf(info)));
  }
  return OpenedFile{.fd = std::move(fd), .size_bytes = static_cast<size_t>(info.st_size)};
}

// Gives `create` new names beside `path`, until it takes one or fails for another reason than that there is such a
// file: what it returned last. The name replaces `partial_path`.
template <typename Create>
int WithNewName(const std::filesystem::path& path, std::string& partial_path, const Create& create) {
  constexpr int kMaxTries = 100;
  constexpr size_t kMaxPartialName = 200;  // bytes, of the 255 that file systems take
  std::random_device random;
  int result = -1;
  for (int i = 0; i < kMaxTries; ++i) {
    // Short enough where the file's own name is as long as names may be.
    const std::string name = path.filename().string().substr(0, kMaxPartialName);
    partial_path = (path.parent_path() / fmt::format("{}.{:08x}", name, random())).string();
    result = create(partial_path.c_str());
    if (result >= 0 || errno != EEXIST) break;
  }
  return result;
}

// mkostemp would make a file readable by its owner alone, and what a person writes is to be readable under their umask,
// as with any other tool: the system applies that by itself to a file that is opened so. To read the umask is to change
// it, for all threads of the process.
constexpr mode_t kUnderUmask = 0666;

// A new file of the folder of `path` without a name, so that it is gone with this process, however that ends. -1 where
// the file system, or a process without /proc, cannot have one that gets its name later.
int CreateNameless(const std::filesystem::path& path) {
#ifdef O_TMPFILE
  if (::access("/proc/self/fd", X_OK) != 0) return -1;
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  return ::open(folder.c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, kUnderUmask);
#else
  return -1;
#endif
}

int CreateNamed(const std::filesystem::path& path, std::string& partial_path) {
  return WithNewName(path, partial_path, [](const char* name) {
    return ::open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kUnderUmask);
  });
}

// Where writing to `path` goes: the last of a chain of links, be there a file or not.
Result<std::filesystem::path> FollowLinks(std::filesystem::path path) {
  constexpr int kMaxLinks = 40;  // as the system follows
  std::error_code error;
  for (int i = 0; i < kMaxLinks; ++i) {
    const std::filesystem::path target = std::filesystem::read_symlink(path, error);
    if (error) return path;  // no link
    path = path.parent_path() / target;
  }
  errno = ELOOP;
  return SystemError(path, "write");
}

// What a person may have meant to keep, and what replacing would take from everybody: a device, say.
const char* NameOfKind(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

// The mappings that there are. A handler of a signal may take no lock, so each has a place of its own; `begin` is set
// last and cleared first.
struct Mapping {
  std::atomic<bool> taken{false};
  std::atomic<uintptr_t> begin{0};
  uintptr_t end = 0;
  char path[256] = {};
};
constinit Mapping g_mappings[256];

void NoteMapping(const void* data, size_t size_bytes, const std::filesystem::path& path) {
  for (Mapping& mapping : g_mappings) {
    if (mapping.taken.exchange(true)) continue;
    std::strncpy(mapping.path, path.c_str(), sizeof(mapping.path) - 1);
    mapping.end = reinterpret_cast<uintptr_t>(data) + size_bytes;
    mapping.begin = reinterpret_cast<uintptr_t>(data);
    return;
  }
}

void ForgetMapping(const void* data) {
  for (Mapping& mapping : g_mappings) {
    if (mapping.begin != reinterpret_cast<uintptr_t>(data)) continue;
    mapping.begin = 0;
    mapping.taken = false;
    return;
  }
}

// Bytes [0, data.size()) of the file; one that has become shorter is an error.
Status ReadInto(int fd, const std::filesystem::path& path, std::span<std::byte> data) {
  const size_t size_bytes = data.size();
  while (!data.empty()) {
    const ssize_t n = ::read(fd, data.data(), data.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return SystemError(path, "read");
    if (n == 0) {
      return Status::Io(fmt::format("{}: ends after {} bytes, expected the {} that it had when it was opened",
                                    path.string(), size_bytes - data.size(), size_bytes));
    }
    data = data.subspan(static_cast<size_t>(n));
  }
  return Status::Ok();
}

}  // namespace

const char* PathOfMapping(const void* address) {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  for (const Mapping& mapping : g_mappings) {
    const uintptr_t begin = mapping.begin;
    if (begin != 0 && begin <= wanted && wanted < mapping.end) return mapping.path;
  }
  return nullptr;
}

Result<MappedFile> MappedFile::Open(const std::filesystem::path& path, FileAccess access) {
  HW_ASSIGN_OR_RETURN(const OpenedFile opened, OpenRegular(path));
  MappedFile file;
  if (opened.size_bytes == 0) return file;
  const bool is_copy = access == FileAccess::kRead;
  void* data = is_copy ? ::mmap(nullptr, opened.size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                       : ::mmap(nullptr, opened.size_bytes, PROT_READ, MAP_PRIVATE, opened.fd.get(), 0);
  if (data == MAP_FAILED) return SystemError(path, is_copy ? "read into memory" : "map");
  file.data_ = data;
  file.size_bytes_ = opened.size_bytes;
  file.access_ = access;
  if (is_copy) {
    HW_RETURN_IF_ERROR(ReadInto(opened.fd.get(), path, {static_cast<std::byte*>(data), opened.size_bytes}));
  } else {
    NoteMapping(data, opened.size_bytes, path);
  }
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      access_(other.access_) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(access_, other.access_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  if (access_ == FileAccess::kMap) ForgetMapping(data_);
  ::munmap(data_, size_bytes_);
}

void MappedFile::Release(std::span<const std::byte> range) const {
  if (access_ == FileAccess::kRead) return;
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(range.data()) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(range.data()) + range.size()) / page * page;
  // A wish: where it is not granted, memory is not saved.
  if (begin < end) static_cast<void>(::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED));
}

Result<std::string> ReadFile(const std::filesystem::path& path) {
  HW_ASSIGN_OR_RETURN(const OpenedFile opened, OpenRegular(path));
  std::string content;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t n = ::read(opened.fd.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return SystemError(path, "read");
    if (n == 0) return content;
    content.append(buffer, static_cast<size_t>(n));
  }
}

Result<AtomicFileWriter> AtomicFileWriter::Create(const std::filesystem::path& path) {
  if (path.empty()) return Status::InvalidInput("the name of the file to write is empty, expected a path");
  AtomicFileWriter writer;
  HW_ASSIGN_OR_RETURN(writer.path_, FollowLinks(path));
  struct stat old = {};
  const bool is_there = ::stat(writer.path_.c_str(), &old) == 0;
  if (is_there && !S_ISREG(old.st_mode)) {
    return Status::InvalidInput(
        fmt::format("{}: is {}, expected a file or a new name", path.string(), NameOfKind(old.st_mode)));
  }
  writer.fd_ = CreateNameless(writer.path_);
  if (writer.fd_ < 0) {
    std::string partial_path;
    writer.fd_ = CreateNamed(writer.path_, partial_path);
    if (writer.fd_ < 0) return SystemError(path, "create");
    writer.partial_path_ = std::move(partial_path);
  }
  // Who may read the old file may read the new one, and nobody else.
  if (is_there && ::fchmod(writer.fd_, old.st_mode & 07777) != 0) return SystemError(path, "set the mode of");
  return writer;
}

AtomicFileWriter::AtomicFileWriter(AtomicFileWriter&& other) noexcept
    : path_(std::move(other.path_)),
      partial_path_(std::exchange(other.partial_path_, {})),
      fd_(std::exchange(other.fd_, -1)) {}

AtomicFileWriter& AtomicFileWriter::operator=(AtomicFileWriter&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(partial_path_, other.partial_path_);
  std::swap(fd_, other.fd_);
  return *this;
}

AtomicFileWriter::~AtomicFileWriter() {
  if (fd_ >= 0) ::close(fd_);
  if (!partial_path_.empty()) ::unlink(partial_path_.c_str());
}

Status AtomicFileWriter::Write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return SystemError(path_, "write");
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return Status::Ok();
}

Status AtomicFileWriter::Commit() {
  if (::fsync(fd_) != 0) return SystemError(path_, "write");
  if (partial_path_.empty()) {
    const std::string nameless = fmt::format("/proc/self/fd/{}", fd_);
    std::string partial_path;
    const int linked = WithNewName(path_, partial_path, [&](const char* name) {
      return ::linkat(AT_FDCWD, nameless.c_str(), AT_FDCWD, name, AT_SYMLINK_FOLLOW);
    });
    if (linked != 0) return SystemError(path_, "write");
    partial_path_ = std::move(partial_path);
  }
  // On some file systems a full disk is only reported here.
  if (::close(std::exchange(fd_, -1)) != 0) return SystemError(path_, "write");
  if (::rename(partial_path_.c_str(), path_.c_str()) != 0) return SystemError(path_, "replace");
  partial_path_.clear();
  return Status::Ok();
}

Status CheckWritable(const std::filesystem::path& path) {
  auto writer = AtomicFileWriter::Create(path);
  return writer.ok() ? Status::Ok() : std::move(writer).status();
}

Status WriteFileAtomically(const std::filesystem::path& path, std::string_view content) {
  HW_ASSIGN_OR_RETURN(AtomicFileWriter writer, AtomicFileWriter::Create(path));
  HW_RETURN_IF_ERROR(writer.Write(std::as_bytes(std::span(content))));
  return writer.Commit();
}

}  // namespace headwise
