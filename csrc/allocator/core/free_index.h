// Indexes of free blocks of one pool and size class. Two, with one meaning: find a free block of a
// stream that holds `size` bytes.
//
// TlsfIndex (native mode): two-level bitmap over sizes, 32 bins per power of two, O(1). A request gets
//   the best of a bounded look into its own bin, else into the next one that is not empty: at most
//   about 3 % larger than the best fit (Masmano et al., ECRTS 2004). One block, what was left of the last
//   one cut, stays out of the bins (as dlmalloc's designated victim): cutting on and giving back costs no
//   bin.
// OrderedIndex (compat mode): exactly rule B1: by stream, size, address.
//
// Invariant: an index holds exactly the Free blocks of its pool and class (V3).
// Thread safety: none; the core mutex is held.
#pragma once

#include <array>
#include <bit>
#include <memory>
#include <set>
#include <vector>

#include "allocator/core/block.h"
#include "common/tuning.h"

namespace staticrt::alloc {

class TlsfIndex {
 public:
  void insert(BlockSlab& blocks, Block& block) { link(blocks, block, bin_of(block.size)); }
  void remove(BlockSlab& blocks, Block& block) {
    if (block.id == victim_) {
      victim_ = 0;
    } else {
      unlink(blocks, block, bin_of(block.size));
    }
  }
  // Gives a block of the index other bounds; unless it stays in its bin, it becomes the victim.
  [[gnu::always_inline]] void resize(BlockSlab& blocks, Block& block, Addr address, Bytes size) {
    const Bytes before = block.size;
    block.address = address;
    block.size = size;
    if (block.id != victim_) leave_bin(blocks, block, before);
  }
  // Smallest block found of at least `size`, lowest address among equals; 0 if none is large enough.
  [[gnu::always_inline]] BlockId find(const BlockSlab& blocks, Bytes size) const {
    const BlockId binned = coarse_ == 0 ? 0 : find_binned(blocks, size);
    if (victim_ == 0) return binned;
    const Block& victim = blocks[victim_];
    if (victim.size < size) return binned;
    if (binned == 0) return victim_;
    const Block& other = blocks[binned];
    return other.size < victim.size || (other.size == victim.size && other.address < victim.address)
               ? binned
               : victim_;
  }
  bool contains(const BlockSlab& blocks, const Block& block) const {
    if (block.id == victim_) return true;
    for (BlockId id = heads_[bin_of(block.size)]; id != 0; id = blocks[id].free_next)
      if (id == block.id) return true;
    return false;
  }
  size_t count(const BlockSlab& blocks) const {
    size_t sum = 0;
    for_each(blocks, [&](const Block&) { ++sum; });
    return sum;
  }
  template <class Blocks, class F>
  void for_each(Blocks& blocks, F f) const {
    if (victim_ != 0) f(blocks[victim_]);
    for (const BlockId head : heads_)
      for (BlockId id = head; id != 0; id = blocks[id].free_next) f(blocks[id]);
  }

 private:
  static constexpr int kFineBits = 5;  // 32 bins per power of two
  static constexpr int kFine = 1 << kFineBits;
  static constexpr int kShift = 9;    // sizes are multiples of 512
  static constexpr int kCoarse = 48;  // powers of two of size / 512

