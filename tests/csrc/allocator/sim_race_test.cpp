// The race oracle: each wrong order is found, and each right one is not.
#include <string>

#include "allocator/simulated/driver_sim.h"
#include "test.h"

using namespace staticrt::alloc;

namespace {

constexpr Bytes kPage = 2 * kMiB;

// A device with one mapped page, two streams and an event.
struct Scene {
  SimDriver sim{SimConfig{.total_bytes = 64 * kMiB}};
  StreamId a = sim.create_stream(), b = sim.create_stream();
  EventId event = kNoEvent;
  PhysicalId page = kNoPhysical;
  Addr at = 0;

  Scene() {
    EXPECT(sim.event_create(&event).ok());
    EXPECT(sim.va_reserve(kPage, kNullAddr, &at).ok());
    EXPECT(sim.physical_create(kPage, &page).ok());
    EXPECT(sim.map(at, kPage, page).ok());
    EXPECT(sim.set_access(at, kPage, Driver::kThisDevice).ok());
  }
  // Expects exactly one report, which contains `part`.
  void found(const std::string& part) {
    if (sim.reports().size() != 1 || sim.report_text().find(part) == std::string::npos)
      staticrt::test::fail(__FILE__, __LINE__,
                           "want one report with '" + part + "', got: " + sim.report_text());
    sim.clear_reports();
  }
  void clean() { EXPECT_EQ(sim.report_text(), ""); }
};

}  // namespace

TEST(race_reuse_on_the_same_stream_is_in_order) {
  Scene s;
  s.sim.allocated(s.at, 512, s.a);
  s.sim.touch(s.a, s.at, 512);
  s.sim.freed(s.at);
  s.sim.allocated(s.at, 1024, s.a);
  s.sim.touch(s.a, s.at, 1024);
  s.clean();
}

TEST(race_reuse_on_another_stream_without_order_is_found) {
  Scene s;
  s.sim.allocated(s.at, 512, s.a);
  s.sim.touch(s.a, s.at, 512);
  s.sim.freed(s.at);
  s.sim.advance(s.a, 10);  // it happened to end, but nobody knows
  s.sim.allocated(s.at, 512, s.b);
  s.found("race: allocation #2");
}

TEST(race_side_stream_use_is_found_at_reuse) {
  Scene s;
  s.sim.allocated(s.at, 512, s.a);
  s.sim.touch(s.a, s.at, 512);
  s.sim.touch(s.b, s.at, 512);  // the program's own business
  s.clean();
  s.sim.freed(s.at);
  s.sim.allocated(s.at, 512, s.a);
  s.found("operation 1 of stream 2 by allocation #1");
}

TEST(race_event_wait_orders_streams) {
  Scene s;
  s.sim.allocated(s.at, 512, s.a);
  s.sim.touch(s.a, s.at, 512);
  EXPECT(s.sim.event_record(s.event, s.a).ok());
  s.sim.freed(s.at);
  EXPECT(s.sim.stream_wait(s.b, s.event).ok());
  s.sim.allocated(s.at, 512, s.b);
  s.sim.touch(s.b, s.at, 512);
  s.clean();
}

TEST(race_event_recorded_before_the_touch_orders_nothing) {
  Scene s;
  s.sim.allocated(s.at, 512, s.a);
  EXPECT(s.sim.event_record(s.event, s.a).ok());
  s.sim.touch(s.a, s.at, 512);
  s.sim.freed(s.at);
  EXPECT(s.sim.stream_wait(s.b, s.event).ok());
  s.sim.allocated(s.at, 512, s.b);
  s.found("race:");
}

TEST(race_query_that_said_ok_orders_the_host_and_so_all_streams) {
  for (const bool sync : {false, true}) {
    Scene s;
    s.sim.allocated(s.at, 512, s.a);
    s.sim.touch(s.a, s.at, 512);
    EXPECT(s.sim.event_record(s.event, s.a).ok());
    EXPECT_EQ(s.sim.event_query(s.event).code(), Code::not_ready);
    if (!sync) EXPECT_EQ(s.sim.advance(s.a), 1u);
    EXPECT(sync ? s.sim.event_sync(s.event).ok() : s.sim.event_query(s.event).ok());
    s.sim.freed(s.at);
    s.sim.allocated(s.at, 512, s.b);
    s.sim.touch(s.b, s.at, 512);
    s.clean();
  }
}

