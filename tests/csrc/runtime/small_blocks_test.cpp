#include "device/small_blocks.h"

#include <ATen/Context.h>
#include <ATen/ops/add.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <c10/core/CPUAllocator.h>

#include <cstdint>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "programs.h"
#include "runtime/call/executable.h"
#include "test.h"

using namespace staticrt;
using namespace staticrt::test;

TEST(small_blocks_are_aligned_and_live_blocks_never_overlap) {
  std::vector<at::DataPtr> held;
  for (int round = 0; round < 3; ++round) {
    for (size_t bytes = 0; bytes <= kMaxSmallBytes; bytes += 31) {
      held.push_back(allocate_small(bytes));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(held.back().get()) % 64, 0U);
      std::memset(held.back().get(), static_cast<int>(held.size() % 251), bytes);
    }
    for (size_t i = 0; i < held.size(); i += 2) held[i].clear();
    std::set<const void*> seen;
    for (const at::DataPtr& block : held) {
      if (block) EXPECT(seen.insert(block.get()).second);
    }
  }
}

TEST(a_freed_small_block_serves_the_next_of_its_size_and_no_other) {
  at::DataPtr block = allocate_small(100);
  const void* const address = block.get();
  block.clear();
  at::DataPtr other = allocate_small(200);
  EXPECT(other.get() != address);
  EXPECT_EQ(allocate_small(128).get(), address);
}

TEST(a_thread_may_free_what_another_made_and_outlive_it) {
  std::vector<at::DataPtr> blocks;
  std::thread([&] {
    for (int i = 0; i < 100; ++i) blocks.push_back(allocate_small(64));
  }).join();
  std::thread([&] { blocks.clear(); }).join();  // keeps some, frees the rest, and all of them at its end
  EXPECT(allocate_small(64));
}

TEST(small_outputs_can_be_grown_and_cross_threads) {
  Executable executable(relu_chain(2), {});
  const at::Tensor x = at::randn({8});
  const at::Tensor want = at::relu(at::add(x, x));
  for (int i = 0; i < 3; ++i) executable.run({x});
  at::Tensor out;
  std::thread([&] { out = executable.run({x})[0].toTensor(); }).join();
  EXPECT(at::equal(out, want));
  EXPECT_EQ(out.storage().nbytes(), 32U);
  out.resize_({4096});
  EXPECT(at::equal(out.slice(0, 0, 8), want));
  EXPECT_EQ(out.storage().nbytes(), 4096U * 4);
}

TEST(another_cpu_allocator_serves_all_outputs) {
  struct Counting final : c10::Allocator {
    at::DataPtr allocate(size_t bytes) override {
      ++calls;
      return c10::GetDefaultCPUAllocator()->allocate(bytes);
    }
    c10::DeleterFnPtr raw_deleter() const override { return c10::GetDefaultCPUAllocator()->raw_deleter(); }
    void copy_data(void* to, const void* from, size_t bytes) const override {
      default_copy_data(to, from, bytes);
    }
    int calls = 0;
  };
  static Counting counting;
  Executable executable(relu_chain(2), {});
  const at::Tensor x = at::randn({8});
  for (int i = 0; i < 3; ++i) executable.run({x});
  c10::SetCPUAllocator(&counting, /*priority=*/200);
  const at::Tensor out = executable.run({x})[0].toTensor();
  c10::SetCPUAllocator(c10::GetDefaultCPUAllocator(), /*priority=*/200);
  EXPECT(counting.calls >= 1);
  EXPECT(at::equal(out, at::relu(at::add(x, x))));
}
