#include "simulated/graph_pool.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>

#include "allocator/core/inspector.h"
#include "allocator/pools/pools.h"
#include "common/error.h"
#include "simulated/guard.h"
#include "simulated/torch_allocator.h"

namespace staticrt::simulated {
namespace {

using alloc::Addr;
using alloc::Bytes;
using alloc::StreamId;

using Blocks = std::map<Addr, Bytes>;  // live ones: size asked for

Blocks blocks_of(const alloc::PoolImage& image) {
  Blocks blocks;
  for (const alloc::ImageSegment& segment : image.segments) {
    Addr at = segment.base;
    for (const alloc::ImageRun& run : segment.runs) {
      if (run.state == alloc::BlockState::live) blocks.emplace(at, run.requested);
      at += run.size;
    }
  }
  return blocks;
}

c10::DataPtr& data_of(c10::StorageImpl& storage) {
  return storage._mutable_data_ptr_no_checks();
}
Addr address_of(c10::StorageImpl& storage) {
  return reinterpret_cast<Addr>(data_of(storage).get());
}
bool owns_block(c10::StorageImpl& storage) {
  const c10::DataPtr& data = data_of(storage);
  return data.get_deleter() == torch_allocator().raw_deleter() && data.get_context() != nullptr;
}
// The storage keeps its address, with this deleter or none.
void set_owner(c10::StorageImpl& storage, c10::DeleterFnPtr deleter) {
  void* pointer = data_of(storage).get();
  data_of(storage).release_context();
  storage.set_data_ptr_noswap(deleter ? c10::DataPtr(pointer, pointer, deleter, storage.device())
                                      : c10::DataPtr(pointer, storage.device()));
}

void checked(const alloc::Status& status) {
  if (status.code() == alloc::Code::invalid_argument || status.code() == alloc::Code::invalid_pointer)
    throw InputError(status.text());
  check(status);
}

}  // namespace

GraphPool::GraphPool(int device)
    : device_(device_at(device)), id_([] {
        static std::atomic<uint64_t> made{0};
        return alloc::PoolId{++made, 1};
      }()) {
  alloc::Pools& pools = device_.allocator().pools();
  checked(pools.retain(id_));
  checked(pools.set_captured(id_, true));
  device_.add(this);
}

GraphPool::~GraphPool() {
  device_.remove(this);
  alloc::DeviceAllocator& allocator = device_.allocator();
  try {
    order_streams();
  } catch (const std::exception&) {
    // The device is broken; its next call reports it.
  }
  (void)allocator.pools().release(id_).ok();
  if (allocator.pools().exists(id_)) (void)allocator.empty_cache(id_).ok();
}

void GraphPool::hand_over(StreamId from, StreamId to) {
  std::set<std::pair<int, StreamId>> users;
  const int here = device_.index();
  {
    const std::lock_guard lock(users_mutex_);
    users.swap(users_);
    users_.emplace(here, to);
    streams_.insert(to);
  }
  users.emplace(here, from);
  for (const auto& [device, user] : users)
    if (device != here || user != to) order_after(here, to, device, user);
}

void GraphPool::note_use(int device, StreamId stream) {
  const std::lock_guard lock(users_mutex_);
  users_.emplace(device, stream);
}

void GraphPool::order_streams() {
  std::set<std::pair<int, StreamId>> users;
  std::set<StreamId> streams;
  const int here = device_.index();
  {
    const std::lock_guard lock(users_mutex_);
    users = users_;
    streams = streams_;
  }
  for (const StreamId stream : streams)
    for (const auto& [device, user] : users)
      if (device != here || user != stream) order_after(here, stream, device, user);
}

void GraphPool::begin_route() {
  checked(device_.allocator().pools().begin_route(id_, alloc::Pools::this_thread()));
  ++SimulatedDevice::Buffers::open;
}

void GraphPool::end_route() {
  --SimulatedDevice::Buffers::open;
  alloc::Pools& pools = device_.allocator().pools();
  checked(pools.end_route(id_));
  checked(pools.release(id_));
}

Addr GraphPool::allocate(Bytes size_bytes) {
  if (size_bytes == 0) return alloc::kNullAddr;
  const StreamId stream = current_stream(device_.index());
  Addr address = alloc::kNullAddr;
  checked(device_.allocator().allocate(
      {.size = size_bytes + device_.redzone_bytes(), .stream = stream, .pool = id_}, &address));
  device_.driver().allocated(address, size_bytes, stream, /*reusable=*/true);
  hand_over(stream, stream);
  const std::lock_guard lock(mutex_);
  unowned_.insert(address);
  return address;
}

void GraphPool::free(Addr address) {
  if (address == alloc::kNullAddr) return;
  {
    const std::lock_guard lock(mutex_);
    SRT_CHECK(unowned_.erase(address) > 0, "free: ", reinterpret_cast<void*>(address),
              " is not a live block of pool ", id_.key(),
              ", or is owned by a storage; release the storage instead");
  }
  device_.release(address);
}

void GraphPool::adopt(c10::StorageImpl& storage) {
  void* const pointer = data_of(storage).get();
  SRT_CHECK(blocks_of(checkpoint()).count(address_of(storage)) > 0, "adopt: the storage's address ", pointer,
            " is not a live block of pool ", id_.key());
  if (owns_block(storage)) return;
  const std::lock_guard lock(mutex_);
  SRT_CHECK(data_of(storage).get_context() == nullptr && unowned_.erase(address_of(storage)) > 0,
            "adopt: the bytes of the storage at ", pointer, " have an owner already");
  set_owner(storage, torch_allocator().raw_deleter());
}

// Blocks wait for no other stream once the device has ended its work.
template <class Call>
void GraphPool::at_rest(Call call) {
  alloc::Status status = call();
  if (status.code() == alloc::Code::invalid_argument && device_.driver().device_sync().ok()) status = call();
  checked(status);
}

alloc::PoolImage GraphPool::checkpoint() {
  alloc::PoolImage image;
  at_rest([&] { return device_.allocator().pools().capture_image(id_, &image); });
  return image;
}

std::pair<std::vector<Addr>, std::vector<Addr>> GraphPool::restore(const alloc::PoolImage& image,
                                                                   const std::vector<Storage>& alive) {
  SRT_CHECK(image.pool == id_, "restore: the image is of pool ", image.pool.key(), ", not of ", id_.key());
  const Blocks target = blocks_of(image);
  std::set<c10::StorageImpl*> storages;
  for (const Storage& storage : alive) {
    const Addr address = address_of(*storage);
    void* const pointer = data_of(*storage).get();
    SRT_CHECK(target.count(address) > 0, "restore: the storage alive at ", pointer,
              " has no live block in the image of pool ", id_.key(), "; re-home or release it first");
    SRT_CHECK(owns_block(*storage) || data_of(*storage).get_context() == nullptr,
              "restore: the bytes of the storage alive at ", pointer, " have another owner");
    storages.insert(storage.get());
  }
  const auto releases = device_.hold_releases();
  const std::lock_guard lock(mutex_);
  alloc::PoolImage former;
  at_rest([&] { return device_.allocator().pools().capture_image(id_, &former); });
  alloc::RestoreResult result;
  checked(device_.allocator().pools().restore_image(image, &result));
  const Blocks before = blocks_of(former);
  std::set<Addr> owned;  // by storages that are not named
  for (const auto& [address, size] : before)
    if (unowned_.count(address) == 0) owned.insert(address);
  for (c10::StorageImpl* storage : storages) {
    if (owns_block(*storage)) owned.erase(address_of(*storage));
    set_owner(*storage, torch_allocator().raw_deleter());
  }
  for (const Addr address : owned) device_.forget_owner(address);
  unowned_.clear();
  for (const auto& [address, size] : target) unowned_.insert(address);
  for (c10::StorageImpl* storage : storages) unowned_.erase(address_of(*storage));

  std::pair<std::vector<Addr>, std::vector<Addr>> delta;
  std::vector<alloc::SimPlace> gone;
  std::vector<alloc::SimPlace> there;
  const Bytes redzone = device_.redzone_bytes();
  for (const auto& [address, size] : before) {
    const auto now = target.find(address);
    if (now == target.end()) delta.first.push_back(address);
    if (now == target.end() || now->second != size) gone.push_back({address, size - redzone});
  }
  for (const auto& [address, size] : target) {
    if (before.count(address) == 0) delta.second.push_back(address);
    there.push_back({address, size - redzone});
  }
  device_.driver().restored(gone, there, current_stream(device_.index()));
  return delta;
}

std::vector<std::pair<Addr, Bytes>> GraphPool::live() {
  std::vector<std::pair<Addr, Bytes>> blocks;
  for (const auto& [address, size] : blocks_of(checkpoint()))
    blocks.emplace_back(address, size - device_.redzone_bytes());
  return blocks;
}

alloc::StatsReport GraphPool::stats() {
  return device_.allocator().inspector().stats(id_);
}

Bytes GraphPool::trim() {
  alloc::Pools& pools = device_.allocator().pools();
  if (pools.refs(id_) > 1) return 0;  // a graph has a reference
  order_streams();
  Bytes released = 0;
  checked(pools.set_captured(id_, false));
  const alloc::Status status = device_.allocator().empty_cache(id_, &released);
  checked(pools.set_captured(id_, true));
  checked(status);
  return released;
}

}  // namespace staticrt::simulated
