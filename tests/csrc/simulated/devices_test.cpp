// The device "sim" without Python, for the sanitizers: operators, streams of several threads, and the checks.
#include <ATen/Context.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/native_dropout.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "simulated/device.h"
#include "simulated/enable.h"
#include "simulated/graph_pool.h"
#include "test.h"

using namespace staticrt;
using namespace staticrt::simulated;

namespace {

// The devices exist once for all tests of the process, and are idle and without reports at the start of each.
at::TensorOptions on(int index) {
  static const bool made = [] {
    DevicesConfig config;
    config.count = 2;
    config.total_bytes = 256 * alloc::kMiB;
    config.redzone_bytes = 64;
    enable(config);
    return true;
  }();
  (void)made;
  return at::TensorOptions().device(device_at(index).device());
}

struct Idle {
  Idle() {
    for (int index = 0; index < 2; ++index) {
      (void)on(index);
      device_at(index).synchronize();
      device_at(index).driver().clear_reports();
      device_at(index).driver().set_order(alloc::SimOrder::needed, 0);
    }
  }
};

c10::Stream new_stream(int index) {
  return torch_stream(index, device_at(index).driver().create_stream());
}

void wait_stream(const c10::Stream& waiting, const c10::Stream& other) {
  c10::Event event(kDeviceType);
  event.record(other);
  event.block(waiting);
}

c10::Stream current(int index) {
  return torch_stream(index, current_stream(index));
}

std::string reports(int index) {
  device_at(index).synchronize();
  std::string text = device_at(index).driver().report_text();
  device_at(index).driver().clear_reports();
  return text;
}

}  // namespace

TEST(sim_operators_equal_the_cpus) {
  const Idle idle;
  const at::Tensor x = at::rand({16, 16});
  const at::Tensor y = x.to(on(0).device());
  EXPECT(at::equal(at::mm(y, y).add_(1).cpu(), at::mm(x, x).add_(1)));
  EXPECT(at::equal(at::nonzero(y).cpu(), at::nonzero(x)));
  EXPECT(at::equal(y.to(on(1).device()).mul(2).cpu(), x.mul(2)));
  EXPECT_EQ(reports(0) + reports(1), std::string());
}

