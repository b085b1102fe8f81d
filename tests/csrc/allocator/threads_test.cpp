// Everything at once from several threads, for ThreadSanitizer: requests on streams that come up meanwhile,
// private pools, flushes, history, options, statistics, snapshots, limits.
#include <random>
#include <thread>

#include "allocator/device_fixture.h"

namespace staticrt::test {
namespace {

constexpr int kThreads = 4;
constexpr int kRounds = kOwnerFence ? 300 : 1500;

class Worker {
 public:
  Worker(DeviceAllocator& allocator, int number)
      : allocator_(allocator),
        random_(static_cast<unsigned>(number)),
        number_(static_cast<uint64_t>(number)) {}

  void run() {
    for (int i = 0; i < kRounds; ++i) one();
    while (!live_.empty()) release(live_.size() - 1);
  }
  const std::string& wrong() const { return wrong_; }

 private:
  uint64_t pick(uint64_t below) { return random_() % below; }
  void expect(const Status& status, const char* what) {
    if (!status.ok() && !status.oom() && wrong_.empty()) wrong_ = what + (": " + status.describe());
  }
  StreamId stream() { return StreamId{number_ * 1000 + pick(1 + streams_)}; }
  void release(size_t k) {
    expect(allocator_.release(live_[k]), "release");
    live_[k] = live_.back();
    live_.pop_back();
  }

  void one() {
    const uint64_t action = pick(100);
    if (action < 50) {
      const Bytes size = pick(3) == 0 ? 1 + pick(12 * kMiB) : 1 + pick(20000);
      Addr address = kNullAddr;
      const Status status = allocator_.allocate({size, stream()}, &address);
      expect(status, "allocate");
      if (status.ok()) live_.push_back(address);
    } else if (action < 80) {
      if (!live_.empty()) release(pick(live_.size()));
    } else if (action < 84) {
      if (!live_.empty()) expect(allocator_.record_use(live_[pick(live_.size())], stream()), "record_use");
    } else if (action < 87) {
      streams_ = std::min<uint64_t>(streams_ + 1, 40);
    } else if (action < 89) {
      expect(allocator_.empty_cache(), "empty_cache");
    } else if (action < 92) {
      pool();
    } else if (action < 94) {
      (void)allocator_.inspector().snapshot();
    } else if (action < 96) {
      (void)allocator_.inspector().stats();
      (void)allocator_.inspector().largest_free();
    } else if (action < 97) {
      HistoryOptions history;
      history.on = pick(2) == 0;
      history.max_entries = 100;
      expect(allocator_.inspector().record_history(history), "record_history");
    } else if (action < 98) {
      expect(allocator_.set_limit(pick(2) == 0 ? Budget::kNoLimit : 300 * kMiB), "set_limit");
    } else if (action < 99) {
      Config config = allocator_.core().settings();
      config.thread_cache = pick(2) == 0;
      expect(allocator_.configure(config), "configure");
    } else {
      expect(allocator_.validate(), "validate");
    }
  }

  // A pool of this thread: requests by route and by name, a checkpoint, hibernation.
  void pool() {
    Pools& pools = allocator_.pools();
    const PoolId id{0, 1 + number_ * 1000000 + made_++};
    expect(pools.begin_route(id, Pools::this_thread()), "begin_route");
    std::vector<Addr> ours;
    for (int i = 0; i < 4; ++i) {
      Addr address = kNullAddr;
      const Request request{1 + pick(3 * kMiB), StreamId{number_}, kNullAddr,
                            i % 2 == 0 ? std::nullopt : std::optional(id)};
      const Status status = allocator_.allocate(request, &address);
      expect(status, "allocate in a pool");
      if (status.ok()) ours.push_back(address);
    }
    bool same = false;
    expect(pools.check_live(id, ours, &same), "check_live");
    if (!same && wrong_.empty()) wrong_ = "a pool's live blocks are not those it gave";
    PoolImage image;
    RestoreResult result;
    expect(pools.capture_image(id, &image), "capture_image");
    expect(pools.restore_image(image, &result), "restore_image");
    expect(pools.end_route(id), "end_route");
    if (pick(2) == 0) {
      expect(pools.hibernate(id), "hibernate");
      if (pick(2) == 0) expect(pools.wake(id), "wake");
    }
    for (const Addr each : ours) expect(allocator_.release(each), "release in a pool");
    expect(pools.release(id), "release of a pool");
  }

  DeviceAllocator& allocator_;
  std::mt19937_64 random_;
  const uint64_t number_;
  uint64_t streams_ = 1;
  uint64_t made_ = 0;
  std::vector<Addr> live_;
  std::string wrong_;
};

void everything(const std::string& text) {
  SimConfig config;
  config.total_bytes = 400 * kMiB;
  config.oracle = false;
  config.backed = false;
  config.eager = true;
  DeviceAllocator allocator(std::make_shared<SimDriver>(config), options(text));
  std::vector<Worker> workers;
  for (int t = 0; t < kThreads; ++t) workers.emplace_back(allocator, t + 1);
  std::vector<std::thread> threads;
  for (Worker& worker : workers) threads.emplace_back([&] { worker.run(); });
  for (std::thread& thread : threads) thread.join();
  for (const Worker& worker : workers) EXPECT_EQ(worker.wrong(), std::string());
  EXPECT(allocator.inspector().record_history({}).ok());
  EXPECT(allocator.empty_cache().ok());
  EXPECT_EQ(allocator.validate().describe(), std::string("ok"));
  EXPECT_EQ(allocator.core().budget.reserved(), 0u);
  EXPECT_EQ(allocator.inspector().pools().size(), 1u);
}

}  // namespace

TEST(Threads_use_everything_at_once) {
  everything("");
}
TEST(Threads_use_everything_at_once_with_fixed_segments) {
  everything("expandable_segments:False");
}
TEST(Threads_use_everything_at_once_in_compat_mode) {
  everything("mode:compat");
}

}  // namespace staticrt::test
