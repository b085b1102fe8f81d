// What device_api.h promises, checked on every driver that runs here: host memory, the simulated device,
// and the CUDA driver on a libcuda played by a simulated device.
#include <unistd.h>

#include <functional>
#include <memory>

#include "allocator/drivers/driver_host.h"
#include "fake_cuda.h"
#include "test.h"

using namespace staticrt::alloc;

namespace {

constexpr Bytes kPage = 2 * kMiB;
constexpr Bytes kTotal = 64 * kMiB;

void each_driver(const std::function<void(Driver&)>& check) {
  const auto host = make_host_driver({.total_bytes = kTotal});
  SimDriver sim({.total_bytes = kTotal});
  FakeCuda fake({.total_bytes = kTotal});
  CudaOptions options = fake.options();
  options.exportable = true;
  std::unique_ptr<Driver> cuda;
  EXPECT_EQ(open_cuda_driver(options, &cuda).describe(), "ok");
  for (Driver* driver : {host.get(), static_cast<Driver*>(&sim), cuda.get()}) {
    try {
      check(*driver);
    } catch (const std::exception& error) {
      throw staticrt::test::Failure(driver->info().name + ": " + error.what());
    }
  }
  EXPECT_EQ(sim.report_text(), "");
  EXPECT_EQ(fake.sim.report_text(), "");
}

uint64_t& word(Addr address) {
  return *reinterpret_cast<uint64_t*>(address);
}

}  // namespace

TEST(contract_info_names_the_device) {
  each_driver([](Driver& driver) {
    EXPECT_EQ(driver.info().total_bytes, kTotal);
    EXPECT_EQ(driver.info().granule_bytes, kPage);
    EXPECT(driver.info().virtual_memory);
    EXPECT(driver.pending_error().ok());
  });
}

TEST(contract_segments) {
  each_driver([](Driver& driver) {
    Addr a = 0, b = 0;
    EXPECT(driver.segment_alloc(20 * kMiB, &a).ok());
    EXPECT_EQ(a % kPage, 0u);
    word(a) = 1;
    word(a + 20 * kMiB - 8) = 2;
    const Status oom = driver.segment_alloc(60 * kMiB, &b);
    EXPECT_EQ(oom.code(), Code::oom);
    EXPECT(!oom.text().empty());
    EXPECT_EQ(b, 0u);
    EXPECT(driver.segment_alloc(kPage, &b).ok());  // not sticky
    EXPECT(driver.segment_free(a, 20 * kMiB).ok());
    EXPECT(driver.segment_alloc(60 * kMiB, &a).ok());
    EXPECT(driver.segment_free(a, 60 * kMiB).ok());
    EXPECT(driver.segment_free(b, kPage).ok());
  });
}

TEST(contract_virtual_memory) {
  each_driver([](Driver& driver) {
    Addr va = 0;
    PhysicalId p = kNoPhysical, q = kNoPhysical, r = kNoPhysical;
    EXPECT(driver.va_reserve(kTotal * 2, kNullAddr, &va).ok());  // larger than the device
    EXPECT_EQ(va % kPage, 0u);
    EXPECT(driver.physical_create(kPage, &p).ok());
    EXPECT(driver.physical_create(20 * kMiB, &q).ok());
    EXPECT_EQ(driver.physical_create(kTotal, &r).code(), Code::oom);
    EXPECT(driver.map(va, kPage, p).ok());
    EXPECT(driver.map(va + kPage, 20 * kMiB, q).ok());
    EXPECT(driver.set_access(va, kPage + 20 * kMiB).ok());
    word(va + kPage - 8) = 3;
    word(va + kPage) = 4;
    EXPECT_EQ(word(va + kPage - 8), 3u);
    // Unmapping the middle of a reservation leaves the rest, and the address can be used again.
    EXPECT(driver.unmap(va + kPage, 20 * kMiB).ok());
    EXPECT_EQ(word(va + kPage - 8), 3u);
    EXPECT(driver.physical_release(q).ok());
    EXPECT(driver.physical_create(20 * kMiB, &q).ok());
    EXPECT(driver.map(va + kPage, 20 * kMiB, q).ok());
    EXPECT(driver.set_access(va + kPage, 20 * kMiB).ok());
    EXPECT_EQ(word(va + kPage), 0u);  // fresh memory
    // Memory outlives its handle while mapped.
    EXPECT(driver.physical_release(p).ok());
    EXPECT_EQ(word(va + kPage - 8), 3u);
    EXPECT(driver.unmap(va, kPage + 20 * kMiB).ok());
    EXPECT(driver.physical_release(q).ok());
    EXPECT(driver.va_release(va, kTotal * 2).ok());
    Bytes free = 0, total = 0;
    EXPECT(driver.memory_info(&free, &total).ok());
    EXPECT(driver.physical_create(kTotal, &r).ok());  // all of it is free again
    EXPECT(driver.physical_release(r).ok());
    EXPECT_EQ(total, kTotal);
    EXPECT(free <= kTotal && free > 0);
  });
}

