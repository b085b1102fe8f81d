// PoolImage: the segments and blocks of one pool as a value (P7, P8).
//
// restore rebuilds block lists directly, in time linear in the blocks. It moves no counter and makes no
// trace entry; pages trimmed since the image was taken are mapped again first.
#pragma once

#include <string>
#include <vector>

#include "allocator/core/segment.h"
#include "allocator/core/types.h"

namespace staticrt::alloc {

// A stream of another device, by the device's number.
struct PeerUse {
  int device = 0;
  StreamId stream{};
  friend bool operator==(const PeerUse&, const PeerUse&) = default;
};

// Consecutive bytes of one state. Sizes add up to the segment's size.
struct ImageRun {
  Bytes size = 0;
  Bytes requested = 0;
  BlockState state = BlockState::free;  // unmapped, free, live or held (lent)
  StreamId stream{};
  std::vector<StreamId> uses;           // recorded, outside captures; live only
  std::vector<PeerUse> peer_uses = {};  // the same of other devices' streams

  friend bool operator==(const ImageRun&, const ImageRun&) = default;
};

struct ImageSegment {
  SegmentId id = 0;
  uint32_t generation = 0;
  SegmentKind kind = SegmentKind::fixed;
  SizeClass size_class = SizeClass::small;
  Addr base = kNullAddr;
  Bytes size = 0;
  StreamId stream{};
  std::vector<ImageRun> runs;

  friend bool operator==(const ImageSegment&, const ImageSegment&) = default;
};

struct PoolImage {
  PoolId pool;
  int64_t refs = 0;
  std::vector<ImageSegment> segments;  // by base address

  friend bool operator==(const PoolImage&, const PoolImage&) = default;
  std::vector<Addr> live() const;  // ascending
  // One line per difference; empty iff equal.
  std::vector<std::string> diff(const PoolImage& other) const;
  std::string serialize() const;
  static Status parse(const std::string& text, PoolImage* image);
};

struct RestoreResult {
  std::vector<Addr> freed;    // all that were live before: their owners must forget them
  std::vector<Addr> created;  // all that are live now, in address order; the caller owns them
};

}  // namespace staticrt::alloc