TEST(race_overlap_of_live_allocations_is_found) {
  Scene s;
  s.sim.allocated(s.at, 1024, s.a);
  s.sim.allocated(s.at + 512, 1024, s.a);
  s.found("overlap: allocation #2");
}

TEST(race_two_addresses_of_one_page_are_one_page) {
  Scene s;
  Addr other = 0;
  EXPECT(s.sim.va_reserve(kPage, kNullAddr, &other).ok());
  EXPECT(s.sim.map(other, kPage, s.page).ok());
  EXPECT(s.sim.set_access(other, kPage, Driver::kThisDevice).ok());
  s.sim.allocated(s.at, 512, s.a);
  s.sim.touch(s.a, s.at, 512);
  s.sim.allocated(other, 512, s.a);
  s.found("shares a page with live allocation #1");
  s.sim.freed(other);
  s.sim.freed(s.at);
  s.sim.allocated(other, 512, s.b);
  s.found("race: allocation #3");
}

TEST(race_touch_of_free_or_unmapped_bytes_is_found) {
  Scene s;
  s.sim.touch(s.a, s.at, 512);
  s.found("free bytes: stream 1");
  s.sim.allocated(s.at, 512, s.a);
  s.sim.touch(s.a, s.at, 1024);
  s.found("free bytes:");
  EXPECT(s.sim.unmap(s.at, kPage).ok());
  s.sim.touch(s.a, s.at, 512);
  s.found("which is not mapped");
  EXPECT(s.sim.map(s.at, kPage, s.page).ok());
  s.sim.touch(s.a, s.at, 512);
  s.found("mapped without access");
  s.sim.freed(s.at + 512);
  s.found("is not a live allocation");
}

TEST(race_unmap_needs_the_host_to_know) {
  Scene s;
  s.sim.allocated(s.at, 512, s.a);
  s.sim.touch(s.a, s.at, 512);
  s.sim.freed(s.at);
  s.sim.advance(s.a, 10);
  EXPECT(s.sim.unmap(s.at, kPage).ok());
  s.found("race: unmap");
  EXPECT(s.sim.map(s.at, kPage, s.page).ok());
  EXPECT(s.sim.set_access(s.at, kPage, Driver::kThisDevice).ok());
  EXPECT(s.sim.stream_sync(s.a).ok());
  EXPECT(s.sim.unmap(s.at, kPage).ok());
  s.clean();
}

TEST(race_freeing_a_segment_waits_for_the_device) {
  Scene s;
  Addr segment = 0;
  EXPECT(s.sim.segment_alloc(kPage, &segment).ok());
  s.sim.allocated(segment, 512, s.a);
  s.sim.touch(s.a, segment, 512);
  s.sim.freed(segment);
  EXPECT(s.sim.segment_free(segment, kPage).ok());
  EXPECT_EQ(s.sim.pending(s.a), 0u);
  s.clean();
}

TEST(race_written_bytes_are_verified_when_the_work_runs) {
  Scene s;
  s.sim.allocated(s.at, 512 * 1024, s.a);
  s.sim.write(s.a, s.at, 512 * 1024, 5);
  s.sim.verify(s.a, s.at, 512 * 1024, 5);
  s.sim.advance(s.a, 2);
  s.clean();
  *reinterpret_cast<uint64_t*>(s.at + 512 * 1024 - 8) = 6;
  s.sim.verify(s.a, s.at, 512 * 1024, 5);
  s.clean();
  s.sim.advance(s.a);
  s.found("reads 6");
}

TEST(race_work_on_bytes_that_went_away_is_found_not_followed) {
  Scene s;
  s.sim.allocated(s.at, 512, s.a);
  s.sim.write(s.a, s.at, 512, 5);
  EXPECT(s.sim.unmap(s.at, kPage).ok());
  s.found("race: unmap");
  s.sim.advance(s.a);
  s.found("no longer mapped");
}
