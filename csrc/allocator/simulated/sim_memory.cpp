#include "allocator/simulated/sim_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <iterator>

#include "common/bits.h"
#include "common/error.h"

namespace staticrt::alloc {
namespace {

constexpr Bytes kPageBytes = 4096;
void* at(Addr address) {
  return reinterpret_cast<void*>(address);
}

Status misuse(const std::string& text) {
  return Status::Error("sim: " + text, 1);
}

std::string range_text(Addr address, Bytes size_bytes) {
  return detail::concat("[0x", std::hex, address, ", +0x", size_bytes, ")");
}

}  // namespace

SimMemory::SimMemory(const SimMemoryLimits& limits) : limits_(limits) {
  SRT_CHECK(is_power_of_two(limits_.granule_bytes) && limits_.granule_bytes >= kPageBytes,
            "simulated device: granule is ", limits_.granule_bytes,
            " bytes; give a power of two of at least ", kPageBytes);
  limits_.va_bytes = round_up(limits_.va_bytes, limits_.granule_bytes);
  SRT_CHECK(limits_.va_bytes > 0, "simulated device: it needs address space; give va_bytes > 0");
  base_ = limits_.base;
  if (limits_.backed) {
    file_ = memfd_create("staticrt-sim", MFD_CLOEXEC);
    SRT_CHECK(file_ >= 0, "simulated device: memfd_create: ", std::strerror(errno));
    // One granule more than needed, to align the base wherever the system puts it.
    const Bytes span_bytes = (limits_.kernel_alias ? 2 : 1) * limits_.va_bytes;
    const Bytes reserve_bytes = span_bytes + limits_.granule_bytes;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* got = mmap(at(limits_.base), reserve_bytes, PROT_NONE, flags, -1, 0);
    if (got == MAP_FAILED) {
      const int error = errno;
      close(file_);
      SRT_CHECK(false, "simulated device: cannot reserve ", reserve_bytes,
                " bytes of address space: ", std::strerror(error), "; lower va_bytes or take backed=false");
    }
    const Addr start = reinterpret_cast<Addr>(got);
    base_ = round_up(start, limits_.granule_bytes);
    if (base_ > start) munmap(got, base_ - start);
    const Addr end = base_ + span_bytes;
    if (start + reserve_bytes > end) munmap(at(end), start + reserve_bytes - end);
    if (limits_.kernel_alias) alias_distance_ = limits_.va_bytes;
  }
  free_va_.emplace(base_, limits_.va_bytes);
}

SimMemory::~SimMemory() {
  if (!limits_.backed) return;
  munmap(at(base_), limits_.va_bytes + alias_distance_);
  close(file_);
}

Bytes SimMemory::free_bytes() const {
  const Bytes taken = used_bytes_ + other_bytes_;
  return taken >= limits_.total_bytes ? 0 : limits_.total_bytes - taken;
}

Status SimMemory::reserve(Bytes size_bytes, Addr hint, Addr* address) {
  if (size_bytes == 0 || size_bytes % limits_.granule_bytes != 0)
    return misuse(detail::concat("va_reserve of ", size_bytes, " bytes: not a positive multiple of ",
                                 limits_.granule_bytes));
  auto chosen = free_va_.end();
  Addr start = 0;
  if (hint != kNullAddr && hint % limits_.granule_bytes == 0) {
    auto it = free_va_.upper_bound(hint);
    if (it != free_va_.begin()) {
      --it;
      if (it->second >= size_bytes && hint - it->first <= it->second - size_bytes) {
        chosen = it;
        start = hint;
      }
    }
  }
  for (auto it = free_va_.begin(); chosen == free_va_.end() && it != free_va_.end(); ++it)
    if (it->second >= size_bytes) {
      chosen = it;
      start = it->first;
    }
  if (chosen == free_va_.end())
    return Status::Oom(detail::concat("sim: no address range of ", size_bytes, " bytes is free"));
  const Addr range_start = chosen->first;
  const Addr range_end = range_start + chosen->second;
  free_va_.erase(chosen);
  if (start > range_start) free_va_.emplace(range_start, start - range_start);
  if (start + size_bytes < range_end) free_va_.emplace(start + size_bytes, range_end - start - size_bytes);
  reserved_va_.emplace(start, size_bytes);
  reserved_va_bytes_ += size_bytes;
  *address = start;
  return Status::Ok();
}

Status SimMemory::release(Addr address, Bytes size_bytes) {
  const auto it = reserved_va_.find(address);
  if (it == reserved_va_.end() || it->second != size_bytes)
    return misuse("va_release of " + range_text(address, size_bytes) + ": not a reservation");
  const auto mapped = mappings_.lower_bound(address);
  if (mapped != mappings_.end() && mapped->first < address + size_bytes)
    return misuse("va_release of " + range_text(address, size_bytes) + ": something is still mapped in it");
  reserved_va_.erase(it);
  reserved_va_bytes_ -= size_bytes;
  if (limits_.fresh_addresses) return Status::Ok();
  auto next = free_va_.lower_bound(address);
  if (next != free_va_.end() && next->first == address + size_bytes) {
    size_bytes += next->second;
    next = free_va_.erase(next);
  }
  if (next != free_va_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == address) {
      previous->second += size_bytes;
      return Status::Ok();
    }
  }
  free_va_.emplace(address, size_bytes);
  return Status::Ok();
}