TEST(sim_threads_with_streams_of_their_own) {
  for (const auto order : {alloc::SimOrder::needed, alloc::SimOrder::others_first, alloc::SimOrder::random}) {
    const Idle idle;
    for (int index = 0; index < 2; ++index) device_at(index).driver().set_order(order, 3);
    std::atomic<int> wrong = 0;
    std::vector<std::thread> threads;
    for (int number = 0; number < 4; ++number)
      threads.emplace_back([number, &wrong] {
        const int index = number % 2;
        const c10::StreamGuard guard(new_stream(index));
        for (int round = 0; round < 20; ++round) {
          at::Tensor x = at::full({100 + round}, number, on(index));
          x = at::add(x.mul(2), x);
          if (!at::equal(x.cpu(), at::full({100 + round}, 3 * number))) ++wrong;
        }
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong.load(), 0);
    EXPECT_EQ(reports(0) + reports(1), std::string());
  }
}

TEST(sim_race_of_two_streams_is_reported_unless_an_event_orders_them) {
  for (const bool ordered : {true, false}) {
    const Idle idle;
    const at::Tensor x = at::ones({64, 64}, on(0));
    const c10::Stream side = new_stream(0);
    wait_stream(side, current(0));
    {
      const c10::StreamGuard guard(side);
      x.add_(1);
    }
    x.record_stream(side);
    if (ordered) wait_stream(current(0), side);
    const at::Tensor y = x.mul(2);
    const std::string found = reports(0);
    EXPECT_EQ(found.find("race: aten::mul on stream 0 reads bytes [0, 16384)") == 0, !ordered);
    EXPECT(!ordered || found.empty());
    EXPECT(!ordered || at::equal(y.cpu(), at::full({64, 64}, 4.0)));
  }
}

TEST(sim_threads_pass_tensors_by_events) {
  const Idle idle;
  for (int round = 0; round < 20; ++round) {
    const c10::Stream side = new_stream(0);
    at::Tensor x = at::ones({1000}, on(0));
    wait_stream(side, current(0));
    x.record_stream(side);
    at::Tensor y;
    std::thread other([&] {
      const c10::StreamGuard guard(side);
      y = x.mul(3);
      x = at::Tensor();
    });
    other.join();
    wait_stream(current(0), side);
    y.record_stream(current(0));
    EXPECT(at::equal(y.add(1).cpu(), at::full({1000}, 4.0)));
  }
  EXPECT_EQ(reports(0), std::string());
}

TEST(sim_another_device_waits_for_a_stream) {
  const Idle idle;
  const at::Tensor x = at::ones({100}, on(0));
  const c10::Stream side = new_stream(0);
  wait_stream(current(1), current(0));
  wait_stream(side, current(1));
  x.record_stream(side);
  const c10::StreamGuard guard(side);
  x.add_(1);
  EXPECT(at::equal(x.cpu(), at::full({100}, 2.0)));
  EXPECT_EQ(reports(0), std::string());
}

TEST(sim_copies_that_a_device_refuses_raise) {
  const Idle idle;
  const at::Tensor x = at::ones({100}, on(0));
  const at::Tensor y = at::zeros({100}, on(1));
  y.copy_(x);
  EXPECT_EQ(reports(0) + reports(1), std::string());
  auto& owner = device_at(1).driver();
  const alloc::Bytes page = owner.info().granule_bytes;
  const alloc::Addr begin = reinterpret_cast<alloc::Addr>(y.storage().data()) / page * page;
  const auto refused = [&](const std::string& why) {
    try {
      y.copy_(x);
    } catch (const c10::Error& error) {
      return std::string(error.what()).find("aten::copy_ cannot be enqueued on stream 0 of sim:0: " + why) ==
             0;
    }
    return false;
  };
  EXPECT(owner.revoke_access(begin, page, 0).ok());
  EXPECT(refused("peer access: aten::copy_ on stream 0 of sim:0 uses ["));
  EXPECT(reports(0).find("peer access: ") == 0);
  EXPECT(owner.set_access(begin, page, 0).ok());
  device_at(0).driver().fail(alloc::SimCall::launch, 1, alloc::Status::Error("planned", 7));
  EXPECT(refused("planned"));
  y.copy_(x);
  EXPECT(at::equal(y.cpu(), x.cpu()));
  EXPECT_EQ(reports(0) + reports(1), std::string());
}

TEST(sim_dropout_leaves_the_cpus_generator_alone) {
  const Idle idle;
  at::Generator shared = at::detail::getDefaultCPUGenerator();
  shared.set_current_seed(5);
  const at::Tensor expected = at::rand({1000});
  shared.set_current_seed(5);
  std::atomic<bool> done = false;
  std::thread other([&] {
    while (!done) (void)std::get<0>(at::native_dropout(at::ones({1000}, on(0)), 0.5, true)).cpu();
  });
  bool same = true;
  for (int round = 0; round < 20; ++round) {
    shared.set_current_seed(5);
    same = same && at::equal(at::rand({1000}), expected);
  }
  done = true;
  other.join();
  EXPECT(same);
}

TEST(sim_memory_is_poisoned_and_guarded) {
  const Idle idle;
  const at::Tensor x = at::empty({1000}, on(0));
  EXPECT(x.cpu().isnan().all().item<bool>());
  auto& driver = device_at(0).driver();
  const auto address = reinterpret_cast<alloc::Addr>(x.storage().data());
  driver.launch(
      alloc::kDefaultStream,
      [bytes = reinterpret_cast<char*>(driver.kernel_address(address))] { bytes[4000] = 0; },
      {{.address = address, .size_bytes = 4000}}, "wrong");
  EXPECT(reports(0).find("redzone: wrong on stream 0 wrote byte 4000 of allocation #") == 0);
}

TEST(sim_pools_of_graphs_pass_memory_between_threads) {
  const Idle idle;
  (void)on(0);
  std::atomic<int> wrong = 0;
  std::mutex mutex;
  std::vector<at::Tensor> passed;  // made in the pools, dropped by any thread
  {
    std::vector<std::unique_ptr<GraphPool>> pools;
    for (int number = 0; number < 3; ++number) pools.push_back(std::make_unique<GraphPool>(0));
    std::vector<std::thread> threads;
    for (int number = 0; number < 3; ++number)
      threads.emplace_back([&, number] {
        GraphPool& pool = *pools[number];
        const c10::StreamGuard guard(new_stream(0));
        const alloc::StreamId stream = current_stream(0);
        for (int round = 0; round < 20; ++round) {
          pool.hand_over(stream, stream);
          pool.begin_route();
          const at::Tensor kept = at::full({50}, number, on(0));
          const at::Tensor given = at::full({80}, number, on(0));
          pool.end_route();
          const alloc::PoolImage image = pool.checkpoint();
          pool.begin_route();
          const at::Tensor late = at::full({3000}, number, on(0));
          pool.end_route();
          // `given` and `late` keep deleters that do nothing from now on.
          (void)pool.restore(image,
                             {GraphPool::Storage::reclaim_copy(kept.storage().unsafeGetStorageImpl())});
          pool.free(reinterpret_cast<alloc::Addr>(given.storage().data()));
          if (!at::equal(kept.cpu(), at::full({50}, number))) ++wrong;
          if (pool.live().size() != 2) ++wrong;  // `given` goes with its former owner
          const std::lock_guard lock(mutex);
          passed.push_back(at::full({60}, number, on(0)));
          passed.back().record_stream(new_stream(0));
          if (passed.size() > 2) passed.erase(passed.begin());
        }
      });
    for (std::thread& thread : threads) thread.join();
    for (const auto& pool : pools) EXPECT(pool->live().empty());
  }
  passed.clear();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_EQ(reports(0) + reports(1), std::string());
  EXPECT(device_at(0).allocator().validate().ok());
}
