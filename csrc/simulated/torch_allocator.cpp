#include "simulated/torch_allocator.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/COW.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "allocator/core/inspector.h"
#include "allocator/sharing/imports.h"
#include "common/error.h"
#include "simulated/device.h"

namespace staticrt::simulated {
namespace {

using namespace alloc;

c10::CachingAllocator::Stat torch_stat(const GaugeValue& value) {
  c10::CachingAllocator::Stat stat;
  stat.current = value.current;
  stat.peak = value.peak;
  stat.allocated = value.allocated;
  stat.freed = value.freed;
  return stat;
}

// The bytes' device is in the context, so that a tensor may be freed by a thread with another current device.
void release(void* context) {
  const auto address = reinterpret_cast<Addr>(context);
  for (int index = 0; index < device_count(); ++index) {
    SimulatedDevice& device = device_at(index);
    if (!device.driver().owns(address)) continue;
    device.release(address);
    return;
  }
}

class TorchAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t size_bytes) override {
    SimulatedDevice& device = device_at(current_device());
    void* pointer = reinterpret_cast<void*>(device.allocate(size_bytes));
    return {pointer, pointer, &release, device.device()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, std::size_t count) const override {
    SimulatedDevice& device = device_at(current_device());
    const StreamId stream = current_stream(device.index());
    auto& driver = device.driver();
    const auto target = reinterpret_cast<Addr>(to);
    const auto source = reinterpret_cast<Addr>(from);
    Status status;
    driver.launch(
        stream,
        [to = driver.kernel_address(target), from = driver.kernel_address(source), count] {
          std::copy_n(reinterpret_cast<const char*>(from), count, reinterpret_cast<char*>(to));
        },
        {{.address = source, .size_bytes = count, .writes = false}, {.address = target, .size_bytes = count}},
        "a copy of the allocator", UINT64_MAX, {}, &status);
    check(status);
  }

  bool initialized() override { return device_count() > 0; }
  void emptyCache(c10::MempoolId_t pool) override {
    for (int index = 0; index < device_count(); ++index) {
      const std::optional<PoolId> wanted =
          pool.first == 0 && pool.second == 0 ? std::nullopt : std::optional(PoolId{pool.first, pool.second});
      check(device_at(index).allocator().empty_cache(wanted));
    }
  }
  void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override {
    if (!pointer.get()) return;
    SimulatedDevice& device = device_at(pointer.device().index());
    TORCH_CHECK(stream.device_type() == kDeviceType, "record_stream: the tensor is on ", device.device(),
                " and the stream is one of ", stream.device(), "; give a stream of a simulated device");
    SimulatedDevice& user = device_at(stream.device_index());
    const auto address = reinterpret_cast<Addr>(pointer.get());
    // Copy-on-write storages own their bytes together.
    if (pointer.get_deleter() == &release || c10::impl::cow::is_cow_data_ptr(pointer))
      check(device.allocator().record_use(address, stream_of(stream), user.shared_driver()));
    else
      check(device.allocator().imports().record_use(address, stream_of(stream), user.shared_driver()));
    device.note_use(user.index(), stream_of(stream));  // the results of a replay own no memory
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override;
  void resetAccumulatedStats(c10::DeviceIndex index) override {
    device_at(index).allocator().inspector().reset_accumulated();
  }
  void resetPeakStats(c10::DeviceIndex index) override {
    device_at(index).allocator().inspector().reset_peak();
  }
  // Not in every torch that is supported, so that it cannot say `override`.
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) {
    Bytes free_bytes = 0;
    Bytes total_bytes = 0;
    check(device_at(index).driver().memory_info(&free_bytes, &total_bytes));
    return {free_bytes, total_bytes};
  }
};

c10::CachingDeviceAllocator::DeviceStats TorchAllocator::getDeviceStats(c10::DeviceIndex index) {
  const StatsReport report = device_at(index).allocator().inspector().stats();
  c10::CachingDeviceAllocator::DeviceStats stats;
  const auto fill = [&](Gauge gauge, c10::CachingAllocator::StatArray& values) {
    for (size_t which = 0; which < values.size(); ++which)
      values[which] = torch_stat(report.of(gauge, static_cast<int>(which)));
  };
  fill(Gauge::allocation, stats.allocation);
  fill(Gauge::segment, stats.segment);
  fill(Gauge::active, stats.active);
  fill(Gauge::inactive_split, stats.inactive_split);
  fill(Gauge::allocated_bytes, stats.allocated_bytes);
  fill(Gauge::reserved_bytes, stats.reserved_bytes);
  fill(Gauge::active_bytes, stats.active_bytes);
  fill(Gauge::inactive_split_bytes, stats.inactive_split_bytes);
  fill(Gauge::requested_bytes, stats.requested_bytes);
  stats.num_alloc_retries = report.counters.alloc_retries;
  stats.num_ooms = report.counters.ooms;
  stats.num_sync_all_streams = report.counters.sync_all_streams;
  stats.num_device_alloc = report.counters.device_alloc;
  stats.num_device_free = report.counters.device_free;
  stats.oversize_allocations = torch_stat(report.counters.oversize_allocations);
  stats.oversize_segments = torch_stat(report.counters.oversize_segments);
  return stats;
}

class AllocatorOfOne final : public c10::Allocator {
 public:
  explicit AllocatorOfOne(c10::Device device) : device_(device) {}
  c10::DataPtr allocate(size_t size_bytes) override {
    const c10::DeviceGuard guard(device_);
    return torch_allocator().allocate(size_bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    const c10::DeviceGuard guard(device_);
    torch_allocator().copy_data(to, from, count);
  }

 private:
  const c10::Device device_;
};

}  // namespace

c10::Allocator& torch_allocator_of(int index) {
  static const auto* all = [] {
    auto* made = new std::vector<std::unique_ptr<AllocatorOfOne>>;
    for (int each = 0; each < device_count(); ++each)
      made->push_back(std::make_unique<AllocatorOfOne>(device_at(each).device()));
    return made;
  }();
  return *all->at(static_cast<size_t>(index));
}

c10::DeviceAllocator& torch_allocator() {
  static auto* allocator = new TorchAllocator;
  return *allocator;
}

}  // namespace staticrt::simulated
