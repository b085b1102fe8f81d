// Thread cache: small live blocks kept ready per (thread, stream, size class), given and taken back without
// a lock or a statistic.
//
// Blocks in a magazine are Live for the core, as are those given out from it: peaks are exact only with
// the cache off. A block freed by another thread than the one that got it goes to the freeing thread's
// magazine. Full magazines give half back; a thread's end, empty_cache and the reclaim steps give back all.
//
// Note [Owner and visitor]
//   A cache is used by its thread, and emptied now and then by visitors. The owner marks itself busy and
//   checks whether a visitor waits; a visitor sets its flag and waits until the owner is not busy. For that
//   the owner's store must be visible before its load: the visitor enforces it with membarrier(2), so the
//   owner pays for no fence. Where membarrier is missing the cache stays off. Under ThreadSanitizer, which
//   does not model membarrier, the owner uses a sequentially consistent exchange.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "allocator/core/block.h"

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
  static constexpr int compute(Bytes units) {
    if (units <= 4) return static_cast<int>(units) - 1;
    const int log2 = std::bit_width(units - 1) - 1;  // units in (2^log2, 2^(log2+1)]
    const auto step = static_cast<int>((units - 1) >> (log2 - 2)) - 4;
    return 4 + (log2 - 2) * 4 + step;
  }
  // REQUIRES: 0 < size <= kSmallMax.
  static int of(Bytes size);
  static constexpr Bytes size(int index) {
    if (index < 4) return static_cast<Bytes>(index + 1) * kMinBlock;
    const int log2 = (index - 4) / 4 + 2;
    const int step = (index - 4) % 4;
    return ((Bytes{1} << log2) + (static_cast<Bytes>(step + 1) << (log2 - 2))) * kMinBlock;
  }
};
static_assert(CacheClass::size(CacheClass::kCount - 1) == kSmallMax);
static_assert(CacheClass::compute(5) == 4 && CacheClass::size(4) == 2560);

// 1 + the class of each number of 512-byte units.
inline constexpr auto kCacheClasses = [] {
  std::array<uint8_t, kSmallMax / kMinBlock + 1> classes{};
  for (Bytes units = 1; units < classes.size(); ++units)
    classes[units] = static_cast<uint8_t>(CacheClass::compute(units) + 1);
  return classes;
}();
static_assert(kCacheClasses.back() == CacheClass::kCount);
inline int CacheClass::of(Bytes size) {
  return kCacheClasses[(size + kMinBlock - 1) / kMinBlock] - 1;
}

// A stack of blocks. Its bottom is a null entry, so that taking from it needs no count.
class Magazine {
 public:
  static constexpr uint32_t kEntries = 61;  // 512 bytes in all

  Magazine() { slots_[0] = nullptr; }
  Magazine(const Magazine&) = delete;
  Magazine& operator=(const Magazine&) = delete;
  // The entry put last, or nullptr.
  [[gnu::always_inline]] Block* pop() {
    Block* const block = *top_;
    if (block != nullptr) --top_;
    return block;
  }
  [[gnu::always_inline]] bool full() const { return top_ == last_; }
  // REQUIRES: not full.
  [[gnu::always_inline]] void push(Block& block) { *++top_ = &block; }
  // Keeps at most `entries`; 0 until first use.
  bool opened() const { return last_ != slots_; }
  void open(uint32_t entries) { last_ = slots_ + entries; }
  size_t count() const { return static_cast<size_t>(top_ - slots_); }
  // Moves the oldest `entries` to `blocks`.
  void take_oldest(size_t entries, std::vector<Block*>* blocks) {
    Block** const first = slots_ + 1;
    blocks->insert(blocks->end(), first, first + entries);
    std::copy(first + entries, top_ + 1, first);
    top_ -= entries;
  }

 private:
  Block** top_ = slots_;   // the last entry, or the bottom
  Block** last_ = slots_;  // where a full magazine's last entry is
  Block* slots_[1 + kEntries];
};
static_assert(sizeof(Magazine) == 512);

class ThreadCache {
 public:
  struct Line {
    StreamId stream{};
    Slot slot = 0;
    Magazine magazines[CacheClass::kCount + 1];  // by class + 1, as Block::magazine
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