Status SimMemory::make_physical(Bytes size_bytes, PhysicalId* physical) {
  drop_let_go();
  if (size_bytes > free_bytes())
    return Status::Oom(detail::concat("sim: ", size_bytes, " bytes asked, ", free_bytes(), " bytes free"));
  const Bytes file_bytes = round_up(size_bytes, kPageBytes);
  if (limits_.backed && next_offset_ + file_bytes > file_bytes_) {
    const Bytes grown = round_up(next_offset_ + file_bytes, kGiB);
    if (ftruncate(file_, static_cast<off_t>(grown)) != 0)
      return Status::Oom(detail::concat("sim: ftruncate: ", std::strerror(errno)));
    file_bytes_ = grown;
  }
  Physical made;
  made.size_bytes = size_bytes;
  made.offset = next_offset_;
  next_offset_ += file_bytes;
  used_bytes_ += size_bytes;
  *physical = PhysicalId{next_physical_++};
  physicals_.emplace(raw(*physical), made);
  return Status::Ok();
}

Status SimMemory::create(Bytes size_bytes, PhysicalId* physical) {
  if (size_bytes == 0 || size_bytes % limits_.granule_bytes != 0)
    return misuse(detail::concat("physical_create of ", size_bytes, " bytes: not a positive multiple of ",
                                 limits_.granule_bytes));
  if (handle_count_ >= limits_.max_handles)
    return Status::Oom(detail::concat("sim: all ", limits_.max_handles, " handles are in use"));
  SRT_TRY(make_physical(size_bytes, physical));
  ++handle_count_;
  return Status::Ok();
}

void SimMemory::drop_if_unused(PhysicalId id) {
  const auto it = physicals_.find(raw(id));
  if (it == physicals_.end() || it->second.handle || it->second.mappings > 0) return;
  Physical gone = std::move(it->second);
  physicals_.erase(it);
  if (gone.imported) {
    gone.imported->unlock(gone.imported_offset, gone.size_bytes);
    gone.imported.reset();
    std::erase_if(imported_, [](const auto& entry) { return entry.second.expired(); });
    return;
  }
  if (gone.exported && others_have(file_, gone.offset, gone.size_bytes)) {
    held_by_others_.emplace(gone.offset, gone.size_bytes);
    return;
  }
  punch(gone.offset, gone.size_bytes);
}

void SimMemory::punch(uint64_t offset, Bytes size_bytes) {
  if (limits_.backed)
    fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
              static_cast<off_t>(round_up(size_bytes, kPageBytes)));
  used_bytes_ -= size_bytes;
}

