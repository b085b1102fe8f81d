#include "allocator/core/thread_cache.h"

#include <algorithm>
#include <thread>

#include "allocator/core/core.h"

#if defined(__linux__)
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace staticrt::alloc {
namespace {

std::atomic<uint64_t> serials{0};

#if defined(__linux__)
bool barrier(int command) {
  return syscall(__NR_membarrier, command, 0, 0) == 0;
}
bool register_barrier() {
  return barrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
}
void barrier_all_threads() {
  (void)barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
}
#else
bool register_barrier() {
  return false;
}
void barrier_all_threads() {}
#endif

// How many blocks of a class a magazine keeps: kEntries, but no more than about 1 MiB in all.
uint32_t room_of(int index) {
  return static_cast<uint32_t>(std::clamp<Bytes>(kMiB / CacheClass::size(index), 2, Magazine::kEntries));
}

}  // namespace

[[gnu::tls_model("initial-exec")]] constinit thread_local ThreadCaches::Last ThreadCaches::last_;
thread_local ThreadCaches::AtThreadEnd ThreadCaches::at_end_;
constinit thread_local bool ThreadCaches::ended_ = false;

ThreadCache::Line& ThreadCache::no_line() {
  static Line line{StreamId{~uint64_t{0}}, kNoSlot, {}};
  return line;
}

Block& ThreadCache::no_block() {
  static Block block;
  return block;
}

void ThreadCache::take_all(std::vector<Block*>* blocks) {
  for (const auto& line : lines_)
    for (Magazine& magazine : line->magazines) magazine.take_oldest(magazine.count(), blocks);
}

void ThreadCache::come() {
  visitors_.fetch_add(1, std::memory_order_seq_cst);
  if constexpr (!kOwnerFence) barrier_all_threads();
  while (busy_.load(std::memory_order_seq_cst) != 0) std::this_thread::yield();
}

void ThreadCache::visit(std::vector<Block*>* blocks) {
  come();
  take_all(blocks);
  go();
}

ThreadCaches::ThreadCaches(Core& core) : serial_(++serials), core_(&core) {}

bool ThreadCaches::supported() {
  static const bool registered = kOwnerFence || register_barrier();
  return registered;
}

void ThreadCaches::detach() {
  const std::lock_guard lock(mutex_);
  core_ = nullptr;
}

ThreadCaches::AtThreadEnd::~AtThreadEnd() {
  last_ = {};
  ended_ = true;
  for (const Attached& each : caches) each.owner->leave(each.cache);
}

ThreadCache* ThreadCaches::find_mine() {
  if (ended_) return nullptr;
  // Caches of destroyed allocators are not used again.
  std::erase_if(at_end_.caches, [](const Attached& each) {
    const std::lock_guard lock(each.owner->mutex_);
    return each.owner->core_ == nullptr;
  });
  for (const Attached& each : at_end_.caches)
    if (each.owner.get() == this) {
      last_ = {serial_, each.cache.get()};
      return each.cache.get();
    }
  auto fresh = std::make_shared<ThreadCache>();
  at_end_.caches.push_back({shared_from_this(), fresh});
  const std::lock_guard lock(mutex_);
  caches_.push_back(fresh);
  last_ = {serial_, fresh.get()};
  return fresh.get();
}

void ThreadCaches::leave(const std::shared_ptr<ThreadCache>& cache) {
  const std::lock_guard lock(mutex_);
  std::erase(caches_, cache);
  if (core_ == nullptr) return;
  std::vector<Block*> blocks;
  cache->visit(&blocks);
  const std::lock_guard core_lock(core_->mutex);
  for (Block* block : blocks) core_->free_live(*block);
}

void ThreadCaches::pause() {
  mutex_.lock();
  for (const auto& cache : caches_) cache->come();
}

void ThreadCaches::resume() {
  for (const auto& cache : caches_) cache->go();
  mutex_.unlock();
}

Bytes ThreadCaches::flush_all() {
  const std::lock_guard lock(mutex_);
  std::vector<Block*> blocks;
  for (const auto& cache : caches_) cache->visit(&blocks);
  // Ascending addresses, so that the result does not depend on which thread had which block.
  std::sort(blocks.begin(), blocks.end(),
            [](const Block* a, const Block* b) { return a->address < b->address; });
  const std::lock_guard core_lock(core_->mutex);
  Bytes bytes = 0;
  for (Block* block : blocks) {
    bytes += block->size;
    core_->free_live(*block);
  }
  return bytes;
}

bool ThreadCaches::allocate(Bytes size, StreamId stream, Addr* address) {
  ThreadCache* const cache = mine();
  if (cache == nullptr) [[unlikely]]
    return false;
  const int index = CacheClass::of(size);
  {
    const ThreadCache::Owner owner(*cache);
    if (!owner.entered()) [[unlikely]]
      return false;
    if (ThreadCache::Line* line = cache->find(stream); line != nullptr) [[likely]] {
      if (Block* block = line->magazines[index + 1].pop(); block != nullptr) [[likely]] {
        ThreadCache::mark_given(*block, true);
        *address = block->address;
        return true;
      }
    }
  }
  return refill(*cache, index, stream, address);
}

// Takes up to half a magazine of free blocks at once; no growth for it.
bool ThreadCaches::refill(ThreadCache& cache, int index, StreamId stream, Addr* address) {
  Want want;
  want.size = CacheClass::size(index);
  want.requested = want.size;
  want.stream = stream;
  const uint32_t room = room_of(index);
  Block* got[Magazine::kEntries / 2 + 1];
  uint32_t count = 0;
  {
    const Core::Lock lock(*core_);
    want.slot = core_->streams.slot_of(stream);
    if (want.slot == kNoSlot) return false;
    if (core_->streams.has_waiting()) core_->poll_ready();
    Pool& pool = core_->pools[0];
    while (count < room / 2 + 1 && core_->plain) {
      Block* block = core_->carve(pool, want.slot, SizeClass::small, want.size, want.size);
      if (block == nullptr) break;
      block->magazine = static_cast<uint16_t>(index + 1);
      got[count++] = block;
    }
  }
  if (count == 0) {
    if (!core_->allocate(want, address).ok()) return false;
    const Core::Lock lock(*core_);
    Block& block = core_->blocks[core_->pages.block_at(*address)];
    block.magazine = static_cast<uint16_t>(index + 1);
    ThreadCache::mark_given(block, true);
    return true;
  }
  *address = got[0]->address;
  ThreadCache::mark_given(*got[0], true);
  {
    const ThreadCache::Owner owner(cache);
    ThreadCache::Line* line = owner.entered() ? cache.find(stream) : nullptr;
    if (owner.entered() && line == nullptr) line = &cache.add(stream, want.slot);
    if (line != nullptr) {
      Magazine& magazine = line->magazines[index + 1];
      magazine.open(room);
      // Lowest address on top: it is given first.
      while (count > 1 && !magazine.full()) magazine.push(*got[--count]);
    }
  }
  // Not taken if a visitor is in, which takes blocks back, or if a tracker called at the unlock has used this
  // cache.
  if (count > 1) {
    const Core::Lock lock(*core_);
    while (count > 1) core_->free_live(*got[--count]);
  }
  return true;
}

bool ThreadCaches::release(Block& block, Addr address) {
  if (block.magazine == 0 || block.address != address || !ThreadCache::given(block) || block.all_uses != 0)
    return false;
  ThreadCache* const cache = mine();
  if (cache == nullptr) [[unlikely]]
    return false;
  const int index = block.magazine - 1;
  std::vector<Block*> spilled;
  {
    const ThreadCache::Owner owner(*cache);
    if (!owner.entered()) [[unlikely]]
      return false;
    ThreadCache::Line* line = cache->find(block.slot);
    if (line == nullptr) [[unlikely]]
      return false;
    Magazine& magazine = line->magazines[index + 1];
    if (!magazine.opened()) [[unlikely]]
      magazine.open(room_of(index));
    if (magazine.full()) [[unlikely]]
      magazine.take_oldest((magazine.count() + 1) / 2, &spilled);
    ThreadCache::mark_given(block, false);
    magazine.push(block);
  }
  if (!spilled.empty()) [[unlikely]] {
    const Core::Lock lock(*core_);
    for (Block* each : spilled) core_->free_live(*each);
  }
  return true;
}

}  // namespace staticrt::alloc