TEST(contract_a_wished_address_is_used_again) {
  each_driver([](Driver& driver) {
    Addr a = 0, b = 0;
    EXPECT(driver.va_reserve(kPage, kNullAddr, &a).ok());
    EXPECT(driver.va_release(a, kPage).ok());
    EXPECT(driver.va_reserve(kPage, a, &b).ok());
    EXPECT_EQ(b, a);
    EXPECT(driver.va_reserve(kPage, a, &a).ok());  // taken: another one
    EXPECT(a != b);
    EXPECT(driver.va_release(a, kPage).ok());
    EXPECT(driver.va_release(b, kPage).ok());
  });
}

TEST(contract_events_and_streams) {
  each_driver([](Driver& driver) {
    EventId event = kNoEvent;
    EXPECT(driver.event_create(&event).ok());
    EXPECT(driver.event_query(event).ok());
    EXPECT(driver.event_record(event, kDefaultStream).ok());
    EXPECT(driver.stream_wait(StreamId{1}, event).ok());
    EXPECT(driver.event_sync(event).ok());
    EXPECT(driver.event_query(event).ok());
    EXPECT(driver.stream_sync(StreamId{1}).ok());
    EXPECT(driver.device_sync().ok());
    EXPECT(driver.event_destroy(event).ok());
    CaptureState state{CaptureStatus::active, 3};
    EXPECT(driver.capture_state(kDefaultStream, &state).ok());
    EXPECT(state.status == CaptureStatus::none && state.id == 0);
    const RelaxedCapture relaxed(driver);  // allowed everywhere
  });
}

TEST(contract_memory_that_others_have) {
  each_driver([](Driver& driver) {
    PhysicalId p = kNoPhysical, q = kNoPhysical, r = kNoPhysical;
    EXPECT(driver.physical_create(kPage, &p).ok());
    int fd = -1;
    if (driver.info().name == "cpu") {
      EXPECT_EQ(driver.physical_export(p, &fd).code(), Code::unsupported);
      EXPECT_EQ(fd, -1);
      EXPECT(driver.physical_release(p).ok());
      return;
    }
    Addr va = 0;
    EXPECT(driver.va_reserve(2 * kPage, kNullAddr, &va).ok());
    EXPECT(driver.map(va, kPage, p).ok());
    EXPECT(driver.set_access(va, kPage).ok());
    word(va) = 7;
    EXPECT(driver.physical_export(p, &fd).ok());
    EXPECT(fd >= 0);
    EXPECT(driver.physical_import(fd, kPage, &q).ok());
    EXPECT(driver.map(va + kPage, kPage, q).ok());
    EXPECT(driver.physical_release(q).ok());
    EXPECT(driver.set_access(va + kPage, kPage).ok());
    EXPECT_EQ(word(va + kPage), 7u);  // the same bytes
    word(va + kPage) = 8;
    EXPECT_EQ(word(va), 8u);
    // They live as long as somebody has them, with or without the descriptor.
    EXPECT_EQ(close(fd), 0);
    EXPECT(driver.unmap(va, kPage).ok());
    EXPECT(driver.physical_release(p).ok());
    EXPECT_EQ(word(va + kPage), 8u);
    EXPECT_EQ(driver.physical_create(kTotal, &r).code(), Code::oom);
    EXPECT(driver.unmap(va + kPage, kPage).ok());
    EXPECT(driver.physical_create(kTotal, &r).ok());
    EXPECT(driver.physical_release(r).ok());
    EXPECT(driver.va_release(va, 2 * kPage).ok());
  });
}

TEST(host_misuse_is_an_error) {
  const auto host = make_host_driver({.total_bytes = kTotal});
  Addr va = 0, other = 0;
  PhysicalId p = kNoPhysical;
  EXPECT(host->va_reserve(2 * kPage, kNullAddr, &va).ok());
  EXPECT(host->va_reserve(kPage, kNullAddr, &other).ok());
  EXPECT(host->physical_create(kPage, &p).ok());
  EXPECT_EQ(host->unmap(va, kPage).code(), Code::error);
  EXPECT_EQ(host->set_access(va, kPage).code(), Code::error);
  EXPECT_EQ(host->map(va + 512, kPage, p).code(), Code::error);
  EXPECT_EQ(host->map(va, 2 * kPage, p).code(), Code::error);
  EXPECT_EQ(host->map(va + 2 * kGiB, kPage, p).code(), Code::error);
  EXPECT(host->map(va, kPage, p).ok());
  EXPECT_EQ(host->map(other, kPage, p).code(), Code::unsupported);
  EXPECT_EQ(host->va_release(va, 2 * kPage).code(), Code::error);
  EXPECT_EQ(host->va_release(va, kPage).code(), Code::error);
  EXPECT_EQ(host->segment_free(va, 2 * kPage).code(), Code::error);
  EXPECT(host->physical_release(p).ok());
  EXPECT_EQ(host->physical_release(p).code(), Code::error);
  EXPECT_EQ(host->segment_alloc(0, &va).code(), Code::error);
  EXPECT_EQ(host->va_reserve(kPage + 1, kNullAddr, &va).code(), Code::error);
}

