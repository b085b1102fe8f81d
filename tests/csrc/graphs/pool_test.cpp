#include "graphs/pool.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "allocator/pools/pools.h"
#include "allocator/process/devices.h"
#include "common/error.h"
#include "graphs/routing.h"
#include "test.h"

using namespace staticrt;
using namespace staticrt::graphs;

namespace {

alloc::Addr addr(const void* ptr) {
  return reinterpret_cast<alloc::Addr>(ptr);
}
at::Tensor routed(const std::shared_ptr<CpuPool>& pool, int64_t size, double value = 0) {
  const RouteScope route(pool);
  return at::full({size}, value);
}
void validate() {
  const alloc::Status status = alloc::host_device().allocator->validate();
  if (!status.ok()) test::fail(__FILE__, __LINE__, status.describe());
}

}  // namespace

TEST(a_route_serves_its_thread_only) {
  const auto pool = CpuPool::make();
  at::Tensor mine;
  at::Tensor other;
  {
    const RouteScope route(pool);
    mine = at::zeros({10});
    std::thread([&] { other = at::zeros({10}); }).join();
    const RouteScope none(nullptr);
    EXPECT_EQ(pool->serial_of(at::zeros({10}).data_ptr()), 0u);
  }
  EXPECT(pool->serial_of(mine.data_ptr()) != 0);
  EXPECT_EQ(pool->serial_of(other.data_ptr()), 0u);
  EXPECT(current_route() == nullptr);
}

TEST(memory_is_freed_after_its_pool_and_from_any_thread) {
  at::Tensor x;
  alloc::PoolId id;
  {
    const auto pool = CpuPool::make();
    id = pool->id();
    x = routed(pool, 100, 3);
  }
  EXPECT_EQ(x.sum().item<float>(), 300.0f);
  std::thread([&] { x.reset(); }).join();
  EXPECT(!alloc::host_device().allocator->pools().exists(id));
  validate();
}

TEST(raw_memory_of_a_route_is_freed_outside_it) {
  const auto pool = CpuPool::make();
  void* inside = nullptr;
  {
    const RouteScope route(pool);
    inside = c10::GetCPUAllocator()->raw_allocate(1000);
  }
  void* outside = c10::GetCPUAllocator()->raw_allocate(1000);
  EXPECT_EQ(pool->live().size(), 1u);
  c10::GetCPUAllocator()->raw_deallocate(inside);
  c10::GetCPUAllocator()->raw_deallocate(outside);
  EXPECT_EQ(pool->live().size(), 0u);
}

TEST(a_stale_deleter_never_frees_the_new_owner) {
  const auto pool = CpuPool::make();
  const alloc::PoolImage empty = pool->checkpoint();
  at::Tensor stale = routed(pool, 100);
  const void* ptr = stale.data_ptr();
  pool->restore(empty, {});
  at::Tensor fresh = routed(pool, 100, 5);
  EXPECT(fresh.data_ptr() == ptr);
  stale.reset();
  EXPECT_EQ(pool->live().size(), 1u);
  EXPECT(routed(pool, 100).data_ptr() != ptr);
  EXPECT_EQ(fresh.sum().item<float>(), 500.0f);
  fresh.reset();
  EXPECT_EQ(pool->live().size(), 0u);
  validate();
}

TEST(a_storage_that_is_restored_again_owns_its_block_once) {
  const auto pool = CpuPool::make();
  at::Tensor x = routed(pool, 100, 1);
  const alloc::PoolImage image = pool->checkpoint();
  for (int i = 0; i < 3; ++i) pool->restore(image, {StorageRef(x)});
  EXPECT_THROW(pool->free(x.data_ptr()), InputError, "owned by a storage");
  EXPECT_EQ(x.sum().item<float>(), 100.0f);
  x.reset();
  EXPECT_EQ(pool->live().size(), 0u);
  validate();
}

TEST(a_storage_that_adopts_a_block_frees_it_once) {
  const auto pool = CpuPool::make();
  void* ptr = pool->allocate(400);
  at::Tensor x = at::from_blob(ptr, {100}, at::kFloat);
  pool->adopt(*x.storage().unsafeGetStorageImpl());
  pool->adopt(*x.storage().unsafeGetStorageImpl());  // it is the owner already
  EXPECT_THROW(pool->free(ptr), InputError, "owned by a storage");
  EXPECT_EQ(pool->live().size(), 1u);
  x.reset();
  EXPECT_EQ(pool->live().size(), 0u);
  validate();
}

