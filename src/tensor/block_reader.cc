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

// The first half of the elements in low nibbles, the second in high ones.
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

// 256 elements in halves of 128: each byte has two bits for one element of each of a half's four runs of 32.
void ReadCodePairs(const uint8_t* bytes, uint8_t* codes) {
  for (int i = 0; i < 256; ++i) codes[i] = (bytes[32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32))) & 3;
}

void ReadQ2K(Fields fields, BlockCodes& block) {
  const uint8_t* scales = fields.Bytes(16);
  for (int i = 0; i < 16; ++i) {
    block.scales[i] = scales[i] & 0x0F;
    block.mins[i] = scales[i] >> 4;
  }
  ReadCodePairs(fields.Bytes(64), block.codes);
  block.d = fields.Half();
  block.min = fields.Half();
}

// Scales of 6 bits: the low four of the first eight in low nibbles, of the others in high ones, then the upper two.
void ReadQ3K(Fields fields, BlockCodes& block) {
  const uint8_t* high = fields.Bytes(32);
  ReadCodePairs(fields.Bytes(64), block.codes);
  for (int i = 0; i < 256; ++i) block.codes[i] |= static_cast<uint8_t>(((high[i % 32] >> (i / 32)) & 1) << 2);
  const uint8_t* scales = fields.Bytes(12);
  for (int i = 0; i < 16; ++i) {
    const int low = (scales[i % 8] >> (4 * (i / 8))) & 0x0F;
    const int upper = (scales[8 + i % 4] >> (2 * (i / 4))) & 3;
    block.scales[i] = static_cast<uint8_t>((low | (upper << 4)) - 32);
  }
  block.d = fields.Half();
}

void ReadIQ4XS(Fields fields, BlockCodes& block) {
  block.d = fields.Half();
  const uint16_t upper = fields.Half();
  const uint8_t* low = fields.Bytes(4);
  for (int i = 0; i < 8; ++i) {
    const int scale = ((low[i / 2] >> (4 * (i % 2))) & 0x0F) | (((upper >> (2 * i)) & 3) << 4);
    block.scales[i] = static_cast<uint8_t>(scale - 32);
    ReadNibbles(fields.Bytes(16), 16, block.codes + 32 * i);
  }
}

// Five elements to a byte: digits to base 3 of a fraction of 256, which multiplying by 3 brings up one after the other.
// The last 16 elements are four to a byte.
void ReadTQ1(Fields fields, BlockCodes& block) {
  uint8_t* code = block.codes;
  const auto read = [&](int num_bytes, int num_digits) {
    const uint8_t* bytes = fields.Bytes(num_bytes);
    uint8_t power = 1;
    for (int digit = 0; digit < num_digits; ++digit, power = static_cast<uint8_t>(power * 3)) {
      for (int i = 0; i < num_bytes; ++i) {
        *code++ = static_cast<uint8_t>((static_cast<uint8_t>(bytes[i] * power) * 3) >> 8);
      }
    }
  };
  read(32, 5);
  read(16, 5);
  read(4, 4);
  block.d = fields.Half();
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
  switch (dtype) {
    case DType::kQ6_K:
      return ReadQ6K(fields, block);
    case DType::kQ2_K:
      return ReadQ2K(fields, block);
    case DType::kQ3_K:
      return ReadQ3K(fields, block);
    case DType::kIQ4_XS:
      return ReadIQ4XS(fields, block);
    case DType::kTQ1_0:
      return ReadTQ1(fields, block);
    case DType::kTQ2_0:
      ReadCodePairs(fields.Bytes(64), block.codes);
      block.d = fields.Half();
      return;
    case DType::kMXFP4:
      block.exponent = *fields.Bytes(1);
      return ReadNibbles(fields.Bytes(16), 16, block.codes);
    case DType::kF8E4M3:
      std::memcpy(&block.scale, fields.Bytes(4), sizeof(block.scale));
      std::memcpy(block.codes, fields.Bytes(64), 64);
      return;
    case DType::kNF4:
      std::memcpy(&block.scale, fields.Bytes(4), sizeof(block.scale));
      return ReadNibbles(fields.Bytes(32), 32, block.codes);
    default:
      break;
  }
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
    case DType::kU4:
      block.zero = *fields.Bytes(1);
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