TEST(host_gives_unmapped_pages_back) {
  const auto host = make_host_driver();
  const auto resident = [] {
    FILE* file = std::fopen("/proc/self/statm", "r");
    long size = 0, pages = 0;
    EXPECT_EQ(std::fscanf(file, "%ld %ld", &size, &pages), 2);
    std::fclose(file);
    return static_cast<Bytes>(pages) * 4096;
  };
  Addr va = 0;
  PhysicalId p = kNoPhysical;
  EXPECT(host->va_reserve(64 * kMiB, kNullAddr, &va).ok());
  EXPECT(host->physical_create(64 * kMiB, &p).ok());
  EXPECT(host->map(va, 64 * kMiB, p).ok());
  EXPECT(host->set_access(va, 64 * kMiB).ok());
  const Bytes before = resident();
  for (Bytes at = 0; at < 64 * kMiB; at += 4096) word(va + at) = 1;
  EXPECT(resident() > before + 48 * kMiB);
  EXPECT(host->unmap(va, 64 * kMiB).ok());
  EXPECT(resident() < before + 16 * kMiB);
}

TEST(contract_peers) {
  const auto machine = std::make_shared<SimMachine>();
  SimDriver sim({.total_bytes = kTotal, .machine = machine});
  SimDriver sim_peer({.total_bytes = kTotal, .index = 1, .machine = machine});
  const auto cuda_machine = std::make_shared<SimMachine>();
  FakeCuda fake({.total_bytes = kTotal, .machine = cuda_machine});
  SimDriver fake_peer({.total_bytes = kTotal, .index = 1, .machine = cuda_machine});
  fake.peer = &fake_peer;
  fake.device_count = 2;
  std::unique_ptr<Driver> cuda, cuda_peer;
  CudaOptions options = fake.options();
  EXPECT_EQ(open_cuda_driver(options, &cuda).describe(), "ok");
  options.device_index = 1;
  EXPECT_EQ(open_cuda_driver(options, &cuda_peer).describe(), "ok");
  const auto host = make_host_driver({.total_bytes = kTotal});
  struct Pair {
    Driver &owner, &peer;
    SimDriver &bytes, &worker;  // what plays them
  };
  for (const Pair& pair :
       {Pair{sim, sim_peer, sim, sim_peer}, Pair{*cuda, *cuda_peer, fake.sim, fake_peer}}) {
    const auto open = [&](Addr address) {
      bool ran = false;
      pair.worker.launch(kDefaultStream, [&] { ran = true; }, {{address, kPage}});
      EXPECT(pair.worker.device_sync().ok());
      EXPECT_EQ(pair.worker.report_text().find("peer access: ") == 0, !ran);
      pair.worker.clear_reports();
      return ran;
    };
    bool reached = false;
    EXPECT(pair.owner.reached_by(pair.peer, &reached).ok() && reached);
    EXPECT(pair.owner.reached_by(pair.owner, &reached).ok() && reached);
    EXPECT(pair.owner.reached_by(*host, &reached).ok() && !reached);
    // Mapped memory is opened by set_access, segments by enable_peer.
    Addr va = 0, segment = 0;
    PhysicalId physical = kNoPhysical;
    EXPECT(pair.owner.va_reserve(kPage, kNullAddr, &va).ok());
    EXPECT(pair.owner.physical_create(kPage, &physical).ok());
    EXPECT(pair.owner.map(va, kPage, physical).ok());
    EXPECT(pair.owner.set_access(va, kPage).ok());
    EXPECT(pair.owner.segment_alloc(kPage, &segment).ok());
    for (const Addr each : {va, segment}) pair.bytes.allocated(each, kPage, kDefaultStream);
    EXPECT(!open(va) && !open(segment));
    EXPECT(pair.owner.set_access(va, kPage, 1).ok());
    EXPECT(open(va) && !open(segment));
    EXPECT(pair.owner.revoke_access(va, kPage, 1).ok());
    EXPECT(!open(va));
    EXPECT(pair.owner.enable_peer(pair.peer).ok());
    EXPECT(pair.owner.enable_peer(pair.peer).ok());
    EXPECT(!open(va) && open(segment));
    EXPECT(!pair.owner.enable_peer(*host).ok());
    for (const Addr each : {va, segment}) pair.bytes.freed(each);
    EXPECT(pair.owner.segment_free(segment, kPage).ok());
    EXPECT(pair.owner.segment_alloc(kPage, &segment).ok());
    pair.bytes.allocated(segment, kPage, kDefaultStream);
    EXPECT(open(segment));  // a later one
    pair.bytes.freed(segment);
    EXPECT(pair.owner.segment_free(segment, kPage).ok());
    EXPECT(pair.owner.unmap(va, kPage).ok());
    EXPECT(pair.owner.physical_release(physical).ok());
    EXPECT(pair.owner.va_release(va, kPage).ok());
    EXPECT(!pair.owner.set_access(va, kPage, 1).ok());
    pair.bytes.clear_reports();
  }
  cuda_machine->unreachable.insert({0, 1});
  bool reached = true;
  EXPECT(cuda->reached_by(*cuda_peer, &reached).ok() && !reached);
  EXPECT_EQ(host->revoke_access(0, kPage, 1).code(), Code::unsupported);
}
