#include "allocator/free_index.h"

namespace staticrt::alloc {

void TlsfIndex::insert(BlockSlab& blocks, Block& block) {
  const int bin = bin_of(block.size);
  BlockId& head = heads_[bin];
  block.free_prev = 0;
  block.free_next = head;
  if (head != 0) blocks[head].free_prev = block.id;
  head = block.id;
  fine_[bin >> kFineBits] |= 1u << (bin & (kFine - 1));
  coarse_ |= uint64_t{1} << (bin >> kFineBits);
  ++count_;
}

void TlsfIndex::remove(BlockSlab& blocks, Block& block) {
  if (block.free_next != 0) blocks[block.free_next].free_prev = block.free_prev;
  if (block.free_prev != 0) {
    blocks[block.free_prev].free_next = block.free_next;
  } else {
    const int bin = bin_of(block.size);
    heads_[bin] = block.free_next;
    if (block.free_next == 0) {
      uint32_t& fine = fine_[bin >> kFineBits];
      fine &= ~(1u << (bin & (kFine - 1)));
      if (fine == 0) coarse_ &= ~(uint64_t{1} << (bin >> kFineBits));
    }
  }
  --count_;
}

BlockId TlsfIndex::best_in(const BlockSlab& blocks, int bin, Bytes size) const {
  BlockId best = 0;
  Bytes best_size = 0;
  Addr best_address = 0;
  int look = kLook;
  for (BlockId id = heads_[bin]; id != 0 && look > 0; --look) {
    const Block& block = blocks[id];
    if (block.size >= size &&
        (best == 0 || block.size < best_size || (block.size == best_size && block.address < best_address))) {
      best = id;
      best_size = block.size;
      best_address = block.address;
    }
    id = block.free_next;
  }
  return best;
}

BlockId TlsfIndex::find(const BlockSlab& blocks, Bytes size) const {
  const int bin = bin_of(size);
  if (heads_[bin] != 0)
    if (const BlockId best = best_in(blocks, bin, size); best != 0) return best;
  int coarse = bin >> kFineBits;
  const int fine = bin & (kFine - 1);
  uint32_t above = fine == kFine - 1 ? 0 : fine_[coarse] & (~0u << (fine + 1));
  if (above == 0) {
    const uint64_t higher = coarse_ & (~uint64_t{0} << (coarse + 1));
    if (higher == 0) return 0;
    coarse = std::countr_zero(higher);
    above = fine_[coarse];
  }
  return best_in(blocks, (coarse << kFineBits) + std::countr_zero(above), size);
}

bool TlsfIndex::contains(const BlockSlab& blocks, const Block& block) const {
  for (BlockId id = heads_[bin_of(block.size)]; id != 0; id = blocks[id].free_next)
    if (id == block.id) return true;
  return false;
}

}  // namespace staticrt::alloc
