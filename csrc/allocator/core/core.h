// Core: the state of one device's allocator, shared by the files that implement it:
//
//   tiles.cpp      split, merge, take, free: the block lists          (under the core mutex)
//   find.cpp       search of free blocks                              (under the core mutex)
//   fast.cpp       what most requests need of both, in one piece
//   growth.cpp     new segments and pages
//   move.cpp       pages of scattered free blocks, side by side
//   reclaim.cpp    flush, gc, oversize, trim: giving memory back
//   miss.cpp       what happens on a miss, step by step; oom_text.cpp its message
//   thread_cache.h magazines before all that;  fork.cpp  what a child process may do
//   capture.cpp    routes, captures, deferred frees
//   peers.cpp      other devices that use this one's memory
//   restore.cpp    checkpoints;   hibernate.cpp  pages away and back;  stitch.cpp  pages mapped twice
//   inspector.cpp statistics, snapshots;  validate.cpp V1 to V12
//
// Note [Locks]
//   growth_mutex  before  mutex (the core mutex, a leaf). All tables are written under the core mutex.
//   A thread that maps, unmaps or releases memory holds growth_mutex and does it in three steps: plan under
//   the core mutex (blocks become Held, bytes are reserved in the budget), driver calls under growth_mutex
//   only, commit or roll back under the core mutex. So one thread grows at a time: other misses wait for it
//   and search again. Callbacks, observers and context functions run without any lock, so they may call the
//   allocator.
#pragma once

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "allocator/core/budget.h"
#include "allocator/core/config.h"
#include "allocator/core/device_api.h"
#include "allocator/core/lock.h"
#include "allocator/core/page_map.h"
#include "allocator/core/segment.h"
#include "allocator/core/streams.h"
#include "allocator/core/thread_cache.h"
#include "allocator/core/trace.h"
#include "allocator/graphs/capture.h"
#include "allocator/pools/pool.h"

namespace staticrt::alloc {

// A request on its way: rounded, routed, classified.
struct Want {
  Bytes requested = 0;
  Bytes size = 0;  // rounded
  SizeClass size_class = SizeClass::small;
  PoolIndex pool = 0;
  uint64_t pool_serial = 0;
  Slot slot = 0;
  StreamId stream{};
  Addr address = kNullAddr;  // N8: exactly here
  Context context;
};

// Gives memory back; returns whether it did. Runs without locks.
using FreeCallback = std::function<bool()>;
struct OomEvent {
  std::string device;
  Bytes size = 0;
  Bytes limit_or_total = 0;
  Bytes free = 0;
  bool rejected = false;  // N13: refused before the driver was asked
};
using OomObserver = std::function<void(const OomEvent&)>;

class Miss;  // miss.cpp

// What each reclaim step gave; the "tried" line of the message.
struct ReclaimLog {
  std::vector<std::pair<std::string, std::string>> steps;
  void freed(const char* step, Bytes bytes);
  void note(const char* step, std::string what);
};

class Core {
 public:
  Core(Driver& device, std::shared_ptr<const Config> settings);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  // Holds the core mutex; on release hands new trace entries to the trackers, in order, without it.
  class Lock {
   public:
    explicit Lock(Core& core) : core_(core) { core_.mutex.lock(); }
    [[gnu::always_inline]] ~Lock() {
      if (held_) unlock();
    }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
    [[gnu::always_inline]] void unlock() {
      held_ = false;
      if (core_.trace.has_undelivered() && core_.growth_owner != std::this_thread::get_id()) [[unlikely]]
        return core_.deliver_and_unlock();
      core_.mutex.unlock();
    }
    // REQUIRES: nothing was traced.
    [[gnu::always_inline]] void unlock_untraced() {
      held_ = false;
      core_.mutex.unlock();
    }

   private:
    Core& core_;
    bool held_ = true;
  };

  // Holds the growth mutex; entries made meanwhile are delivered after it.
  class Growth {
   public:
    explicit Growth(Core& core) : core_(core) {
      core_.growth_mutex.lock();
      const Lock lock(core_);
      core_.growth_owner = std::this_thread::get_id();
    }
    ~Growth() {
      Lock lock(core_);
      core_.growth_owner = {};
      core_.growth_mutex.unlock();
    }
    Growth(const Growth&) = delete;
    Growth& operator=(const Growth&) = delete;

