// Thread cache: small live blocks kept ready per (thread, stream, size class), given and taken back without
// a lock or a statistic.
//
// Blocks in a magazine are Live for the core, as are those given out from it: peaks are exact only with
// the cache off. A block freed by another thread than the one that got it goes to the freeing thread's
// magazine. Full magazines give half back; a thread's end, empty_cache and the reclaim ladder give back all.
//
// Note [Owner and visitor]
//   A cache is used by its thread, and emptied now and then by visitors. The owner marks itself busy and
//   looks whether a visitor wants in; a visitor says so and waits until the owner is not busy. For that the
//   owner's store must be visible before its load: the visitor enforces it with membarrier(2), so the
//   owner pays for no fence. Where membarrier is missing the cache stays off. Under ThreadSanitizer, which
//   does not know membarrier, the owner uses a sequentially consistent exchange.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "allocator/block.h"

namespace staticrt::alloc {

class Core;

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kOwnerFence = true;
#else
inline constexpr bool kOwnerFence = false;
#endif

// Four classes per doubling from 512 B to 1 MiB, multiples of 512.
struct CacheClass {
  static constexpr int kCount = 40;
  static constexpr int of(Bytes size) {
    const Bytes units = (size + kMinBlock - 1) / kMinBlock;
    if (units <= 4) return static_cast<int>(units) - 1;
    const int log2 = std::bit_width(units - 1) - 1;  // units in (2^log2, 2^(log2+1)]
    const auto step = static_cast<int>((units - 1) >> (log2 - 2)) - 4;
    return 4 + (log2 - 2) * 4 + step;
  }
  static constexpr Bytes size(int index) {
    if (index < 4) return static_cast<Bytes>(index + 1) * kMinBlock;
    const int log2 = (index - 4) / 4 + 2;
    const int step = (index - 4) % 4;
    return ((Bytes{1} << log2) + (static_cast<Bytes>(step + 1) << (log2 - 2))) * kMinBlock;
  }
};
static_assert(CacheClass::of(kSmallMax) == CacheClass::kCount - 1);
static_assert(CacheClass::size(CacheClass::kCount - 1) == kSmallMax);
static_assert(CacheClass::of(2049) == 4 && CacheClass::size(4) == 2560 && CacheClass::of(2560) == 4);

struct Magazine {
  static constexpr uint32_t kEntries = 64;
  uint32_t count = 0;
  uint32_t room = 0;  // 0 until first use; large classes keep fewer entries
  Block* entries[kEntries];
};

class ThreadCache {
 public:
  struct Line {
    StreamId stream{};
    Slot slot = 0;
    Magazine magazines[CacheClass::kCount];
  };

  // The owner's scope. If !entered(), a visitor is in: take the path without cache.
  class Owner {
   public:
    explicit Owner(ThreadCache& cache) : cache_(cache) {
      if constexpr (kOwnerFence) {
        cache_.busy_.exchange(1, std::memory_order_seq_cst);
      } else {
        cache_.busy_.store(1, std::memory_order_relaxed);
        std::atomic_signal_fence(std::memory_order_seq_cst);
      }
      entered_ =
          cache_.visitors_.load(kOwnerFence ? std::memory_order_seq_cst : std::memory_order_acquire) == 0;
    }
    ~Owner() { cache_.busy_.store(0, std::memory_order_release); }
    Owner(const Owner&) = delete;
    Owner& operator=(const Owner&) = delete;
    bool entered() const { return entered_; }

   private:
    ThreadCache& cache_;
    bool entered_;
  };

  // The line of a stream (slot), or nullptr.
  Line* find(StreamId stream) {
    if (last_ != nullptr && last_->stream == stream) [[likely]]
      return last_;
    for (const auto& line : lines_)
      if (line->stream == stream) return last_ = line.get();
    return nullptr;
  }
  Line* find(Slot slot) {
    if (last_ != nullptr && last_->slot == slot) [[likely]]
      return last_;
    for (const auto& line : lines_)
      if (line->slot == slot) return last_ = line.get();
    return nullptr;
  }
  Line& add(StreamId stream, Slot slot) {
    lines_.push_back(std::make_unique<Line>());
    lines_.back()->stream = stream;
    lines_.back()->slot = slot;
    return *lines_.back();
  }
  // Moves every entry to `blocks`. REQUIRES: called by the owner inside Owner, or by a visitor.
  void take_all(std::vector<Block*>* blocks);
  // A visit: waits for the owner to leave, empties the cache.
  void visit(std::vector<Block*>* blocks);

  // Whether a cached block is given out; a second free finds it is not. Uses a field that Live blocks do
  // not need otherwise.
  static void mark_given(Block& block, bool given) {
    std::atomic_ref<uint32_t>(block.pending).store(given ? 1 : 0, std::memory_order_relaxed);
  }
  static bool given(Block& block) {
    return std::atomic_ref<uint32_t>(block.pending).load(std::memory_order_relaxed) == 1;
  }

 private:
  std::atomic<uint32_t> busy_{0};
  std::atomic<uint32_t> visitors_{0};
  Line* last_ = nullptr;
  std::vector<std::unique_ptr<Line>> lines_;
};

// All thread caches of one allocator. Shared with the threads, which may end later than it.
class ThreadCaches : public std::enable_shared_from_this<ThreadCaches> {
 public:
  explicit ThreadCaches(Core& core);
  // False where membarrier is missing.
  static bool supported();
  // No thread reaches the core from here on; entries are dropped, the core frees their memory itself.
  void detach();

  // The calling thread's cache, made if new.
  ThreadCache& mine() {
    if (last_.owner == serial_) [[likely]]
      return *last_.cache;
    return find_mine();
  }
  // Empties all caches; bytes given back. REQUIRES: the core mutex is not held.
  Bytes flush_all();

  // Fast paths: false means: go the long way.
  bool allocate(Bytes size, StreamId stream, Addr* address);
  // Sets *invalid if the block lies in a magazine: freed twice.
  bool release(Addr address, bool* invalid);

 private:
  struct Last {
    uint64_t owner = 0;
    ThreadCache* cache = nullptr;
  };
  struct Attached {
    std::shared_ptr<ThreadCaches> owner;
    std::shared_ptr<ThreadCache> cache;
  };
  struct AtThreadEnd {
    std::vector<Attached> caches;
    ~AtThreadEnd();
  };
  ThreadCache& find_mine();
  bool refill(ThreadCache& cache, int index, StreamId stream, Addr* address);
  void leave(const std::shared_ptr<ThreadCache>& cache);

  static thread_local Last last_;
  static thread_local AtThreadEnd at_end_;
  const uint64_t serial_;
  std::mutex mutex_;  // before the core mutex
  Core* core_;        // null after detach
  std::vector<std::shared_ptr<ThreadCache>> caches_;
};

}  // namespace staticrt::alloc
