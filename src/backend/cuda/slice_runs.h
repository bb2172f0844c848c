// How the slices of K of all tiles of a product are dealt to blocks: in one row, tile after tile, of which each block
// takes a run as long as any other's, but for the last one's. It follows from the matrix and the number of
// multiprocessors alone, so that the bits of a row do not depend on those beside it. For host and device; no std::
// code.
#ifndef HEADWISE_BACKEND_CUDA_SLICE_RUNS_H_
#define HEADWISE_BACKEND_CUDA_SLICE_RUNS_H_

namespace headwise::cuda {

struct SliceRuns {
  int num_tiles;
  int slices_of_tile;
  int length;  // of a run, but for the last one's

  constexpr int num_slices() const { return num_tiles * slices_of_tile; }
  constexpr int num_blocks() const { return (num_slices() + length - 1) / length; }
  // A block's run is [Begin(block), Begin(block + 1)).
  constexpr int Begin(int block) const {
    const int begin = block * length;
    return begin < num_slices() ? begin : num_slices();
  }
  constexpr int BlockOf(int slice) const { return slice / length; }
  constexpr int FirstBlockOf(int tile) const { return BlockOf(tile * slices_of_tile); }
  constexpr int LastBlockOf(int tile) const { return BlockOf((tile + 1) * slices_of_tile - 1); }
  // Where a block leaves what it has of a tile that others have slices of too: it has at most two such, those that its
  // run begins and ends in. Requires: the block has slices of the tile.
  constexpr int PlaceOf(int block, int tile) const {
    return 2 * block + (Begin(block) >= tile * slices_of_tile ? 0 : 1);
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
// For at most `most` blocks: runs are at most a twenty-fifth longer than with all of them, and of those the ones with
// the fewest blocks for any one tile. Requires: some slices, fewer than 2^30.
constexpr SliceRuns RunsFor(int num_tiles, int slices_of_tile, int most) {
  SliceRuns runs{num_tiles, slices_of_tile, 0};
  const int shortest = (runs.num_slices() + most - 1) / most;
  runs.length = shortest;
  for (int length = shortest; length <= shortest + shortest / 25; ++length) {
    if (MostBlocksOfTile(slices_of_tile, length) < MostBlocksOfTile(slices_of_tile, runs.length)) runs.length = length;
  }
  return runs;
}

}  // namespace headwise::cuda

#endif  // HEADWISE_BACKEND_CUDA_SLICE_RUNS_H_
