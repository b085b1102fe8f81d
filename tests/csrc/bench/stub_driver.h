// A device whose calls cost nothing: numbers instead of memory, streams that are always done. For counting
// what the allocator itself does.
#pragma once

#include "allocator/core/device_api.h"

namespace staticrt::alloc {

class StubDriver final : public Driver {
 public:
  explicit StubDriver(Bytes total_bytes) {
    info_.name = "stub:0";
    info_.total_bytes = total_bytes;
    info_.granule_bytes = 2 * kMiB;
    info_.virtual_memory = true;
  }
  uint64_t events_recorded() const { return events_recorded_; }

  const DeviceInfo& info() const override { return info_; }
  Status memory_info(Bytes* free_bytes, Bytes* total_bytes) override {
    *free_bytes = *total_bytes = info_.total_bytes;
    return {};
  }
  Status pending_error() override { return {}; }
  Status segment_alloc(Bytes size_bytes, Addr* address) override {
    return va_reserve(size_bytes, 0, address);
  }
  Status segment_free(Addr, Bytes) override { return {}; }
  Status va_reserve(Bytes size_bytes, Addr, Addr* address) override {
    *address = next_;
    next_ += (size_bytes + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB);
    return {};
  }
  Status va_release(Addr, Bytes) override { return {}; }
  Status physical_create(Bytes, PhysicalId* physical) override {
    *physical = PhysicalId{++handles_};
    return {};
  }
  Status physical_release(PhysicalId) override { return {}; }
  Status map(Addr, Bytes, PhysicalId) override { return {}; }
  Status unmap(Addr, Bytes) override { return {}; }
  Status set_access(Addr, Bytes, int) override { return {}; }
  Status event_create(EventId* event) override {
    *event = EventId{++handles_};
    return {};
  }
  Status event_destroy(EventId) override { return {}; }
  Status event_record(EventId, StreamId) override {
    ++events_recorded_;
    return {};
  }
  Status event_query(EventId) override { return {}; }
  Status event_sync(EventId) override { return {}; }
  Status stream_wait(StreamId, EventId) override { return {}; }
  Status stream_sync(StreamId) override { return {}; }
  Status device_sync() override { return {}; }
  Status capture_state(StreamId, CaptureState* state) override {
    *state = {};
    return {};
  }
  Status exchange_capture_mode(CaptureMode*) override { return {}; }
  Status capture_marker(StreamId, NodeId*) override { return Status::Unsupported("stub"); }
  Status capture_settled(StreamId, std::vector<NodeId>*) override { return Status::Unsupported("stub"); }
  Status physical_export(PhysicalId, int*) override { return Status::Unsupported("stub"); }
  Status physical_import(int, Bytes, PhysicalId*) override { return Status::Unsupported("stub"); }
  Status processes(std::vector<ProcessUse>*) override { return Status::Unsupported("stub"); }

 private:
  DeviceInfo info_;
  Addr next_ = Addr{1} << 32;
  uint64_t handles_ = 0;
  uint64_t events_recorded_ = 0;
};

}  // namespace staticrt::alloc
