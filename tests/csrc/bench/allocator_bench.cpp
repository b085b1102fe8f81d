// What the allocator costs, and its targets: value and target of each row. Exit status 1 if one is missed.
//
//   bench_allocator                 fragmentation traces, instruction counts by callgrind, then times
//   bench_allocator loop NAME N     one instruction loop, for callgrind
//
// Fragmentation: highest allocated bytes over highest reserved bytes, on a simulated device of 16 TB.
// Instructions: callgrind's count of 2N minus N iterations, over N, so that start-up drops out, on a device
// whose calls cost nothing. Without valgrind that part is reported as absent, and counts as missed. Times: of
// the CPU, best of several, so that other programs matter little.
#include <algorithm>
#include <array>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "allocator/core/allocator.h"
#include "allocator/core/inspector.h"
#include "allocator/pools/pools.h"
#include "allocator/simulated/driver_sim.h"
#include "stub_driver.h"

using namespace staticrt::alloc;  // NOLINT

namespace {

bool missed = false;

const char* verdict(bool met) {
  missed |= !met;
  return met ? "ok" : "MISSED";
}

std::shared_ptr<Driver> simulated(Bytes total) {
  SimConfig config;
  config.total_bytes = total;
  config.backed = false;
  config.oracle = false;
  return std::make_shared<SimDriver>(config);
}

struct Bench {
  explicit Bench(const std::string& text, std::shared_ptr<Driver> device = simulated(Bytes{16} << 40)) {
    Config options;
    if (!parse_config(text, "bench", Config(), &options).ok()) std::abort();
    allocator = std::make_unique<DeviceAllocator>(std::move(device), options);
  }
  Addr alloc(Bytes size) {
    Addr address = kNullAddr;
    if (!allocator->allocate({.size = size}, &address).ok()) std::abort();
    return address;
  }
  void free(Addr address) {
    if (!allocator->release(address).ok()) std::abort();
  }
  std::unique_ptr<DeviceAllocator> allocator;
  std::mt19937_64 g{7};
};

void train(Bench& b, int steps, bool vary) {
  const Bytes H = 4096;
  constexpr int kLayers = 32;
  for (int l = 0; l < kLayers; ++l)
    for (const Bytes k : {6, 2, 8, 8}) b.alloc(k * H * H);
  for (int s = 0; s < steps; ++s) {
    const Bytes T = vary ? 512 + b.g() % 1536 : 2048;
    std::vector<std::array<Addr, 4>> kept;
    for (int l = 0; l < kLayers; ++l) {
      const Addr a0 = b.alloc(2 * T * H);
      const Addr q = b.alloc(6 * T * H);
      const Addr t = b.alloc(8192 * T);
      const Addr a1 = b.alloc(2 * T * H);
      b.free(q);
      const Addr m = b.alloc(8 * T * H);
      const Addr a2 = b.alloc(8 * T * H);
      b.free(m);
      b.free(t);
      kept.push_back({a0, a1, a2, b.alloc(64 * T)});
    }
    std::vector<Addr> grads;
    for (int l = kLayers - 1; l >= 0; --l) {
      const Addr g1 = b.alloc(2 * T * H);
      const Addr g2 = b.alloc(8 * T * H);
      grads.push_back(b.alloc(6 * H * H));
      grads.push_back(b.alloc(8 * H * H));
      for (const Addr each : kept[static_cast<size_t>(l)]) b.free(each);
      b.free(g2);
      b.free(g1);
    }
    for (const Addr each : grads) b.free(each);
  }
}

void infer(Bench& b) {
  struct Request {
    Bytes len, rem;
    std::array<Addr, 8> buffers;
  };
  std::vector<Request> live;
  for (int round = 0; round < 400; ++round) {
    if (live.size() < 24) {
      Request r{};
      r.len = 64 + b.g() % 1900;
      r.rem = 16 + b.g() % 64;
      for (Addr& each : r.buffers) each = b.alloc(16384 * r.len);
      live.push_back(r);
    }
    for (size_t i = 0; i < live.size();) {
      Request& r = live[i];
      const Addr t = b.alloc(4 * r.len);
      for (Addr& each : r.buffers) {
        const Addr next = b.alloc(16384 * (r.len + 1));
        b.free(each);
        each = next;
      }
      b.free(t);
      ++r.len;
      if (--r.rem == 0) {
        for (const Addr each : r.buffers) b.free(each);
        live.erase(live.begin() + static_cast<ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
  }
}

void growing(Bench& b) {
  for (Bytes k = 1; k <= 64; ++k) {
    std::vector<Addr> live;
    for (int i = 0; i < 50; ++i) {
      live.push_back(b.alloc(3 * k * kMiB));
      live.push_back(b.alloc(7 * k * kMiB / 2));
    }
    for (auto at = live.rbegin(); at != live.rend(); ++at) b.free(*at);
  }
}

void random_trace(Bench& b) {
  auto size = [&] { return static_cast<Bytes>(std::pow(2.0, 9 + static_cast<double>(b.g() % 1700) / 100)); };
  std::vector<Addr> slots;
  for (int i = 0; i < 1000; ++i) slots.push_back(b.alloc(size()));
  for (int i = 0; i < 300000; ++i) {
    Addr& slot = slots[b.g() % 1000];
    b.free(slot);
    slot = b.alloc(size());
  }
}

void fragmentation() {
  struct Row {
    const char* name;
    std::function<void(Bench&)> run;
    double target;
    int64_t calls;
  };
  const Row rows[] = {{"train_fixed", [](Bench& b) { train(b, 20, false); }, 0.99, 217},
                      {"train_vary", [](Bench& b) { train(b, 60, true); }, 0.95, 249},
                      {"infer", infer, 0.96, 153},
                      {"growing", growing, 1.0, 349},
                      {"random", random_trace, 0.92, 283}};
  std::printf("%-12s %10s %8s %12s %8s %14s\n", "trace", "value", "target", "map+unmap", "below", "peak MiB");
  for (const Row& row : rows) {
    Bench bench("thread_cache:False");
    row.run(bench);
    const StatsReport stats = bench.allocator->inspector().stats();
    const auto peak = static_cast<double>(stats.of(Gauge::allocated_bytes).peak);
    const auto reserved = static_cast<double>(stats.of(Gauge::reserved_bytes).peak);
    const int64_t calls = stats.counters.device_alloc + stats.counters.device_free;
    std::printf("%-12s %10.4f %8.3f %12" PRId64 " %8" PRId64 " %14.0f %s\n", row.name, peak / reserved,
                row.target, calls, row.calls, peak / static_cast<double>(kMiB),
                verdict(peak / reserved + 5e-5 >= row.target && calls < row.calls));
  }
}

struct Loop {
  const char* name;
  const char* options;
  int target;
  void (*run)(Bench&, uint64_t);
  const char* over = nullptr;  // row whose value is subtracted before the comparison
};

// n times: 4 KiB allocated and freed.
void pairs(Bench& b, uint64_t n) {
  DeviceAllocator& allocator = *b.allocator;
  const Request request{.size = 4096};
  Addr address = kNullAddr;
  for (uint64_t i = 0; i < n; ++i)
    if (!allocator.allocate(request, &address).ok() || !allocator.release(address).ok()) std::abort();
}

void with_history(Bench& b, uint64_t n) {
  HistoryOptions history;
  history.on = true;
  history.max_entries = 1000;
  if (!b.allocator->inspector().record_history(history).ok()) std::abort();
  pairs(b, n);
}

void with_record_stream(Bench& b, uint64_t n) {
  const StreamId side{1};
  Addr address = kNullAddr;
  for (uint64_t i = 0; i < n; ++i)
    if (!b.allocator->allocate({.size = 4096}, &address).ok() ||
        !b.allocator->record_use(address, side).ok() || !b.allocator->release(address).ok())
      std::abort();
}

void random_live(Bench& b, uint64_t n) {
  std::vector<Bytes> sizes;
  for (int i = 0; i < 4096; ++i)
    sizes.push_back(static_cast<Bytes>(std::pow(2.0, 9 + static_cast<double>(b.g() % 1700) / 100)));
  std::vector<Addr> slots;
  for (size_t i = 0; i < 1000; ++i) slots.push_back(b.alloc(sizes[i]));
  for (uint64_t i = 0; i < n; ++i) {
    Addr& slot = slots[(i * 7919) % 1000];
    b.free(slot);
    slot = b.alloc(sizes[(i * 31) % 4096]);
  }
}

const Loop kLoops[] = {{"thread_cache_4k", "", 120, pairs},
                       {"shared_4k", "thread_cache:False", 400, pairs},
                       {"random_1000_live", "thread_cache:False", 900, random_live},
                       {"record_stream", "thread_cache:False", 1500, with_record_stream},
                       {"history", "thread_cache:False", 150, with_history, "shared_4k"}};

// Instructions of a run under callgrind, or -1.
double instructions(const std::string& self, const char* name, uint64_t n) {
  const std::string command = "valgrind --tool=callgrind --callgrind-out-file=/dev/null " + self + " loop " +
                              name + " " + std::to_string(n) + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return -1;
  char line[512];
  double count = -1;
  while (std::fgets(line, sizeof line, pipe) != nullptr)
    if (const char* at = std::strstr(line, "Collected : "); at != nullptr) count = std::atof(at + 12);
  pclose(pipe);
  return count;
}

void instruction_counts(const char* self) {
  std::printf("\n%-20s %14s %8s\n", "per pair", "instructions", "target");
  std::map<std::string, double> values;
  for (const Loop& loop : kLoops) {
    constexpr uint64_t kN = 5000;
    const double once = instructions(self, loop.name, kN);
    const double twice = instructions(self, loop.name, 2 * kN);
    if (once < 0 || twice < 0) {
      std::printf("%-20s %14s %8d %s: valgrind is absent\n", loop.name, "-", loop.target, verdict(false));
      continue;
    }
    const double each = (twice - once) / kN;
    values[loop.name] = each;
    const double compared = loop.over == nullptr ? each : each - values[loop.over];
    std::printf("%-20s %14.0f %8d %s", loop.name, each, loop.target, verdict(compared <= loop.target));
    if (loop.over != nullptr) std::printf(" (%.0f over %s)", compared, loop.over);
    std::printf("\n");
  }
}

// CPU time of this thread in ms.
double cpu_ms() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

template <class F>
double best_ms(int times, F f) {
  double best = 1e9;
  for (int i = 0; i < times; ++i) {
    const double start = cpu_ms();
    f();
    best = std::min(best, cpu_ms() - start);
  }
  return best;
}

// Throughput of two threads, each with its own stream, over that of one: twice the CPU time of a pair alone
// over the CPU time of a pair beside another thread.
double two_threads() {
  Bench b("", std::make_shared<StubDriver>(Bytes{1} << 40));
  constexpr uint64_t kPairs = 200000;
  auto loop = [&](uint64_t stream) {
    const Request request{.size = 4096, .stream = StreamId{stream}};
    Addr address = kNullAddr;
    for (uint64_t i = 0; i < kPairs; ++i)
      if (!b.allocator->allocate(request, &address).ok() || !b.allocator->release(address).ok()) std::abort();
  };
  const double alone = best_ms(15, [&] { loop(1); });
  double both[2];
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&, t] { both[t] = best_ms(15, [&] { loop(static_cast<uint64_t>(t)); }); });
  for (std::thread& thread : threads) thread.join();
  return alone / both[0] + alone / both[1];
}

// Checkpoints and snapshots of a private pool with 10,000 live blocks.
struct PoolTimes {
  double get = 0, set = 0, snapshot = 0;
  bool unmoved = true;  // counters and gauges, by the restore
};
PoolTimes pool_times() {
  Bench b("thread_cache:False", std::make_shared<StubDriver>(Bytes{1} << 40));
  Pools& pools = b.allocator->pools();
  const PoolId id{0, 1};
  if (!pools.begin_route(id).ok()) std::abort();
  std::vector<Addr> blocks;
  for (int i = 0; i < 20000; ++i) blocks.push_back(b.alloc(512 * (1 + static_cast<Bytes>(i) % 7)));
  for (size_t i = 0; i < blocks.size(); i += 2) b.free(blocks[i]);
  if (!pools.end_route(id).ok()) std::abort();
  PoolTimes times;
  PoolImage image;
  times.get = best_ms(20, [&] {
    if (!pools.capture_image(id, &image).ok()) std::abort();
  });
  auto numbers = [&] {
    const StatsReport stats = b.allocator->inspector().stats();
    std::vector<int64_t> all{stats.counters.device_alloc, stats.counters.device_free};
    for (const auto& gauge : stats.gauges)
      for (const GaugeValue& value : gauge)
        all.insert(all.end(), {value.current, value.peak, value.allocated, value.freed});
    return all;
  };
  const std::vector<int64_t> before = numbers();
  times.set = best_ms(20, [&] {
    RestoreResult result;
    if (!pools.restore_image(image, &result).ok() || result.freed.size() != 10000) std::abort();
  });
  times.unmoved = numbers() == before;
  times.snapshot = best_ms(20, [&] {
    if (b.allocator->inspector().snapshot(id, false).segments.empty()) std::abort();
  });
  return times;
}

void timings() {
  std::printf("\n%-26s %10s %8s\n", "CPU time", "value", "target");
  const double scale = two_threads();
  std::printf("%-26s %9.2fx %7.1fx %s\n", "1 -> 2 threads", scale, 1.8, verdict(scale >= 1.8));
  const PoolTimes times = pool_times();
  const std::tuple<const char*, double, double> rows[] = {{"checkpoint get, ms", times.get, 0.3},
                                                          {"checkpoint set, ms", times.set, 1.0},
                                                          {"snapshot, ms", times.snapshot, 1.0}};
  for (const auto& [name, value, target] : rows)
    std::printf("%-26s %10.2f %8.1f %s\n", name, value, target, verdict(value <= target));
  std::printf("%-26s %10s %8s %s\n", "counters after set", times.unmoved ? "same" : "moved", "same",
              verdict(times.unmoved));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4 && std::strcmp(argv[1], "loop") == 0) {
    for (const Loop& loop : kLoops) {
      if (std::strcmp(loop.name, argv[2]) != 0) continue;
      Bench bench(loop.options, std::make_shared<StubDriver>(Bytes{1} << 40));
      loop.run(bench, std::strtoull(argv[3], nullptr, 10));
      return 0;
    }
    return 1;
  }
  fragmentation();
  instruction_counts(argv[0]);
  timings();
  return missed ? 1 : 0;
}
