#include "tensor/block_reader.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "tensor/block_codes.h"

namespace headwise {
namespace {

// Reads the bytes of a block one field after the other.
class Fields {
 public:
  explicit Fields(const std::byte* block) : at_(reinterpret_cast<const uint8_t*>(block)) {}
  const uint8_t* Bytes(int64_t num_bytes) {
    const uint8_t* bytes = at_;
    at_ += num_bytes;
    return bytes;
  }
  uint16_t Half() {
    uint16_t bits;
    std::memcpy(&bits, Bytes(2), sizeof(bits));
    return bits;
  }

 private:
  const uint8_t* at_;
};

// Blocks of 32: the first half of the elements in low nibbles, the second in high ones.
void ReadNibbles(const uint8_t* bytes, int64_t num_bytes, uint8_t* codes) {
  for (int64_t i = 0; i < num_bytes; ++i) {
    codes[i] = bytes[i] & 0x0F;
    codes[i + num_bytes] = bytes[i] >> 4;
  }
}

// Bit i of `bits` is bit 4 of code i.
void AddHighBits(const uint8_t* bits, uint8_t* codes) {
  for (int i = 0; i < 32; ++i) codes[i] |= static_cast<uint8_t>(((bits[i / 8] >> (i % 8)) & 1) << 4);
}

void ReadAffineCodes(const uint8_t* bytes, BlockCodes& block) {
  const AffineCodes codes = UnpackAffineCodes(bytes);
  std::ranges::copy(codes.scales, block.scales);
  std::ranges::copy(codes.minima, block.mins);
}

// 256 elements in 4 chunks of 64: 32 low nibbles, then 32 high ones.
void ReadChunkNibbles(const uint8_t* bytes, uint8_t* codes) {
  for (int chunk = 0; chunk < 4; ++chunk) ReadNibbles(bytes + 32 * chunk, 32, codes + 64 * chunk);
}

void ReadQ6K(Fields fields, BlockCodes& block) {
  const uint8_t* low = fields.Bytes(128);
  const uint8_t* high = fields.Bytes(64);
  std::memcpy(block.scales, fields.Bytes(16), 16);
  block.d = fields.Half();
  // Halves of 128 elements: 64 bytes of nibbles, and 32 bytes with two bits for each quarter.
  for (int half = 0; half < 2; ++half) {
    uint8_t* codes = block.codes + 128 * half;
    ReadNibbles(low + 64 * half, 64, codes);
    for (int i = 0; i < 128; ++i) {
      codes[i] |= static_cast<uint8_t>(((high[32 * half + i % 32] >> (2 * (i / 32))) & 3) << 4);
    }
  }
}

}  // namespace

void ReadBlock(DType dtype, const std::byte* bytes, BlockCodes& block) {
  Fields fields(bytes);
  if (dtype == DType::kQ6_K) return ReadQ6K(fields, block);
  block.d = fields.Half();
  switch (dtype) {
    case DType::kQ8_0: {
      const uint8_t* values = fields.Bytes(32);
      for (int i = 0; i < 32; ++i) block.codes[i] = values[i] ^ 0x80;
      return;
    }
    case DType::kQ4_0:
    case DType::kIQ4_NL:
      return ReadNibbles(fields.Bytes(16), 16, block.codes);
    case DType::kQ4_1:
      block.min = fields.Half();
      return ReadNibbles(fields.Bytes(16), 16, block.codes);
    case DType::kQ5_0:
    case DType::kQ5_1: {
      if (dtype == DType::kQ5_1) block.min = fields.Half();
      const uint8_t* high = fields.Bytes(4);
      ReadNibbles(fields.Bytes(16), 16, block.codes);
      return AddHighBits(high, block.codes);
    }
    case DType::kQ4_K:
      block.min = fields.Half();
      ReadAffineCodes(fields.Bytes(kAffineCodesBytes), block);
      return ReadChunkNibbles(fields.Bytes(128), block.codes);
    case DType::kQ5_K: {
      block.min = fields.Half();
      ReadAffineCodes(fields.Bytes(kAffineCodesBytes), block);
      const uint8_t* high = fields.Bytes(32);
      ReadChunkNibbles(fields.Bytes(128), block.codes);
      // Byte i holds a bit for element i of each of the 8 runs of 32.
      for (int i = 0; i < 256; ++i) {
        block.codes[i] |= static_cast<uint8_t>(((high[i % 32] >> (i / 32)) & 1) << 4);
      }
      return;
    }
    default:
      HW_CHECK(false, "{} has no blocks", NameOf(dtype));
  }
}

}  // namespace headwise
