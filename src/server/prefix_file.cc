#include "server/prefix_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <span>
#include <utility>

#include "base/byte_stream.h"
#include "base/file.h"
#include "base/sha256.h"
#include "kv/kv_snapshot_bytes.h"

namespace headwise {
namespace {

constexpr std::string_view kMagic = "headwise-prefix\n";
// Another number where the file, or what is in a page, comes to mean something else.
constexpr uint32_t kVersion = 1;
constexpr size_t kHashBytes = 64;
constexpr size_t kFrontBytes = kMagic.size() + sizeof(uint32_t) + sizeof(uint64_t);

std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string HashOf(std::string_view bytes) {
  Sha256 hash;
  hash.Update(bytes);
  return hash.Hex();
}

std::string HeadBytes(const PrefixFileHead& head) {
  ByteWriter inner;
  inner.PutText(head.identity);
  inner.PutText(head.plan);
  inner.PutText(head.reading);
  inner.Put(head.payload_bytes);
  inner.PutAll(std::span<const int32_t>(head.ids));
  ByteWriter front;
  front.Put(kVersion);
  front.Put(static_cast<uint64_t>(inner.bytes().size()));
  return std::string(kMagic) + front.bytes() + inner.bytes();
}

std::string TextBytes(const SavedText& text) {
  ByteWriter to;
  to.Put(text.limits.prompt_tokens);
  to.Put(text.limits.max_tokens);
  to.Put(static_cast<uint64_t>(text.rope_frequencies.size()));
  for (const std::vector<double>& rope : text.rope_frequencies) to.PutAll(std::span<const double>(rope));
  PutSnapshot(to, text.snapshot);
  return to.bytes();
}

Status Torn(const std::filesystem::path& path, const std::string& what) {
  return Status::InvalidInput(fmt::format("{}: {}", path.string(), what));
}

// The version of what begins a file, then the bytes that its head takes with its hash.
Result<uint64_t> CheckFront(const std::filesystem::path& path, std::string_view front, uint64_t file_bytes) {
  if (front.size() < kFrontBytes || !front.starts_with(kMagic)) return Torn(path, "is no file of a kept text");
  ByteReader reader(front.substr(kMagic.size()));
  const auto version = reader.Get<uint32_t>();
  if (version != kVersion) {
    return Status::Unsupported(fmt::format("{}: is of version {}, expected {}", path.string(), version, kVersion));
  }
  const auto inner_bytes = reader.Get<uint64_t>();
  if (inner_bytes > file_bytes || kFrontBytes + inner_bytes + 2 * kHashBytes > file_bytes) {
    return Torn(path, "ends inside its head");
  }
  return kFrontBytes + inner_bytes + kHashBytes;
}

// `head` is all up to its hash, and that.
Result<PrefixFileHead> ParseHead(const std::filesystem::path& path, std::string_view head, uint64_t file_bytes) {
  const std::string_view hashed = head.substr(0, head.size() - kHashBytes);
  if (HashOf(hashed) != head.substr(hashed.size())) return Torn(path, "its head is not what its hash says");
  ByteReader reader(hashed.substr(kFrontBytes));
  PrefixFileHead read;
  read.identity = reader.GetText();
  read.plan = reader.GetText();
  read.reading = reader.GetText();
  read.payload_bytes = reader.Get<int64_t>();
  read.ids = reader.GetAll<int32_t>();
  const bool has_ids = !read.ids.empty() && std::ranges::none_of(read.ids, [](int32_t id) { return id < 0; });
  if (!reader.ok() || !reader.rest().empty() || !has_ids) return Torn(path, "its head says nothing");
  if (read.payload_bytes < 0 || head.size() + static_cast<uint64_t>(read.payload_bytes) + kHashBytes != file_bytes) {
    return Torn(path, fmt::format("has {} bytes, not those that its head says", file_bytes));
  }
  return read;
}

// So that the new name is on the disk too.
Status SyncFolder(const std::filesystem::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool is_synced = fd >= 0 && ::fsync(fd) == 0;
  const std::string error = is_synced ? "" : std::strerror(errno);
  if (fd >= 0) ::close(fd);
  return is_synced ? Status::Ok() : Status::Io(fmt::format("{}: {}", folder.string(), error));
}

}  // namespace

std::string HashOfPlan(const HeadPlan& plan) {
  ByteWriter to;
  to.Put(plan.shape.num_layers);
  to.Put(plan.shape.num_kv_heads);
  for (const HeadRule& rule : plan.rules) {
    to.Put(static_cast<int32_t>(rule.kind));
    to.Put(rule.sink);
    to.Put(rule.recent);
    to.Put(rule.alpha);
    to.Put(rule.beta);
    to.Put(rule.min_recent);
    to.Put(rule.divisor);
    to.Put(static_cast<uint8_t>(rule.compensate));
    to.Put(static_cast<int32_t>(rule.positions));
    to.Put(static_cast<int32_t>(rule.start));
  }
  return HashOf(to.bytes());
}

std::string HashOfReading(const SequenceFrequencies& rope_frequencies, const std::vector<ResolvedRule>& rules) {
  SavedText text;
  text.rope_frequencies = rope_frequencies;
  text.snapshot.rules = rules;
  text.snapshot.heads.resize(rules.size());
  return HashOf(TextBytes(text));
}

std::string PrefixFileName(std::string_view identity, std::string_view plan, std::span<const int32_t> ids) {
  ByteWriter to;
  to.PutText(identity);
  to.PutText(plan);
  Sha256 hash;
  hash.Update(to.bytes());
  hash.Update(ids.data(), ids.size_bytes());
  return hash.Hex();
}

int64_t PrefixFileBytes(const PrefixFileHead& head) {
  return static_cast<int64_t>(HeadBytes(head).size() + 2 * kHashBytes) + head.payload_bytes;
}

int64_t PayloadBytes(const SavedText& text) {
  return static_cast<int64_t>(TextBytes(text).size()) + text.snapshot.bytes;
}

Status WritePrefixFile(const std::filesystem::path& path, const PrefixFileHead& head, const SavedText& text) {
  const std::string described = TextBytes(text);
  const auto page_bytes = static_cast<size_t>(text.snapshot.bytes);
  const std::string front = HeadBytes(head);
  HW_ASSIGN_OR_RETURN(AtomicFileWriter writer, AtomicFileWriter::Create(path));
  Sha256 hash;
  const auto write = [&](std::span<const std::byte> bytes) {
    hash.Update(bytes.data(), bytes.size());
    return writer.Write(bytes);
  };
  HW_RETURN_IF_ERROR(write(BytesOf(front)));
  HW_RETURN_IF_ERROR(write(BytesOf(HashOf(front))));
  HW_RETURN_IF_ERROR(write(BytesOf(described)));
  HW_RETURN_IF_ERROR(write({text.snapshot.pages.get(), page_bytes}));
  HW_RETURN_IF_ERROR(writer.Write(BytesOf(hash.Hex())));
  HW_RETURN_IF_ERROR(writer.Commit());
  return SyncFolder(path.parent_path());
}

Result<PrefixFileHead> ReadPrefixFileHead(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff file_bytes = file ? static_cast<std::streamoff>(file.tellg()) : -1;
  if (file_bytes < 0) return Status::Io(fmt::format("{}: cannot be read", path.string()));
  std::string head(std::min(static_cast<size_t>(file_bytes), kFrontBytes), '\0');
  file.seekg(0);
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  HW_ASSIGN_OR_RETURN(const uint64_t head_bytes, CheckFront(path, head, static_cast<uint64_t>(file_bytes)));
  head.resize(head_bytes);
  file.read(head.data() + kFrontBytes, static_cast<std::streamsize>(head_bytes - kFrontBytes));
  if (!file) return Status::Io(fmt::format("{}: cannot be read", path.string()));
  return ParseHead(path, head, static_cast<uint64_t>(file_bytes));
}

Result<std::shared_ptr<const SavedText>> ReadPrefixFile(const std::filesystem::path& path) {
  // A copy: what becomes of the file meanwhile does not matter.
  HW_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path, FileAccess::kRead));
  return ParsePrefixFile({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, path);
}

