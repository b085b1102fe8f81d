// The buffers of all prepared programs of a frame.
//
// Each device has one per stream that calls ran on: a call returns before the device is done, and only later
// work of the same stream comes after it. So a frame may be used again at once, on any stream.
//
// Thread safety: none; one per frame.
#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "device/device_memory.h"

namespace staticrt {

struct Arena {
  const DeviceMemory* memory = nullptr;
  c10::StreamId stream = 0;
  at::DataPtr data;
  int64_t size_bytes = 0;
  uint64_t generation = 0;    // changes when data moves; no two arenas of a frame ever have the same
  void* last_data = nullptr;  // of the host's, where it is given back after each run
};

class Arenas {
 public:
  // Of the device's current stream, with at least `size_bytes`. Throws as grow_arena() does.
  // Valid until the next call.
  Arena& at_least(const DeviceMemory& memory, int64_t size_bytes) {
    Arena& arena = of(memory);
    if (size_bytes > arena.size_bytes) {
      arena.generation = ++generations_;  // also if it fails: the bytes may lie elsewhere then
      memory.grow_arena(arena.data, arena.size_bytes, size_bytes);
    }
    return arena;
  }

  // The same, of torch's allocator of tensors, which may have the bytes again between runs. An arena that
  // comes back to where it was has not moved.
  Arena& for_one_run(const DeviceMemory& memory, int64_t size_bytes) {
    Arena& arena = of(memory);
    if (size_bytes > arena.size_bytes) {
      arena.data.clear();
      arena.size_bytes = 0;
      arena.data = memory.allocator()->allocate(static_cast<size_t>(size_bytes));
      arena.size_bytes = size_bytes;
      if (arena.data.get() != arena.last_data) arena.generation = ++generations_;
      arena.last_data = arena.data.get();
    }
    return arena;
  }
  // While one lives, the arenas are those of this stream, whichever is current. REQUIRES: they are large
  // enough.
  class OfStream {
   public:
    OfStream(Arenas& arenas, c10::StreamId stream) : arenas_(arenas) { arenas_.stream_ = stream; }
    ~OfStream() { arenas_.stream_.reset(); }
    OfStream(const OfStream&) = delete;
    OfStream& operator=(const OfStream&) = delete;

   private:
    Arenas& arenas_;
  };
  void end_run() {
    for (Arena& arena : arenas_) {
      if (!arena.memory->is_host()) continue;
      arena.data.clear();
      arena.size_bytes = 0;
    }
  }

  // Gives back arenas with more than needed(memory) bytes.
  template <class Needed>
  void release_above(Needed&& needed) {
    for (Arena& arena : arenas_) {
      if (arena.size_bytes <= needed(*arena.memory)) continue;
      arena.data.clear();
      arena.size_bytes = 0;
      arena.generation = ++generations_;
    }
  }

 private:
  Arena& of(const DeviceMemory& memory) {
    const c10::StreamId stream = memory.is_host() ? 0 : stream_ ? *stream_ : memory.current_stream();
    for (Arena& arena : arenas_) {
      if (arena.memory == &memory && arena.stream == stream) return arena;
    }
    arenas_.push_back({&memory, stream, {}, 0, ++generations_});
    return arenas_.back();
  }

  std::vector<Arena> arenas_;
  std::optional<c10::StreamId> stream_;
  uint64_t generations_ = 0;
};

}  // namespace staticrt
