// Rules P7, P8 and V10: checkpoints of private pools.
#include "allocator/device_fixture.h"

namespace staticrt::test {
namespace {
constexpr PoolId kPool{0, 1};
}

TEST(P7_checkpoint_needs_a_pool_at_rest) {
  Device device;
  const StreamId side = device.sim().create_stream();
  PoolImage image;
  EXPECT_EQ(device.pools().capture_image(kPool, &image).code(), Code::invalid_argument);
  device.expect_ok(device.pools().begin_route(kPool));
  const Addr a = device.alloc(20 * MiB);
  const Addr b = device.alloc(4096);
  device.use(b, side);
  device.expect_ok(device.pools().capture_image(kPool, &image));
  EXPECT(image.live() == std::vector<Addr>({std::min(a, b), std::max(a, b)}));
  size_t uses = 0;
  for (const ImageSegment& segment : image.segments)
    for (const ImageRun& run : segment.runs) uses += run.uses.size();
  EXPECT_EQ(uses, 1u);
  device.sim().touch(side, b, 512);
  device.free(b);
  const Status pending = device.pools().capture_image(kPool, &image);
  EXPECT(pending.text().find("still waits for another stream") != std::string::npos);
  device.expect_ok(device.pools().end_route(kPool));
  device.expect_ok(device.pools().release(kPool));
  EXPECT(device.pools().capture_image(kPool, &image).text().find("draining") != std::string::npos);
}

TEST(P8_restore_brings_blocks_back_exactly) {
  for (const char* mode : {kCompat, "thread_cache:False", kFixed, kCompatExpandable}) {
    Device device(400 * MiB, mode);
    device.expect_ok(device.pools().begin_route(kPool));
    const Addr a = device.alloc(20 * MiB);
    const Addr b = device.alloc(5000);
    const Addr c = device.alloc(30 * MiB);
    device.free(a);
    PoolImage image;
    device.expect_ok(device.pools().capture_image(kPool, &image));
    const StatsReport before = device.inspector().stats();
    device.expect_ok(device.inspector().record_history({.on = true, .max_entries = 100}));

    device.free(c);
    const Addr d = device.alloc(3 * MiB);
    const Addr e = device.alloc(60 * MiB);  // an extra segment, or more pages
    const StatsReport middle = device.inspector().stats();
    const size_t entries = device.inspector().snapshot().trace.size();
    RestoreResult result;
    device.sim().freed(b);
    device.sim().freed(d);
    device.sim().freed(e);
    device.expect_ok(device.pools().restore_image(image, &result));
    for (const Addr each : {b, c}) device.sim().allocated(each, 512, kDefaultStream);
    std::vector<Addr> freed = {b, d, e};
    std::sort(freed.begin(), freed.end());
    std::vector<Addr> created = {b, c};
    std::sort(created.begin(), created.end());
    EXPECT(result.freed == freed);
    EXPECT(result.created == created);
    const StatsReport after = device.inspector().stats();
    EXPECT_EQ(after.of(Gauge::allocated_bytes).current, before.of(Gauge::allocated_bytes).current);
    EXPECT_EQ(after.of(Gauge::allocated_bytes).allocated, middle.of(Gauge::allocated_bytes).allocated);
    EXPECT_EQ(after.of(Gauge::allocated_bytes).freed, middle.of(Gauge::allocated_bytes).freed);
    EXPECT_EQ(device.inspector().snapshot().trace.size(), entries + 1);  // only the snapshot between
    EXPECT_EQ(device.block_size(b), 5120u);
    EXPECT_EQ(device.alloc(20 * MiB), a);
    EXPECT_EQ(device.allocator().release(d).code() == Code::invalid_pointer || d == a, true);
    device.expect_ok(device.pools().end_route(kPool));
  }
}

TEST(V10_restore_of_a_fresh_image_is_the_identity) {
  for (const char* mode : {kCompat, "thread_cache:False", kFixed}) {
    Device device(400 * MiB, mode);
    device.expect_ok(device.pools().begin_route(kPool));
    std::vector<Addr> live;
    for (int i = 1; i < 40; ++i) live.push_back(device.alloc(static_cast<Bytes>(i) * 37 * kKiB));
    for (size_t i = 0; i < live.size(); i += 3) device.free(live[i]);
    PoolImage image;
    PoolImage again;
    device.expect_ok(device.pools().capture_image(kPool, &image));
    const StatsReport before = device.inspector().stats();
    RestoreResult result;
    device.expect_ok(device.pools().restore_image(image, &result));
    device.expect_ok(device.pools().capture_image(kPool, &again));
    EXPECT(image == again);
    EXPECT(image.diff(again).empty());
    const StatsReport after = device.inspector().stats();
    for (size_t g = 0; g < kGauges; ++g)
      for (int which = 0; which < 3; ++which) {
        const GaugeValue a = before.of(static_cast<Gauge>(g), which);
        const GaugeValue b = after.of(static_cast<Gauge>(g), which);
        EXPECT(a.current == b.current && a.peak == b.peak && a.allocated == b.allocated &&
               a.freed == b.freed);
      }
    device.expect_ok(device.pools().end_route(kPool));
  }
}

TEST(P8_restore_maps_trimmed_pages_or_changes_nothing) {
  Device device(100 * MiB);
  device.expect_ok(device.pools().begin_route(kPool));
  const Addr a = device.alloc(60 * MiB);
  PoolImage image;
  device.expect_ok(device.pools().capture_image(kPool, &image));
  device.free(a);
  device.expect_ok(device.pools().end_route(kPool));
  const Addr other = device.alloc(80 * MiB);  // trims the pool
  RestoreResult result;
  EXPECT(device.pools().restore_image(image, &result).oom());
  EXPECT(result.created.empty());
  device.check();
  device.free(other);
  device.expect_ok(device.pools().restore_image(image, &result));
  device.sim().allocated(a, 60 * MiB, kDefaultStream);
  EXPECT(result.created == std::vector<Addr>{a});
  device.free(a);
}

TEST(P8_restore_of_a_released_segment_is_an_error) {
  Device device(100 * MiB, kFixed);
  device.expect_ok(device.pools().begin_route(kPool));
  const Addr a = device.alloc(60 * MiB);
  PoolImage image;
  device.expect_ok(device.pools().capture_image(kPool, &image));
  device.free(a);
  device.expect_ok(device.pools().end_route(kPool));
  device.alloc(80 * MiB);
  RestoreResult result;
  const Status status = device.pools().restore_image(image, &result);
  EXPECT(status.text().find("was released since the checkpoint") != std::string::npos);
}

TEST(P_images_are_values_that_serialize) {
  Device device;
  device.expect_ok(device.pools().begin_route(kPool));
  device.alloc(20 * MiB);
  const Addr b = device.alloc(700);
  PoolImage image;
  device.expect_ok(device.pools().capture_image(kPool, &image));
  PoolImage read;
  device.expect_ok(PoolImage::parse(image.serialize(), &read));
  EXPECT(read == image);
  device.free(b);
  PoolImage later;
  device.expect_ok(device.pools().capture_image(kPool, &later));
  EXPECT(!image.diff(later).empty());
  for (const std::string& wrong : {std::string(), std::string("pool_image 3 0 1 1 0"),
                                   image.serialize().substr(0, image.serialize().size() / 2)})
    EXPECT_EQ(PoolImage::parse(wrong, &read).code(), Code::invalid_argument);
  device.expect_ok(device.pools().end_route(kPool));
  device.expect_ok(PoolImage::parse("pool_image 1 0 1 1 1\n1 0 0 1 512 512 0 1\n512 500 3 0 1 4\n", &read));
  EXPECT_EQ(read.segments[0].runs[0].uses[0], StreamId{4});
}

TEST(P_images_hold_uses_of_other_devices) {
  Two two;
  const StreamId side{5};
  two.owner.expect_ok(two.owner.pools().begin_route(kPool));
  const Addr at = two.owner.alloc(kMiB);
  two.owner.use(at, StreamId{7});
  two.owner.expect_ok(two.owner.allocator().record_use(at, side, two.user.shared_sim()));
  PoolImage image;
  two.owner.expect_ok(two.owner.pools().capture_image(kPool, &image));
  PoolImage read;
  two.owner.expect_ok(PoolImage::parse(image.serialize(), &read));
  EXPECT(read == image);
  for (ImageSegment& segment : read.segments)
    for (ImageRun& run : segment.runs) run.uses.clear();
  const std::vector<std::string> lines = image.diff(read);
  EXPECT_EQ(lines.size(), 2u);
  EXPECT(lines[0].find(", used on stream 7, used on stream 5 of device 1") != std::string::npos);
  EXPECT(lines[1].find("stream 7") == std::string::npos);
  read = image;
  // A block that comes back from the text is held for the other device's stream as well.
  RestoreResult result;
  two.owner.expect_ok(two.owner.pools().restore_image(read, &result));
  two.user.sim().launch(side, [] {}, {});
  two.owner.free(at);
  const Addr other = two.owner.alloc(kMiB);
  EXPECT(other != at);
  EXPECT(two.user.sim().stream_sync(side).ok());
  EXPECT_EQ(two.owner.alloc(kMiB), at);
  two.owner.free(at);
  two.owner.free(other);
  // An allocator whose memory the device has never used does not know the stream.
  for (ImageSegment& segment : read.segments)
    for (ImageRun& run : segment.runs)
      for (PeerUse& use : run.peer_uses) use.device = 3;
  const Status unknown = two.owner.pools().restore_image(read, &result);
  EXPECT_EQ(unknown.code(), Code::invalid_argument);
  EXPECT(unknown.text().find("is in use by stream 5 of device 3, which has used no memory of sim:0") !=
         std::string::npos);
  two.owner.expect_ok(two.owner.pools().end_route(kPool));
}

}  // namespace staticrt::test