Status SimMemory::destroy(PhysicalId id) {
  const auto it = physicals_.find(raw(id));
  if (it == physicals_.end() || !it->second.handle)
    return misuse(detail::concat("physical_release of handle ", raw(id), ": not a handle"));
  it->second.handle = false;
  --handle_count_;
  drop_if_unused(id);
  return Status::Ok();
}

Status SimMemory::check_reserved(Addr address, Bytes size_bytes, const char* what) const {
  auto it = reserved_va_.upper_bound(address);
  if (it != reserved_va_.begin()) {
    --it;
    if (size_bytes <= it->second && address - it->first <= it->second - size_bytes) return Status::Ok();
  }
  return misuse(what + (" of " + range_text(address, size_bytes)) + ": not inside one reservation");
}

Status SimMemory::show(Addr address, const Mapping& mapping) {
  if (!limits_.backed) return Status::Ok();
  const Physical& physical = physicals_.at(raw(mapping.physical));
  void* got = mmap(at(kernel_address(address)), round_up(mapping.size_bytes, kPageBytes),
                   mapping.accessible ? PROT_READ | PROT_WRITE : PROT_NONE, MAP_SHARED | MAP_FIXED,
                   physical.imported ? physical.imported->number() : file_,
                   static_cast<off_t>(physical.imported ? physical.imported_offset : physical.offset));
  if (got == MAP_FAILED) return Status::Oom(detail::concat("sim: mmap: ", std::strerror(errno)));
  return Status::Ok();
}

