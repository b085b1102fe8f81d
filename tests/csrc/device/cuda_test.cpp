// Programs on CUDA: torch's half is a toy device of that type, the driver a libcuda that the simulated one
// plays.
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>

#include <set>
#include <thread>

#include "allocator/core/inspector.h"
#include "allocator/fake_cuda.h"
#include "allocator/process/devices.h"
#include "device/toy_device.h"
#include "device/toy_programs.h"
#include "test.h"

using namespace staticrt;
using namespace staticrt::test;
using alloc::Bytes, alloc::Gauge, alloc::SimCall, alloc::Status, alloc::StreamId;

namespace {

constexpr Bytes kTotalBytes = 64 * alloc::kMiB;

at::Device cuda(int index) {
  return {at::kCUDA, static_cast<c10::DeviceIndex>(index)};
}

alloc::Device& device() {
  static auto* device = new alloc::Device;
  return *device;
}

// The driver of cuda:0, for the life of the process. Work of its streams runs when it is enqueued: that of
// the toy device does.
alloc::SimDriver& fake() {
  static auto* fake = [] {
    auto* made = new alloc::FakeCuda({.total_bytes = kTotalBytes, .eager = true});
    use_toy_cuda();
    std::unique_ptr<alloc::Driver> driver;
    EXPECT(open_cuda_driver(made->options(), &driver).ok());
    device().driver = std::move(driver);
    alloc::Config exact;
    exact.thread_cache = false;  // cached blocks count as live
    device().allocator = std::make_shared<alloc::DeviceAllocator>(device().driver, exact);
    EXPECT(alloc::register_cuda_device(0, device()).ok());
    return made;
  }();
  return fake->sim;
}

// Sizes of arenas that are allocated, and the streams that they belong to.
std::vector<std::pair<StreamId, Bytes>> arenas() {
  std::vector<std::pair<StreamId, Bytes>> found;
  for (const auto& segment : device().allocator->inspector().snapshot({}, false).segments)
    for (const auto& block : segment.blocks)
      if (block.state == alloc::BlockState::live) found.emplace_back(block.stream, block.requested);
  return found;
}

void expect_right(Executable& executable, const at::Tensor& x, const at::Tensor& w) {
  const auto outputs = executable.run({on_toy(x, cuda(0)), on_toy(w, cuda(0))});
  EXPECT_EQ(outputs[0].toTensor().device(), cuda(0));
  EXPECT(at::equal(outputs[0].toTensor().cpu(), expected(x, w)));
}

void expect_right(Executable& executable, int64_t size) {
  expect_right(executable, at::randn({size, size}), at::randn({size, size}));
}

// Two programs: none has another's memory.
struct Tidy {
  Tidy() {
    fake();
    EXPECT(arenas().empty());
  }
  ~Tidy() noexcept(false) {
    if (std::uncaught_exceptions() > 0) return;
    EXPECT(arenas().empty());
    EXPECT(device().allocator->empty_cache().ok());
    EXPECT(device().allocator->validate().ok());
    EXPECT_EQ(fake().report_text(), "");
  }
};

}  // namespace

TEST(cuda_registers_itself_when_torch_and_the_driver_have_it) {
  const Tidy tidy;
  const DeviceMemory* memory = find_memory(cuda(0));
  EXPECT(memory != nullptr && !memory->is_host());
  EXPECT_EQ(memory->device(), cuda(0));
  EXPECT_EQ(find_memory(cuda(0)), memory);
  EXPECT(find_memory(cuda(kToyCudaDevices)) == nullptr);  // torch counts fewer
  EXPECT(find_memory(at::Device(at::kCUDA)) == nullptr);  // which of them?
}

TEST(cuda_gives_the_cpus_answer_at_every_size) {
  const Tidy tidy;
  for (const bool prepared : {false, true}) {
    Executable executable(sum_and_tanh(cuda(0)), options(prepared));
    for (const int64_t n : {8, 8, 8, 100, 3, 8, 0, 8, 100})
      expect_right(executable, at::randn({n, 5}), at::randn({n, 5}));
  }
}

TEST(a_program_on_cuda_calls_out_variants_in_an_arena_of_our_allocator) {
  const Tidy tidy;
  Executable executable(sum_and_tanh(cuda(0)), options(true));
  EXPECT_EQ(executable.node_counts().out, 4);
  for (int i = 0; i < 3; ++i) expect_right(executable, at::randn({40, 50}), at::randn({40, 50}));
  const auto programs = executable.prepared_programs();
  EXPECT_EQ(programs.size(), 1U);
  EXPECT_EQ(programs[0]->stats().out_steps, 4);
  EXPECT_EQ(programs[0]->stats().generic_steps, 0);
  EXPECT_EQ(arenas().size(), 1U);
  EXPECT_EQ(static_cast<int64_t>(arenas()[0].second), programs[0]->stats().arena_bytes);
  take_toy_calls();
  const at::Tensor x = on_toy(at::randn({40, 50}), cuda(0));
  const int64_t before = toy_cuda_allocations();
  executable.run({x, x});
  EXPECT_EQ(toy_cuda_allocations(), before + 1);  // the output is torch's
  auto seen = take_toy_calls();
  std::erase(seen, "aten::fill_.Scalar");  // the poison
  const std::vector<std::string> calls{"aten::add.out", "aten::tanh.out", "aten::tanh.out", "aten::exp.out"};
  EXPECT(seen == calls);
}