  // The line used last, or nullptr.
  Line* last() const { return last_; }
  // The line of a stream's slot, or nullptr.
  Line* find(StreamId stream) {
    if (last_->stream == stream && last_ != &no_line()) [[likely]]
      return last_;
    for (const auto& line : lines_)
      if (line->stream == stream) return last_ = line.get();
    return nullptr;
  }
  Line* find(Slot slot) {
    if (last_->slot == slot && last_ != &no_line()) [[likely]]
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
  // The block given out last with this address, or another one.
  Block*& hint(Addr address) { return hints_[(address / kMinBlock) % kHints]; }
  // Into the magazine of the line used last, if it fits there. REQUIRES: it starts at the address being
  // freed.
  [[gnu::always_inline]] bool put(Block& block) {
    if (!given(block) || block.all_uses != 0) [[unlikely]]
      return false;
    const Owner owner(*this);
    Line* line = last_;
    if (!owner.entered() || line->slot != block.slot) [[unlikely]]
      return false;
    Magazine& magazine = line->magazines[block.magazine];
    if (magazine.full()) [[unlikely]]
      return false;
    mark_given(block, false);
    magazine.push(block);
    return true;
  }
  // Moves every entry to `blocks`. REQUIRES: called by the owner inside Owner, or by a visitor.
  void take_all(std::vector<Block*>* blocks);
  // A visit: waits for the owner to leave, empties the cache.
  void visit(std::vector<Block*>* blocks);
  // A visitor comes, waiting for the owner to leave; and goes.
  void come();
  void go() { visitors_.fetch_sub(1, std::memory_order_release); }

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
  static constexpr size_t kHints = 64;
  static Line& no_line();    // of no stream
  static Block& no_block();  // at no address

  Line* last_ = &no_line();
  std::vector<std::unique_ptr<Line>> lines_;
  // By address. A hint may be old: a Block stays readable, and its address and mark say whether it is the
  // one.
  std::array<Block*, kHints> hints_ = filled(&no_block());
  static std::array<Block*, kHints> filled(Block* block) {
    std::array<Block*, kHints> all{};
    all.fill(block);
    return all;
  }
};

// All thread caches of one allocator. Shared with the threads, which may end later than it.
class ThreadCaches : public std::enable_shared_from_this<ThreadCaches> {
 public:
  explicit ThreadCaches(Core& core);
  // False where membarrier is missing.
  static bool supported();
  // No thread reaches the core from now on; entries are dropped, and the core frees their memory.
  void detach();

  // The calling thread's cache, made if new; nullptr once the thread's caches have ended.
  ThreadCache* mine() {
    if (last_.owner == serial_) [[likely]]
      return last_.cache;
    return find_mine();
  }
  // Empties all caches; bytes given back. REQUIRES: the core mutex is not held. Trackers see the frees when
  // the core mutex is released next: never under mutex_, since they may call the allocator.
  Bytes flush_all();

  // Until resume(), which the same thread calls, no thread is inside its cache.
  void pause();
  void resume();

  uint64_t serial() const { return serial_; }
  // A block of the calling thread's magazine, without a lock; false if it has none, or if the thread last
  // used other caches than those whose serial `gate` shows (0: none). REQUIRES: size > 0, <= kSmallMax.
  [[gnu::always_inline]] static bool hit(uint64_t gate, Bytes size, StreamId stream, Addr* address) {
    if (last_.owner != gate) [[unlikely]]
      return false;
    ThreadCache& cache = *last_.cache;
    const ThreadCache::Owner owner(cache);
    ThreadCache::Line* line = cache.last();
    if (!owner.entered() || line->stream != stream) [[unlikely]]
      return false;
    Block* block = line->magazines[kCacheClasses[(size + kMinBlock - 1) / kMinBlock]].pop();
    if (block == nullptr) [[unlikely]]
      return false;
    ThreadCache::mark_given(*block, true);
    const Addr given = block->address;
    cache.hint(given) = block;
    *address = given;
    return true;
  }
  // Puts a block given out by a thread cache into the calling thread's magazine, without a lock; false if
  // that takes more.
  [[gnu::always_inline]] static bool keep(uint64_t gate, Addr address) {
    if (last_.owner != gate) [[unlikely]]
      return false;
    ThreadCache& cache = *last_.cache;
    Block& block = *cache.hint(address);
    if (block.address != address) [[unlikely]]
      return false;
    return cache.put(block);
  }
  // The cases that hit and keep do not handle: other lines and threads, empty and full magazines. false: use
  // the core.
  bool allocate(Bytes size, StreamId stream, Addr* address);
  bool release(Block& block, Addr address);

 private:
  static constexpr uint64_t kNobody = ~uint64_t{0};
  struct Last {
    uint64_t owner = kNobody;
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
  ThreadCache* find_mine();
  bool refill(ThreadCache& cache, int index, StreamId stream, Addr* address);
  void leave(const std::shared_ptr<ThreadCache>& cache);

  // initial-exec: one load, also in a shared library.
  [[gnu::tls_model("initial-exec")]] static constinit thread_local Last last_;
  static thread_local AtThreadEnd at_end_;
  // at_end_ is destroyed. Other thread-locals, older than it, may still free what they hold.
  static constinit thread_local bool ended_;
  const uint64_t serial_;
  std::mutex mutex_;  // before the core mutex
  Core* core_;        // null after detach
  std::vector<std::shared_ptr<ThreadCache>> caches_;
};

}  // namespace staticrt::alloc
