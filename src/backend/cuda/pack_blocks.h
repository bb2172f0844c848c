// Rows of block formats into the order that kernels read (block_order.h), on the host.
#ifndef HEADWISE_BACKEND_CUDA_PACK_BLOCKS_H_
#define HEADWISE_BACKEND_CUDA_PACK_BLOCKS_H_

#include <cstddef>
#include <cstdint>

#include "tensor/tensor.h"

namespace headwise::cuda {

// Tile `tile_idx` of rows of a block format, [N, K], to OrderOf(dtype).TileBytes(K) bytes. Outputs beyond N and
// elements beyond K are zeros.
void PackTile(const ConstTensorView& rows, int64_t tile_idx, std::byte* tile);

}  // namespace headwise::cuda

#endif  // HEADWISE_BACKEND_CUDA_PACK_BLOCKS_H_
