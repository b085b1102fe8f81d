// Peers: other devices that use this one's memory at its addresses.
//
// What is mapped is given to each of them by set_access, so each new mapping is (grant); fixed segments
// follow from enable_peer. The growth mutex is held while a peer is added, so nothing is mapped meanwhile but
// shared blocks of other processes, which have a mutex of their own.
#include "allocator/core/allocator.h"
#include "allocator/sharing/imports.h"
#include "common/error.h"

namespace staticrt::alloc {

Status Core::grant(Addr begin, Bytes size) {
  std::vector<int> now;
  {
    Lock lock(*this);
    now = peers;
    lock.unlock_untraced();  // trackers may open shared blocks, whose mutex a caller may hold
  }
  SRT_TRY(driver.set_access(begin, size));
  for (const int peer : now) SRT_TRY(driver.set_access(begin, size, peer));
  return Status::Ok();
}

std::vector<std::pair<Addr, Bytes>> Core::mapped_ranges() {
  std::vector<std::pair<Addr, Bytes>> ranges;
  const auto add = [&](const std::map<Addr, Page>& pages_there) {
    bool first = true;
    for (const auto& [at, page] : pages_there) {
      if (first || ranges.back().first + ranges.back().second != at)
        ranges.emplace_back(at, page.size);
      else
        ranges.back().second += page.size;
      first = false;
    }
  };
  const Lock lock(*this);
  for (const Segment& segment : segments.all()) add(segment.pages);
  for (const auto* arena : arena_pages) add(*arena);
  return ranges;
}

Status DeviceAllocator::check_reached(const Driver& peer) {
  bool reached = false;
  SRT_TRY(driver_->reached_by(peer, &reached));
  if (reached) return Status::Ok();
  return Status::Unsupported(detail::concat(peer.info().name, " cannot reach the memory of ",
                                            core_->info.name, "; copy what it needs"));
}

bool DeviceAllocator::has_peer(const Driver& peer) {
  bool reached = false;
  if (!driver_->reached_by(peer, &reached).ok() || !reached) return false;
  const Core::Lock lock(*core_);
  const auto& peers = core_->peers_with_access;
  return &peer == driver_.get() || std::find(peers.begin(), peers.end(), peer.info().index) != peers.end();
}

Status DeviceAllocator::add_peer(const Driver& peer) {
  Core& core = *core_;
  const Core::Growth growth(core);
  SRT_TRY(check_reached(peer));
  const int index = peer.info().index;
  if (has_peer(peer)) return Status::Ok();
  const RelaxedCapture relaxed(*driver_);
  {
    // Before the ranges are listed: shared blocks that are opened from now on are given to the peer.
    const Core::Lock lock(core);
    core.peers.push_back(index);
  }
  std::vector<std::pair<Addr, Bytes>> ranges = core.mapped_ranges();
  Status status;
  for (const auto& [begin, size] : ranges)
    if (status.ok()) status = driver_->set_access(begin, size, index);
  const auto imported = [&](Addr begin, Bytes size) {
    if (status.ok()) status = driver_->set_access(begin, size, index);
  };
  if (status.ok()) imports_->each_mapped(imported);
  // Last: it cannot be taken back.
  if (status.ok()) status = driver_->enable_peer(peer);
  {
    const Core::Lock lock(core);
    if (status.ok())
      core.peers_with_access.push_back(index);
    else
      std::erase(core.peers, index);
  }
  if (status.ok()) return status;
  Bytes open = 0;
  const auto revoke = [&](Addr begin, Bytes size) {
    if (!driver_->revoke_access(begin, size, index).ok()) open += size;
  };
  for (const auto& [begin, size] : ranges) revoke(begin, size);
  imports_->each_mapped(revoke);
  std::string text = detail::concat(core.info.name, ": its memory stays closed to ", peer.info().name, ": ",
                                    status.text().empty() ? status.describe() : status.text());
  if (open != 0)
    text += detail::concat(
        "; up to ", open, " bytes are open to it until they are released, as access could not be taken back");
  return Status(status.code(), text, status.native());
}

}  // namespace staticrt::alloc
