// driver_cuda.cpp on a libcuda played by a simulated device. On a GPU it is tested by tests/memory, marked
// cuda.
#include "allocator/drivers/driver_cuda.h"

#include <unistd.h>

#include <memory>
#include <string>

#include "allocator/drivers/cu_min.h"
#include "fake_cuda.h"
#include "test.h"

using namespace staticrt::alloc;

namespace {

std::string why_not(const FakeCuda& fake, int device = 0) {
  CudaOptions options = fake.options();
  options.device_index = device;
  std::unique_ptr<Driver> driver;
  return open_cuda_driver(options, &driver).describe();
}

std::unique_ptr<Driver> open(const FakeCuda& fake, bool exportable = false) {
  CudaOptions options = fake.options();
  options.exportable = exportable;
  std::unique_ptr<Driver> driver;
  EXPECT_EQ(open_cuda_driver(options, &driver).describe(), "ok");
  return driver;
}

}  // namespace

TEST(cuda_says_why_there_is_none) {
  FakeCuda fake({});
  EXPECT_EQ(why_not(fake), "ok");
  EXPECT_EQ(why_not(fake, 3), "invalid_argument: there is no cuda:3; devices: 1");
  fake.driver_version = 11080;
  EXPECT_EQ(why_not(fake), "unsupported: the CUDA driver is older than CUDA 12.0; update it");
  fake.missing_call = "cuMemMap";
  EXPECT_EQ(why_not(fake), "unsupported: the CUDA driver has no cuMemMap; update it");
  fake.has_proc_address = false;
  EXPECT_EQ(why_not(fake), "unsupported: the CUDA driver is older than CUDA 12.0; update it");
  fake.has_library = false;
  EXPECT_EQ(why_not(fake), "unsupported: no CUDA driver: libcuda.so.1 was not found");
}

TEST(cuda_errors_name_the_call_and_the_code) {
  FakeCuda fake({.total_bytes = 64 * kMiB});
  const auto cuda = open(fake);
  PhysicalId p = kNoPhysical;
  const Status oom = cuda->physical_create(128 * kMiB, &p);
  EXPECT_EQ(oom.describe(), "oom: cuMemCreate: out of memory (CUDA_ERROR_OUT_OF_MEMORY, 2)");
  fake.sim.set_pending_error(Status::Error("illegal address", 700));
  const Status broken = cuda->pending_error();
  EXPECT_EQ(broken.describe(), "error: cuMemGetInfo: no description (CUDA_ERROR_FAKE, 700)");
  EXPECT_EQ(broken.native(), 700);
}

TEST(cuda_leaves_the_threads_context_as_it_was) {
  FakeCuda fake({.total_bytes = 64 * kMiB});
  const auto cuda = open(fake);
  Addr a = 0;
  EXPECT(cuda->segment_alloc(2 * kMiB, &a).ok());  // the fake refuses it without a current context
  const auto get = fake.options().find_symbol;
  void* current = nullptr;
  auto proc = reinterpret_cast<cu::cuGetProcAddress_fn>(get("libcuda.so.1", "cuGetProcAddress_v2"));
  EXPECT_EQ(proc("cuCtxGetCurrent", &current, cu::kApiVersion, cu::kLegacyStream, nullptr), cu::kSuccess);
  cu::Context context = reinterpret_cast<cu::Context>(1);
  EXPECT_EQ(reinterpret_cast<cu::cuCtxGetCurrent_fn>(current)(&context), cu::kSuccess);
  EXPECT(context == nullptr);
}

TEST(cuda_without_virtual_memory) {
  FakeCuda fake({.virtual_memory = false});
  const auto cuda = open(fake);
  Addr a = 0;
  PhysicalId p = kNoPhysical;
  EXPECT(!cuda->info().virtual_memory);
  EXPECT_EQ(cuda->va_reserve(2 * kMiB, kNullAddr, &a).code(), Code::unsupported);
  EXPECT_EQ(cuda->physical_create(2 * kMiB, &p).code(), Code::unsupported);
  EXPECT(cuda->segment_alloc(2 * kMiB, &a).ok());
}

TEST(cuda_captures) {
  FakeCuda fake({});
  const auto cuda = open(fake);
  const StreamId a = fake.sim.create_stream(), b = fake.sim.create_stream();
  EventId fork = kNoEvent, join = kNoEvent;
  EXPECT(cuda->event_create(&fork).ok());
  EXPECT(cuda->event_create(&join).ok());
  NodeId start = kNoNode, on_a = kNoNode, on_b = kNoNode;
  EXPECT_EQ(cuda->capture_marker(a, &start).code(), Code::invalid_argument);
  EXPECT(fake.sim.capture_begin(a).ok());
  CaptureState state;
  EXPECT(cuda->capture_state(a, &state).ok());
  EXPECT(state.status == CaptureStatus::active && state.id != 0);
  {
    const RelaxedCapture relaxed(*cuda);
    Addr address = 0;
    EXPECT(cuda->segment_alloc(2 * kMiB, &address).ok());
  }
  EXPECT(cuda->capture_marker(a, &start).ok());
  EXPECT(cuda->event_record(fork, a).ok());
  EXPECT(cuda->stream_wait(b, fork).ok());
  EXPECT(cuda->capture_marker(a, &on_a).ok());
  EXPECT(cuda->capture_marker(b, &on_b).ok());
  std::vector<NodeId> settled;
  EXPECT(cuda->capture_settled(a, &settled).ok());
  EXPECT(settled == std::vector<NodeId>{start});
  EXPECT(cuda->event_record(join, b).ok());
  EXPECT(cuda->stream_wait(a, join).ok());
  fake.sim.enqueue(a);
  EXPECT(cuda->capture_settled(a, &settled).ok());
  EXPECT_EQ(settled.size(), 4u);
  EXPECT_EQ(cuda->segment_free(0, 0).code(), Code::error);  // not relaxed: breaks the capture
  EXPECT(cuda->capture_state(a, &state).ok());
  EXPECT(state.status == CaptureStatus::invalidated);
}

TEST(cuda_exports_memory_made_for_it) {
  FakeCuda fake({});
  const auto cuda = open(fake, true);
  PhysicalId p = kNoPhysical, q = kNoPhysical;
  int fd = -1;
  EXPECT(cuda->physical_create(2 * kMiB, &p).ok());
  EXPECT(cuda->physical_export(p, &fd).ok());
  EXPECT(cuda->physical_import(fd, 2 * kMiB, &q).ok());
  EXPECT_EQ(close(fd), 0);
  EXPECT_EQ(open(fake)->physical_export(p, &fd).describe(),
            "unsupported: cuda:0: memory of this driver was not made to be exported");
}

TEST(cuda_lists_processes_by_nvml) {
  FakeCuda fake({});
  for (int k = 99; k >= 0; --k) fake.nvml.push_back({k, Bytes(k) * kMiB});
  fake.nvml[5].used_bytes = cu::kNvmlNotAvailable;
  fake.nvml.push_back({getpid(), kMiB});  // ourselves: not listed
  auto cuda = open(fake);
  std::vector<ProcessUse> uses;
  EXPECT(cuda->processes(&uses).ok());
  EXPECT_EQ(uses.size(), 100u);
  EXPECT_EQ(uses[7].pid, 7);
  EXPECT_EQ(uses[7].used_bytes, 7 * kMiB);
  EXPECT_EQ(uses[94].used_bytes, 0u);
  fake.has_nvml = false;
  cuda = open(fake);
  EXPECT_EQ(cuda->processes(&uses).code(), Code::unsupported);
}