TEST(an_arena_on_cuda_grows_with_the_sizes) {
  const Tidy tidy;
  Executable executable(sum_and_tanh(cuda(0)), options(true));
  Bytes largest = 0;
  for (const int64_t size : {4, 400, 40, 800}) {
    for (int i = 0; i < 3; ++i) expect_right(executable, size);
    EXPECT_EQ(arenas().size(), 1U);
    largest = std::max(largest, static_cast<Bytes>(size * size * 4));
    EXPECT(arenas()[0].second >= largest);
  }
}

TEST(each_stream_of_cuda_has_an_arena_under_its_handle) {
  const Tidy tidy;
  Executable executable(sum_and_tanh(cuda(0)), options(true));
  expect_right(executable, 16);
  for (int round = 0; round < 3; ++round)
    for (const int64_t stream : {0, 7, 9}) {
      const ToyStream on(cuda(0), stream);
      expect_right(executable, 16);
    }
  std::set<uint64_t> streams;
  for (const auto& arena : arenas()) streams.insert(raw(arena.first));
  EXPECT(streams == (std::set<uint64_t>{0, 107, 109}));
  executable.trim();
  EXPECT(arenas().empty());
}

TEST(a_full_cuda_device_takes_what_torch_keeps_or_is_an_error) {
  const Tidy tidy;
  Executable executable(sum_and_tanh(cuda(0)), options(true));
  for (int i = 0; i < 2; ++i) expect_right(executable, 8);
  int asked = 0;
  on_toy_empty_cache([&] { ++asked; });
  fake().set_other_bytes(kTotalBytes - 4 * alloc::kMiB);
  const at::Tensor x = on_toy(at::randn({1500, 1500}), cuda(0));
  executable.run({x, x});  // a size that comes once needs no arena
  EXPECT_THROW(executable.run({x, x}), c10::OutOfMemoryError, "the arena of a compiled program");
  EXPECT(asked >= 1);
  expect_right(executable, 8);  // fits
  on_toy_empty_cache([&] { fake().set_other_bytes(0); });
  for (int i = 0; i < 3; ++i) expect_right(executable, 1500);
  on_toy_empty_cache({});
  EXPECT_THROW(executable.run({x, on_toy(at::randn({3, 3, 3}), cuda(0))}), c10::Error, "");
  expect_right(executable, 1500);
}

TEST(errors_of_cuda_are_errors_and_the_next_call_works) {
  const Tidy tidy;
  for (const SimCall call : {SimCall::physical_create, SimCall::capture_state}) {
    Executable executable(sum_and_tanh(cuda(0)), options(true));
    expect_right(executable, 8);
    const at::Tensor x = on_toy(at::randn({1200, 1200}), cuda(0));
    fake().fail(call, 1, Status::Error("an illegal memory access was encountered", 700));
    bool failed = false;
    for (int i = 0; i < 2 && !failed; ++i) {
      try {
        executable.run({x, x});
      } catch (const c10::Error& error) {
        failed = true;
        EXPECT(std::string(error.what()).find("cuda:0") != std::string::npos);
      }
    }
    EXPECT(failed);
    for (int i = 0; i < 2; ++i) expect_right(executable, 8);
    executable.trim();
  }
}

TEST(while_a_stream_is_captured_arenas_are_torchs) {
  const Tidy tidy;
  Executable executable(sum_and_tanh(cuda(0)), options(true));
  for (int i = 0; i < 3; ++i) expect_right(executable, 16);
  const at::Tensor x = at::randn({16, 16});
  const at::Tensor on_cuda = on_toy(x, cuda(0));
  const auto arenas_before = arenas();
  {
    const ToyStream on(cuda(0), 5);
    const StreamId captured{static_cast<uint64_t>(toy_handle(5))};
    EXPECT(fake().capture_begin(captured).ok());
    const int64_t before = toy_cuda_allocations();
    const auto outputs = executable.run({on_cuda, on_cuda});
    EXPECT_EQ(toy_cuda_allocations(), before + 2);  // arena and output
    alloc::GraphId graph = alloc::kNoGraph;
    EXPECT(fake().capture_end(captured, &graph).ok());
    EXPECT(fake().graph_destroy(graph).ok());
    EXPECT(at::equal(outputs[0].toTensor().cpu(), expected(x, x)));
    EXPECT(arenas() == arenas_before);
    expect_right(executable, 16);
    EXPECT_EQ(arenas().size(), arenas_before.size() + 1);  // the stream's own, for calls
  }
  const int64_t before = toy_cuda_allocations();
  {
    const WithoutKeptMemory warmup;
    executable.run({on_cuda, on_cuda});
  }
  EXPECT_EQ(toy_cuda_allocations(), before + 2);
}

TEST(threads_run_a_program_on_streams_of_cuda_at_once) {
  const Tidy tidy;
  Executable executable(sum_and_tanh(cuda(0)), options(true));
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int number = 0; number < 8; ++number)
    threads.emplace_back([&, number] {
      const ToyStream on(cuda(0), number);
      for (int i = 0; i < 20; ++i) {
        const at::Tensor x = at::randn({5 + number % 3, 7}), w = at::randn({5 + number % 3, 7});
        const auto outputs = executable.run({on_toy(x, cuda(0)), on_toy(w, cuda(0))});
        if (!at::equal(outputs[0].toTensor().cpu(), expected(x, w))) ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST(a_maker_is_asked_once_for_each_device) {
  static std::atomic<int> asked = 0;
  register_maker(at::kXLA, [](at::Device) -> std::unique_ptr<DeviceMemory> {
    ++asked;
    return nullptr;
  });
  std::vector<std::thread> threads;
  for (int number = 0; number < 8; ++number)
    threads.emplace_back([] {
      for (int index = 0; index < 3; ++index)
        EXPECT(find_memory(at::Device(at::kXLA, static_cast<c10::DeviceIndex>(index))) == nullptr);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(asked.load(), 3);
}
