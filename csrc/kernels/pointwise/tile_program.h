// A pointwise computation as steps over tiles: what prepare makes and run interprets.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/pointwise/tile_prims.h"
#include "kernels/registry/prepare.h"

namespace staticrt {

// How to find a value's bytes for a tile that starts at element i: root + offset + i * step.
struct TileValue {
  static constexpr uint32_t kConstant = 0xFFFFFFFFu;  // root: the program's constants
  static constexpr uint32_t kBuffer = 0xFFFFFFFEu;    // root: the tile buffers on the stack
  uint32_t root = kBuffer;                            // else an index into the base table
  int32_t step = 0;                                   // bytes per element
  int64_t offset = 0;                                 // bytes
};

struct TileStep {
  PrimFn fn = nullptr;
  uint16_t dst = 0;
  uint16_t a = 0;
  uint16_t b = 0;
  uint16_t c = 0;
  Imm imm[3] = {};
};

// A strided operand or result that passes through a buffer: gathered before a tile's steps, or scattered
// after them.
struct TileMove {
  uint16_t value = 0;   // TileValue with the tensor's root and offset
  uint16_t buffer = 0;  // TileValue of the buffer
  uint8_t log2_bytes = 0;
  // Elements of the iteration space, at multiples of which what is gathered changes; until then it is the
  // same for each tile. 0: it changes with each tile.
  int64_t repeats = 0;
};

inline constexpr size_t kMaxRepeatedMoves = 8;

inline constexpr int kMaxTileValues = 192;
inline constexpr int64_t kTileBufferBytes = 24 * 1024;
inline constexpr int kMaxTileDims = 8;

struct TileProgram {
  std::vector<TileValue> values;
  std::vector<TileStep> steps;
  std::vector<TileMove> gathers;
  std::vector<TileMove> scatters;
  std::vector<Imm> constants;

  // Iteration space, innermost first, coalesced. In row mode the outer dims are walked row by row and
  // `step`s apply within a row; else every direct value is linear in the whole index.
  int num_dims = 0;
  int64_t sizes[kMaxTileDims] = {};
  int64_t numel = 0;
  bool row_mode = false;
  int64_t tile = 0;                                             // elements
  std::vector<std::array<int64_t, kMaxTileDims>> byte_strides;  // of each value, per dim
  std::vector<uint16_t> moving;                                 // values whose root changes from row to row
  int64_t operations = 1;                                       // float operations that an element takes
  int num_threads = 1;
  std::vector<Reuse> reuses;
};

// What runs it; picks the leanest of three loops.
PreparedCall make_tile_call(std::shared_ptr<TileProgram> program);
// The same over parts of the iteration space.
Epilogue make_tile_epilogue(std::shared_ptr<TileProgram> program);

}  // namespace staticrt
