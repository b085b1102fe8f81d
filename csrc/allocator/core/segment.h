// Segment: one range of addresses, tiled by blocks. SegmentTable owns all segments of a device.
//
//   fixed       one driver allocation, mapped as a whole
//   expandable  reserved addresses; pages (physical handles of one or more granules) come and go
//   provided    fixed, but from a pool's own (alloc, free) pair
//   stitched    reserved addresses that map pages of lent blocks a second time (a reclaim step)
//
// Thread safety: none; the core mutex is held.
#pragma once

#include <map>
#include <memory>
#include <ranges>
#include <vector>

#include "allocator/core/block.h"

namespace staticrt::alloc {

enum class SegmentKind : uint8_t { fixed, expandable, provided, stitched };
constexpr const char* name_of(SegmentKind kind) {
  constexpr const char* names[] = {"fixed", "expandable", "provided", "stitched"};
  return names[static_cast<int>(kind)];
}

// A physical handle mapped at an address of an expandable segment.
struct Page {
  PhysicalId physical = kNoPhysical;
  Bytes size = 0;
};

struct Segment {
  SegmentId id = 0;
  uint32_t generation = 0;  // distinguishes segments that had the same id
  SegmentKind kind = SegmentKind::fixed;
  SizeClass size_class = SizeClass::small;
  PoolIndex pool = 0;
  Slot slot = 0;  // stream it was made for
  Addr base = kNullAddr;
  Bytes size = 0;                  // of the address range
  Bytes mapped = 0;                // bytes charged to the budget
  BlockId first = 0;               // lowest block
  std::map<Addr, Page> pages;      // expandable and stitched: by address
  std::map<Addr, Page> dropped;    // expandable, hibernated: pages to map again on wake
  std::vector<Addr> lenders;       // stitched: starts of the Held blocks whose pages it maps
  Addr provided_base = kNullAddr;  // provided: as the pair gave it
  Bytes provided_size = 0;

  Addr end() const { return base + size; }
  bool expandable() const { return kind == SegmentKind::expandable; }
};

class SegmentTable {
 public:
  Segment& operator[](SegmentId id) const { return *segments_[id]; }
  bool exists(SegmentId id) const { return id < segments_.size() && segments_[id] != nullptr; }

  Segment& create() {
    SegmentId id = 1;
    if (recycled_.empty()) {
      if (segments_.empty()) segments_.emplace_back();
      id = static_cast<SegmentId>(segments_.size());
      segments_.emplace_back();
    } else {
      id = recycled_.back();
      recycled_.pop_back();
    }
    segments_[id] = std::make_unique<Segment>();
    segments_[id]->id = id;
    segments_[id]->generation = ++generations_;
    ++count_;
    return *segments_[id];
  }
  void destroy(SegmentId id) {
    segments_[id].reset();
    recycled_.push_back(id);
    --count_;
  }
  size_t count() const { return count_; }
  // By id. REQUIRES: the loop destroys none.
  auto all() const {
    return segments_ | std::views::filter([](const auto& each) { return each != nullptr; }) |
           std::views::transform([](const auto& each) -> Segment& { return *each; });
  }

 private:
  std::vector<std::unique_ptr<Segment>> segments_;
  std::vector<SegmentId> recycled_;
  uint32_t generations_ = 0;
  size_t count_ = 0;
};

}  // namespace staticrt::alloc
