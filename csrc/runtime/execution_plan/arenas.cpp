#include "runtime/execution_plan/arenas.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "common/tuning.h"

namespace staticrt {

// Whether graphs use its bytes.
static bool is_captured(const Arena& arena) {
  return arena.place.use_count() > 1 ||
         std::ranges::any_of(arena.formers, [](const auto& former) { return !former.expired(); });
}

Arena& Arenas::make(const DeviceMemory& memory, c10::StreamId stream) {
  const auto is_here = [&](const Arena& arena) { return arena.memory == &memory; };
  if (static_cast<size_t>(std::ranges::count_if(arenas_, is_here)) >= tuning::kMostStreams) {
    const auto oldest = std::ranges::min_element(arenas_, {}, [&](const Arena& arena) {
      return std::tuple(!is_here(arena), is_captured(arena), arena.last_use);
    });
    if (!is_captured(*oldest)) {
      give_back(*oldest);
      arenas_.erase(oldest);
    }
  }
  Arena& made = arenas_.emplace_back();
  made.memory = &memory;
  made.stream = stream;
  made.last_use = ++uses_;
  made.generation = ++generations_;
  return made;
}

bool Arenas::give_back_on(const DeviceMemory& memory, const Arena* except) {
  bool any = false;
  for (Arena& arena : arenas_) {
    if (arena.memory != &memory || &arena == except) continue;
    any |= arena.size_bytes > 0 || !arena.formers.empty();
    keep_formers(arena, 0);
    give_back(arena);
  }
  return any;
}

void Arenas::grow(Arena& arena, int64_t size_bytes) {
  arena.generation = ++generations_;  // also if it fails, as the bytes may have moved
  if (arena.place.use_count() > 1) {
    at::DataPtr larger;
    try {
      larger = arena.memory->allocate_arena(size_bytes);
    } catch (const std::exception&) {  // bytes that graphs keep may be enough
      keep_formers(arena, 0);
    }
    if (larger) {
      arena.place->data = std::exchange(arena.data, std::move(larger));
      arena.place->size_bytes = std::exchange(arena.size_bytes, size_bytes);
      arena.formers.emplace_back(std::exchange(arena.place, nullptr));
      keep_formers(arena, arena.size_bytes);
      return;
    }
  }
  leave(arena);
  try {
    arena.memory->grow_arena(arena.data, arena.size_bytes, size_bytes);
  } catch (const c10::OutOfMemoryError&) {  // those of other streams may be enough
    if (!give_back_on(*arena.memory, &arena)) throw;
    arena.memory->grow_arena(arena.data, arena.size_bytes, size_bytes);
  }
}

// Work that was captured there may not run again.
void Arenas::leave(Arena& arena) {
  if (arena.place) arena.place->is_kept = false;
  arena.place = nullptr;
}

void Arenas::give_back(Arena& arena) {
  leave(arena);
  arena.data.clear();
  arena.size_bytes = 0;
  arena.generation = ++generations_;
}

void Arenas::keep_formers(Arena& arena, int64_t most_bytes) {
  int64_t bytes = 0;
  for (auto former = arena.formers.rbegin(); former != arena.formers.rend(); ++former) {
    const auto place = former->lock();
    if (place && (bytes += place->size_bytes) > most_bytes) place->give_back();
  }
  std::erase_if(arena.formers, [](const auto& former) {
    const auto place = former.lock();
    return !place || !place->is_kept;
  });
}

}  // namespace staticrt
