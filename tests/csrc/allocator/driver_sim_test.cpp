// The simulated device as memory, streams, events and faults.
#include "allocator/simulated/driver_sim.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "common/error.h"
#include "device_fixture.h"
#include "test.h"

using namespace staticrt::alloc;

namespace {

constexpr Bytes kPage = 2 * kMiB;

// Reserves, creates, maps and opens `size` bytes.
Addr mapped(SimDriver& sim, Bytes size, PhysicalId* physical = nullptr) {
  Addr address = 0;
  PhysicalId made = kNoPhysical;
  EXPECT(sim.va_reserve(size, kNullAddr, &address).ok());
  EXPECT(sim.physical_create(size, &made).ok());
  EXPECT(sim.map(address, size, made).ok());
  EXPECT(sim.set_access(address, size, Driver::kThisDevice).ok());
  if (physical)
    *physical = made;
  else
    EXPECT(sim.physical_release(made).ok());
  return address;
}

uint64_t& word(Addr address) {
  return *reinterpret_cast<uint64_t*>(address);
}

}  // namespace

TEST(sim_config_that_makes_no_device_is_refused) {
  EXPECT_THROW(SimDriver({.total_bytes = 0}), staticrt::InputError, "total_bytes must be > 0");
  EXPECT_THROW(SimDriver({.granule_bytes = 3000}), staticrt::InputError, "granule is 3000 bytes");
}

TEST(sim_memory_is_real_memory) {
  SimDriver sim({.total_bytes = 64 * kMiB});
  Addr a = 0;
  EXPECT(sim.segment_alloc(20 * kMiB, &a).ok());
  word(a) = 41;
  word(a + 20 * kMiB - 8) = 42;
  EXPECT_EQ(sim.used_bytes(), 20 * kMiB);
  Bytes free = 0, total = 0;
  EXPECT(sim.memory_info(&free, &total).ok());
  EXPECT_EQ(free, 44 * kMiB);
  EXPECT_EQ(total, 64 * kMiB);
  EXPECT(sim.segment_free(a, 20 * kMiB).ok());
  EXPECT_EQ(sim.used_bytes(), 0u);
  EXPECT_EQ(sim.reserved_va_bytes(), 0u);
  Addr b = 0;
  EXPECT(sim.segment_alloc(20 * kMiB, &b).ok());
  EXPECT_EQ(b, a);         // the lowest address again
  EXPECT_EQ(word(b), 0u);  // but fresh memory
  EXPECT(sim.segment_free(b, 20 * kMiB).ok());
  EXPECT_EQ(sim.report_text(), "");
}

TEST(sim_one_page_at_two_addresses_shows_the_same_bytes) {
  SimDriver sim({.total_bytes = 64 * kMiB});
  PhysicalId page = kNoPhysical;
  const Addr a = mapped(sim, kPage, &page);
  Addr b = 0;
  EXPECT(sim.va_reserve(kPage, kNullAddr, &b).ok());
  EXPECT(sim.map(b, kPage, page).ok());
  EXPECT(sim.set_access(b, kPage, Driver::kThisDevice).ok());
  EXPECT_EQ(sim.used_bytes(), kPage);
  word(a + 512) = 7;
  EXPECT_EQ(word(b + 512), 7u);
  // Memory lives until its handle and its last mapping are gone.
  EXPECT(sim.physical_release(page).ok());
  EXPECT(sim.unmap(a, kPage).ok());
  EXPECT_EQ(word(b + 512), 7u);
  EXPECT_EQ(sim.used_bytes(), kPage);
  EXPECT(sim.unmap(b, kPage).ok());
  EXPECT_EQ(sim.used_bytes(), 0u);
  EXPECT_EQ(sim.handle_count(), 0u);
}

TEST(sim_a_page_keeps_its_bytes_when_mapped_elsewhere) {
  SimDriver sim({.total_bytes = 64 * kMiB});
  PhysicalId page = kNoPhysical;
  const Addr a = mapped(sim, kPage, &page);
  word(a) = 9;
  EXPECT(sim.unmap(a, kPage).ok());
  EXPECT_EQ(sim.used_bytes(), kPage);
  EXPECT(sim.map(a, kPage, page).ok());
  EXPECT(sim.set_access(a, kPage, Driver::kThisDevice).ok());
  EXPECT_EQ(word(a), 9u);
}