TEST(restore_hands_blocks_to_the_storages_named) {
  const auto pool = CpuPool::make();
  at::Tensor x = routed(pool, 100, 1);
  const alloc::PoolImage image = pool->checkpoint();
  const TensorSpec spec = TensorSpec::of(x);
  x.reset();
  at::Tensor replayed = tensor_at(spec);
  const PoolDelta delta = pool->restore(image, {StorageRef(replayed)});
  EXPECT_EQ(delta.freed.size(), 0u);
  EXPECT(delta.created == std::vector<alloc::Addr>{addr(spec.storage_ptr)});
  EXPECT(pool->check_live({addr(spec.storage_ptr)}).unexpected.empty());
  at::Tensor outside = at::zeros({3});
  EXPECT_THROW(pool->restore(image, {StorageRef(outside)}), InputError, "no live block in the image");
  replayed.reset();
  EXPECT_EQ(pool->live().size(), 0u);
  EXPECT_EQ(pool->check_live({4096}).missing.size(), 1u);
}

TEST(free_blocks_stay_mapped_while_a_graph_holds_the_pool) {
  const auto pool = CpuPool::make();
  at::Tensor x = routed(pool, 4 << 20);
  auto* bytes = static_cast<float*>(x.data_ptr());
  x.reset();
  {
    const CpuPool::GraphHold hold(pool);
    EXPECT_EQ(pool->trim(), 0u);
    bytes[12345] = 1;  // what a replay does
  }
  EXPECT(pool->trim() >= 16u << 20);
}

// Many threads in routes of few pools, freeing each other's memory, while pools come and go.
TEST(threads_share_the_routing_allocator) {
  constexpr int kThreads = 4;
  std::vector<std::shared_ptr<CpuPool>> pools{CpuPool::make(), CpuPool::make(), CpuPool::make(),
                                              CpuPool::make()};
  std::vector<c10::DataPtr> handed(kThreads * 64);
  std::vector<std::atomic<bool>> full(handed.size());
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int step = 0; step < 400; ++step) {
        std::shared_ptr<CpuPool> own = step % 50 == 0 ? CpuPool::make() : nullptr;
        const RouteScope route(own ? own : pools[static_cast<size_t>((t + step) % kThreads)]);
        const size_t nbytes = 64 + static_cast<size_t>(step) * 32;
        c10::DataPtr data = c10::GetCPUAllocator()->allocate(nbytes);
        auto* ints = static_cast<int*>(data.get());
        for (size_t i = 0; i < nbytes / sizeof(int); ++i) ints[i] = t;
        const size_t slot = static_cast<size_t>((t * 64 + step * 7) % static_cast<int>(handed.size()));
        bool expected = false;
        if (full[slot].compare_exchange_strong(expected, true)) {
          handed[slot] = std::move(data);
          continue;
        }
        for (size_t i = 0; i < nbytes / sizeof(int); ++i) wrong += ints[i] != t;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
  handed.clear();
  for (const auto& pool : pools) EXPECT_EQ(pool->live().size(), 0u);
  validate();
}

TEST(restores_run_beside_frees_of_other_threads) {
  const auto pool = CpuPool::make();
  std::atomic<bool> stop{false};
  std::vector<c10::DataPtr> blocks;
  std::mutex mutex;
  std::thread freer([&] {
    while (!stop.load()) {
      c10::DataPtr taken;
      {
        const std::lock_guard lock(mutex);
        if (blocks.empty()) continue;
        taken = std::move(blocks.back());
        blocks.pop_back();
      }
    }
  });
  for (int i = 0; i < 300; ++i) {
    const alloc::PoolImage image = pool->checkpoint();
    for (int k = 0; k < 4; ++k) {
      c10::DataPtr data = pool->take(1000);
      const std::lock_guard lock(mutex);
      blocks.push_back(std::move(data));
    }
    pool->restore(image, {});
  }
  stop = true;
  freer.join();
  blocks.clear();
  validate();
}
