// What a reader sees of the allocator at one moment (I3): segments, blocks, history.
#pragma once

#include <string>
#include <vector>

#include "allocator/core/block.h"
#include "allocator/core/segment.h"
#include "allocator/core/trace.h"

namespace staticrt::alloc {

struct BlockInfo {
  Addr address = kNullAddr;
  Bytes size = 0;
  Bytes requested = 0;
  BlockState state = BlockState::free;
  StreamId stream{};
  Context context;
};

// A contiguous mapped range: a fixed segment, or a run of mapped blocks of an expandable one.
struct SegmentInfo {
  Addr address = kNullAddr;
  Bytes total_size = 0, allocated_size = 0, active_size = 0, requested_size = 0;
  StreamId stream{};
  SegmentKind kind = SegmentKind::fixed;
  SizeClass size_class = SizeClass::small;
  PoolId pool;
  std::vector<BlockInfo> blocks;  // by address
};

struct Snapshot {
  std::string device;
  int device_index = 0;
  std::vector<SegmentInfo> segments;  // by address
  std::vector<TraceEntry> trace;
  std::vector<Annotation> annotations;
  std::string settings;
};

}  // namespace staticrt::alloc
