// Pool: free blocks that serve the same requests. There is one type; the default pool is number 0.
//
//   Open --refs = 0--> Draining --mapped bytes = 0, no pin--> Dead (record removed)
//
// Note [Pins]
//   A thread that has chosen a pool and lets go of the core mutex (to reclaim memory) pins its record, and
//   so does an open route. Numbers of records are reused: a caller that kept one while it did not hold the
//   mutex also passes the record's serial, and is() tells whether it is still that pool.
//
// Thread safety: none; the core mutex is held. id, key and flags of a live pool never change, except
// where marked.
#pragma once

#include <functional>
#include <memory>
#include <ranges>
#include <unordered_map>
#include <vector>

#include "allocator/core/free_index.h"
#include "allocator/core/stats.h"
#include "allocator/core/types.h"

namespace staticrt::alloc {

enum class PoolState : uint8_t { open, draining };

// Source of a provider pool's segments (N11). alloc returns kNullAddr if it has no memory.
struct Provider {
  std::function<Addr(Bytes size, StreamId stream)> alloc;
  std::function<void(Addr address, Bytes size, StreamId stream)> free;
};

struct PoolOptions {
  bool use_on_oom = false;             // N2: default pool may take free blocks when it cannot grow
  bool no_split = false;               // N3: one block per segment
  std::shared_ptr<Provider> provider;  // N11
};

struct Pool {
  Pool(PoolId pool_id, PoolIndex pool_index, uint64_t pool_serial, bool ordered, PoolOptions pool_options)
      : id(pool_id),
        index(pool_index),
        serial(pool_serial),
        options(std::move(pool_options)),
        special(options.no_split),
        free{FreeIndex(ordered), FreeIndex(ordered)} {}

  const PoolId id;
  const PoolIndex index;
  const uint64_t serial;  // counts all pools there have been; the default pool is 0
  const PoolOptions options;
  uint32_t trace_name = 0;
  int64_t refs = 0;
  int64_t pins = 0;  // Note [Pins]
  PoolState state = PoolState::open;
  bool captured = false;    // a captured graph may touch the memory on replay (changes)
  bool hibernated = false;  // (changes)
  bool special = false;     // (changes) hibernated or no_split: not served by carve()
  std::array<FreeIndex, kSizeClasses> free;
  // Per class. G4: the age of a free block is the searches since its insertion.
  std::array<uint32_t, kSizeClasses> searches{};
  Bytes mapped = 0;
  PoolStats stats;

  void set_hibernated(bool value) {
    hibernated = value;
    special = value || options.no_split;
  }
  FreeIndex& free_of(SizeClass c) { return free[static_cast<size_t>(c)]; }
  const FreeIndex& free_of(SizeClass c) const { return free[static_cast<size_t>(c)]; }
};

class PoolTable {
 public:
  Pool& operator[](PoolIndex index) const { return *pools_[index]; }
  bool exists(PoolIndex index) const { return index < pools_.size() && pools_[index] != nullptr; }
  bool is(PoolIndex index, uint64_t serial) const { return exists(index) && pools_[index]->serial == serial; }
  // The pool of that id, or nullptr.
  Pool* find(PoolId id) const {
    const auto at = by_id_.find(id);
    return at == by_id_.end() ? nullptr : pools_[at->second].get();
  }
  Pool& create(PoolId id, bool ordered, PoolOptions options) {
    auto index = static_cast<PoolIndex>(pools_.size());
    if (recycled_.empty()) {
      pools_.emplace_back();
    } else {
      index = recycled_.back();
      recycled_.pop_back();
    }
    pools_[index] = std::make_unique<Pool>(id, index, serials_++, ordered, std::move(options));
    by_id_.emplace(id, index);
    return *pools_[index];
  }
  void destroy(Pool& pool) {
    by_id_.erase(pool.id);
    recycled_.push_back(pool.index);
    pools_[pool.index].reset();
  }
  // By index. REQUIRES: the loop destroys none.
  auto all() const {
    return pools_ | std::views::filter([](const auto& each) { return each != nullptr; }) |
           std::views::transform([](const auto& each) -> Pool& { return *each; });
  }
  // Indices from 0 up to but excluding end() may exist.
  PoolIndex end() const { return static_cast<PoolIndex>(pools_.size()); }

 private:
  std::vector<std::unique_ptr<Pool>> pools_;
  std::vector<PoolIndex> recycled_;
  uint64_t serials_ = 0;
  std::unordered_map<PoolId, PoolIndex, PoolIdHash> by_id_;
};

}  // namespace staticrt::alloc