TEST(sim_limits_bytes_addresses_and_handles) {
  SimDriver sim({.total_bytes = 8 * kMiB, .other_bytes = 2 * kMiB, .va_bytes = 6 * kMiB, .max_handles = 2});
  PhysicalId p = kNoPhysical, q = kNoPhysical, r = kNoPhysical;
  EXPECT_EQ(sim.physical_create(8 * kMiB, &p).code(), Code::oom);
  EXPECT_EQ(sim.physical_create(8 * kMiB, &p).text(), "sim: 8388608 bytes asked, 6291456 bytes free");
  EXPECT(sim.physical_create(kPage, &p).ok());
  EXPECT(sim.physical_create(kPage, &q).ok());
  EXPECT_EQ(sim.physical_create(kPage, &r).text(), "sim: all 2 handles are in use");
  EXPECT(sim.physical_release(q).ok());
  EXPECT(sim.physical_create(kPage, &q).ok());
  Addr a = 0, b = 0;
  EXPECT(sim.va_reserve(4 * kMiB, kNullAddr, &a).ok());
  EXPECT_EQ(sim.va_reserve(4 * kMiB, kNullAddr, &b).code(), Code::oom);
  EXPECT_EQ(b, 0u);
  EXPECT(sim.va_reserve(2 * kMiB, kNullAddr, &b).ok());
  EXPECT(sim.va_release(a, 4 * kMiB).ok());
  EXPECT(sim.va_release(b, 2 * kMiB).ok());
  EXPECT(sim.va_reserve(6 * kMiB, kNullAddr, &a).ok());  // neighbours are one range again
  sim.set_other_bytes(8 * kMiB);
  EXPECT_EQ(sim.physical_create(kPage, &r).code(), Code::oom);
  EXPECT_EQ(sim.report_text(), "");  // running out is not misuse
}

TEST(sim_reserves_at_a_wished_address_if_it_is_free) {
  SimDriver sim({.total_bytes = 8 * kMiB, .va_bytes = 16 * kMiB});
  Addr a = 0, b = 0, c = 0;
  EXPECT(sim.va_reserve(kPage, sim.base() + 4 * kMiB, &a).ok());
  EXPECT_EQ(a, sim.base() + 4 * kMiB);
  EXPECT(sim.va_reserve(kPage, a, &b).ok());
  EXPECT_EQ(b, sim.base());
  EXPECT(sim.va_reserve(4 * kMiB, sim.base() + 14 * kMiB, &c).ok());  // would stick out
  EXPECT_EQ(c, sim.base() + 6 * kMiB);
}

TEST(sim_misuse_is_an_error_changes_nothing_and_is_reported) {
  SimDriver sim({.total_bytes = 64 * kMiB});
  PhysicalId page = kNoPhysical;
  const Addr a = mapped(sim, 2 * kPage, &page);
  const auto refused = [&](Status status, const char* part) {
    EXPECT_EQ(status.code(), Code::error);
    EXPECT(status.text().find(part) != std::string::npos);
    EXPECT(sim.report_text().find(part) != std::string::npos);
    sim.clear_reports();
    EXPECT_EQ(sim.used_bytes(), 2 * kPage);
    EXPECT_EQ(sim.reserved_va_bytes(), 2 * kPage);
  };
  refused(sim.unmap(a, kPage), "not a row of whole mappings");
  refused(sim.unmap(a + kPage, kPage), "not a row of whole mappings");
  refused(sim.va_release(a, 2 * kPage), "something is still mapped in it");
  refused(sim.va_release(a, kPage), "not a reservation");
  refused(sim.map(a, 2 * kPage, page), "mapped already");
  refused(sim.map(a, kPage, page), "the handle has 4194304 bytes");
  refused(sim.map(a + 64 * kMiB, 2 * kPage, page), "not inside one reservation");
  refused(sim.map(a, kPage, PhysicalId{99}), "handle 99: not a handle");
  refused(sim.physical_release(PhysicalId{99}), "not a handle");
  refused(sim.segment_free(a, 2 * kPage), "not a segment");
  refused(sim.segment_alloc(0, nullptr), "0 bytes");
  refused(sim.va_reserve(kPage + 1, kNullAddr, nullptr), "not a positive multiple");
  refused(sim.physical_create(0, nullptr), "not a positive multiple");
  refused(sim.event_destroy(EventId{5}), "no such event");
  refused(sim.event_query(EventId{5}), "no such event");
  refused(sim.graph_launch(GraphId{3}, kDefaultStream), "no such graph");
}

TEST(sim_an_unbacked_device_may_be_larger_than_any_machine) {
  SimDriver sim({.total_bytes = 16 * 1024 * kGiB, .backed = false});
  Addr a = 0, b = 0;
  EXPECT(sim.segment_alloc(10 * 1024 * kGiB, &a).ok());
  EXPECT_EQ(sim.segment_alloc(10 * 1024 * kGiB, &b).code(), Code::oom);
  EXPECT(sim.va_reserve(18 * 1024 * kGiB, kNullAddr, &b).ok());
  EXPECT(b + 18 * 1024 * kGiB < Addr{1} << 47);
  EXPECT_THROW(sim.write(kDefaultStream, a, 8, 1), staticrt::InputError, "backed=true");
}

