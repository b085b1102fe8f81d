// The buffers of all prepared programs of a frame.
//
// Each device has one per stream that calls ran on lately: a call returns before the device is done, and only
// later work of the same stream comes after it. So a frame may be used again at once, on any stream. Those of
// more streams than tuning::kMostStreams go, the one used least lately first: a program may make a stream for
// each request.
//
// Note [Captured arenas stay]
//   A driver graph uses its arena's bytes at the address of the capture. When the arena is reallocated to
//   grow, the graph keeps the former bytes, so that it need not be captured again. The former bytes of an
//   arena are together at most as many as the arena has, and are freed when memory runs out.
//
// Thread safety: none; one per frame.
#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "device/device_memory.h"

namespace staticrt {

// The bytes of an arena, for graphs that captured work there.
struct ArenaPlace {
  at::DataPtr data;  // of a former place; the arena has its own
  int64_t size_bytes = 0;
  bool is_kept = true;  // off: the bytes may have another owner

  void give_back() {
    data.clear();
    is_kept = false;
  }
};

struct Arena {
  const DeviceMemory* memory = nullptr;
  c10::StreamId stream = 0;
  at::DataPtr data;
  int64_t size_bytes = 0;
  uint64_t last_use = 0;              // a number that grows
  uint64_t generation = 0;            // changes when data moves; no two arenas of a frame ever have the same
  void* last_data = nullptr;          // of the host's, where it is given back after each run
  std::shared_ptr<ArenaPlace> place;  // of data, once captured() was called
  std::vector<std::weak_ptr<ArenaPlace>> formers;  // oldest first
};

class Arenas {
 public:
  // Of the device's current stream, with at least `size_bytes`. Throws as grow_arena() does.
  // Valid until the next call.
  Arena& at_least(const DeviceMemory& memory, int64_t size_bytes) {
    Arena& arena = of(memory);
    if (size_bytes > arena.size_bytes) grow(arena, size_bytes);
    return arena;
  }

  // The same. Work captured there may run while the caller holds the place and it is kept,
  // Note [Captured arenas stay].
  std::shared_ptr<const ArenaPlace> captured(const DeviceMemory& memory, int64_t size_bytes) {
    Arena& arena = at_least(memory, size_bytes);
    if (!arena.place) arena.place = std::make_shared<ArenaPlace>();
    return arena.place;
  }

  // The same, from torch's allocator of tensors, which gets the bytes back between runs. An arena that is
  // allocated at its former address has not moved.
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
      const int64_t most_bytes = needed(*arena.memory);
      keep_formers(arena, most_bytes);
      if (arena.size_bytes > most_bytes) give_back(arena);
    }
  }
  // Gives back all but that one; whether there was any.
  bool give_back_on(const DeviceMemory& memory, const Arena* except = nullptr);

 private:
  void grow(Arena& arena, int64_t size_bytes);
  static void leave(Arena& arena);
  // To later work of its stream.
  void give_back(Arena& arena);
  // Gives back former bytes, the oldest first, until they are at most so many.
  static void keep_formers(Arena& arena, int64_t most_bytes);
  Arena& of(const DeviceMemory& memory) {
    const c10::StreamId stream = memory.is_host() ? 0 : stream_ ? *stream_ : memory.current_stream();
    for (Arena& arena : arenas_) {
      if (arena.memory != &memory || arena.stream != stream) continue;
      arena.last_use = ++uses_;
      return arena;
    }
    return make(memory, stream);
  }
  Arena& make(const DeviceMemory& memory, c10::StreamId stream);

  std::vector<Arena> arenas_;
  std::optional<c10::StreamId> stream_;
  uint64_t generations_ = 0, uses_ = 0;
};

}  // namespace staticrt
