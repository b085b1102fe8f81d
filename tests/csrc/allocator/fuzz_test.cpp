// Property fuzz: random operations with driver faults; validate() and the race oracle watch them.
//
// By the environment, for long runs of `test_allocator Fuzz`:
//   STATICRT_FUZZ_OPERATIONS  operations per configuration and seed (1500)
//   STATICRT_FUZZ_CHECK       validate() after every so many operations (1)
//   STATICRT_FUZZ_SEED        first of the two seeds (1)
// Each configuration prints what it did.
#include <cstdlib>
#include <iostream>
#include <memory>
#include <random>

#include "allocator/device_fixture.h"

namespace staticrt::test {
namespace {

uint64_t setting(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

struct Tally {
  uint64_t operations = 0, served = 0, refused = 0, faults = 0, checks = 0;
};

// Plays a random program: allocations on several streams, work that is behind, cross-stream uses, private
// pools with routes and captures, checkpoints, hibernation, flushes, faults. Another device of the machine
// uses the memory too.
class Fuzz {
 public:
  Fuzz(const std::string& text, uint64_t seed, bool virtual_memory)
      : random_(seed),
        peer_(std::make_shared<SimDriver>(sim_config(virtual_memory, 1))),
        device_(400 * kMiB, text, sim_config(virtual_memory, 0)) {
    for (int i = 0; i < 3; ++i) streams_.push_back(device_.sim().create_stream());
    streams_.push_back(kDefaultStream);
  }

  // Checks after every `every` operations, and at the end.
  void run(uint64_t count, uint64_t every = 1) {
    for (uint64_t i = 1; i <= count; ++i) {
      one();
      ++tally_.operations;
      if (i % every == 0) check();
      // Reports are kept for good; a race is found at once, whatever `every` is.
      if (!device_.sim().report_text().empty()) check();
    }
    finish();
  }
  const Tally& tally() const { return tally_; }
  uint64_t hash() const { return hash_; }

 private:
  struct Live {
    Addr address;
    Bytes size;
    StreamId stream;
  };
  SimConfig sim_config(bool virtual_memory, int index) const {
    SimConfig config;
    config.index = index;
    config.machine = machine_;
    config.virtual_memory = virtual_memory;
    return config;
  }
  void check() {
    device_.check();
    EXPECT_EQ(peer_->report_text(), "");
    ++tally_.checks;
  }
  uint64_t pick(uint64_t below) { return random_() % below; }
  StreamId stream() { return streams_[pick(streams_.size())]; }
  Bytes size() {
    const uint64_t kind = pick(10);
    if (kind < 5) return 1 + pick(64 * kKiB);
    if (kind < 8) return 1 + pick(8 * kMiB);
    return 1 + pick(90 * kMiB);
  }

  void one() {
    const uint64_t action = pick(100);
    if (action < 42) {
      allocate();
    } else if (action < 72) {
      if (!live_.empty()) release(pick(live_.size()));
    } else if (action < 80) {
      use();
    } else if (action < 88) {
      (pick(4) == 0 ? *peer_ : device_.sim()).advance(stream(), 1 + pick(4));
    } else if (action < 90) {
      device_.empty_cache();
    } else if (action < 93) {
      fault();
    } else if (action < 96) {
      route();
    } else if (action < 98) {
      hibernate();
    } else {
      checkpoint();
    }
  }

  void allocate() {
    const StreamId on = stream();
    const Bytes bytes = size();
    Addr address = kNullAddr;
    const Status status = device_.allocator().allocate({bytes, on}, &address);
    if (!status.ok() && !status.oom() && status.native() != 77 &&
        status.text().find("hibernated") == std::string::npos)
      fail(__FILE__, __LINE__, status.describe());
    hash_ = hash_ * 1099511628211ull ^ (address == kNullAddr ? 1 : address - device_.sim().base());
    ++(status.ok() ? tally_.served : tally_.refused);
    if (!status.ok()) return;
    device_.sim().allocated(address, bytes, on);
    device_.sim().touch(on, address, bytes);
    live_.push_back({address, bytes, on});
  }
  void release(size_t index) {
    device_.sim().freed(live_[index].address);
    const Status status = device_.allocator().release(live_[index].address);
    if (!status.ok()) fail(__FILE__, __LINE__, status.describe());
    live_.erase(live_.begin() + static_cast<ptrdiff_t>(index));
  }
  void use() {
    if (live_.empty()) return;
    const Live& block = live_[pick(live_.size())];
    const StreamId other = stream();
    const bool by_peer = pick(4) == 0 && device_.allocator().add_peer(*peer_).ok();
    SimDriver& user = by_peer ? *peer_ : device_.sim();
    // As a program does: the other stream waits for the owner's work, uses the bytes, records the use.
    EventId event{};
    if (!device_.sim().event_create(&event).ok()) return;
    if (device_.sim().event_record(event, block.stream).ok() &&
        (by_peer ? peer_->wait_for(other, device_.sim(), event) : user.stream_wait(other, event)).ok()) {
      user.touch(other, block.address, std::min<Bytes>(block.size, 4096));
      (void)device_.allocator().record_use(block.address, other, by_peer ? peer_ : nullptr).ok();
    }
    (void)device_.sim().event_destroy(event).ok();
  }
  void fault() {
    device_.sim().clear_faults();
    static constexpr SimCall kCalls[] = {
        SimCall::segment_alloc, SimCall::physical_create, SimCall::map,        SimCall::va_reserve,
        SimCall::set_access,    SimCall::event_create,    SimCall::memory_info};
    ++tally_.faults;
    const SimCall call = kCalls[pick(std::size(kCalls))];
    const Status status = pick(3) == 0 ? Status::Error("planned", 77) : Status::Oom("planned");
    device_.sim().fail(call, 1 + pick(3), status, 1 + pick(2));
  }
  void route() {
    const PoolId id{0, 1 + pick(3)};
    Pools& pools = device_.pools();
    if (routed_.is_default()) {
      if (pools.begin_route(id).ok()) routed_ = id;
      return;
    }
    if (!pools.end_route(routed_).ok()) fail(__FILE__, __LINE__, "end_route");
    if (pick(2) == 0 && pools.refs(routed_) > 0 && !pools.release(routed_).ok())
      fail(__FILE__, __LINE__, "release");
    routed_ = kDefaultPool;
  }
  void hibernate() {
    const PoolId id{0, 1 + pick(3)};
    if (!device_.pools().exists(id) || device_.pools().refs(id) == 0) return;
    if (pick(2) == 0) {
      (void)device_.pools().hibernate(id).ok();
    } else {
      (void)device_.pools().wake(id).ok();
    }
  }
  void checkpoint() {
    const PoolId id{0, 1 + pick(3)};
    PoolImage image;
    if (!device_.pools().capture_image(id, &image).ok()) return;
    PoolImage read;
    EXPECT(PoolImage::parse(image.serialize(), &read).ok());
    RestoreResult result;
    const Status status = device_.pools().restore_image(read, &result);
    PoolImage again;
    if (!status.ok() || !device_.pools().capture_image(id, &again).ok() || !(again == image))
      fail(__FILE__, __LINE__, "restore(capture()) is not the identity: " + status.describe());
    EXPECT(result.freed == result.created);
  }
  void finish() {
    device_.sim().clear_faults();
    if (!routed_.is_default()) device_.expect_ok(device_.pools().end_route(routed_));
    while (!live_.empty()) release(live_.size() - 1);
    for (uint64_t p = 1; p <= 3; ++p)
      while (device_.pools().refs({0, p}) > 0) device_.expect_ok(device_.pools().release({0, p}));
    device_.empty_cache();
    EXPECT_EQ(device_.reserved(), 0u);
    for (uint64_t p = 1; p <= 3; ++p) EXPECT(!device_.pools().exists({0, p}));
  }

  const std::shared_ptr<SimMachine> machine_ = std::make_shared<SimMachine>();
  std::mt19937_64 random_;
  std::shared_ptr<SimDriver> peer_;
  Device device_;
  std::vector<StreamId> streams_;
  std::vector<Live> live_;
  PoolId routed_;
  Tally tally_;
  uint64_t hash_ = 14695981039346656037ull;
};

void fuzz(const std::string& text, bool virtual_memory) {
  const uint64_t first = setting("STATICRT_FUZZ_SEED", 1);
  const uint64_t count = setting("STATICRT_FUZZ_OPERATIONS", 1500);
  for (const uint64_t seed : {first, first + 1}) {
    std::cout << "seed " << seed << " " << (text.empty() ? "default" : text) << ": " << std::flush;
    Fuzz play(text, seed, virtual_memory);
    play.run(count, setting("STATICRT_FUZZ_CHECK", 1));
    const Tally& tally = play.tally();
    std::cout << tally.operations << " operations, " << tally.served << " allocations, " << tally.refused
              << " refused, " << tally.faults << " fault plans, " << tally.checks << " checks" << std::endl;
  }
}

}  // namespace

TEST(Fuzz_native_expandable) {
  fuzz("thread_cache:False", true);
}
TEST(Fuzz_native_fixed) {
  fuzz("thread_cache:False", false);
}
TEST(Fuzz_native_with_thread_cache) {
  fuzz("", true);
}
TEST(Fuzz_native_with_options) {
  fuzz(
      "thread_cache:False,max_split_size_mb:40,roundup_power2_divisions:4,garbage_collection_threshold:0.6,"
      "per_process_memory_fraction:0.9,stream_wait_reuse:True",
      true);
}
TEST(Fuzz_compat_fixed) {
  fuzz("mode:compat,max_split_size_mb:40", true);
}
TEST(Fuzz_compat_expandable) {
  fuzz("mode:compat,expandable_segments:True", true);
}

TEST(V11_same_trace_same_addresses) {
  for (const char* text : {"", "thread_cache:False", "mode:compat"}) {
    Fuzz first(text, 5, true);
    first.run(500);
    Fuzz second(text, 5, true);
    second.run(500);
    EXPECT_EQ(first.hash(), second.hash());
  }
}

}  // namespace staticrt::test