void SimMemory::hide(Addr address, Bytes size_bytes) {
  if (!limits_.backed) return;
  void* got = mmap(at(kernel_address(address)), round_up(size_bytes, kPageBytes), PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  SRT_INTERNAL(got != MAP_FAILED, "simulated device: cannot hide pages: ", std::strerror(errno));
}

Status SimMemory::map(Addr address, Bytes size_bytes, PhysicalId id) {
  const auto found = physicals_.find(raw(id));
  if (found == physicals_.end() || !found->second.handle)
    return misuse(detail::concat("map of handle ", raw(id), ": not a handle"));
  if (address % limits_.granule_bytes != 0 || size_bytes != found->second.size_bytes)
    return misuse(detail::concat("map of ", size_bytes, " bytes: the handle has ", found->second.size_bytes,
                                 " bytes, and the address must be a multiple of ", limits_.granule_bytes));
  SRT_TRY(check_reserved(address, size_bytes, "map"));
  auto next = mappings_.lower_bound(address);
  const bool over_next = next != mappings_.end() && next->first < address + size_bytes;
  const bool over_previous =
      next != mappings_.begin() && std::prev(next)->first + std::prev(next)->second.size_bytes > address;
  if (over_next || over_previous)
    return misuse("map of " + range_text(address, size_bytes) + ": mapped already");
  const Mapping mapping{size_bytes, id, false};
  SRT_TRY(show(address, mapping));
  mappings_.emplace_hint(next, address, mapping);
  ++found->second.mappings;
  return Status::Ok();
}

Status SimMemory::check_mapped(Addr address, Bytes size_bytes, const char* what) const {
  Addr reached = address;
  auto it = mappings_.find(address);
  for (; it != mappings_.end() && it->first == reached && reached < address + size_bytes; ++it)
    reached += it->second.size_bytes;
  if (reached == address + size_bytes && size_bytes > 0) return Status::Ok();
  return misuse(what + (" of " + range_text(address, size_bytes)) + ": not a row of whole mappings");
}

Status SimMemory::unmap(Addr address, Bytes size_bytes) {
  SRT_TRY(check_mapped(address, size_bytes, "unmap"));
  auto it = mappings_.find(address);
  while (it != mappings_.end() && it->first < address + size_bytes) {
    hide(it->first, it->second.size_bytes);
    --physicals_.at(raw(it->second.physical)).mappings;
    drop_if_unused(it->second.physical);
    it = mappings_.erase(it);
  }
  return Status::Ok();
}

Status SimMemory::set_access(Addr address, Bytes size_bytes, int device) {
  SRT_TRY(check_mapped(address, size_bytes, "set_access"));
  for (auto it = mappings_.find(address); it != mappings_.end() && it->first < address + size_bytes; ++it) {
    if (device != kOwner) {
      it->second.peers.insert(device);
      continue;
    }
    if (limits_.backed && mprotect(at(kernel_address(it->first)), round_up(it->second.size_bytes, kPageBytes),
                                   PROT_READ | PROT_WRITE) != 0)
      return Status::Oom(detail::concat("sim: mprotect: ", std::strerror(errno)));
    it->second.accessible = true;
  }
  return Status::Ok();
}

Status SimMemory::revoke_access(Addr address, Bytes size_bytes, int device) {
  SRT_TRY(check_mapped(address, size_bytes, "revoke_access"));
  for (auto it = mappings_.find(address); it != mappings_.end() && it->first < address + size_bytes; ++it)
    it->second.peers.erase(device);
  return Status::Ok();
}

bool SimMemory::accessible(Addr address, const Mapping& mapping, int device) const {
  if (device == kOwner) return mapping.accessible;
  return (segments_.count(address) > 0 ? peers_ : mapping.peers).count(device) > 0;
}

Status SimMemory::segment_alloc(Bytes size_bytes, Addr* address) {
  if (size_bytes == 0) return misuse("segment_alloc of 0 bytes");
  const Bytes charged = round_up(size_bytes, 512);
  Segment segment{size_bytes, kNoPhysical};
  SRT_TRY(make_physical(charged, &segment.physical));
  Physical& physical = physicals_.at(raw(segment.physical));
  physical.handle = false;
  Addr start = 0;
  const Bytes va_bytes = round_up(charged, limits_.granule_bytes);
  Status status = reserve(va_bytes, kNullAddr, &start);
  const Mapping mapping{charged, segment.physical, true};
  if (status.ok()) {
    status = show(start, mapping);
    if (!status.ok()) (void)release(start, va_bytes).ok();
  }
  if (!status.ok()) {
    drop_if_unused(segment.physical);
    return status;
  }
  physical.mappings = 1;
  mappings_.emplace(start, mapping);
  segments_.emplace(start, segment);
  *address = start;
  return Status::Ok();
}

Status SimMemory::segment_free(Addr address, Bytes size_bytes) {
  const auto it = segments_.find(address);
  if (it == segments_.end() || it->second.size_bytes != size_bytes)
    return misuse("segment_free of " + range_text(address, size_bytes) + ": not a segment");
  const Bytes charged = round_up(size_bytes, 512);
  segments_.erase(it);
  SRT_TRY(unmap(address, charged));
  return release(address, round_up(charged, limits_.granule_bytes));
}

std::vector<SimMemory::Extent> SimMemory::translate(Addr address, Bytes size_bytes, int device) const {
  std::vector<Extent> extents;
  auto it = mappings_.upper_bound(address);
  if (it == mappings_.begin()) return {};
  --it;
  const Addr end = address + size_bytes;
  for (Addr reached = address; reached < end; ++it) {
    if (it == mappings_.end() || it->first > reached || it->first + it->second.size_bytes <= reached)
      return {};
    const Addr stop = std::min(end, it->first + it->second.size_bytes);
    const Physical& physical = physicals_.at(raw(it->second.physical));
    extents.push_back({reached, stop - reached, physical.offset + (reached - it->first),
                       accessible(it->first, it->second, device), it->second.physical});
    reached = stop;
  }
  return extents;
}

bool SimMemory::usable(Addr address, Bytes size_bytes, int device) const {
  const auto extents = translate(address, size_bytes, device);
  for (const Extent& extent : extents)
    if (!extent.accessible) return false;
  return !extents.empty();
}

}  // namespace staticrt::alloc