TEST(sim_unbacked_devices_of_one_machine_have_addresses_of_their_own) {
  const auto machine = std::make_shared<SimMachine>();
  const auto made = [&](int index, Bytes va_bytes) {
    return SimConfig{.index = index, .va_bytes = va_bytes, .backed = false, .machine = machine};
  };
  const SimDriver zero(made(0, 0));
  auto one = std::make_unique<SimDriver>(made(1, 6 * kPage));
  const SimDriver two(made(2, 0));
  EXPECT_EQ(one->base(), zero.end());
  EXPECT_EQ(two.base(), one->end());
  one.reset();
  EXPECT_EQ(SimDriver(made(1, 4 * kPage)).base(), zero.end());
  EXPECT_EQ(SimDriver(made(1, 8 * kPage)).base(), two.end());
  EXPECT_THROW(SimDriver(made(1, Bytes{1} << 48)), staticrt::InputError, "lower va_bytes");
}

TEST(sim_without_virtual_memory_gives_segments_only) {
  SimDriver sim({.total_bytes = 64 * kMiB, .virtual_memory = false});
  Addr a = 0;
  PhysicalId p = kNoPhysical;
  EXPECT(!sim.info().virtual_memory);
  EXPECT_EQ(sim.va_reserve(kPage, kNullAddr, &a).code(), Code::unsupported);
  EXPECT_EQ(sim.physical_create(kPage, &p).code(), Code::unsupported);
  EXPECT(sim.segment_alloc(kPage, &a).ok());
}

TEST(sim_streams_move_only_when_told) {
  SimDriver sim({});
  const StreamId s = sim.create_stream();
  std::string order;
  EventId middle = kNoEvent;
  EXPECT(sim.event_create(&middle).ok());
  EXPECT(sim.event_query(middle).ok());  // never recorded
  sim.enqueue(s, [&] { order += 'a'; });
  sim.enqueue(s, [&] { order += 'b'; });
  EXPECT(sim.event_record(middle, s).ok());
  sim.enqueue(s, [&] { order += 'c'; });
  EXPECT_EQ(sim.pending(s), 3u);
  EXPECT_EQ(sim.event_query(middle).code(), Code::not_ready);
  EXPECT_EQ(sim.advance(s), 1u);
  EXPECT_EQ(sim.event_query(middle).code(), Code::not_ready);
  EXPECT_EQ(sim.advance(s), 1u);
  EXPECT(sim.event_query(middle).ok());
  EXPECT_EQ(order, "ab");
  EXPECT_EQ(sim.advance(s, 10), 1u);
  EXPECT_EQ(order, "abc");
  EXPECT(sim.event_destroy(middle).ok());
  EXPECT_EQ(sim.event_count(), 0u);
}

TEST(sim_a_wait_holds_its_stream_until_the_event) {
  SimDriver sim({});
  const StreamId a = sim.create_stream(), b = sim.create_stream();
  EventId event = kNoEvent;
  EXPECT(sim.event_create(&event).ok());
  sim.enqueue(a);
  EXPECT(sim.event_record(event, a).ok());
  EXPECT(sim.stream_wait(b, event).ok());
  sim.enqueue(b);
  EXPECT(sim.event_record(event, a).ok());  // a later record does not change what b waits for
  sim.enqueue(a);
  EXPECT_EQ(sim.advance(b), 0u);
  EXPECT_EQ(sim.advance(a), 1u);
  EXPECT_EQ(sim.advance(b), 1u);
  EXPECT_EQ(sim.pending(a), 1u);
}

TEST(sim_a_sync_moves_only_the_streams_it_needs) {
  SimDriver sim({});
  const StreamId a = sim.create_stream(), b = sim.create_stream(), c = sim.create_stream();
  EventId event = kNoEvent;
  EXPECT(sim.event_create(&event).ok());
  sim.enqueue(a);
  EXPECT(sim.event_record(event, a).ok());
  sim.enqueue(a);
  EXPECT(sim.stream_wait(b, event).ok());
  sim.enqueue(b);
  sim.enqueue(c);
  EXPECT(sim.stream_sync(b).ok());
  EXPECT_EQ(sim.pending(b), 0u);
  EXPECT_EQ(sim.pending(a), 1u);  // only up to the event
  EXPECT_EQ(sim.pending(c), 1u);
  EXPECT(sim.device_sync().ok());
  EXPECT_EQ(sim.pending(a) + sim.pending(c), 0u);
}

