// Differential: compat mode against a second allocator, written from the rules R1 to R4, B1 to B6, G1 and G6
// alone, in the simplest way (lists that are searched from end to end). Random programs on two streams; after
// each operation both have given the same address and have the same statistics.
//
// recordings_test.cpp compares with torch's own allocator; this one says by which rules the two agree.
#include <iostream>
#include <list>
#include <random>

#include "allocator/device_fixture.h"

namespace staticrt::test {
namespace {

class Reference {
 public:
  explicit Reference(Bytes total) : total_(total) {}

  struct Result {
    bool ok = false;
    Addr address = 0;
  };

  // `base`: where the driver puts a new segment; known only after the allocator under test was asked.
  Result allocate(Bytes request, int stream, Addr base) {
    const Bytes size = (request + 511) / 512 * 512;  // R1
    const bool small = size <= MiB;                  // R3
    Block* best = nullptr;
    for (Segment& segment : segments_)
      for (Block& block : segment.blocks)
        if (block.free && segment.small == small && segment.stream == stream && block.size >= size &&
            (best == nullptr || std::pair(block.size, block.address) < std::pair(best->size, best->address)))
          best = &block;  // B1
    if (best == nullptr) {
      const Bytes bytes = small             ? 2 * MiB
                          : size < 10 * MiB ? 20 * MiB
                                            : (size + 2 * MiB - 1) / (2 * MiB) * (2 * MiB);
      if (reserved() + bytes > total_) flush();  // G1
      if (reserved() + bytes > total_) return {};
      segments_.push_back({small, stream, {{base, bytes, true}}});
      best = &segments_.back().blocks.front();
    }
    const Bytes rest = best->size - size;
    if (small ? rest >= 512 : rest > MiB) {  // B3, B4
      for (Segment& segment : segments_)
        for (auto at = segment.blocks.begin(); at != segment.blocks.end(); ++at)
          if (&*at == best) {
            segment.blocks.insert(std::next(at), {best->address + size, rest, true});  // B5
            break;
          }
      best->size = size;
    }
    best->free = false;
    return {true, best->address};
  }
  void release(Addr address) {
    for (Segment& segment : segments_)
      for (auto at = segment.blocks.begin(); at != segment.blocks.end(); ++at) {
        if (at->address != address) continue;
        at->free = true;
        const auto next = std::next(at);
        if (next != segment.blocks.end() && next->free) {  // B6
          at->size += next->size;
          segment.blocks.erase(next);
        }
        if (at != segment.blocks.begin() && std::prev(at)->free) {
          std::prev(at)->size += at->size;
          segment.blocks.erase(at);
        }
        return;
      }
    fail(__FILE__, __LINE__, "the reference does not know the address");
  }
  void flush() {  // G6: whole free segments
    segments_.remove_if([](const Segment& s) { return s.blocks.size() == 1 && s.blocks.front().free; });
  }
  Bytes reserved() const {
    return sum([](const Block& block) { return block.size; });
  }
  Bytes allocated() const {
    return sum([](const Block& block) { return block.free ? 0 : block.size; });
  }
  int64_t segments() const { return static_cast<int64_t>(segments_.size()); }
  int64_t inactive_split() const {
    int64_t count = 0;
    for (const Segment& segment : segments_)
      for (const Block& block : segment.blocks) count += block.free && segment.blocks.size() > 1;
    return count;
  }

 private:
  struct Block {
    Addr address;
    Bytes size;
    bool free;
  };
  struct Segment {
    bool small;
    int stream;
    std::list<Block> blocks;
  };
  template <class F>
  Bytes sum(F f) const {
    Bytes total = 0;
    for (const Segment& segment : segments_)
      for (const Block& block : segment.blocks) total += f(block);
    return total;
  }
  Bytes total_;
  std::list<Segment> segments_;
};

}  // namespace

TEST(Compat_mode_agrees_with_a_reference_written_from_the_rules) {
  for (const uint64_t seed : {1, 2, 3, 4}) {
    std::cout << "seed " << seed << "\n";
    std::mt19937_64 random(seed);
    auto pick = [&](uint64_t below) { return random() % below; };
    SimConfig config;
    config.backed = false;
    constexpr Bytes kTotal = 500 * MiB;
    Device device(kTotal, kCompat, config);
    Reference reference(kTotal);
    const StreamId streams[] = {kDefaultStream, device.sim().create_stream()};
    std::vector<Addr> live;
    uint64_t refused = 0;
    for (int step = 0; step < 3000; ++step) {
      const uint64_t action = pick(100);
      if (action < 1) {
        device.empty_cache();
        reference.flush();
      } else if (action < 55 || live.empty()) {
        const uint64_t kind = pick(4);
        const Bytes size = 1 + pick(kind == 0 ? 4 * kKiB : kind == 1 ? MiB : kind == 2 ? 10 * MiB : 40 * MiB);
        const int stream = static_cast<int>(pick(2));
        const Addr got = device.try_alloc(size, streams[stream]);
        const Reference::Result want = reference.allocate(size, stream, got);
        EXPECT_EQ(got != kNullAddr, want.ok);
        EXPECT_EQ(got, want.address);
        refused += !want.ok;
        if (want.ok) live.push_back(got);
      } else {
        const size_t index = pick(live.size());
        device.free(live[index]);
        reference.release(live[index]);
        live.erase(live.begin() + static_cast<ptrdiff_t>(index));
      }
      EXPECT_EQ(device.reserved(), reference.reserved());
      EXPECT_EQ(device.allocated(), reference.allocated());
      EXPECT_EQ(device.current(Gauge::segment), reference.segments());
      EXPECT_EQ(device.current(Gauge::inactive_split), reference.inactive_split());
    }
    EXPECT(refused > 0);
    for (const Addr each : live) device.free(each);
  }
}

}  // namespace staticrt::test
