// Rules G: growth, retry, limits.
#include "allocator/device_fixture.h"

namespace staticrt::test {

TEST(G1_callback_that_frees_is_searched_before_growth) {
  Device device(100 * MiB, kCompat);
  const Addr a = device.alloc(30 * MiB);
  int calls = 0;
  device.inspector().add_free_callback([&] {
    ++calls;
    if (calls > 1) return false;
    device.sim().freed(a);
    return device.allocator().release(a).ok();
  });
  EXPECT_EQ(device.alloc(30 * MiB), a);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(device.reserved(), 30 * MiB);
}

TEST(G1_owners_of_idle_memory_are_asked_before_a_request_fails_alone) {
  for (const char* mode : {kCompat, "thread_cache:False", kFixed}) {
    Device device(100 * MiB, mode);
    Addr idle = device.alloc(60 * MiB);
    int calls = 0;
    device.inspector().add_last_free_callback([&] {
      ++calls;
      if (idle == kNullAddr) return false;
      device.free(std::exchange(idle, kNullAddr));
      return true;
    });
    device.free(device.alloc(30 * MiB));
    EXPECT_EQ(calls, 0);
    const Addr all = device.alloc(80 * MiB);
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(device.try_alloc(80 * MiB), kNullAddr);
    EXPECT_EQ(calls, 2);
    EXPECT_EQ(device.counters().ooms, 1);
    device.free(all);
  }
}

TEST(G1_compat_flushes_then_grows) {
  Device device(100 * MiB, kCompat);
  device.free(device.alloc(60 * MiB));
  device.alloc(70 * MiB);
  EXPECT_EQ(device.counters().alloc_retries, 1);
  EXPECT_EQ(device.reserved(), 70 * MiB);
}

TEST(G1_no_flush_in_capture) {
  Device device(100 * MiB, kCompat);
  device.free(device.alloc(60 * MiB));
  CaptureScope scope(device.pools());
  device.expect_ok(scope.begin({0, 1}));
  EXPECT_EQ(device.try_alloc(70 * MiB), kNullAddr);
  EXPECT_EQ(device.reserved(), 60 * MiB);
  device.expect_ok(scope.abort());
}

TEST(G2_retries_and_ooms_are_counted) {
  for (const char* mode : {kCompat, "thread_cache:False", kFixed}) {
    Device device(100 * MiB, mode);
    device.alloc(50 * MiB);
    EXPECT_EQ(device.counters().alloc_retries, 0);
    EXPECT_EQ(device.try_alloc(60 * MiB), kNullAddr);
    EXPECT_EQ(device.counters().alloc_retries, 1);
    EXPECT_EQ(device.counters().ooms, 1);
    EXPECT_EQ(device.reserved() <= 60 * MiB, true);
  }
}

TEST(G3_fraction_limits_growth) {
  Device device(100 * MiB, "mode:compat,per_process_memory_fraction:0.5");
  device.alloc(30 * MiB);
  EXPECT_EQ(device.try_alloc(30 * MiB), kNullAddr);
  EXPECT(device.last().text().find("limit 50.00 MiB") != std::string::npos);
  EXPECT(device.last().text().find("raise the limit") != std::string::npos);
  device.alloc(20 * MiB);
  Config parsed;
  for (const char* wrong : {"per_process_memory_fraction:1.5", "per_process_memory_fraction:-0.1"})
    EXPECT_EQ(parse_config(wrong, "test", Config(), &parsed).code(), Code::invalid_argument);
}

TEST(G4_gc_frees_blocks_of_mean_age_or_older) {
  Device device(200 * MiB, "mode:compat,garbage_collection_threshold:0.5,per_process_memory_fraction:0.5");
  const Addr small = device.alloc(MiB / 2);
  const Addr a = device.alloc(20 * MiB);
  const Addr young = device.alloc(20 * MiB);
  const Addr b = device.alloc(20 * MiB);
  device.free(a);
  device.free(b);
  const Addr part = device.alloc(10 * MiB);  // splits one of the two: its segment cannot be released
  const Addr old_one = part == a ? b : a;
  device.free(young);
  EXPECT_EQ(device.reserved(), 62 * MiB);
  // 62 > 50. Ages: old_one 2 searches, young 1; the mean is 1.5: old_one goes, which is enough.
  device.alloc(25 * MiB);
  EXPECT_EQ(device.reserved(), 68 * MiB);
  EXPECT_EQ(device.counters().sync_all_streams, 0);
  EXPECT_EQ(device.alloc(20 * MiB), young);
  EXPECT_EQ(device.inspector().largest_free(1), 10 * MiB);  // the rest of the split segment
  EXPECT(old_one != young);
  device.free(small);
}

TEST(G4_gc_counts_only_what_it_can_free) {
  Device device(200 * MiB, "mode:compat,garbage_collection_threshold:0.2,per_process_memory_fraction:0.5");
  device.alloc(30 * MiB);
  const Addr b = device.alloc(20 * MiB);
  device.free(b);
  device.alloc(25 * MiB);  // excess 30: the one free block goes, then there is none; it does not loop
  EXPECT_EQ(device.reserved(), 56 * MiB);
}

TEST(G5_release_oversize_takes_one_block_or_enough_or_none) {
  {
    Device device(100 * MiB, "mode:compat,max_split_size_mb:20");
    const Addr a = device.alloc(30 * MiB);
    const Addr b = device.alloc(50 * MiB);
    device.free(a);
    device.free(b);
    device.alloc(24 * MiB);  // takes a: 30 < 24 + 20
    EXPECT_EQ(device.reserved(), 80 * MiB);
    device.alloc(29 * MiB);  // b is too large (50 >= 29 + 20): it is released, then growth succeeds
    EXPECT_EQ(device.reserved(), 60 * MiB);
    EXPECT_EQ(device.counters().alloc_retries, 0);
  }
  {
    Device device(100 * MiB, "mode:compat,max_split_size_mb:20");
    std::vector<Addr> blocks;
    for (int i = 0; i < 4; ++i) blocks.push_back(device.alloc(24 * MiB));
    for (const Addr each : blocks) device.free(each);
    device.alloc(60 * MiB);  // no single block: the largest until 60 are gone, three of four
    EXPECT_EQ(device.reserved(), 84 * MiB);
    EXPECT_EQ(device.counters().alloc_retries, 0);
  }
  {
    Device device(100 * MiB, "mode:compat,max_split_size_mb:20");
    device.free(device.alloc(30 * MiB));
    device.alloc(22 * MiB + 40 * MiB);
    EXPECT_EQ(device.reserved(), 92 * MiB);
    EXPECT_EQ(device.try_alloc(90 * MiB), kNullAddr);
  }
}

TEST(G6_flush_releases_unsplit_segments_and_whole_pages) {
  {
    Device device(200 * MiB, kCompat);
    const Addr a = device.alloc(5 * MiB);
    device.free(device.alloc(5 * MiB));
    device.free(device.alloc(30 * MiB));
    EXPECT_EQ(device.empty_cache(), 30 * MiB);
    device.free(a);
    EXPECT_EQ(device.empty_cache(), 20 * MiB);
  }
  {
    Device device(200 * MiB, kCompatExpandable);
    const Addr a = device.alloc(30 * MiB);
    device.alloc(30 * MiB);
    device.free(a);
    EXPECT_EQ(device.empty_cache(), 20 * MiB);  // page [20, 40) is shared with the live block
    EXPECT_EQ(device.reserved(), 40 * MiB);
  }
}

TEST(G6_flush_waits_for_events) {
  Device device(100 * MiB, kCompat);
  const StreamId side = device.sim().create_stream();
  const Addr a = device.alloc(30 * MiB);
  device.sim().touch(side, a, 512);
  device.use(a, side);
  device.free(a);
  EXPECT_EQ(device.empty_cache(), 30 * MiB);
  EXPECT_EQ(device.sim().pending(side), 0u);
}

TEST(G7_empty_cache_leaves_split_blocks) {
  Device device(100 * MiB, kCompat);
  const Addr a = device.alloc(10 * MiB + 512);
  device.free(a);
  const Addr b = device.alloc(MiB + 512);
  EXPECT_EQ(b, a);
  EXPECT_EQ(device.empty_cache(), 0u);
  EXPECT_EQ(device.reserved(), 12 * MiB);
}

TEST(G8_device_errors_come_first_and_oom_is_cleared) {
  for (const char* mode : {kCompat, "thread_cache:False"}) {
    Device device(100 * MiB, mode);
    device.sim().set_pending_error(Status::Error("an earlier kernel failed", 700));
    Addr address = kNullAddr;
    const Status status = device.allocator().allocate({.size = 200 * MiB}, &address);
    EXPECT_EQ(status.code(), Code::error);
    EXPECT_EQ(status.native(), 700);
    EXPECT(status.text().find("an earlier kernel failed") != std::string::npos);
    device.sim().set_pending_error(Status::Ok());
    EXPECT_EQ(device.try_alloc(200 * MiB), kNullAddr);
    device.alloc(20 * MiB);
  }
}

TEST(G8_other_driver_failures_end_the_request_at_once) {
  Device device(100 * MiB, kCompat);
  device.free(device.alloc(30 * MiB));
  device.sim().fail(SimCall::segment_alloc, 1, Status::Error("device lost", 46));
  Addr address = kNullAddr;
  EXPECT_EQ(device.allocator().allocate({.size = 40 * MiB}, &address).native(), 46);
  EXPECT_EQ(device.reserved(), 30 * MiB);  // nothing was flushed for it
  device.check();
}

TEST(G9_no_lock_is_held_during_driver_growth) {
  Device device(100 * MiB, kCompat);
  const Addr a = device.alloc(4096);
  bool entered = false;
  device.sim().set_hook([&](SimCall call) {
    if (call == SimCall::segment_alloc && !entered) {
      entered = true;
      Addr inner = kNullAddr;  // a hit on another thread's behalf: needs the core mutex only
      EXPECT(device.allocator().allocate({.size = 512}, &inner).ok());
      EXPECT(device.allocator().release(inner).ok());
    }
    return Status::Ok();
  });
  device.alloc(30 * MiB);
  EXPECT(entered);
  device.sim().set_hook({});
  device.free(a);
}

TEST(G10_oom_text_has_all_fields) {
  Device device(100 * MiB);
  const StreamId side = device.sim().create_stream();
  device.sim().set_other_bytes(10 * MiB);
  device.alloc(30 * MiB);
  std::vector<OomEvent> events;
  device.inspector().attach_oom_observer([&](const OomEvent& event) {
    events.push_back(event);
    EXPECT(device.allocator().release(device.try_alloc(4096)).ok());  // no lock is held
  });
  EXPECT_EQ(device.try_alloc(90 * MiB, side), kNullAddr);
  const std::string text = device.last().text();
  for (const char* part :
       {"SIM out of memory. Tried to allocate 90.00 MiB on sim:0, stream 1, default pool.",
        "device: 100.00 MiB total,", "limit none;", "other processes: pid ", "ours:   30.00 MiB live, ",
        "tried:  ready 0 B, grow oom, steal 0 B, drain 0 B, flush ", "trim ", "fix:    "})
    EXPECT(text.find(part) != std::string::npos ||
           (fail(__FILE__, __LINE__, part + (" not in " + text)), false));
  EXPECT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].size, 90 * MiB);
  EXPECT_EQ(events[0].limit_or_total, 100 * MiB);
  EXPECT_EQ(events[0].device, std::string("sim:0"));
}

