#include "simulated/device.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "allocator/core/size_policy.h"
#include "allocator/graphs/capture.h"
#include "allocator/process/devices.h"
#include "allocator/sharing/exports.h"
#include "allocator/sharing/imports.h"
#include "common/bits.h"
#include "simulated/generator.h"
#include "simulated/graph_pool.h"

namespace staticrt::simulated {
namespace {

std::vector<std::unique_ptr<SimulatedDevice>>& all() {
  static auto* devices = new std::vector<std::unique_ptr<SimulatedDevice>>;
  return *devices;
}

struct Current {
  int device = 0;
  std::map<int, alloc::StreamId> streams;  // those that are not the default stream
};
Current& current() {
  static thread_local Current mine;
  return mine;
}

}  // namespace

SimulatedDevice::SimulatedDevice(int index, std::shared_ptr<alloc::SimDriver> driver,
                                 std::shared_ptr<alloc::DeviceAllocator> allocator,
                                 alloc::Bytes redzone_bytes)
    : index_(index),
      driver_(std::move(driver)),
      allocator_(std::move(allocator)),
      generator_(make_generator(index)),
      redzone_bytes_(redzone_bytes) {
  const auto sim = driver_;
  allocator_->imports().observe({[sim](alloc::Addr address, alloc::Bytes size, alloc::StreamId stream) {
                                   sim->allocated(address, size, stream);
                                 },
                                 [sim](alloc::Addr address) { sim->freed(address); }});
}

alloc::Addr SimulatedDevice::allocate(alloc::Bytes size_bytes) {
  if (size_bytes == 0) return alloc::kNullAddr;
  std::vector<alloc::Addr> late;
  {
    const std::lock_guard lock(mutex_);
    late.swap(freed_in_work_);
  }
  for (const alloc::Addr address : late) release_block(address, /*told=*/true);
  const alloc::StreamId stream = current_stream(index_);
  TORCH_CHECK(alloc::Captures::anywhere == 0 || !driver_->captured_from_elsewhere(stream), "cannot allocate ",
              size_bytes, " bytes of ", device(),
              " in a capture that began on another device: a replay would ",
              "write them after they have gone to others; allocate before the capture, and write there");
  const alloc::Bytes asked = size_bytes + redzone_bytes_;
  alloc::Addr address = alloc::kNullAddr;
  check(allocator_->allocate({.size = asked, .stream = stream}, &address));
  if (Buffers::open > 0) {
    // No guard: it would be written and checked in the order of this stream, and graphs run on any.
    driver_->allocated(address, size_bytes, stream, /*reusable=*/true);
    return address;
  }
  driver_->allocated(address, size_bytes, stream);
  // Blocks are multiples of their granule.
  driver_->guard(address, size_bytes, round_up(asked, alloc::kMinBlock) - size_bytes, stream);
  return address;
}

void SimulatedDevice::release(alloc::Addr address) {
  if (driver_->inherited()) return;  // the memory is the parent's
  if (alloc::SimDriver::in_work()) {
    driver_->freed(address);
    const std::lock_guard lock(mutex_);
    freed_in_work_.push_back(address);
    return;
  }
  release_block(address, /*told=*/false);
}

void SimulatedDevice::release_block(alloc::Addr address, bool told) {
  const std::shared_lock lock(releases_);
  if (forgotten(address)) return;
  const auto give_back = [this, address, told] {
    if (!told) driver_->freed(address);
    (void)allocator_->release(address).ok();
  };
  bool kept = false;
  (void)allocator_->exports().keep(address, give_back, &kept).ok();
  if (!kept) give_back();
}

thread_local int SimulatedDevice::Buffers::open = 0;

void SimulatedDevice::forget_owner(alloc::Addr address) {
  const std::lock_guard lock(mutex_);
  ++forgotten_[address];
  ++any_forgotten_;
}

bool SimulatedDevice::forgotten(alloc::Addr address) {
  if (any_forgotten_ == 0) return false;
  const std::lock_guard lock(mutex_);
  const auto found = forgotten_.find(address);
  if (found == forgotten_.end()) return false;
  if (--found->second == 0) forgotten_.erase(found);
  --any_forgotten_;
  return true;
}

void SimulatedDevice::add(GraphPool* pool) {
  const std::lock_guard lock(mutex_);
  pools_.insert(pool);
}

void SimulatedDevice::remove(GraphPool* pool) {
  const std::lock_guard lock(mutex_);
  pools_.erase(pool);
}

void SimulatedDevice::note_use(int device, alloc::StreamId stream) {
  const std::lock_guard lock(mutex_);
  for (GraphPool* pool : pools_) pool->note_use(device, stream);
}

void SimulatedDevice::keep_error(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = std::move(error);
  failed_ = true;
}

void SimulatedDevice::throw_error() {
  if (!failed_) return;
  std::exception_ptr error;
  {
    const std::lock_guard lock(mutex_);
    error = std::exchange(error_, nullptr);
    failed_ = false;
  }
  if (error) std::rethrow_exception(error);
}

void SimulatedDevice::synchronize(alloc::StreamId stream) {
  check(driver_->stream_sync(stream));
  throw_error();
}

void SimulatedDevice::synchronize() {
  check(driver_->device_sync());
  throw_error();
}

void SimulatedDevice::count_wait(const std::string& why) {
  const std::lock_guard lock(mutex_);
  ++waits_[why];
}

std::map<std::string, int64_t> SimulatedDevice::waits() const {
  const std::lock_guard lock(mutex_);
  return waits_;
}

void SimulatedDevice::clear_waits() {
  const std::lock_guard lock(mutex_);
  waits_.clear();
}

void make_devices(const DevicesConfig& config) {
  alloc::Config options;
  const std::string text = config.allocator_options.find("thread_cache") == std::string::npos
                               ? "thread_cache:False," + config.allocator_options
                               : config.allocator_options;
  check(alloc::parse_config(text, "allocator_options", alloc::Config(), &options));
  const auto machine = std::make_shared<alloc::SimMachine>();
  for (const auto& [one, other] : config.unreachable) machine->unreachable.insert(std::minmax(one, other));
  for (int index = 0; index < config.count; ++index) {
    alloc::SimConfig sim;
    sim.index = index;
    sim.total_bytes = config.total_bytes;
    sim.eager = config.synchronous;
    sim.kernel_alias = true;
    sim.machine = machine;
    sim.oracle = config.checks;
    auto driver = std::make_shared<alloc::SimDriver>(sim);
    auto allocator = std::make_shared<alloc::DeviceAllocator>(driver, options);
    check(alloc::add_device({driver, allocator}));
    all().push_back(std::make_unique<SimulatedDevice>(index, std::move(driver), std::move(allocator),
                                                      config.redzone_bytes));
  }
}

int device_count() {
  return static_cast<int>(all().size());
}

SimulatedDevice& device_at(int index) {
  if (index == -1) index = current().device;
  TORCH_CHECK(index >= 0 && index < device_count(), "sim:", index, " does not exist: there are ",
              device_count(), " simulated devices");
  return *all()[static_cast<size_t>(index)];
}

int current_device() {
  return current().device;
}

int exchange_device(int index) {
  return std::exchange(current().device, index);
}

alloc::StreamId current_stream(int index) {
  const auto& streams = current().streams;
  const auto found = streams.find(index);
  return found == streams.end() ? alloc::kDefaultStream : found->second;
}

alloc::StreamId exchange_stream(int index, alloc::StreamId stream) {
  const alloc::StreamId before = current_stream(index);
  current().streams[index] = stream;
  return before;
}

void check(const alloc::Status& status) {
  if (status.ok()) return;
  const std::string& text = status.text().empty() ? status.describe() : status.text();
  TORCH_CHECK_WITH(OutOfMemoryError, status.code() != alloc::Code::oom, text);
  TORCH_CHECK(false, text);
}

}  // namespace staticrt::simulated
