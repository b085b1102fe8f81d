#include "graphs/pool.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <condition_variable>
#include <iterator>
#include <mutex>
#include <unordered_map>

#include "allocator/core/inspector.h"
#include "allocator/pools/pools.h"
#include "allocator/process/devices.h"
#include "common/error.h"
#include "graphs/routing.h"

namespace staticrt::graphs {
namespace {

using alloc::Addr;

Addr addr(const void* ptr) {
  return reinterpret_cast<Addr>(ptr);
}
void* pointer(Addr address) {
  return reinterpret_cast<void*>(address);
}

alloc::DeviceAllocator& host() {
  static alloc::DeviceAllocator* allocator = alloc::host_device().allocator.get();
  return *allocator;
}

void check(const alloc::Status& status) {
  if (status.ok()) return;
  const std::string& text = status.text().empty() ? status.describe() : status.text();
  if (status.code() == alloc::Code::internal) throw InternalError(text);
  if (status.code() == alloc::Code::invalid_argument || status.code() == alloc::Code::invalid_pointer)
    throw InputError(text);
  C10_THROW_ERROR(OutOfMemoryError, text);
}

struct Block {
  alloc::PoolId pool;
  uint64_t serial = 0;
  int64_t deleters = 0;
  bool live = false;
};

// See Note [Blocks and their owners]. The allocator is never called under the mutex, but by restore(), which
// first waits until no block is between this table and the allocator.
struct Table {
  std::mutex mutex;
  std::condition_variable settled;
  int64_t releasing = 0;
  std::unordered_map<Addr, Block> blocks;
  uint64_t serial = 0;
  uint64_t pools = 0;
};
Table& table() {
  static auto* all = new Table;
  return *all;
}

// The pool is gone: its last blocks take the memory with them.
void leave(alloc::PoolId pool) {
  if (host().pools().refs(pool) == 0 && host().pools().exists(pool)) (void)host().empty_cache(pool).ok();
}

// REQUIRES: `lock` holds the table's mutex and the block has left the table.
alloc::Status release_block(Addr address, std::unique_lock<std::mutex>& lock) {
  ++table().releasing;
  lock.unlock();
  alloc::Status status = host().release(address);
  lock.lock();
  if (--table().releasing == 0) table().settled.notify_all();
  return status;
}

bool owns_block(c10::StorageImpl& storage) {
  const c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  return data.get_deleter() == &CpuPool::delete_block && data.get_context() != nullptr;
}

// The storage keeps the address and loses the block.
void disown(c10::StorageImpl& storage) {
  c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  void* ptr = data.get();
  data.release_context();
  storage.set_data_ptr_noswap(c10::DataPtr(ptr, at::kCPU));
}

void own(c10::StorageImpl& storage, void* ptr) {
  c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  data.release_context();
  storage.set_data_ptr_noswap(c10::DataPtr(ptr, ptr, &CpuPool::delete_block, at::kCPU));
}

}  // namespace

std::shared_ptr<CpuPool> CpuPool::make() {
  install_routing();
  return std::shared_ptr<CpuPool>(new CpuPool);
}

CpuPool::CpuPool()
    : id_([] {
        const std::lock_guard lock(table().mutex);
        return alloc::PoolId{0, ++table().pools};
      }()) {
  check(host().pools().retain(id_));
  check(host().pools().set_captured(id_, true));
}

CpuPool::~CpuPool() {
  (void)host().pools().release(id_).ok();
  leave(id_);
}

void* CpuPool::allocate(size_t nbytes) {
  if (nbytes == 0) return nullptr;
  Addr address = alloc::kNullAddr;
  check(host().allocate({.size = nbytes, .pool = id_}, &address));
  const std::lock_guard lock(table().mutex);
  Block& block = table().blocks[address];  // earlier deleters of this address may still be pending
  block.pool = id_;
  block.serial = ++table().serial;
  block.live = true;
  return pointer(address);
}

void CpuPool::free(void* ptr) {
  if (ptr == nullptr) return;
  std::unique_lock lock(table().mutex);
  const auto at = table().blocks.find(addr(ptr));
  SRT_CHECK(at != table().blocks.end() && at->second.pool == id_ && at->second.live, "free: ", ptr,
            " is not a live block of pool ", id_.key());
  SRT_CHECK(at->second.deleters == 0, "free: the block at ", ptr,
            " is owned by a storage; release the storage instead");
  table().blocks.erase(at);
  check(release_block(addr(ptr), lock));
}

c10::DataPtr CpuPool::take(size_t nbytes) {
  void* ptr = allocate(nbytes);
  if (ptr != nullptr) {
    const std::lock_guard lock(table().mutex);
    ++table().blocks[addr(ptr)].deleters;
  }
  return {ptr, ptr, &CpuPool::delete_block, at::kCPU};
}

void CpuPool::adopt(c10::StorageImpl& storage) {
  if (owns_block(storage)) return;
  void* ptr = address_of(storage);
  {
    const std::lock_guard lock(table().mutex);
    const auto at = table().blocks.find(addr(ptr));
    SRT_CHECK(at != table().blocks.end() && at->second.pool == id_ && at->second.live,
              "adopt: the storage's address ", ptr, " is not a live block of pool ", id_.key());
    SRT_CHECK(storage._mutable_data_ptr_no_checks().get_context() == nullptr, "adopt: the storage at ", ptr,
              " has an owner of its bytes already");
    ++at->second.deleters;
  }
  own(storage, ptr);
}

void CpuPool::delete_block(void* ptr) {
  if (ptr == nullptr) return;
  std::unique_lock lock(table().mutex);
  const auto at = table().blocks.find(addr(ptr));
  if (at == table().blocks.end() || --at->second.deleters > 0) return;
  const Block block = at->second;
  table().blocks.erase(at);
  if (!block.live) return;
  (void)release_block(addr(ptr), lock).ok();
  lock.unlock();
  leave(block.pool);
}

alloc::PoolImage CpuPool::checkpoint() {
  alloc::PoolImage image;
  check(host().pools().capture_image(id_, &image));
  return image;
}

PoolDelta CpuPool::restore(const alloc::PoolImage& image, const std::vector<StorageRef>& alive) {
  SRT_CHECK(image.pool == id_, "restore: the image is of pool ", image.pool.key(), ", not of ", id_.key());
  const std::vector<Addr> target = image.live();
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> storages;
  for (const StorageRef& ref : alive) {
    auto storage = ref.lock();
    if (!storage.defined()) continue;
    const Addr at = addr(address_of(*storage));
    SRT_CHECK(std::binary_search(target.begin(), target.end(), at), "restore: the storage alive at ",
              address_of(*storage), " has no live block in the image of pool ", id_.key(),
              "; re-home or release it first");
    SRT_CHECK(owns_block(*storage) || storage->_mutable_data_ptr_no_checks().get_context() == nullptr,
              "restore: the bytes of the storage alive at ", address_of(*storage), " have another owner");
    if (std::find(storages.begin(), storages.end(), storage) == storages.end())
      storages.push_back(std::move(storage));
  }
  alloc::RestoreResult result;
  std::unique_lock lock(table().mutex);
  table().settled.wait(lock, [] { return table().releasing == 0; });
  check(host().pools().restore_image(image, &result));
  for (const auto& storage : storages) {
    if (!owns_block(*storage)) continue;
    const auto at = table().blocks.find(addr(address_of(*storage)));
    if (at != table().blocks.end()) --at->second.deleters;
    disown(*storage);
  }
  for (const Addr at : result.freed) {
    const auto found = table().blocks.find(at);
    if (found == table().blocks.end()) continue;
    found->second.live = false;
    if (found->second.deleters == 0) table().blocks.erase(found);
  }
  for (const Addr at : result.created) {
    Block& block = table().blocks[at];
    block.pool = id_;
    block.live = true;
    if (block.serial == 0) block.serial = ++table().serial;
  }
  for (const auto& storage : storages) {
    ++table().blocks[addr(address_of(*storage))].deleters;
    own(*storage, address_of(*storage));
  }
  PoolDelta delta;
  std::set_difference(result.freed.begin(), result.freed.end(), result.created.begin(), result.created.end(),
                      std::back_inserter(delta.freed));
  std::set_difference(result.created.begin(), result.created.end(), result.freed.begin(), result.freed.end(),
                      std::back_inserter(delta.created));
  return delta;
}

std::vector<Addr> CpuPool::live() {
  return checkpoint().live();
}

LeakInfo CpuPool::check_live(const std::set<Addr>& expected) {
  LeakInfo info;
  std::set<Addr> seen;
  for (const alloc::ImageSegment& segment : checkpoint().segments) {
    Addr at = segment.base;
    for (const alloc::ImageRun& run : segment.runs) {
      if (run.state == alloc::BlockState::live) {
        seen.insert(at);
        if (!expected.contains(at)) info.unexpected.emplace_back(at, run.requested);
      }
      at += run.size;
    }
  }
  std::set_difference(expected.begin(), expected.end(), seen.begin(), seen.end(),
                      std::back_inserter(info.missing));
  return info;
}

alloc::StatsReport CpuPool::stats() {
  return host().inspector().stats(id_);
}

size_t CpuPool::trim() {
  if (graphs_.load() != 0) return 0;
  alloc::Bytes released = 0;
  check(host().pools().set_captured(id_, false));
  const alloc::Status status = host().empty_cache(id_, &released);
  check(host().pools().set_captured(id_, true));
  check(status);
  return released;
}

uint64_t CpuPool::last_serial() {
  const std::lock_guard lock(table().mutex);
  return table().serial;
}

uint64_t CpuPool::serial_of(const void* ptr) const {
  const std::lock_guard lock(table().mutex);
  const auto at = table().blocks.find(addr(ptr));
  return at == table().blocks.end() || at->second.pool != id_ || !at->second.live ? 0 : at->second.serial;
}

bool CpuPool::may_own(const void* ptr) {
  return host().core().pages.segment_of(addr(ptr)) != 0;
}

}  // namespace staticrt::graphs
