// A simulated device with an allocator on it, checked after every operation: validate() and the oracle.
#pragma once

#include <memory>
#include <string>

#include "allocator/core/allocator.h"
#include "allocator/core/inspector.h"
#include "allocator/pools/pools.h"
#include "allocator/simulated/driver_sim.h"
#include "test.h"

namespace staticrt::test {

using namespace staticrt::alloc;  // NOLINT: the words of the room under test

inline constexpr Bytes MiB = kMiB;

inline Config options(const std::string& text) {
  Config config;
  const Status status = parse_config(text, "test", Config(), &config);
  if (!status.ok()) throw Failure(status.text());
  return config;
}

class Device {
 public:
  explicit Device(Bytes total = 100 * kMiB, const std::string& text = "thread_cache:False",
                  SimConfig sim_config = {})
      : sim_(make(total, sim_config)), allocator_(std::make_unique<DeviceAllocator>(sim_, options(text))) {}
  ~Device() noexcept(false) {
    if (std::uncaught_exceptions() == 0) {
      check();
      allocator_.reset();
      EXPECT_EQ(sim_->used_bytes(), 0u);
      EXPECT_EQ(sim_->reserved_va_bytes(), 0u);
      EXPECT_EQ(sim_->handle_count(), 0u);
      EXPECT_EQ(sim_->event_count(), 0u);
    }
  }

  SimDriver& sim() { return *sim_; }
  const std::shared_ptr<SimDriver>& shared_sim() { return sim_; }
  DeviceAllocator& allocator() { return *allocator_; }
  Pools& pools() { return allocator_->pools(); }
  Inspector& inspector() { return allocator_->inspector(); }

  // kNullAddr if out of memory; any other failure fails the test.
  Addr try_alloc(Bytes size, StreamId stream = kDefaultStream, Addr at = kNullAddr) {
    Addr address = kNullAddr;
    const Status status = allocator_->allocate({size, stream, at}, &address);
    last_ = status;
    if (status.ok() && address != kNullAddr) sim_->allocated(address, size, stream);
    check();
    if (!status.ok() && !status.oom()) fail(__FILE__, __LINE__, "allocate: " + status.describe());
    return address;
  }
  Addr alloc(Bytes size, StreamId stream = kDefaultStream, Addr at = kNullAddr) {
    const Addr address = try_alloc(size, stream, at);
    if (!last_.ok()) fail(__FILE__, __LINE__, last_.describe());
    return address;
  }
  void free(Addr address) {
    sim_->freed(address);
    expect_ok(allocator_->release(address));
  }
  void use(Addr address, StreamId stream) { expect_ok(allocator_->record_use(address, stream)); }
  Bytes empty_cache() {
    Bytes released = 0;
    expect_ok(allocator_->empty_cache(std::nullopt, &released));
    return released;
  }
  void expect_ok(const Status& status) {
    if (!status.ok()) fail(__FILE__, __LINE__, status.describe());
    check();
  }
  void check() {
    const Status status = allocator_->validate();
    if (!status.ok()) fail(__FILE__, __LINE__, status.describe());
    EXPECT_EQ(sim_->report_text(), std::string());
    EXPECT_EQ(sim_->used_bytes(), allocator_->core().budget.reserved());
  }

  const Status& last() const { return last_; }
  Bytes reserved() { return static_cast<Bytes>(current(Gauge::reserved_bytes)); }
  Bytes allocated() { return static_cast<Bytes>(current(Gauge::allocated_bytes)); }
  int64_t current(Gauge gauge, int which = 0) { return inspector().stats().of(gauge, which).current; }
  Counters counters() { return inspector().stats().counters; }
  Bytes block_size(Addr address) {
    BlockInfo info;
    return inspector().find_block(address, &info) ? info.size : 0;
  }

 private:
  static std::shared_ptr<SimDriver> make(Bytes total, SimConfig config) {
    config.total_bytes = total;
    return std::make_shared<SimDriver>(config);
  }

  std::shared_ptr<SimDriver> sim_;
  std::unique_ptr<DeviceAllocator> allocator_;
  Status last_;
};

// Two devices of one machine.
struct Two {
  static constexpr Bytes kSize = 8 * kMiB;

  explicit Two(const std::string& text = "thread_cache:False", Bytes total = 100 * kMiB)
      : user(total, text, config(1)), owner(total, text, config(0)) {}
  SimConfig config(int index) const {
    SimConfig made;
    made.index = index;
    made.machine = machine;
    return made;
  }
  Status connect() { return owner.allocator().add_peer(user.sim()); }
  // Work of the user's on these bytes: whether it had access.
  bool reads(Addr address, Bytes size = kSize, StreamId stream = kDefaultStream) {
    bool ran = false;
    user.sim().launch(stream, [&ran] { ran = true; }, {{address, size, /*writes=*/false}}, "reader");
    expect(user.sim().stream_sync(stream).ok());
    if (!ran) {
      const std::string report = user.sim().report_text();
      EXPECT_EQ(report.substr(0, report.find(" uses")), "peer access: reader on stream 0 of sim:1");
      EXPECT(report.find("of sim:0, to which sim:1 has no access") != std::string::npos);
      user.sim().clear_reports();
    }
    return ran;
  }
  static void expect(bool ok) { EXPECT(ok); }

  std::shared_ptr<SimMachine> machine = std::make_shared<SimMachine>();
  Device user, owner;  // the owner's events of the user's streams go first
};

inline constexpr const char* kCompat = "mode:compat";
inline constexpr const char* kCompatExpandable = "mode:compat,expandable_segments:True";
inline constexpr const char* kFixed = "expandable_segments:False,thread_cache:False";

}  // namespace staticrt::test
