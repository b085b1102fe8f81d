// How a tile program walks its iteration space: dimensions coalesced and ordered, whether by rows, and what
// each operand's layout is in that order.
#include <algorithm>
#include <numeric>

#include "common/tuning.h"
#include "kernels/pointwise/tile_builder.h"

namespace staticrt {

static Repetition repetition_of(const TileProgram& p, const int64_t* byte_strides) {
  Repetition found{.period = p.sizes[0]};
  int d = 1;
  for (; d < p.num_dims && byte_strides[d] != 0; ++d) found.period *= p.sizes[d];
  if (d == p.num_dims || found.period > tuning::kMaxRepeated) return {};
  found.elements = found.period;
  for (; d < p.num_dims && byte_strides[d] == 0; ++d) found.elements *= p.sizes[d];
  return found;
}

Repetition TileBuilder::repetition(const Move& gather) const {
  if (program_->row_mode) return {};
  return repetition_of(*program_, operands_[values_[gather.value].operand].byte_strides.data());
}

// Whether tiles of several rows have their operands adjacent, in one place, or gathered once for many tiles.
static bool repeats_rows(const TileProgram& p, const std::vector<std::vector<int64_t>>& byte_strides,
                         const std::vector<int64_t>& bytes) {
  if (p.sizes[0] > tuning::kMaxRepeated) return false;
  for (size_t i = 0; i < byte_strides.size(); ++i) {
    const auto& strides = byte_strides[i];
    bool dense = strides[0] == bytes[i];
    for (int d = 1; d < p.num_dims; ++d) dense &= strides[d] == strides[d - 1] * p.sizes[d - 1];
    if (!dense && repetition_of(p, strides.data()).elements < std::min(p.numel, tuning::kMinRepeats))
      return false;
  }
  return true;
}

// The iteration space while it is laid out: sizes, and the byte strides of each operand, innermost first.
struct TileBuilder::Space {
  std::vector<int64_t> sizes;
  std::vector<std::vector<int64_t>> strides;

