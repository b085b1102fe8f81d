#include "device/small_blocks.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <array>
#include <cstdlib>
#include <new>
#include <utility>

#include "common/tuning.h"

namespace staticrt {
namespace {

constexpr size_t kUnit = 64;
constexpr size_t kNumClasses = kMaxSmallBytes / kUnit;

struct Kept {
  void* blocks[kNumClasses][tuning::kMaxKeptBlocks];
  size_t count[kNumClasses] = {};

  ~Kept() {
    for (size_t c = 0; c < kNumClasses; ++c) {
      while (count[c] > 0) std::free(blocks[c][--count[c]]);
    }
  }
};
// A pointer, because libraries loaded late have little thread-local memory. Trivial, so that it can be
// read after the thread's destructors ran.
thread_local constinit Kept* kept = nullptr;
thread_local constinit bool gone = false;  // the thread ends: nothing more is kept

struct Sweeper {
  ~Sweeper() {
    gone = true;
    delete std::exchange(kept, nullptr);
  }
};

Kept* make_kept() {
  thread_local Sweeper sweeper;
  (void)sweeper;
  return kept = new (std::nothrow) Kept;
}

template <size_t size_class>
void release(void* block) {
  Kept* mine = kept;
  if (!mine && !gone) mine = make_kept();
  if (!mine || mine->count[size_class] == tuning::kMaxKeptBlocks) return std::free(block);
  mine->blocks[size_class][mine->count[size_class]++] = block;
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
  if (Kept* mine = kept; mine && mine->count[size_class] > 0) {
    block = mine->blocks[size_class][--mine->count[size_class]];
  } else {
    block = std::aligned_alloc(kUnit, (size_class + 1) * kUnit);
    if (!block) throw std::bad_alloc();
  }
  return {block, block, kRelease[size_class], at::kCPU};
}

}  // namespace staticrt