   private:
    Core& core_;
  };

  // --- tiles.cpp (core mutex held)
  void insert_free(Block& block);
  void remove_free(Block& block);
  void set_state(Block& block, BlockState to) {
    if (!allowed(block.state, to)) [[unlikely]]
      illegal_move(block, to);
    block.state = to;
  }
  void illegal_move(const Block& block, BlockState to);
  // Cuts `block` after `low` bytes; returns the new high part, equal in state, slot and segment.
  // REQUIRES: the block is in no index and starts no live range.
  Block& split(Block& block, Bytes low);
  // Makes what lies in [low, high) of a Free block a Held block of its own; the rest stays Free.
  Block& hold(Block& block, Addr low, Addr high);
  // Joins the next block into `block`. REQUIRES: both in no index.
  void absorb_next(Block& block);
  // Any state with a move to Free: merges with free neighbours (B6) and indexes the result.
  Block& put_free(Block& block);
  bool should_split(const Block& block, const Want& want) const;
  // A block that is Free (in no index) or Held becomes Live; what is too much is freed. Returns its start.
  Addr take(Block& block, const Want& want);
  [[gnu::noinline]] void trace_taken(Block& block, const Want& want);
  [[gnu::noinline]] void trace_freed(const Block& block, const Context& context);
  [[gnu::noinline]] void trace_completed(const Block& block);
  [[gnu::noinline]] void free_on(Block& block);
  void finish_free(Block& block);
  void add_reserved(Segment& segment, Bytes bytes);
  void sub_reserved(Segment& segment, Bytes bytes);
  void count_segment(const Segment& segment, int sign);
  // The block that holds `address`, in any state, or nullptr.
  Block* block_containing(Addr address);

  // --- fast.cpp (core mutex held)
  // A live block from a free one of an expandable segment, or nullptr. Native mode. REQUIRES: plain, and the
  // pool is not special; size is rounded.
  Block* carve(Pool& pool, Slot slot, SizeClass size_class, Bytes size, Bytes requested);
  Block* carve_inline(Pool& pool, Slot slot, SizeClass size_class, Bytes size, Bytes requested);
  // Live block freed by its user: Free, PendingEvent or PendingCapture.
  void free_live(Block& block, const Context* context = nullptr) {
    free_at(block, pages.slot_of(block.address), context);
  }
  // `slot`: the block's place in the page map.
  void free_at(Block& block, std::atomic<BlockId>* slot, const Context* context);
  template <bool traced>
  void free_inline(Block& block, std::atomic<BlockId>* slot, const Context* context);
  // Live bytes of an expandable segment become free, as part of free neighbours (B6).
  void join(Pool& pool, Block& block);
  void join_free(Block& block);

  // --- find.cpp (core mutex held)
  // A free block for `want`, out of its index, or nullptr.
  Block* search(const Want& want);
  Block* search_compat(const Want& want);
  Block* search_constrained(const Want& want);
  // N8: the part of a free block at want.address, or nullptr and nothing changed.
  Block* search_at(const Want& want);