TEST(G10_unknown_processes_are_no_error) {
  Device device(100 * MiB);
  device.sim().set_processes_known(false);
  EXPECT_EQ(device.try_alloc(200 * MiB), kNullAddr);
  EXPECT(device.last().text().find("other processes: unknown") != std::string::npos);
}

TEST(G11_largest_free_block) {
  Device device(100 * MiB, kCompat);
  EXPECT_EQ(device.inspector().largest_free(), 100 * MiB);
  device.free(device.alloc(30 * MiB));
  EXPECT_EQ(device.inspector().largest_free(), 70 * MiB);
  EXPECT_EQ(device.inspector().largest_free(1), 30 * MiB);
}

TEST(N13_refused_before_the_driver_is_asked) {
  Device device(100 * MiB, "mode:compat,throw_on_cudamalloc_oom:True");
  device.alloc(50 * MiB);
  std::vector<OomEvent> events;
  device.inspector().attach_oom_observer([&](const OomEvent& event) { events.push_back(event); });
  const uint64_t calls = device.sim().calls(SimCall::segment_alloc);
  EXPECT_EQ(device.try_alloc(60 * MiB), kNullAddr);
  EXPECT_EQ(device.sim().calls(SimCall::segment_alloc), calls);
  EXPECT(device.counters().oom_rejections >= 1);
  EXPECT_EQ(events.size(), 1u);
  EXPECT(events[0].rejected);
}

