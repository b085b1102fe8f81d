// Indexes of free blocks of one pool and size class. Two, with one meaning: find a free block of a
// stream that holds `size` bytes.
//
// TlsfIndex (native mode): two-level bitmap over sizes, 32 bins per power of two, O(1). A request gets
//   the best of a bounded look into its own bin, else into the next one that is not empty: at most
//   about 3 % larger than the best fit (Masmano et al., ECRTS 2004).
// OrderedIndex (compat mode): exactly rule B1: by stream, size, address.
//
// Invariant: an index holds exactly the Free blocks of its pool and class (V3).
// Thread safety: none; the core mutex is held.
#pragma once

#include <set>
#include <vector>

#include "allocator/block.h"

namespace staticrt::alloc {

class TlsfIndex {
 public:
  void insert(BlockSlab& blocks, Block& block);
  void remove(BlockSlab& blocks, Block& block);
  // Smallest block found of at least `size`, lowest address among equals; 0 if none is large enough.
  BlockId find(const BlockSlab& blocks, Bytes size) const;
  bool contains(const BlockSlab& blocks, const Block& block) const;
  size_t count() const { return count_; }
  template <class F>
  void for_each(BlockSlab& blocks, F f) const {
    for (const BlockId head : heads_)
      for (BlockId id = head; id != 0; id = blocks[id].free_next) f(blocks[id]);
  }

 private:
  static constexpr int kFineBits = 5;  // 32 bins per power of two
  static constexpr int kFine = 1 << kFineBits;
  static constexpr int kShift = 9;    // sizes are multiples of 512
  static constexpr int kCoarse = 48;  // powers of two of size / 512
  static constexpr int kLook = 24;    // blocks looked at in a bin

  static constexpr int bin_of(Bytes size) {
    const uint64_t units = size >> kShift;
    const int log2 = std::bit_width(units) - 1;
    if (log2 < kFineBits) return static_cast<int>(units);
    const int coarse = log2 - kFineBits + 1;
    return (coarse << kFineBits) + static_cast<int>((units >> (log2 - kFineBits)) & (kFine - 1));
  }
  // Best block of at least `size` among the first kLook of a bin, or 0.
  BlockId best_in(const BlockSlab& blocks, int bin, Bytes size) const;

  uint64_t coarse_ = 0;  // bit c: fine_[c] is not 0
  std::array<uint32_t, kCoarse> fine_{};
  std::array<BlockId, kCoarse * kFine> heads_{};
  size_t count_ = 0;
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
    if (block.slot >= by_slot_.size()) by_slot_.resize(block.slot + size_t{1});
    auto& index = by_slot_[block.slot];
    if (index == nullptr) [[unlikely]]
      index = std::make_unique<TlsfIndex>();
    index->insert(blocks, block);
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
  size_t count() const {
    size_t sum = by_size_.count();
    for (const auto& index : by_slot_) sum += index == nullptr ? 0 : index->count();
    return sum;
  }
  const OrderedIndex& ordered() const { return by_size_; }

 private:
  bool ordered_;
  OrderedIndex by_size_;
  std::vector<std::unique_ptr<TlsfIndex>> by_slot_;
};

}  // namespace staticrt::alloc
