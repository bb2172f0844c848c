// How the slices of K of all tiles of a product are dealt to blocks: in one row, tile after tile, of which each block
// takes a run as long as any other's, but for one. It follows from the matrix and the number of blocks alone, so that
// the bits of a row do not depend on those beside it. For host and device; no std:: code.
#ifndef HEADWISE_BACKEND_CUDA_SLICE_RUNS_H_
#define HEADWISE_BACKEND_CUDA_SLICE_RUNS_H_

#include <cstdint>

namespace headwise::cuda {

struct SliceRuns {
  int num_tiles;
  int slices_of_tile;
  int num_blocks;  // at most as many as slices

  constexpr int64_t num_slices() const { return static_cast<int64_t>(num_tiles) * slices_of_tile; }
  // A block's run is [Begin(block), Begin(block + 1)).
  constexpr int64_t Begin(int block) const { return block * num_slices() / num_blocks; }
  constexpr int BlockOf(int64_t slice) const { return static_cast<int>(((slice + 1) * num_blocks - 1) / num_slices()); }
  constexpr int FirstBlockOf(int tile) const { return BlockOf(static_cast<int64_t>(tile) * slices_of_tile); }
  constexpr int LastBlockOf(int tile) const { return BlockOf(static_cast<int64_t>(tile + 1) * slices_of_tile - 1); }
  // Where a block leaves what it has of a tile that others have slices of too: it has at most two such, those that its
  // run begins and ends in.
  constexpr int PlaceOf(int block, int tile) const {
    return 2 * block + (Begin(block) / slices_of_tile == tile ? 0 : 1);
  }
};

// Blocks that have slices of one tile, at most, where runs are of `length` slices: tiles begin anywhere in a run that
// both lengths have in common.
constexpr int MostBlocksOfTile(int slices_of_tile, int length) {
  int common = length;
  for (int rest = slices_of_tile % length; rest > 0;) {
    const int next = common % rest;
    common = rest;
    rest = next;
  }
  return (length - common + slices_of_tile + length - 1) / length;
}
// How many blocks of at most `most`: runs are at most a twenty-fifth longer than with all of them, and of any one tile
// as few blocks have slices as can be.
constexpr int BlocksFor(const SliceRuns& runs, int most) {
  const auto shortest = static_cast<int>((runs.num_slices() + most - 1) / most);
  int best = shortest;
  for (int length = shortest; length <= shortest + shortest / 25; ++length) {
    if (MostBlocksOfTile(runs.slices_of_tile, length) < MostBlocksOfTile(runs.slices_of_tile, best)) best = length;
  }
  return static_cast<int>((runs.num_slices() + best - 1) / best);
}

}  // namespace headwise::cuda

#endif  // HEADWISE_BACKEND_CUDA_SLICE_RUNS_H_