TEST(N14_uncached_at_run_time) {
  Device device(100 * MiB, kFixed);
  const Addr cached = device.alloc(4096);
  Config config = options(std::string(kFixed) + ",caching:False");
  device.expect_ok(device.allocator().configure(config));
  Addr plain = kNullAddr;
  EXPECT(device.allocator().allocate({.size = 5 * MiB}, &plain).ok());
  EXPECT_EQ(device.current(Gauge::allocation), 1);
  EXPECT(device.sim().used_bytes() > device.reserved());
  EXPECT(device.allocator().release(plain).ok());
  EXPECT_EQ(device.allocator().release(plain).code(), Code::invalid_pointer);
  device.free(cached);
}

TEST(N14_address_space_size) {
  Device device(200 * MiB, "thread_cache:False,expandable_va:40M");
  device.alloc(30 * MiB);
  EXPECT_EQ(device.sim().reserved_va_bytes(), 40 * MiB);
  device.alloc(30 * MiB);  // does not fit any more: a second segment
  EXPECT_EQ(device.sim().reserved_va_bytes(), 80 * MiB);
}

TEST(N14_stream_wait_before_growth) {
  Device device(200 * MiB, "thread_cache:False,stream_wait_reuse:True");
  const StreamId side = device.sim().create_stream();
  const Addr a = device.alloc(30 * MiB, side);
  device.sim().touch(side, a, 512);
  device.free(a);
  EXPECT_EQ(device.alloc(30 * MiB), a);
  device.sim().touch(kDefaultStream, a, 512);
}

}  // namespace staticrt::test