Result<std::shared_ptr<const SavedText>> ParsePrefixFile(std::string_view file, const std::filesystem::path& path) {
  HW_ASSIGN_OR_RETURN(const uint64_t head_bytes, CheckFront(path, file, file.size()));
  HW_ASSIGN_OR_RETURN(PrefixFileHead head, ParseHead(path, file.substr(0, head_bytes), file.size()));
  const std::string_view hashed = file.substr(0, file.size() - kHashBytes);
  if (HashOf(hashed) != file.substr(hashed.size())) return Torn(path, "is not what its hash says");
  Result<std::shared_ptr<const SavedText>> text = ParsePrefixPayload(hashed.substr(head_bytes), std::move(head.ids));
  if (!text.ok()) return Torn(path, text.status().message());
  return text;
}

Result<std::shared_ptr<const SavedText>> ParsePrefixPayload(std::string_view payload, std::vector<int32_t> ids) {
  ByteReader reader(payload);
  auto text = std::make_shared<SavedText>();
  text->ids = std::move(ids);
  text->limits.prompt_tokens = reader.Get<int64_t>();
  text->limits.max_tokens = reader.Get<int64_t>();
  const auto num_ropes = reader.Get<uint64_t>();
  for (uint64_t i = 0; i < num_ropes && reader.ok(); ++i) text->rope_frequencies.push_back(reader.GetAll<double>());
  text->snapshot = GetSnapshot(reader);
  const std::string_view pages = reader.rest();
  KvSnapshot& snapshot = text->snapshot;
  if (!reader.ok()) return Status::InvalidInput("ends inside what its heads hold");
  if (snapshot.num_tokens != static_cast<int64_t>(text->ids.size())) {
    return Status::InvalidInput(
        fmt::format("has pages of {} tokens for {} ids", snapshot.num_tokens, text->ids.size()));
  }
  if (snapshot.bytes < 0 || static_cast<uint64_t>(snapshot.bytes) != pages.size()) {
    return Status::InvalidInput(fmt::format("has {} bytes of pages, expected {}", pages.size(), snapshot.bytes));
  }
  snapshot.pages.reset(new std::byte[pages.size()]);
  if (!pages.empty()) std::memcpy(snapshot.pages.get(), pages.data(), pages.size());
  return std::shared_ptr<const SavedText>(std::move(text));
}

}  // namespace headwise