  // Makes dimension `from` dimension `to`.
  void move(size_t from, size_t to) {
    const auto shift = [&](std::vector<int64_t>& v) {
      std::rotate(v.begin() + static_cast<int64_t>(to), v.begin() + static_cast<int64_t>(from),
                  v.begin() + static_cast<int64_t>(from) + 1);
    };
    shift(sizes);
    for (auto& s : strides) shift(s);
  }
  // Splits dimension 0 into blocks of `size`, which divides it, and the dimension of these blocks.
  void split(int64_t size) {
    sizes.insert(sizes.begin() + 1, sizes[0] / size);
    sizes[0] = size;
    for (auto& s : strides) s.insert(s.begin() + 1, s[0] * size);
  }
};

// Where an operand is transposed, reorders the space so that tiles are blocks of both its memory and the
// output's: otherwise a tile reads one element of each cache line.
bool TileBuilder::block(Space& space) const {
  if (program_->numel < tuning::kMinBlocked || space.sizes[0] < tuning::kMinSide) return false;
  const auto transposed_dim = [&](size_t i) -> size_t {  // 0: there is none
    const auto bytes = static_cast<int64_t>(c10::elementSize(operands_[i].meta.dtype));
    const auto& strides = space.strides[i];
    if (operands_[i].is_output || strides[0] == 0 || strides[0] == bytes) return 0;
    for (size_t d = 1; d < strides.size(); ++d) {
      if (strides[d] == bytes && space.sizes[d] >= tuning::kMinSide) return d;
    }
    return 0;
  };
  size_t dim = 0;
  for (size_t i = 0; i < operands_.size() && dim == 0; ++i) dim = transposed_dim(i);
  if (dim == 0) return false;
  if (space.sizes[0] > tuning::kMaxSide) {
    int64_t side = tuning::kMaxSide;
    while (space.sizes[0] % side != 0) --side;
    if (side < tuning::kMinSide || space.sizes.size() == kMaxTileDims) return false;
    space.split(side);
    ++dim;
  }
  space.move(dim, 1);
  return true;
}

bool TileBuilder::layout(bool keeps_order) {
  const size_t rank = sizes_.size();
  std::vector<std::vector<int64_t>> strides(operands_.size(), std::vector<int64_t>(rank, 0));  // bytes
  for (size_t i = 0; i < operands_.size(); ++i) {
    const Declared& o = operands_[i];
    if (!tile_supports(o.meta.dtype) || o.meta.sizes.size() > rank) return false;
    const auto bytes = static_cast<int64_t>(c10::elementSize(o.meta.dtype));
    const size_t lead = rank - o.meta.sizes.size();
    for (size_t d = lead; d < rank; ++d) {
      if (o.meta.sizes[d - lead] == sizes_[d]) {
        strides[i][d] = sizes_[d] == 1 ? 0 : o.meta.strides[d - lead] * bytes;
      } else if (o.meta.sizes[d - lead] != 1) {
        return false;
      }
    }
  }
  // Innermost first; dims of one element vanish; order by the first output's strides.
  std::vector<size_t> dims;
  for (size_t d = rank; d-- > 0;) {
    if (sizes_[d] != 1) dims.push_back(d);
  }
  const auto output =
      std::find_if(operands_.begin(), operands_.end(), [](const Declared& o) { return o.is_output; });
  if (output != operands_.end()) {
    const auto& key = strides[static_cast<size_t>(output - operands_.begin())];
    std::stable_sort(dims.begin(), dims.end(), [&](size_t x, size_t y) { return key[x] < key[y]; });
  }
  TileProgram& p = *program_;
  p.numel = std::accumulate(sizes_.begin(), sizes_.end(), int64_t{1}, std::multiplies<>());
  Space space{{}, std::vector<std::vector<int64_t>>(operands_.size())};
  auto& [sizes, merged] = space;
  for (const size_t d : dims) {
    bool joins = !sizes.empty();
    for (size_t i = 0; joins && i < operands_.size(); ++i) {
      joins = strides[i][d] == merged[i].back() * sizes.back();
    }
    if (joins) {
      sizes.back() *= sizes_[d];
      continue;
    }
    sizes.push_back(sizes_[d]);
    for (size_t i = 0; i < operands_.size(); ++i) merged[i].push_back(strides[i][d]);
  }
  const bool one_element = sizes.empty();
  if (one_element) sizes.push_back(1);
  if (sizes.size() > kMaxTileDims) return false;
  const bool is_blocked = !keeps_order && sizes.size() > 1 && block(space);
  p.num_dims = static_cast<int>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), p.sizes);
  std::vector<int64_t> element_bytes;
  for (const Declared& o : operands_)
    element_bytes.push_back(static_cast<int64_t>(c10::elementSize(o.meta.dtype)));
  p.row_mode = p.num_dims > 1 && p.sizes[0] >= tuning::kMinTileRow && !is_blocked &&
               !repeats_rows(p, merged, element_bytes);
  p.num_threads = num_threads_;
  for (size_t i = 0; i < operands_.size(); ++i) {
    Declared& o = operands_[i];
    const auto bytes = static_cast<int64_t>(c10::elementSize(o.meta.dtype));
    std::copy(merged[i].begin(), merged[i].end(), o.byte_strides.begin());
    if (one_element) {
      o.byte_strides[0] = bytes;
      continue;  // kDirect
    }
    bool dense = o.byte_strides[0] == bytes;
    bool single = o.byte_strides[0] == 0;
    for (int d = 1; d < p.num_dims && !p.row_mode; ++d) {
      dense &= o.byte_strides[d] == o.byte_strides[d - 1] * p.sizes[d - 1];
      single &= o.byte_strides[d] == 0;
    }
    o.layout = dense ? Layout::kDirect : single ? Layout::kSingle : Layout::kStrided;
  }
  return true;
}

}  // namespace staticrt
