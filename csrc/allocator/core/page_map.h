// PageMap: address -> segment and live block, without a lock.
//
// A radix tree over address >> 21. An entry stands for one mapped 2 MiB page and holds its segment and
// the live blocks that start in it: per 512 bytes in a small segment, per MiB in a large one (blocks
// there are larger than 1 MiB, so no two start in the same MiB).
//
// Thread safety: writers hold the core mutex. Readers need none: a reader was given its address by an
// allocation that happened before, and entries are atomics.
#pragma once

#include <atomic>

#include "allocator/core/block.h"

namespace staticrt::alloc {

class PageMap {
 public:
  PageMap() = default;
  PageMap(const PageMap&) = delete;
  PageMap& operator=(const PageMap&) = delete;
  ~PageMap() {
    for (auto& slot : root_) {
      Leaf* leaf = slot.load(std::memory_order_relaxed);
      if (leaf == nullptr) continue;
      for (Page& page : leaf->pages) delete[] page.small.load(std::memory_order_relaxed);
      std::free(leaf);
    }
  }

  // Enters [begin, end) for `segment`. REQUIRES: multiples of 2 MiB. False: beyond 48 bits, or no memory.
  bool insert(Addr begin, Addr end, SegmentId segment, SizeClass size_class) {
    if (end > kLimit) return false;
    for (Addr at = begin; at < end; at += kPage)
      if (!ensure(at, size_class)) return false;
    for (Addr at = begin; at < end; at += kPage) find(at)->segment.store(segment, std::memory_order_release);
    return true;
  }
  // REQUIRES: no live block starts in [begin, end). Block tables stay, so that a reader with a stale
  // pointer finds 0, not freed memory; the next segment there reuses them, of any class.
  void erase(Addr begin, Addr end) {
    for (Addr at = begin; at < end; at += kPage) find(at)->segment.store(0, std::memory_order_release);
  }

  // Segment whose mapped page holds `address`, or 0.
  SegmentId segment_of(Addr address) const {
    const Page* page = find(address);
    return page == nullptr ? 0 : page->segment.load(std::memory_order_acquire);
  }

  // Active block that starts exactly at `address`, or 0.
  [[gnu::always_inline]] BlockId block_at(Addr address) const {
    const auto* slot = find_slot(address);
    return slot == nullptr ? 0 : slot->load(std::memory_order_relaxed);
  }
  // slot_of for any address; nullptr if no page near it was ever inserted.
  [[gnu::always_inline]] std::atomic<BlockId>* find_slot(Addr address) const {
    Page* page = find(address);
    if (page == nullptr) [[unlikely]]
      return nullptr;
    auto* small = page->small.load(std::memory_order_acquire);
    return small != nullptr ? &small[(address & (kPage - 1)) / kMinBlock] : &page->large[(address >> 20) & 1];
  }
  // Enters or (0) removes the active block that starts at `address`. REQUIRES: its page was inserted.
  [[gnu::always_inline]] void set_block(Addr address, BlockId block) {
    slot_of(address)->store(block, std::memory_order_relaxed);
  }
  // Where the block that starts at `address` is entered. REQUIRES: its page was inserted, now or before.
  [[gnu::always_inline]] std::atomic<BlockId>* slot_of(Addr address) {
    Leaf* leaf = root_[address >> (21 + kLeafBits)].load(std::memory_order_relaxed);
    Page& page = leaf->pages[(address >> 21) & ((1 << kLeafBits) - 1)];
    auto* small = page.small.load(std::memory_order_relaxed);
    return small != nullptr ? &small[(address & (kPage - 1)) / kMinBlock] : &page.large[(address >> 20) & 1];
  }

 private:
  static constexpr Addr kPage = kGranule;
  static constexpr int kLeafBits = 14;
  static constexpr int kRootBits = 13;
  static constexpr Addr kLimit = Addr{1} << (21 + kLeafBits + kRootBits);
  struct Page {
    std::atomic<SegmentId> segment;
    std::atomic<BlockId> large[2];
    std::atomic<std::atomic<BlockId>*> small;
  };
  struct Leaf {
    Page pages[1 << kLeafBits];
  };

  [[gnu::always_inline]] Page* find(Addr address) const {
    if (address >= kLimit) [[unlikely]]
      return nullptr;
    Leaf* leaf = root_[address >> (21 + kLeafBits)].load(std::memory_order_acquire);
    return leaf == nullptr ? nullptr : &leaf->pages[(address >> 21) & ((1 << kLeafBits) - 1)];
  }
  bool ensure(Addr address, SizeClass size_class) {
    auto& slot = root_[address >> (21 + kLeafBits)];
    if (slot.load(std::memory_order_relaxed) == nullptr) {
      // Zero pages of calloc cost nothing until touched; all-zero atomics are null here.
      auto* leaf = static_cast<Leaf*>(std::calloc(1, sizeof(Leaf)));
      if (leaf == nullptr) return false;
      slot.store(leaf, std::memory_order_release);
    }
    Page* page = find(address);
    if (size_class == SizeClass::small && page->small.load(std::memory_order_relaxed) == nullptr)
      page->small.store(new std::atomic<BlockId>[kPage / kMinBlock](), std::memory_order_release);
    return true;
  }

  std::array<std::atomic<Leaf*>, 1 << kRootBits> root_{};
};

}  // namespace staticrt::alloc
