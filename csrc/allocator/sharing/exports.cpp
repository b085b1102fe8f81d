#include "allocator/sharing/exports.h"

#include <errno.h>
#include <poll.h>
#include <sys/random.h>

#include <cstring>
#include <utility>

#include "allocator/core/allocator.h"
#include "allocator/core/inspector.h"
#include "allocator/sharing/imports.h"
#include "common/error.h"

namespace staticrt::alloc {
namespace {

std::array<uint64_t, 2> random_identity() {
  std::array<uint64_t, 2> drawn = {};
  SRT_INTERNAL(getrandom(drawn.data(), sizeof drawn, 0) == sizeof drawn, "getrandom: ", std::strerror(errno));
  return drawn;
}

// Whether every copy of the other end is closed.
bool hung_up(const struct pollfd& end) {
  return (end.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
}

}  // namespace

Exports::Exports(Core& core, DeviceAllocator& allocator)
    : core_(core), allocator_(allocator), identity_(random_identity()) {}

Status Exports::not_live(Addr address) const {
  return Status::InvalidPointer(
      detail::concat("0x", std::hex, address, std::dec, " is in no live block of ", core_.info.name));
}

Status Exports::find(Addr inside, SharedBlock* shared, std::vector<Page>* pages) {
  const Core::Lock lock(core_);
  Block* block = core_.block_containing(inside);
  if (block == nullptr || block->state != BlockState::live ||
      (block->magazine != 0 && !ThreadCache::given(*block)))
    return not_live(inside);
  if (block->pool != 0)
    return Status::Unsupported(
        detail::concat(core_.info.name, ": the memory is in private pool ", core_.pools[block->pool].id,
                       ", whose graphs write it again; share a copy that was made outside of the pool"));
  const Segment& segment = core_.segments[block->segment];
  if (segment.pages.empty())
    return Status::Unsupported(core_.info.name +
                               ": the memory is in a fixed segment, which cannot leave the process; set "
                               "expandable_segments:True");
  auto page = std::prev(segment.pages.upper_bound(block->address));
  shared->address = block->address;
  shared->size = block->requested;
  shared->page_offset = block->address - page->first;
  for (; page != segment.pages.end() && page->first < block->address + block->requested; ++page)
    pages->push_back(page->second);
  if (!(block->flags & kShared)) ++core_.shared_blocks;
  block->flags |= kShared;
  return Status::Ok();
}

void Exports::unmark(Addr address) {
  const Core::Lock lock(core_);
  core_.blocks[core_.pages.block_at(address)].flags &= static_cast<uint16_t>(~kShared);
  --core_.shared_blocks;
}

Status Exports::share(Addr inside, SharedBlock* shared) {
  if (allocator_.imports().owns(inside))
    return Status::Unsupported(core_.info.name +
                               ": the memory is another process', which alone can share it; share a copy");
  (void)collect();
  SharedBlock made;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    const int error = errno;
    return Status::Error(detail::concat(core_.info.name, ": pipe2: ", std::strerror(error)), error);
  }
  FileDescriptor watched(ends[0]);
  made.token = FileDescriptor(ends[1]);
  {
    const Core::Lock lock(core_);
    ++core_.shared_blocks;  // closes the thread caches, which free blocks without checking their marks
  }
  core_.update_gate();
  Status status;
  std::vector<Page> pages;
  {
    const std::lock_guard lock(mutex_);
    status = find(inside, &made, &pages);
    if (status.ok()) {
      Entry& entry = entries_[made.address];
      any_ = true;
      if (entry.number == 0) entry = {next_number_++, made.size, {}, {}};
      if (entry.release) status = not_live(inside);
      entry.watched.push_back(std::move(watched));
      made.key = {identity_, entry.number};
    }
    if (!std::exchange(called_back_, true))
      allocator_.inspector().add_free_callback([this] { return collect() != 0; });
  }
  for (const Page& page : pages) {
    if (!status.ok()) break;
    int fd = -1;
    status = core_.driver.physical_export(page.physical, &fd);
    if (status.ok()) made.pages.push_back({page.size, FileDescriptor(fd)});
  }
  {
    const Core::Lock lock(core_);
    --core_.shared_blocks;
  }
  core_.update_gate();
  if (status.ok()) {
    *shared = std::move(made);
  } else {
    made.token = {};  // no process has it
    (void)collect();
  }
  return status;
}

Status Exports::keep(Addr address, std::function<void()> release, bool* kept) {
  *kept = false;
  if (!any_) return Status::Ok();
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(address);
    if (found == entries_.end()) return Status::Ok();
    if (found->second.release) return not_live(address);
    found->second.release = std::move(release);
    *kept = true;
  }
  (void)collect();
  return Status::Ok();
}

Bytes Exports::collect() {
  std::vector<std::function<void()>> releases;
  Bytes freed = 0;
  {
    const std::lock_guard lock(mutex_);
    if (entries_.empty()) return 0;
    std::vector<struct pollfd> ends;  // of all entries, in their order: one system call polls them all
    for (const auto& [address, entry] : entries_)
      for (const FileDescriptor& end : entry.watched) ends.push_back({end.number(), 0, 0});
    (void)poll(ends.data(), ends.size(), 0);  // if it fails, all blocks count as still in use
    auto asked = ends.begin();
    for (auto at = entries_.begin(); at != entries_.end();) {
      Entry& entry = at->second;
      std::vector<FileDescriptor> still;
      for (FileDescriptor& end : entry.watched)
        if (!hung_up(*asked++)) still.push_back(std::move(end));
      entry.watched = std::move(still);
      if (!entry.watched.empty()) {
        ++at;
        continue;
      }
      unmark(at->first);
      if (entry.release) {
        freed += entry.size;
        releases.push_back(std::move(entry.release));
      }
      at = entries_.erase(at);
    }
    any_ = !entries_.empty();
  }
  core_.update_gate();
  for (const auto& release : releases) release();
  return freed;
}

size_t Exports::count() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace staticrt::alloc