  static constexpr int bin_of(Bytes size) {
    const uint64_t units = size >> kShift;
    const int log2 = std::bit_width(units) - 1;
    if (log2 < kFineBits) return static_cast<int>(units);
    const int coarse = log2 - kFineBits + 1;
    return (coarse << kFineBits) + static_cast<int>((units >> (log2 - kFineBits)) & (kFine - 1));
  }
  void link(BlockSlab& blocks, Block& block, int bin) {
    BlockId& head = heads_[bin];
    block.free_prev = 0;
    block.free_next = head;
    if (head != 0) blocks[head].free_prev = block.id;
    head = block.id;
    fine_[bin >> kFineBits] |= 1u << (bin & (kFine - 1));
    coarse_ |= uint64_t{1} << (bin >> kFineBits);
  }
  void unlink(BlockSlab& blocks, Block& block, int bin) {
    if (block.free_next != 0) blocks[block.free_next].free_prev = block.free_prev;
    if (block.free_prev != 0) {
      blocks[block.free_prev].free_next = block.free_next;
    } else {
      heads_[bin] = block.free_next;
      if (block.free_next == 0) {
        uint32_t& fine = fine_[bin >> kFineBits];
        fine &= ~(1u << (bin & (kFine - 1)));
        if (fine == 0) coarse_ &= ~(uint64_t{1} << (bin >> kFineBits));
      }
    }
  }
  [[gnu::noinline]] void leave_bin(BlockSlab& blocks, Block& block, Bytes before) {
    const int from = bin_of(before);
    if (from == bin_of(block.size)) return;
    unlink(blocks, block, from);
    if (victim_ != 0) link(blocks, blocks[victim_], bin_of(blocks[victim_].size));
    victim_ = block.id;
  }
  [[gnu::noinline]] BlockId find_binned(const BlockSlab& blocks, Bytes size) const {
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
  // Best block of at least `size` among the first kBinLook of a bin, or 0.
  BlockId best_in(const BlockSlab& blocks, int bin, Bytes size) const {
    BlockId best = 0;
    Bytes best_size = 0;
    Addr best_address = 0;
    int look = tuning::kBinLook;
    for (BlockId id = heads_[bin]; id != 0 && look > 0; --look) {
      const Block& block = blocks[id];
      if (block.size >= size && (best == 0 || block.size < best_size ||
                                 (block.size == best_size && block.address < best_address))) {
        best = id;
        best_size = block.size;
        best_address = block.address;
      }
      id = block.free_next;
    }
    return best;
  }

  uint64_t coarse_ = 0;  // bit c: fine_[c] is not 0
  std::array<uint32_t, kCoarse> fine_{};
  std::array<BlockId, kCoarse * kFine> heads_{};
  BlockId victim_ = 0;
};

class OrderedIndex {
 public:
  struct Key {
    Slot slot;
    Bytes size;
    Addr address;
    BlockId id;
    friend constexpr auto operator<=>(const Key&, const Key&) = default;
  };
  void insert(const Block& block) { keys_.insert(key(block)); }
  void remove(const Block& block) { keys_.erase(key(block)); }
  bool contains(const Block& block) const { return keys_.contains(key(block)); }
  size_t count() const { return keys_.size(); }
  // From the first block of `slot` with at least `size`; the caller checks that the slot still is `slot`.
  std::set<Key>::const_iterator from(Slot slot, Bytes size) const {
    return keys_.lower_bound(Key{slot, size, 0, 0});
  }
  std::set<Key>::const_iterator end() const { return keys_.end(); }

 private:
  static Key key(const Block& block) { return {block.slot, block.size, block.address, block.id}; }
  std::set<Key> keys_;
};

// The index of one pool and class in either mode.
class FreeIndex {
 public:
  explicit FreeIndex(bool ordered) : ordered_(ordered) {}
  void insert(BlockSlab& blocks, Block& block) {
    if (ordered_) return by_size_.insert(block);
    of_or_new(block.slot)->insert(blocks, block);
  }
  void remove(BlockSlab& blocks, Block& block) {
    if (ordered_) return by_size_.remove(block);
    by_slot_[block.slot]->remove(blocks, block);
  }
  BlockId find(const BlockSlab& blocks, Slot slot, Bytes size) const {
    if (slot >= by_slot_.size() || by_slot_[slot] == nullptr) [[unlikely]]
      return 0;
    return by_slot_[slot]->find(blocks, size);
  }
  // The index of a stream's blocks, or nullptr. REQUIRES: not ordered.
  TlsfIndex* of(Slot slot) const { return slot < slots_ ? by_slot_.data()[slot].get() : nullptr; }
  // REQUIRES: a block of `slot` was inserted before.
  TlsfIndex& at(Slot slot) const { return *by_slot_.data()[slot]; }
  TlsfIndex* of_or_new(Slot slot) {
    if (TlsfIndex* index = of(slot)) [[likely]]
      return index;
    if (slot >= slots_) by_slot_.resize(slots_ = slot + size_t{1});
    by_slot_[slot] = std::make_unique<TlsfIndex>();
    return by_slot_[slot].get();
  }
  // Calls f for each block of `slot`; f must not change the index. REQUIRES: not ordered.
  template <class F>
  void for_each(BlockSlab& blocks, Slot slot, F f) const {
    if (slot < by_slot_.size() && by_slot_[slot] != nullptr) by_slot_[slot]->for_each(blocks, f);
  }
  bool contains(const BlockSlab& blocks, const Block& block) const {
    if (ordered_) return by_size_.contains(block);
    return block.slot < by_slot_.size() && by_slot_[block.slot] != nullptr &&
           by_slot_[block.slot]->contains(blocks, block);
  }
  size_t count(const BlockSlab& blocks) const {
    size_t sum = by_size_.count();
    for (const auto& index : by_slot_) sum += index == nullptr ? 0 : index->count(blocks);
    return sum;
  }
  const OrderedIndex& ordered() const { return by_size_; }

 private:
  bool ordered_;
  OrderedIndex by_size_;
  size_t slots_ = 0;  // by_slot_.size()
  std::vector<std::unique_ptr<TlsfIndex>> by_slot_;
};

}  // namespace staticrt::alloc
