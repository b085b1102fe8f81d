#include "simulated/guard.h"

#include "simulated/torch_allocator.h"

namespace staticrt::simulated {
namespace {

using alloc::EventId;
using alloc::StreamId;

struct Event {
  EventId id = alloc::kNoEvent;
  int device = 0;
  StreamId stream{0};  // of the last record
};

void wait(int index, StreamId stream, const Event& event) {
  SimulatedDevice& waiting = device_at(index);
  if (event.device == index) {
    check(waiting.driver().stream_wait(stream, event.id));
  } else {
    check(waiting.driver().wait_for(stream, device_at(event.device).driver(), event.id));
  }
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kDeviceType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return device_at(exchange_device(device_at(device.index()).index())).device();
  }
  c10::Device getDevice() const override { return device_at(current_device()).device(); }
  void setDevice(c10::Device device) const override { exchange_device(device_at(device.index()).index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0 && device.index() < device_count()) exchange_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(device_count());
  }

  c10::Stream getStream(c10::Device device) const override {
    const int index = device_at(device.index()).index();
    return torch_stream(index, current_stream(index));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return torch_stream(device_at(device.index()).index(), alloc::kDefaultStream);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    SimulatedDevice& owner = device_at(device.index());
    return torch_stream(owner.index(), owner.driver().create_stream());
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const int index = device_at(stream.device_index()).index();
    return torch_stream(index, exchange_stream(index, stream_of(stream)));
  }
  bool queryStream(const c10::Stream& stream) const override {
    auto& driver = device_at(stream.device_index()).driver();
    const alloc::Status status = driver.stream_query(stream_of(stream));
    if (status.code() != alloc::Code::not_ready) {
      check(status);
      return true;
    }
    driver.step(stream_of(stream));  // so that loops that poll until it is done end
    return false;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    device_at(stream.device_index()).synchronize(stream_of(stream));
  }
  // This and the next are not in every torch that is supported, so that they cannot say `override`.
  bool isStreamCapturing(const c10::Stream& stream) const {
    alloc::CaptureState state;
    check(device_at(stream.device_index()).driver().capture_state(stream_of(stream), &state));
    return state.status != alloc::CaptureStatus::none;
  }
  void synchronizeDevice(const c10::DeviceIndex index) const { device_at(index).synchronize(); }

  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    const std::unique_ptr<Event> mine(static_cast<Event*>(event));
    if (mine) (void)device_at(mine->device).driver().event_destroy(mine->id).ok();
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex index,
              const c10::EventFlag) const override {
    TORCH_CHECK(index == -1 || index == stream.device_index(), "an event of sim:", static_cast<int>(index),
                " cannot be recorded on a stream of sim:", static_cast<int>(stream.device_index()));
    auto* mine = static_cast<Event*>(*event);
    if (!mine) {
      auto made = std::make_unique<Event>();
      made->device = stream.device_index();
      check(device_at(made->device).driver().event_create(&made->id));
      *event = mine = made.release();
    }
    mine->stream = stream_of(stream);
    check(device_at(mine->device).driver().event_record(mine->id, mine->stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event) wait(stream.device_index(), stream_of(stream), *static_cast<Event*>(event));
  }
  bool queryEvent(void* event) const override {
    if (!event) return true;
    const auto* mine = static_cast<Event*>(event);
    auto& driver = device_at(mine->device).driver();
    const alloc::Status status = driver.event_query(mine->id);
    if (status.code() == alloc::Code::not_ready) {
      driver.step(mine->stream);
      return false;
    }
    check(status);
    return true;
  }
  void synchronizeEvent(void* event) const override {
    if (!event) return;
    const auto* mine = static_cast<Event*>(event);
    check(device_at(mine->device).driver().event_sync(mine->id));
    device_at(mine->device).throw_error();
  }
  void recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& stream) const override {
    if (!pointer.get()) return;
    torch_allocator().recordStream(pointer, stream);
  }
};

}  // namespace

const c10::impl::DeviceGuardImplInterface& guard() {
  static auto* one = new Guard;
  return *one;
}

void order_after(int index, StreamId stream, int other_index, StreamId other) {
  auto& driver = device_at(other_index).driver();
  Event event;
  event.device = other_index;
  check(driver.event_create(&event.id));
  const alloc::Status recorded = driver.event_record(event.id, other);
  if (recorded.ok()) wait(index, stream, event);
  check(driver.event_destroy(event.id));
  check(recorded);
}

}  // namespace staticrt::simulated
