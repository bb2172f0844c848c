// Where the codes of a q8 or q4 page lie. In the order of the operands of decoding's products where there is a kernel
// for the shape: a lane then takes 16 bytes at a time, without bank conflicts, and what it gets is what mma wants. For
// host and device; no std:: code.
//
// r and c of a token or dimension are a lane's places in a product: lane = 4 r + c holds rows r and r + 8 of the first
// operand, and of its columns the quarter c.
//   q8 keys, of 16 tokens [D / 32][lane][16 bytes]:
//       of tokens r and r + 8 the eight dimensions of c of 32, four at a time
//   q8 values, of 32 tokens [D / 16][lane][16 bytes]:
//       of dimensions r and r + 8 of 16 eight tokens, in the order in which their scores leave the registers of the
//       product before: 2 c, 2 c + 16, 2 c + 1, 2 c + 17, and the same 8 further on
//   q4 keys, [P, D] nibbles:
//       as in q8 of every 32 dimensions quarter c has eight, a word; its words of 128 dimensions (D 64: of 64) lie
//       together (D 256: of odd tokens the second 128 come first)
//   q4 values, of 32 tokens [D / 32][lane][4 words]:
//       of dimensions r, r + 8, r + 16 and r + 24 of 32 the eight tokens of c
// Nibbles i and i + 4 of a word are neighbours, of dimensions or of tokens: one and turns them into two 16-bit numbers.
#ifndef HEADWISE_BACKEND_CUDA_KV_CODES_H_
#define HEADWISE_BACKEND_CUDA_KV_CODES_H_

namespace headwise::cuda {

inline constexpr int kGroupDims = 32;      // of a value in q4, which share a scale
inline constexpr int kOperandTokens = 32;  // whose values lie together

constexpr int NumGroups(int dim) {
  return (dim + kGroupDims - 1) / kGroupDims;
}

// Whether codes lie as operands; else row by row, [2 P, D].
constexpr bool HasOperandOrder(int dim, int page_tokens) {
  return (dim == 64 || dim == 128 || dim == 256) && page_tokens % kOperandTokens == 0;
}

// The byte of number d of a row of a q8 page: rows 0 .. P-1 are keys, P .. 2 P - 1 values.
constexpr int Q8Byte(int dim, int page_tokens, int row, int d) {
  if (!HasOperandOrder(dim, page_tokens)) return row * dim + d;
  if (row < page_tokens) {
    const int lane = row % 8 * 4 + d % 32 / 8;
    const int word = d % 8 / 4 * 2 + row % 16 / 8;
    return row / 16 * 16 * dim + d / 32 * 512 + lane * 16 + word * 4 + d % 4;
  }
  const int token = row - page_tokens;
  const int of_tile = token % 16;
  const int lane = d % 8 * 4 + of_tile % 8 / 2;
  const int word = of_tile / 8 * 2 + d % 16 / 8;
  const int byte = of_tile % 2 * 2 + token % kOperandTokens / 16;
  return page_tokens * dim + token / kOperandTokens * kOperandTokens * dim + d / 16 * 512 + lane * 16 + word * 4 + byte;
}

// The nibble of number d of a row of a q4 page, two to a byte, the first in the low half.
constexpr int Q4Nibble(int dim, int page_tokens, int row, int d) {
  if (!HasOperandOrder(dim, page_tokens)) return row * dim + d;
  if (row < page_tokens) {
    const int of_chunk = dim == 64 ? 2 : 4;  // words
    const int word = d / 32;
    const int turned = dim == 256 ? row % 2 * 4 : 0;
    const int chunk = (word / of_chunk * 4 + d % 32 / 8) ^ turned;
    return row * dim + (chunk * of_chunk + word % of_chunk) * 8 + d % 8 / 2 + d % 2 * 4;
  }
  const int token = row - page_tokens;
  const int of_tile = token % 16;
  const int lane = d % 8 * 4 + of_tile % 8 / 2;
  const int nibble = token % kOperandTokens / 16 * 2 + of_tile / 8 + of_tile % 2 * 4;
  const int of_tokens = token / kOperandTokens * kOperandTokens * dim;
  return page_tokens * dim + of_tokens + d / kGroupDims * 1024 + lane * 32 + d % kGroupDims / 8 * 8 + nibble;
}

// Behind the codes of q4, as f16: of keys scale[D], low[D]; of values [P, groups] pairs of scale and low.
constexpr int Q4KeyScale(int d) {
  return d;
}
constexpr int Q4KeyLow(int dim, int d) {
  return dim + d;
}
constexpr int Q4ValuePair(int dim, int token, int d) {
  return 2 * (dim + token * NumGroups(dim) + d / kGroupDims);
}

}  // namespace headwise::cuda

#endif  // HEADWISE_BACKEND_CUDA_KV_CODES_H_