  // --- growth.cpp (growth mutex held, core mutex not)
  // Maps new memory for `want`: a Held block of at least want.size. On failure nothing has changed.
  Status grow(const Want& want, Block** grown);
  Status grow_fixed(const Want& want, Bytes bytes, Block** grown);
  Status grow_provided(const Want& want, Pool& pool, Block** grown);
  Status grow_expandable(const Want& want, Bytes chunk, Block** grown);
  // Reserves budget and asks whether the driver should be tried at all (G3, N13).
  Status admit(Bytes bytes);
  bool uses_expandable(const Pool& pool) const;
  // Takes the core mutex: the table of pools grows under it. A pool stays where it is.
  Pool& pool_of(const Want& want);
  // A segment that one block covers.
  Block& open_segment(const Want& want, SegmentKind kind, Addr base, Bytes size);
  Segment& adopt_fixed(const Want& want, SegmentKind kind, Addr base, Bytes size);
  // Creates and maps pages over [begin, end); on failure none is left.
  Status map_pages(Addr begin, Addr end, Bytes page_size, std::map<Addr, Page>* mapped);
  Status unmap_pages(const std::map<Addr, Page>& mapped);
  // Unmaps pages of a failed growth, whose budget the caller gives back. Those that the driver refuses to
  // unmap are leftovers, with a budget of their own: each later growth, flush or trim tries them again first,
  // so that their addresses and memory do not stay lost.
  void take_back(const std::map<Addr, Page>& mapped);
  // Gives a handle back that the caller no longer counts. One that the driver refuses to take is counted
  // again and given back together with the leftovers. REQUIRES: the core mutex is not held.
  void release_page(const Page& page);
  void unmap_leftovers();
  // A run of free and unmapped blocks of one expandable segment that can serve a request, all Held.
  struct Room {
    SegmentId segment = 0;
    BlockId first = 0;
    std::vector<BlockId> free, unmapped;
    Bytes to_map = 0;
  };
  // Core mutex held. `chunk`: map at least that much if there is room.
  bool find_room(const Want& want, Bytes chunk, Room* room);
  void hold_room(const Want& want, Bytes chunk, const std::vector<BlockId>& run, Room* room);
  void leave_room(const Room& room);
  Status new_expandable(const Want& want);
  Bytes page_bytes(SizeClass size_class) const;   // of one physical handle
  Bytes chunk_bytes(SizeClass size_class) const;  // least that an expandable segment grows by
  // Held block of new or emptied pages: Unmapped, joined with unmapped neighbours (core mutex held).
  Block& put_unmapped(Block& block);

  // --- move.cpp
  struct Move {
    std::vector<BlockId> donors;  // Held; each is its pages and no more
    std::vector<std::pair<Addr, Page>> pages;
    Bytes bytes = 0;
    BlockId target = 0;  // Held, of `bytes`
  };
  std::vector<std::pair<Addr, Page>> pages_inside(const Block& block);  // core mutex held
  bool plan_move(const Want& want, Move* move);                         // core mutex held
  // Growth mutex held, core mutex not. True: a free block for `want` is there.
  bool move_pages(const Want& want);
  void mark_stale(Block& block);  // core mutex held
  void settle_stale();

  // --- reclaim.cpp (growth mutex held, core mutex not). Bytes given back to the driver.
  Bytes flush(std::optional<PoolIndex> only = std::nullopt);
  Bytes collect_garbage();
  Bytes release_oversize(const Want& want);
  // Unmaps or releases free memory of any pool that allows it until `goal` bytes are gone.
  Bytes trim(Bytes goal, std::optional<PoolIndex> except = std::nullopt);
  // Free blocks of stolen bytes go back to their segment's stream, once their own has ended: then they
  // merge, and whole segments and pages can leave.
  void bring_home();
  // Waits for all outstanding events (S8); bytes that became Free.
  Bytes drain();
  // Both take a block that was Free when collected and check that it still is.
  Bytes release_fixed(BlockId id);
  // Unmaps whole pages inside an expandable block from its high end, until `goal` bytes are gone (E4).
  Bytes unmap_free(BlockId id, Bytes goal, bool keep_for_wake = false);
  Bytes release_any(BlockId id, Bytes goal);  // whichever applies
  // Releases the addresses of expandable segments without pages, in the default and Draining pools (G6).
  void drop_empty_segments();
  void drop_dead_pools();
  // What a flush does once a pool has no memory, reference or pin. REQUIRES: no mutex is held.
  void drop_drained();
  // Takes a pin back; the pool goes if nothing else holds it. REQUIRES: no mutex is held.
  void unpin(PoolIndex index);
  bool slot_captured(Slot slot);
  // Ids of free blocks that pass, in order of pool and address (core mutex held).
  template <class F>
  std::vector<BlockId> collect_free(F accept) {
    std::vector<BlockId> found;
    for (const Segment& segment : segments.all())
      for (BlockId at = segment.first; at != 0; at = blocks[at].next)
        if (blocks[at].state == BlockState::free && accept(blocks[at])) found.push_back(at);
    std::sort(found.begin(), found.end(), [&](BlockId a, BlockId b) {
      return std::tie(blocks[a].pool, blocks[a].address) < std::tie(blocks[b].pool, blocks[b].address);
    });
    return found;
  }
  // Whether the block is a whole fixed or provided segment.
  bool whole_segment(const Block& block) const {
    return !(block.flags & kExpandable) && (block.prev | block.next) == 0;
  }

