#include "allocator/core/allocator.h"

#include <cstdlib>

#include "allocator/core/inspector.h"
#include "allocator/pools/pools.h"
#include "allocator/sharing/exports.h"
#include "allocator/sharing/imports.h"
#include "common/error.h"

namespace staticrt::alloc {
namespace {

// G12: read once per process.
bool caching_disabled_by_environment() {
  static const bool disabled = std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") != nullptr;
  return disabled;
}

Bytes limit_of(double fraction, Bytes total) {
  return static_cast<Bytes>(fraction * static_cast<double>(total));
}

}  // namespace

Status DeviceAllocator::invalid_pointer(Addr address) {
  char text[96];
  std::snprintf(text, sizeof text, "invalid device pointer 0x%llx: not ours, or already freed",
                static_cast<unsigned long long>(address));
  return Status::InvalidPointer(text);
}

Core::Core(Driver& device, std::shared_ptr<const Config> settings)
    : driver(device),
      info(device.info()),
      config(settings.get()),
      configs{settings},
      compat(settings->compat()),
      streams(device) {
  uncached_process = caching_disabled_by_environment();
  pools.create(kDefaultPool, compat, {}).refs = 1;
  read_settings();
  caches = std::make_shared<ThreadCaches>(*this);
  if (settings->memory_fraction.has_value())
    budget.set_limit(limit_of(*settings->memory_fraction, info.total_bytes));
}

// Returns all mapped bytes and reserved addresses to the driver, those of live blocks too.
Core::~Core() {
  caches->detach();
  (void)driver.device_sync().ok();
  for (Slot slot = 0; slot < streams.count(); ++slot)
    if (streams.is_peers(slot)) (void)wait_for(streams.driver_of(slot), streams.stream_of(slot)).ok();
  unmap_leftovers();
  for (const Segment& segment : segments.all()) {
    if (segment.kind == SegmentKind::provided) {
      pools[segment.pool].options.provider->free(segment.provided_base, segment.provided_size,
                                                 streams.stream_of(segment.slot));
    } else if (segment.kind == SegmentKind::fixed) {
      (void)driver.segment_free(segment.base, segment.size).ok();
    } else if (segment.kind == SegmentKind::stitched) {
      (void)driver.unmap(segment.base, segment.size).ok();
      (void)driver.va_release(segment.base, segment.size).ok();
    } else {
      for (BlockId at = segment.first; at != 0; at = blocks[at].next)
        if (blocks[at].flags & kStale) (void)driver.unmap(blocks[at].address, blocks[at].size).ok();
      (void)unmap_pages(segment.pages).ok();
      (void)driver.va_release(segment.base, segment.size).ok();
    }
  }
  for (const auto& [address, block] : uncached) (void)driver.segment_free(address, block.size).ok();
}

DeviceAllocator::DeviceAllocator(std::shared_ptr<Driver> driver, Config config)
    : driver_(std::move(driver)),
      core_(std::make_unique<Core>(*driver_, std::make_shared<const Config>(std::move(config)))),
      fork_guard_(driver_->survives_fork() ? std::make_unique<ForkGuard>(*core_) : nullptr),
      pools_(std::make_unique<Pools>(*core_)),
      inspector_(std::make_unique<Inspector>(*core_)),
      exports_(std::make_unique<Exports>(*core_, *this)),
      imports_(std::make_unique<Imports>(*core_, *this)) {
  core_->update_gate();
}

DeviceAllocator::~DeviceAllocator() = default;

void Core::read_settings() {
  oversize = settings().max_split_bytes;
  plain = !compat && oversize == std::numeric_limits<Bytes>::max() &&
          settings().expandable_segments.value_or(true) && !settings().record_stream_reuse && broken.empty();
}

void Core::update_gate() {
  const bool supported = ThreadCaches::supported();
  bool open = false;
  bool was_open = false;
  {
    // All under the mutex, so that the later of two concurrent updates sees what the earlier one did.
    const Lock lock(*this);
    const Config& now = settings();
    open = !compat && now.thread_cache && now.caching && !now.rounding.enabled && !routes.any() &&
           !budget.pressed(info.total_bytes) && supported && !uncached_process && !trace.watching() &&
           !captures.any() && shared_blocks == 0;
    easy.store(!compat && now.caching && !now.rounding.enabled && !routes.any() && !uncached_process &&
                   context_level.load(std::memory_order_relaxed) == ContextLevel::never,
               std::memory_order_relaxed);
    was_open = cache_gate.exchange(open ? caches->serial() : 0, std::memory_order_relaxed) != 0;
  }
  if (was_open && !open) {
    caches->flush_all();
    const Lock trackers_see_it(*this);
  }
}

Status DeviceAllocator::allocate(const Request& request, Addr* address) {
  Core& core = *core_;
  // Sizes 1 to kSmallMax.
  const uint64_t gate = core.cache_gate.load(std::memory_order_relaxed);
  if (request.size - 1 < kSmallMax && request.address == kNullAddr && !request.pool) [[likely]] {
    if (ThreadCaches::hit(gate, request.size, request.stream, address)) [[likely]]
      return Status::Ok();
    if (gate != 0) return allocate_cached(request, address);
    return allocate_small(request, address);
  }
  return allocate_large(request, address);
}

// Sizes a thread cache takes.
Status DeviceAllocator::allocate_cached(const Request& request, Addr* address) {
  if (core_->caches->allocate(request.size, request.stream, address)) return Status::Ok();
  return allocate_small(request, address);
}

Status DeviceAllocator::allocate_any(const Request& request, Addr* address) {
  Core& core = *core_;
  if (request.size == 0) {
    *address = kNullAddr;
    return Status::Ok();
  }
  const Config& config = core.settings();
  if (request.size >= kTooLarge) return Status::Oom("Tried to allocate more than 1EB memory");
  if (!config.caching || core.uncached_process) return allocate_uncached(request, address);
  Want want;
  want.requested = request.size;
  want.size = round_request(request.size, config.rounding);
  want.size_class = size_class_of(want.size);
  want.stream = request.stream;
  want.address = request.address;
  if (core.context_level.load(std::memory_order_relaxed) != ContextLevel::never)
    want.context = core.make_context();
  for (;;) {
    if (request.pool) {
      const Core::Lock lock(core);
      const Pool* pool = core.pools.find(*request.pool);
      if (pool == nullptr)
        return Status::InvalidArgument(detail::concat("allocate: there is no pool ", *request.pool));
      want.pool = pool->index;
      want.pool_serial = pool->serial;
    } else if (core.routes.any()) {
      std::tie(want.pool, want.pool_serial) = core.routes.resolve(request.stream);
    } else {
      want.pool = 0;
      want.pool_serial = 0;
    }
    // not_ready: the route or the pool has ended since.
    Status status = core.allocate(want, address);
    if (status.code() != Code::not_ready) return status;
  }
}

Status DeviceAllocator::release(Addr address) {
  const uint64_t gate = core_->cache_gate.load(std::memory_order_relaxed);
  if (ThreadCaches::keep(gate, address)) [[likely]]
    return Status::Ok();
  if (gate != 0) return release_cached(address);
  return release_shared(address);
}

Status DeviceAllocator::release_cached(Addr address) {
  Core& core = *core_;
  const BlockId id = core.pages.block_at(address);
  if (id != 0 && core.caches->release(core.blocks[id], address)) return Status::Ok();
  return release_shared(address);
}

// Null, uncached memory, wrong pointers, and frees whose context is recorded.
Status DeviceAllocator::release_any(Addr address) {
  if (address == kNullAddr) return Status::Ok();
  Core& core = *core_;
  const BlockId id = core.pages.block_at(address);
  if (id == 0) return release_uncached(address);
  const Context context = core.make_context();
  const Core::Lock lock(core);
  Block& block = core.blocks[id];
  if (block.address != address || block.state != BlockState::live) return invalid_pointer(address);
  core.free_live(block, &context);
  return Status::Ok();
}

Status DeviceAllocator::release_exported(Addr address) {
  bool kept = false;
  SRT_TRY(exports_->keep(address, [this, address] { (void)release(address).ok(); }, &kept));
  return kept ? Status::Ok() : release_shared(address);
}

Status DeviceAllocator::record_use(Addr address, StreamId stream, const std::shared_ptr<Driver>& peer) {
  if (address == kNullAddr) return Status::Ok();
  if (peer) SRT_TRY(check_reached(*peer));
  Core& core = *core_;
  const Core::Lock lock(core);
  const BlockId id = core.pages.block_at(address);
  if (id == 0) return Status::Ok();
  Block& block = core.blocks[id];
  const Slot slot =
      peer && peer != driver_ ? core.streams.slot_of_peer(peer, stream) : core.streams.slot_of(stream);
  if (block.state != BlockState::live || slot == block.slot) return Status::Ok();
  if (slot == kNoSlot) return core.too_many_streams(stream);
  // What is captured has not run. Captures of this device have no streams of others.
  core.streams.add_use(block, slot, core.captures.any() && !core.streams.is_peers(slot));
  return Status::Ok();
}

Status DeviceAllocator::empty_cache(std::optional<PoolId> pool, Bytes* released) {
  Core& core = *core_;
  imports_->settle();
  (void)exports_->collect();
  const Core::Growth growth(core);
  std::optional<PoolIndex> only;
  if (pool.has_value()) {
    const Core::Lock lock(core);
    const Pool* found = core.pools.find(*pool);
    if (found == nullptr)
      return Status::InvalidArgument(detail::concat("empty_cache: there is no pool ", *pool));
    only = found->index;
  }
  core.caches->flush_all();
  const Bytes bytes = core.flush(only);
  core.update_gate();
  if (released != nullptr) *released = bytes;
  return Status::Ok();
}

Status DeviceAllocator::configure(const Config& config) {
  Core& core = *core_;
  const Core::Growth growth(core);
  Core::Lock lock(core);
  if (config.compat() != core.compat)
    return Status::InvalidArgument(
        "mode: cannot change once the allocator is in use; set it in PYTORCH_ALLOC_CONF before the first "
        "use");
  core.configs.push_back(std::make_shared<const Config>(config));
  core.config.store(core.configs.back().get(), std::memory_order_release);
  core.read_settings();
  if (config.memory_fraction.has_value())
    core.budget.set_limit(limit_of(*config.memory_fraction, core.info.total_bytes));
  lock.unlock();
  core.update_gate();
  return Status::Ok();
}

Status DeviceAllocator::set_limit(Bytes limit) {
  core_->budget.set_limit(limit);
  core_->update_gate();
  return Status::Ok();
}

Status DeviceAllocator::validate() {
  const Core::Growth growth(*core_);
  const Core::Lock lock(*core_);
  return core_->validate();
}

Status DeviceAllocator::allocate_uncached(const Request& request, Addr* address) {
  Addr given = kNullAddr;
  Status status = driver_->segment_alloc(round_up(request.size, kMinBlock), &given);
  if (!status.ok()) return status;
  const Core::Lock lock(*core_);
  core_->uncached[given] = {round_up(request.size, kMinBlock), request.stream};
  *address = given;
  return status;
}

Status DeviceAllocator::release_uncached(Addr address) {
  Bytes size = 0;
  {
    const Core::Lock lock(*core_);
    const auto at = core_->uncached.find(address);
    if (at == core_->uncached.end()) {
      return invalid_pointer(address);
    }
    size = at->second.size;
    core_->uncached.erase(at);
  }
  return driver_->segment_free(address, size);
}

}  // namespace staticrt::alloc
