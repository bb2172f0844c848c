#include "text/sentencepiece_loader.h"

#include <fmt/format.h>

#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <vector>

#include "text/chars_map.h"

namespace headwise {
namespace {

// ---- The fields of a protocol buffer, as far as they lead to character maps. ----

// Reads front to back; nothing where the bytes are no field.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : rest_(bytes) {}

  bool done() const { return rest_.empty(); }

  struct Field {
    uint64_t number = 0;
    std::string_view bytes;  // of a string or a message, empty for numbers
  };
  std::optional<Field> Next() {
    const auto tag = Varint();
    if (!tag || *tag >> 32 != 0 || *tag >> 3 == 0) return std::nullopt;
    Field field{.number = *tag >> 3, .bytes = {}};
    constexpr uint64_t kVarint = 0, k64Bits = 1, kBytes = 2, k32Bits = 5;
    uint64_t size = 0;
    switch (*tag & 7) {
      case kVarint:
        return Varint() ? std::optional(field) : std::nullopt;
      case k64Bits:
        size = 8;
        break;
      case k32Bits:
        size = 4;
        break;
      case kBytes: {
        const auto length = Varint();
        if (!length || *length > rest_.size()) return std::nullopt;
        field.bytes = rest_.substr(0, *length);
        size = *length;
        break;
      }
      default:
        return std::nullopt;
    }
    if (size > rest_.size()) return std::nullopt;
    rest_.remove_prefix(size);
    return field;
  }

 private:
  std::optional<uint64_t> Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    return std::nullopt;
  }

  std::string_view rest_;
};

// What every field of that number holds, at the end of a path of numbers: each of them is merged into one message, the
// last value of which counts, so that all may come to be used.
Status CollectBytes(std::string_view message, std::span<const uint64_t> path, std::string_view origin,
                    std::vector<std::string_view>& found) {
  for (Fields fields(message); !fields.done();) {
    const auto field = fields.Next();
    if (!field) return Status::InvalidInput(fmt::format("{}: not a SentencePiece model: a malformed field", origin));
    if (field->number != path.front()) continue;
    if (path.size() == 1) {
      found.push_back(field->bytes);
    } else {
      HW_RETURN_IF_ERROR(CollectBytes(field->bytes, path.subspan(1), origin, found));
    }
  }
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<sentencepiece::SentencePieceProcessor>> LoadSentencePiece(std::string_view bytes,
                                                                                 std::string_view origin) {
  // ModelProto's normalizer and denormalizer; a NormalizerSpec's map.
  constexpr uint64_t kPaths[][2] = {{3, 2}, {5, 2}};
  std::vector<std::string_view> maps;
  for (const auto& path : kPaths) HW_RETURN_IF_ERROR(CollectBytes(bytes, path, origin, maps));
  for (const std::string_view map : maps) {
    if (!map.empty()) HW_RETURN_IF_ERROR(CheckCharsMap(map, origin));
  }
  auto processor = std::make_unique<sentencepiece::SentencePieceProcessor>();
  try {
    const auto status = processor->LoadFromSerializedProto(absl::string_view(bytes.data(), bytes.size()));
    if (status.ok()) return processor;
    return Status::InvalidInput(fmt::format("{}: not a SentencePiece model: {}", origin, status.ToString()));
  } catch (const std::exception& error) {  // of its tries over the vocabulary
    return Status::InvalidInput(fmt::format("{}: not a SentencePiece model: {}", origin, error.what()));
  }
}

}  // namespace headwise