  // --- miss.cpp
  // not_ready: the pool has gone meanwhile.
  Status allocate(Want& want, Addr* address);
  Status too_many_streams(StreamId stream);
  Status hibernated(const Want& want);  // ok unless the pool is
  Status allocate_on_miss(Want& want, Addr* address);
  Status reclaim_steps(Want& want, Addr* address);
  Status reclaim(Miss& miss, const Want& want);
  bool ask_for_memory(const std::vector<FreeCallback>& asked);
  Block* steal(const Want& want);
  Block* overflow(const Want& want, Want* adopted);
  // Core mutex held: returns blocks whose events completed.
  Bytes poll_ready();
  std::string oom_text(const Want& want, const Status& reason, const ReclaimLog& log);

  // --- capture.cpp
  void defer_or_wait(Block& block);
  void wait_for_uses(Block& block);
  void end_deferral();
  void return_settled(StreamId stream);

  // --- hibernate.cpp
  void free_backed(Segment& segment);

  // --- stitch.cpp
  Status stitch(const Want& want, Block** stitched);
  void unstitch(SegmentId id);

  // --- inspector.cpp, validate.cpp
  void read_stats(std::optional<PoolIndex> pool, StatsReport* report);
  Status validate();

  // Whether requests may go through the thread caches now; closing empties them. REQUIRES: the core mutex
  // is not held.
  void update_gate();
  // --- peers.cpp (core mutex not held)
  // Makes mapped bytes accessible to the device and its peers.
  Status grant(Addr begin, Bytes size);
  // All that is mapped, except Stale blocks, in rows of whole mappings. Growth mutex held.
  std::vector<std::pair<Addr, Bytes>> mapped_ranges();

  void deliver_and_unlock();
  // Calls the history's context function; no lock is held.
  Context make_context();
  Bytes allowed_bytes() const;  // limit, or total memory

  const Config& settings() const { return *config.load(std::memory_order_acquire); }

  Driver& driver;
  const DeviceInfo& info;
  // Replaced under both mutexes; a reader without lock may keep using an old one, so all are kept.
  std::atomic<const Config*> config;
  std::vector<std::shared_ptr<const Config>> configs;
  const bool compat;  // the mode, for good
  // Of the settings, under the core mutex: no option rules free blocks out (native mode); B8's bound.
  // Nothing is broken, and no option asks for more.
  bool plain = false;
  bool uncached_process = false;  // G12
  Bytes oversize = 0;
  void read_settings();

  std::mutex growth_mutex;
  FastMutex mutex;
  std::thread::id growth_owner;  // under the core mutex

  BlockSlab blocks;
  SegmentTable segments;
  PageMap pages;
  PoolTable pools;
  Streams streams;
  Budget budget;
  Trace trace;
  Routes routes;
  Captures captures;

  Ledger ledger;
  Counters counters;
  Bytes stale_bytes = 0;                              // of Stale blocks; changes under both mutexes
  std::map<Addr, Page> leftovers;                     // under the growth mutex: take_back
  std::vector<Page> unreleased;                       // release_page; of imported memory with size 0
  Bytes arena_bytes = 0;                              // mapped by plan arenas, part of the budget
  std::set<const std::map<Addr, Page>*> arena_pages;  // theirs
  std::vector<int> peers;                             // devices for which this one's memory is mapped,
  std::vector<int> peers_with_access;                 // and those of them that may use it now

  uint64_t shared_blocks = 0;  // with kShared, or about to be
  std::unordered_map<BlockId, Context> contexts;
  struct Uncached {
    Bytes size = 0;
    StreamId stream{};
  };
  std::map<Addr, Uncached> uncached;         // G12, N14
  std::vector<FreeCallback> callbacks;       // called before growth
  std::vector<FreeCallback> last_callbacks;  // called before a request fails
  std::vector<OomObserver> observers;
  std::string broken;  // first illegal state move; every later call reports it
  bool delivering = false;
  // The serial number of `caches` while requests may go through them, else 0.
  std::atomic<uint64_t> cache_gate{0};
  // Native mode, and requests are served by the default pool without rounding options or contexts.
  std::atomic<bool> easy{false};
  std::shared_ptr<ThreadCaches> caches;
  // Level of the history, if it has a context function.
  std::atomic<ContextLevel> context_level{ContextLevel::never};
};

}  // namespace staticrt::alloc
