// Rules B: search, split, merge.
#include "allocator/device_fixture.h"

namespace staticrt::test {

TEST(B1_smallest_sufficient_block_then_lowest_address) {
  Device device(400 * MiB, kCompat);
  const Addr a = device.alloc(30 * MiB);
  const Addr b = device.alloc(20 * MiB);
  const Addr c = device.alloc(20 * MiB);
  const Addr d = device.alloc(40 * MiB);
  for (const Addr each : {d, c, a, b}) device.free(each);
  EXPECT_EQ(device.alloc(20 * MiB), std::min(b, c));
  EXPECT_EQ(device.alloc(19 * MiB), std::max(b, c));
  EXPECT_EQ(device.alloc(31 * MiB), d);
  EXPECT_EQ(device.alloc(15 * MiB), a);
}

TEST(B2_memory_of_another_stream_is_not_taken) {
  Device device(400 * MiB, kCompat);
  const StreamId side = device.sim().create_stream();
  const Addr a = device.alloc(30 * MiB, side);
  device.free(a);
  EXPECT(device.alloc(30 * MiB) != a);
  EXPECT_EQ(device.alloc(30 * MiB, side), a);
}

TEST(B2_taken_over_behind_an_event_wait) {
  Device device(30 * MiB, kFixed);
  const StreamId side = device.sim().create_stream();
  const Addr a = device.alloc(30 * MiB, side);
  device.sim().touch(side, a, 30 * MiB);
  device.free(a);
  const uint64_t waits = device.sim().calls(SimCall::stream_wait);
  EXPECT_EQ(device.alloc(30 * MiB), a);
  EXPECT_EQ(device.sim().calls(SimCall::stream_wait), waits + 1);
  device.sim().touch(kDefaultStream, a, 30 * MiB);
  EXPECT_EQ(device.sim().pending(side), 1u);  // nobody waited on the host
}

TEST(B3_small_blocks_split_down_to_512) {
  Device device(100 * MiB, kCompat);
  const Addr a = device.alloc(512);
  EXPECT_EQ(device.alloc(512), a + 512);
  const Addr rest = device.alloc(MiB);
  EXPECT_EQ(rest, a + 1024);
  const Addr tail = device.alloc(MiB - 1024);  // what is left, to the byte
  EXPECT_EQ(tail, a + 1024 + MiB);
  EXPECT_EQ(device.reserved(), 2 * MiB);
}

TEST(B4_large_blocks_split_if_more_than_a_mebibyte_is_left) {
  Device device(200 * MiB, kCompat);
  const Addr a = device.alloc(12 * MiB);
  device.free(a);
  EXPECT_EQ(device.block_size(device.alloc(11 * MiB)), 12 * MiB);
  device.free(a);
  EXPECT_EQ(device.block_size(device.alloc(11 * MiB - 512)), 11 * MiB - 512);
}

TEST(B4_blocks_from_max_split_size_stay_whole) {
  Device device(200 * MiB, "mode:compat,max_split_size_mb:20");
  const Addr a = device.alloc(40 * MiB);
  device.free(a);
  EXPECT_EQ(device.alloc(30 * MiB), a);
  EXPECT_EQ(device.block_size(a), 40 * MiB);
}

TEST(B5_request_takes_the_low_part) {
  Device device(100 * MiB, kCompat);
  const Addr a = device.alloc(10 * MiB);
  device.free(a);
  EXPECT_EQ(device.alloc(5 * MiB), a);
  EXPECT_EQ(device.alloc(5 * MiB), a + 5 * MiB);
}

TEST(B6_neighbours_merge_only_if_free) {
  Device device(100 * MiB, kCompat);
  const StreamId side = device.sim().create_stream();
  const Addr a = device.alloc(5 * MiB);
  const Addr b = device.alloc(5 * MiB);
  const Addr c = device.alloc(10 * MiB);
  EXPECT_EQ(b, a + 5 * MiB);
  EXPECT_EQ(c, b + 5 * MiB);
  device.sim().touch(side, b, 512);
  device.use(b, side);
  device.free(b);
  device.free(a);
  device.free(c);
  EXPECT_EQ(device.current(Gauge::inactive_split, 0), 2);  // a and c; b still waits
  EXPECT_EQ(device.current(Gauge::active, 0), 1);
  device.sim().advance(side);
  EXPECT_EQ(device.alloc(20 * MiB), a);
}

TEST(B6_segments_never_merge) {
  Device device(100 * MiB, kCompat);
  device.free(device.alloc(20 * MiB));
  const Addr a = device.alloc(20 * MiB);
  const Addr b = device.alloc(20 * MiB);
  device.free(a);
  device.free(b);
  device.alloc(40 * MiB);
  EXPECT_EQ(device.reserved(), 80 * MiB);
}

TEST(B7_oversize_blocks_are_for_oversize_requests) {
  Device device(400 * MiB, "mode:compat,max_split_size_mb:20");
  const Addr big = device.alloc(60 * MiB);
  device.free(big);
  EXPECT(device.alloc(10 * MiB) != big);   // below max_split: no block from max_split on
  EXPECT(device.alloc(40 * MiB) != big);   // 60 >= 40 + 20
  EXPECT_EQ(device.alloc(41 * MiB), big);  // 60 < 41 + 20
}

TEST(B7_holds_in_native_mode) {
  Device device(400 * MiB, "max_split_size_mb:20,expandable_segments:False,thread_cache:False");
  const Addr big = device.alloc(60 * MiB);
  device.free(big);
  EXPECT(device.alloc(10 * MiB) != big);
  EXPECT(device.alloc(40 * MiB) != big);
  EXPECT_EQ(device.alloc(41 * MiB), big);
}

TEST(B8_oversize_counters) {
  Device device(400 * MiB, "mode:compat,max_split_size_mb:20");
  const Addr a = device.alloc(20 * MiB);
  const Addr b = device.alloc(30 * MiB);
  device.alloc(5 * MiB);
  EXPECT_EQ(device.counters().oversize_allocations.current, 2);
  EXPECT_EQ(device.counters().oversize_segments.current, 3);  // 20, 30 and the 20 of the small one
  device.free(a);
  device.free(b);
  EXPECT_EQ(device.counters().oversize_allocations.current, 0);
  EXPECT_EQ(device.counters().oversize_allocations.peak, 2);
  EXPECT_EQ(device.counters().oversize_allocations.freed, 2);
  device.empty_cache();
  EXPECT_EQ(device.counters().oversize_segments.current, 1);
}

TEST(B9_unknown_pointers) {
  Device device(100 * MiB, kCompat);
  const Addr a = device.alloc(4096);
  device.expect_ok(device.allocator().release(kNullAddr));
  for (const Addr wrong : {Addr{4096}, a + 512, a + 1, ~Addr{0}, a + 64 * MiB}) {
    const Status status = device.allocator().release(wrong);
    EXPECT_EQ(status.code(), Code::invalid_pointer);
    EXPECT(status.text().find("invalid device pointer") != std::string::npos);
  }
  device.free(a);
  EXPECT_EQ(device.allocator().release(a).code(), Code::invalid_pointer);
}

TEST(B10_expandable_blocks_count_as_what_they_can_grow_to) {
  // On a stream's only segment the tail can grow, the hole cannot: the hole is the better fit.
  Device device(400 * MiB, kCompatExpandable);
  const Addr a = device.alloc(20 * MiB);
  const Addr b = device.alloc(30 * MiB);
  const Addr keep = device.alloc(20 * MiB);
  const Addr tail = device.alloc(10 * MiB);
  EXPECT_EQ(device.reserved(), 80 * MiB);
  EXPECT_EQ(b, a + 20 * MiB);
  device.free(tail);  // 10 MiB, then unmapped
  device.free(b);     // 30 MiB, between live blocks
  EXPECT_EQ(device.alloc(10 * MiB), b);
  EXPECT(keep > b);
}

TEST(B11_expandable_blocks_are_skipped_once_switched_off) {
  for (const char* mode : {"mode:compat", "thread_cache:False"}) {
    Device device(400 * MiB, std::string(mode) + ",expandable_segments:True");
    const Addr a = device.alloc(30 * MiB);
    device.free(a);
    device.expect_ok(device.allocator().configure(options(std::string(mode) + ",expandable_segments:False")));
    const Addr b = device.alloc(30 * MiB);
    EXPECT(a != b);
    device.expect_ok(device.allocator().configure(options(std::string(mode) + ",expandable_segments:True")));
    EXPECT_EQ(device.alloc(30 * MiB), a);
  }
}

}  // namespace staticrt::test
