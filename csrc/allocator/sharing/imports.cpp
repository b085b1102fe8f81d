#include "allocator/sharing/imports.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "allocator/core/allocator.h"
#include "allocator/sharing/exports.h"
#include "common/error.h"

namespace staticrt::alloc {

Imports::~Imports() {
  for (auto& [address, mapping] : mappings_) (void)unmap(mapping).ok();
  settle();
}

void Imports::observe(Observer observer) {
  const std::lock_guard lock(mutex_);
  observer_ = std::move(observer);
}

Status Imports::map_pages(const SharedBlock& block, Addr base, Bytes* mapped) {
  Driver& driver = core_.driver;
  for (const SharedBlock::Page& page : block.pages) {
    PhysicalId physical = kNoPhysical;
    SRT_TRY(driver.physical_import(page.fd.number(), page.size, &physical));
    Status status = driver.map(base + *mapped, page.size, physical);
    core_.release_page({physical, 0});  // the mapping keeps the memory, which another process counts
    SRT_TRY(status);
    *mapped += page.size;
  }
  return core_.grant(base, *mapped);
}

Status Imports::map(const SharedBlock& block, Mapping* mapping) {
  Driver& driver = core_.driver;
  Bytes size = 0;
  for (const SharedBlock::Page& page : block.pages) size += page.size;
  if (block.pages.empty() || block.size > size || block.page_offset > size - block.size)
    return Status::InvalidArgument(detail::concat(core_.info.name, ": a shared block of ", block.size,
                                                  " bytes at ", block.page_offset, " is not in its ",
                                                  block.pages.size(), " pages"));
  const RelaxedCapture relaxed(driver);
  SRT_TRY(driver.va_reserve(size, kNullAddr, &mapping->base));
  mapping->reserved = size;
  Status status = map_pages(block, mapping->base, &mapping->mapped);
  if (status.ok()) {
    mapping->address = mapping->base + block.page_offset;
  } else if (mapping->mapped == 0 || driver.unmap(mapping->base, mapping->mapped).ok()) {
    (void)driver.va_release(mapping->base, size).ok();
    mapping->base = kNullAddr;
  }
  return status;
}

Status Imports::open(const SharedBlock& block, StreamId stream, Addr* address) {
  settle();
  if (!block.token.open())
    return Status::InvalidArgument(core_.info.name +
                                   ": the shared block's token is closed; open a handle that was not closed");
  SRT_TRY(find_or_map(block, stream, address));
  Status status = record_use(*address, stream);
  if (!status.ok()) (void)close(*address, /*wait=*/false).ok();
  return status;
}

Status Imports::find_or_map(const SharedBlock& block, StreamId stream, Addr* address) {
  const std::lock_guard lock(mutex_);
  const auto known = by_key_.find(block.key);
  if (known != by_key_.end()) {
    Mapping& mapping = mappings_.at(known->second);
    ++mapping.opens;
    mapping.streams.emplace(nullptr, stream);
    *address = mapping.address;
    return Status::Ok();
  }
  Mapping mapping;
  mapping.key = block.key;
  mapping.size = block.size;
  mapping.streams.emplace(nullptr, stream);
  mapping.token = block.token.copy();
  if (!mapping.token.open())
    return Status::InvalidArgument(core_.info.name +
                                   ": the process may open no more files, and a shared block takes one");
  if (block.key.allocator == allocator_.exports().identity()) {
    mapping.address = block.address;
  } else {
    Status status = map(block, &mapping);
    if (!status.ok()) {
      if (mapping.base != kNullAddr) parked_.push_back(std::move(mapping));
      return status;
    }
    if (observer_.mapped) observer_.mapped(mapping.address, mapping.size, stream);
  }
  *address = mapping.address;
  by_key_[mapping.key] = mapping.address;
  mappings_.emplace(mapping.address, std::move(mapping));
  return Status::Ok();
}

Status Imports::record_use(Addr inside, StreamId stream, const std::shared_ptr<Driver>& peer) {
  if (peer) SRT_TRY(allocator_.check_reached(*peer));
  Addr own = kNullAddr;
  {
    const std::lock_guard lock(mutex_);
    const auto found = find(inside);
    if (found == mappings_.end()) return Status::Ok();
    Mapping& mapping = mappings_.at(found->first);
    mapping.streams.emplace(peer.get() == &core_.driver ? nullptr : peer, stream);
    if (mapping.base == kNullAddr) own = mapping.address;
  }
  return allocator_.record_use(own, stream, peer);
}

Status Imports::unmap(Mapping& mapping) {
  Driver& driver = core_.driver;
  if (mapping.base == kNullAddr) {
    mapping.token = {};
    (void)allocator_.exports().collect();
    return Status::Ok();
  }
  const RelaxedCapture relaxed(driver);
  const auto of = [&](const auto& use) -> Driver& { return use.first ? *use.first : driver; };
  for (const auto& use : mapping.streams) {
    CaptureState capture;
    SRT_TRY(of(use).capture_state(use.second, &capture));
    if (capture.status != CaptureStatus::none) return Status::NotReady();
  }
  for (const auto& use : mapping.streams) SRT_TRY(wait_for(of(use), use.second));
  if (observer_.leaving && mapping.address != kNullAddr)
    observer_.leaving(std::exchange(mapping.address, kNullAddr));
  SRT_TRY(driver.unmap(mapping.base, mapping.mapped));
  (void)driver.va_release(mapping.base, mapping.reserved).ok();
  mapping.token = {};
  return Status::Ok();
}

Status Imports::close(Addr address, bool wait) {
  if (wait) settle();
  std::list<Mapping> last;
  {
    const std::lock_guard lock(mutex_);
    const auto found = mappings_.find(address);
    if (found == mappings_.end())
      return Status::InvalidPointer(
          detail::concat("0x", std::hex, address, " is not an opened block of ", core_.info.name));
    if (--found->second.opens > 0) return Status::Ok();
    by_key_.erase(found->second.key);
    last.push_back(std::move(found->second));
    mappings_.erase(found);
  }
  if (wait && unmap(last.front()).ok()) return Status::Ok();
  const std::lock_guard lock(mutex_);
  parked_.splice(parked_.end(), last);
  return Status::Ok();
}

void Imports::settle() {
  std::list<Mapping> waiting;
  {
    const std::lock_guard lock(mutex_);
    if (parked_.empty()) return;
    waiting.swap(parked_);
  }
  for (auto at = waiting.begin(); at != waiting.end();)
    at = unmap(*at).ok() ? waiting.erase(at) : std::next(at);
  const std::lock_guard lock(mutex_);
  parked_.splice(parked_.end(), waiting);
}

std::map<Addr, Imports::Mapping>::const_iterator Imports::find(Addr inside) const {
  auto at = mappings_.upper_bound(inside);
  if (at == mappings_.begin()) return mappings_.end();
  --at;
  return inside - at->first < std::max<Bytes>(at->second.size, 1) ? at : mappings_.end();
}

bool Imports::owns(Addr inside) const {
  const std::lock_guard lock(mutex_);
  const auto at = find(inside);
  return at != mappings_.end() && at->second.base != kNullAddr;
}

void Imports::each_mapped(const std::function<void(Addr, Bytes)>& visit) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [address, mapping] : mappings_)
    if (mapping.base != kNullAddr) visit(mapping.base, mapping.mapped);
}

size_t Imports::count() const {
  const std::lock_guard lock(mutex_);
  return mappings_.size() + parked_.size();
}

}  // namespace staticrt::alloc
