#include "runtime/small_blocks.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <array>
#include <cstdlib>
#include <new>
#include <utility>

namespace staticrt {
namespace {

constexpr size_t kUnit = 64;
constexpr size_t kNumClasses = kMaxSmallBytes / kUnit;
constexpr size_t kMaxKept = 16;  // blocks of a size and thread

// Trivial, so that it can be read after the thread's destructors ran.
struct Kept {
  void* blocks[kNumClasses][kMaxKept];
  size_t count[kNumClasses];
  bool watched;  // a Sweeper frees what is left at the thread's end
  bool gone;     // it has
};
thread_local constinit Kept kept{};

struct Sweeper {
  ~Sweeper() {
    kept.gone = true;
    for (size_t c = 0; c < kNumClasses; ++c) {
      while (kept.count[c] > 0) std::free(kept.blocks[c][--kept.count[c]]);
    }
  }
};

void watch() {
  thread_local Sweeper sweeper;
  (void)sweeper;
  kept.watched = true;
}

template <size_t size_class>
void release(void* block) {
  Kept& mine = kept;
  if (mine.gone || mine.count[size_class] == kMaxKept) return std::free(block);
  if (!mine.watched) watch();
  mine.blocks[size_class][mine.count[size_class]++] = block;
}

template <size_t... classes>
constexpr std::array<c10::DeleterFnPtr, sizeof...(classes)> releases(std::index_sequence<classes...>) {
  return {&release<classes>...};
}
constexpr auto kRelease = releases(std::make_index_sequence<kNumClasses>());

}  // namespace

bool small_blocks_serve(size_t size_bytes) {
  return size_bytes <= kMaxSmallBytes && c10::GetCPUAllocator() == c10::GetDefaultCPUAllocator() &&
         !c10::memoryProfilingEnabled();
}

at::DataPtr allocate_small(size_t size_bytes) {
  const size_t size_class = size_bytes == 0 ? 0 : (size_bytes - 1) / kUnit;
  void* block = nullptr;
  if (size_t& count = kept.count[size_class]; count > 0) {
    block = kept.blocks[size_class][--count];
  } else {
    block = std::aligned_alloc(kUnit, (size_class + 1) * kUnit);
    if (!block) throw std::bad_alloc();
  }
  return {block, block, kRelease[size_class], at::kCPU};
}

}  // namespace staticrt
