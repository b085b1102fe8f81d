#include "allocator/pools/plan_arena.h"

#include "common/error.h"

namespace staticrt::alloc {
namespace {
constexpr Bytes kArenaPage = 20 * kMiB;
}  // namespace

PlanArena::PlanArena(DeviceAllocator& device) : core_(device.core()) {
  const Core::Lock lock(core_);
  core_.arena_pages.insert(&pages_);
}

PlanArena::~PlanArena() {
  release();
  const Core::Growth growth(core_);
  const Core::Lock lock(core_);
  core_.arena_pages.erase(&pages_);
}

void PlanArena::release() {
  if (base_ == kNullAddr && mapped_ == 0) return;
  (void)core_.driver.device_sync().ok();
  const Core::Growth growth(core_);
  const Bytes before = mapped_;
  if (core_.info.virtual_memory) {
    core_.take_back(pages_);
    pages_.clear();
    (void)core_.driver.va_release(base_, max_).ok();
  } else if (mapped_ != 0) {
    (void)core_.driver.segment_free(base_, max_).ok();
  }
  mapped_ = 0;
  core_.budget.give_back(before);
  account(before);
}

void PlanArena::account(Bytes before) {
  const Core::Lock lock(core_);
  core_.arena_bytes += mapped_;
  core_.arena_bytes -= before;
}

Status PlanArena::reserve(Bytes max_bytes) {
  if (max_ != 0) return Status::InvalidArgument("plan arena: addresses are reserved already");
  if (max_bytes == 0) return Status::InvalidArgument("plan arena: max_bytes must be > 0");
  const Bytes size = ceil_to(max_bytes, std::max(core_.info.granule_bytes, kMinBlock));
  if (core_.info.virtual_memory) SRT_TRY(core_.driver.va_reserve(size, kNullAddr, &base_));
  max_ = size;
  return Status::Ok();
}

Status PlanArena::resize(Bytes bytes, StreamId stream) {
  if (bytes > max_)
    return Status::InvalidArgument(
        detail::concat("plan arena: ", bytes, " bytes asked for, addresses reserved for ", max_));
  const Bytes wanted = ceil_to(bytes, std::max(core_.info.granule_bytes, kMinBlock));
  const Core::Growth growth(core_);
  const Bytes before = mapped_;
  Status status;
  if (!core_.info.virtual_memory) {
    if (mapped_ == 0 && bytes != 0) status = grow(max_);
  } else if (wanted > mapped_) {
    status = grow(wanted);
  } else if (wanted < mapped_) {
    status = shrink(wanted, stream);
  }
  account(before);
  if (status.ok()) size_ = bytes;
  return status;
}

Status PlanArena::hibernate(StreamId stream) {
  if (!core_.info.virtual_memory) return Status::Unsupported("plan arena: the device has no virtual memory");
  const Core::Growth growth(core_);
  const Bytes before = mapped_;
  Status status = shrink(0, stream);
  account(before);
  return status;
}

Status PlanArena::grow(Bytes bytes) {
  const RelaxedCapture relaxed(core_.driver);
  const Bytes more = bytes - mapped_;
  Status status;
  for (int attempt = 0; attempt < 2; ++attempt) {
    status = core_.admit(more);
    if (status.ok()) {
      status = core_.info.virtual_memory
                   ? core_.map_pages(base_ + mapped_, base_ + bytes, kArenaPage, &pages_)
                   : core_.driver.segment_alloc(max_, &base_);
      if (!status.ok()) core_.budget.give_back(more);
    }
    if (!status.oom() || attempt == 1) break;
    const Bytes cached = core_.caches->flush_all();
    if (cached + core_.flush() + core_.trim(more) == 0) break;
  }
  if (status.ok()) mapped_ = bytes;
  if (!status.oom()) return status;
  return Status::Oom(detail::concat(core_.info.name, " out of memory: a plan arena needs ", more,
                                    " more bytes; free memory, or lower the batch size"));
}

Status PlanArena::shrink(Bytes bytes, StreamId stream) {
  std::map<Addr, Page> leaving;
  for (auto at = pages_.lower_bound(base_ + bytes); at != pages_.end(); ++at) leaving.insert(*at);
  if (leaving.empty()) return Status::Ok();
  SRT_TRY(core_.driver.stream_sync(stream));
  SRT_TRY(core_.unmap_pages(leaving));
  Bytes gone = 0;
  for (const auto& [at, page] : leaving) {
    pages_.erase(at);
    gone += page.size;
  }
  mapped_ -= gone;
  core_.budget.give_back(gone);
  return Status::Ok();
}

}  // namespace staticrt::alloc