TEST(sim_long_chains_of_waits_finish) {
  SimDriver sim({});
  EventId event = kNoEvent;
  EXPECT(sim.event_create(&event).ok());
  for (uint64_t k = 0; k < 20000; ++k) {  // each stream waits for the other one, back to the start
    const StreamId stream{1 + k % 2};
    EXPECT(sim.stream_wait(stream, event).ok());
    sim.enqueue(stream);
    EXPECT(sim.event_record(event, stream).ok());
  }
  EXPECT(sim.event_sync(event).ok());
  EXPECT_EQ(sim.pending(StreamId{1}) + sim.pending(StreamId{2}), 0u);
}

TEST(sim_eager_device_is_never_behind) {
  SimDriver sim({.eager = true});
  EventId event = kNoEvent;
  EXPECT(sim.event_create(&event).ok());
  sim.enqueue(kDefaultStream);
  EXPECT(sim.event_record(event, kDefaultStream).ok());
  EXPECT(sim.event_query(event).ok());
  EXPECT_EQ(sim.pending(kDefaultStream), 0u);
}

TEST(sim_fails_the_planned_call) {
  SimDriver sim({.total_bytes = 64 * kMiB});
  Addr a = 0;
  EXPECT(sim.segment_alloc(kPage, &a).ok());
  sim.fail(SimCall::segment_alloc, 2, Status::Oom("planned"), 2);
  Addr b = 0;
  EXPECT(sim.segment_alloc(kPage, &b).ok());
  Addr c = 0;
  EXPECT_EQ(sim.segment_alloc(kPage, &c).text(), "planned");
  EXPECT_EQ(sim.segment_alloc(kPage, &c).code(), Code::oom);
  EXPECT_EQ(c, 0u);
  EXPECT_EQ(sim.used_bytes(), 2 * kPage);
  EXPECT(sim.segment_alloc(kPage, &c).ok());
  EXPECT_EQ(sim.calls(SimCall::segment_alloc), 5u);
  EXPECT_EQ(sim.device_calls(), 5u);
  sim.fail(SimCall::segment_alloc, 1, Status::Oom());
  sim.clear_faults();
  EXPECT(sim.segment_alloc(kPage, &c).ok());
}

TEST(sim_hook_sees_each_call_without_a_lock) {
  SimDriver sim({.total_bytes = 64 * kMiB});
  int seen = 0;
  sim.set_hook([&](SimCall call) {
    ++seen;
    // Another thread can use the device meanwhile: no lock is held here.
    std::thread([&] { sim.enqueue(kDefaultStream); }).join();
    return call == SimCall::physical_create ? Status::Error("broken", 719) : Status::Ok();
  });
  PhysicalId p = kNoPhysical;
  Addr a = 0;
  EXPECT_EQ(sim.physical_create(kPage, &p).native(), 719);
  EXPECT(sim.va_reserve(kPage, kNullAddr, &a).ok());
  EXPECT_EQ(seen, 2);
  sim.set_hook(nullptr);
  EXPECT(sim.physical_create(kPage, &p).ok());
}

TEST(sim_reports_pending_errors_and_processes) {
  SimDriver sim({.other_bytes = 5 * kMiB});
  EXPECT(sim.pending_error().ok());
  sim.set_pending_error(Status::Error("illegal address", 700));
  EXPECT_EQ(sim.pending_error().native(), 700);
  sim.set_pending_error(Status::Ok());
  EXPECT(sim.pending_error().ok());
  std::vector<ProcessUse> uses;
  EXPECT(sim.processes(&uses).ok());
  EXPECT_EQ(uses.size(), 1u);
  EXPECT_EQ(uses[0].used_bytes, 5 * kMiB);
  sim.set_processes_known(false);
  EXPECT_EQ(sim.processes(&uses).code(), Code::unsupported);
}

TEST(sim_children_of_a_fork_hang_in_no_call) {
  staticrt::test::Two two;
  for (const bool held : {false, true}) {
    // Another thread, which the child does not have, holds the devices while their work runs.
    std::atomic<bool> running{false};
    std::atomic<bool> enough{!held};
    two.user.sim().enqueue(kDefaultStream, [&] {
      running = true;
      while (!enough) std::this_thread::yield();
    });
    std::thread other([&] { EXPECT(two.user.sim().stream_sync(kDefaultStream).ok()); });
    while (!running) std::this_thread::yield();
    const pid_t child = fork();
    if (child == 0) {
      alarm(5);
      const bool refused = !two.owner.sim().device_sync().ok() && !two.user.sim().device_sync().ok();
      _exit(refused && two.owner.sim().report_text().empty() && two.user.sim().create_stream() != StreamId{0}
                ? 0
                : 1);
    }
    enough = true;
    other.join();
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}
