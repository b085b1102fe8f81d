#include "allocator/drivers/driver_host.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <unordered_map>

#include "common/bits.h"
#include "common/error.h"

namespace staticrt::alloc {
namespace {

Bytes page_bytes() {
  static const Bytes bytes = static_cast<Bytes>(sysconf(_SC_PAGESIZE));
  return bytes;
}

Bytes machine_bytes() {
  return static_cast<Bytes>(sysconf(_SC_PHYS_PAGES)) * page_bytes();
}

// What the system could still give without swapping, or `fallback` where it does not say.
Bytes available_bytes(Bytes fallback) {
  std::ifstream file("/proc/meminfo");
  std::string word;
  Bytes kib = 0;
  while (file >> word)
    if (word == "MemAvailable:" && file >> kib) return kib * kKiB;
  return fallback;
}

void* at(Addr address) {
  return reinterpret_cast<void*>(address);
}

Status misuse(const char* call, const char* why) {
  return Status::Error(detail::concat("cpu: ", call, ": ", why), EINVAL);
}

class HostDriver final : public Driver {
 public:
  explicit HostDriver(const HostConfig& config) {
    SRT_CHECK(is_power_of_two(config.granule_bytes) && config.granule_bytes >= page_bytes(),
              "host memory: granule is ", config.granule_bytes, " bytes; give a power of two of at least ",
              page_bytes());
    info_.name = "cpu";
    info_.total_bytes = config.total_bytes != 0 ? config.total_bytes : machine_bytes();
    info_.granule_bytes = config.granule_bytes;
    info_.virtual_memory = true;
    info_.always_idle = true;
  }

  ~HostDriver() override {
    for (const auto& [address, range] : ranges_) munmap(at(address), range.size_bytes);
  }

  const DeviceInfo& info() const override { return info_; }
  bool survives_fork() const override { return true; }
  void before_fork() override { mutex_.lock(); }
  void after_fork() override { mutex_.unlock(); }

  Status memory_info(Bytes* free_bytes, Bytes* total_bytes) override {
    const std::lock_guard lock(mutex_);
    const Bytes own = info_.total_bytes - std::min(info_.total_bytes, used_bytes_);
    *free_bytes = std::min(own, available_bytes(own));
    *total_bytes = info_.total_bytes;
    return Status::Ok();
  }

  Status pending_error() override { return Status::Ok(); }

  Status segment_alloc(Bytes size_bytes, Addr* address) override {
    if (size_bytes == 0) return misuse("segment_alloc", "0 bytes");
    const std::lock_guard lock(mutex_);
    SRT_TRY(charge(size_bytes));
    Addr start = 0;
    const Status status = take_range(round_up(size_bytes, page_bytes()), kNullAddr, true, &start);
    if (!status.ok()) {
      used_bytes_ -= size_bytes;
      return status;
    }
    ranges_[start].segment_bytes = size_bytes;
    *address = start;
    return Status::Ok();
  }

  Status segment_free(Addr address, Bytes size_bytes) override {
    const std::lock_guard lock(mutex_);
    const auto it = ranges_.find(address);
    if (it == ranges_.end() || size_bytes == 0 || it->second.segment_bytes != size_bytes)
      return misuse("segment_free", "not a segment");
    munmap(at(address), it->second.size_bytes);
    ranges_.erase(it);
    used_bytes_ -= size_bytes;
    return Status::Ok();
  }

  Status va_reserve(Bytes size_bytes, Addr hint, Addr* address) override {
    if (size_bytes == 0 || size_bytes % info_.granule_bytes != 0)
      return misuse("va_reserve", "the size is not a positive multiple of the granule");
    const std::lock_guard lock(mutex_);
    return take_range(size_bytes, hint, false, address);
  }

  Status va_release(Addr address, Bytes size_bytes) override {
    const std::lock_guard lock(mutex_);
    const auto it = ranges_.find(address);
    if (it == ranges_.end() || it->second.segment_bytes != 0 || it->second.size_bytes != size_bytes)
      return misuse("va_release", "not a reservation");
    const auto mapped = mappings_.lower_bound(address);
    if (mapped != mappings_.end() && mapped->first < address + size_bytes)
      return misuse("va_release", "something is still mapped in it");
    munmap(at(address), size_bytes);
    ranges_.erase(it);
    return Status::Ok();
  }

  Status physical_create(Bytes size_bytes, PhysicalId* physical) override {
    if (size_bytes == 0 || size_bytes % info_.granule_bytes != 0)
      return misuse("physical_create", "the size is not a positive multiple of the granule");
    const std::lock_guard lock(mutex_);
    SRT_TRY(charge(size_bytes));
    *physical = PhysicalId{next_physical_++};
    physicals_[raw(*physical)] = Physical{size_bytes, false, true};
    return Status::Ok();
  }

  Status physical_release(PhysicalId physical) override {
    const std::lock_guard lock(mutex_);
    const auto it = physicals_.find(raw(physical));
    if (it == physicals_.end() || !it->second.handle) return misuse("physical_release", "not a handle");
    it->second.handle = false;
    drop_if_unused(it);
    return Status::Ok();
  }

  Status map(Addr address, Bytes size_bytes, PhysicalId physical) override {
    const std::lock_guard lock(mutex_);
    const auto it = physicals_.find(raw(physical));
    if (it == physicals_.end() || !it->second.handle) return misuse("map", "not a handle");
    if (it->second.size_bytes != size_bytes) return misuse("map", "the handle has another size");
    if (it->second.mapped)
      return Status::Unsupported("cpu: map: host memory can be mapped at one address at a time");
    if (address % info_.granule_bytes != 0 || !reserved(address, size_bytes))
      return misuse("map", "not granules inside one reservation");
    const auto next = mappings_.lower_bound(address);
    if ((next != mappings_.end() && next->first < address + size_bytes) ||
        (next != mappings_.begin() && std::prev(next)->first + std::prev(next)->second.size_bytes > address))
      return misuse("map", "mapped already");
    mappings_[address] = Mapping{size_bytes, physical};
    it->second.mapped = true;
    return Status::Ok();
  }

  Status unmap(Addr address, Bytes size_bytes) override {
    const std::lock_guard lock(mutex_);
    if (!mapped(address, size_bytes)) return misuse("unmap", "not a row of whole mappings");
    // A fresh mapping instead of madvise: the old pages are gone at once, and a late reader faults.
    void* got = mmap(at(address), size_bytes, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    if (got == MAP_FAILED) return Status::Oom(detail::concat("cpu: unmap: ", std::strerror(errno)), errno);
    for (auto it = mappings_.find(address); it != mappings_.end() && it->first < address + size_bytes;) {
      const auto physical = physicals_.find(raw(it->second.physical));
      physical->second.mapped = false;
      drop_if_unused(physical);
      it = mappings_.erase(it);
    }
    return Status::Ok();
  }

  Status set_access(Addr address, Bytes size_bytes, int device_index) override {
    if (device_index != kThisDevice && device_index != info_.index)
      return Status::Unsupported("cpu: there is one host memory");
    const std::lock_guard lock(mutex_);
    if (!mapped(address, size_bytes)) return misuse("set_access", "not a row of whole mappings");
    if (mprotect(at(address), size_bytes, PROT_READ | PROT_WRITE) != 0)
      return Status::Oom(detail::concat("cpu: set_access: ", std::strerror(errno)), errno);
    return Status::Ok();
  }

  Status event_create(EventId* event) override {
    const std::lock_guard lock(mutex_);
    *event = EventId{next_event_++};
    return Status::Ok();
  }
  Status event_destroy(EventId) override { return Status::Ok(); }
  Status event_record(EventId, StreamId) override { return Status::Ok(); }
  Status event_query(EventId) override { return Status::Ok(); }
  Status event_sync(EventId) override { return Status::Ok(); }
  Status stream_wait(StreamId, EventId) override { return Status::Ok(); }
  Status stream_sync(StreamId) override { return Status::Ok(); }
  Status device_sync() override { return Status::Ok(); }

  Status capture_state(StreamId, CaptureState* state) override {
    *state = CaptureState{};
    return Status::Ok();
  }
  Status exchange_capture_mode(CaptureMode*) override { return no_capture(); }
  Status capture_marker(StreamId, NodeId*) override { return no_capture(); }
  Status capture_settled(StreamId, std::vector<NodeId>*) override { return no_capture(); }

  Status physical_export(PhysicalId, int*) override { return no_sharing(); }
  Status physical_import(int, Bytes, PhysicalId*) override { return no_sharing(); }
  Status processes(std::vector<ProcessUse>*) override {
    return Status::Unsupported("cpu: memory of other processes is not known");
  }

 private:
  struct Range {
    Bytes size_bytes = 0;
    Bytes segment_bytes = 0;  // 0: a reservation
  };
  struct Physical {
    Bytes size_bytes = 0;
    bool mapped = false;
    bool handle = true;
  };
  struct Mapping {
    Bytes size_bytes = 0;
    PhysicalId physical = kNoPhysical;
  };

  static Status no_capture() { return Status::Unsupported("cpu: host memory has no streams to capture"); }
  static Status no_sharing() { return Status::Unsupported("cpu: host memory is not shared"); }

  Status charge(Bytes size_bytes) {
    if (size_bytes > info_.total_bytes - std::min(info_.total_bytes, used_bytes_))
      return Status::Oom(detail::concat("cpu: ", size_bytes, " bytes asked, ", used_bytes_, " of ",
                                        info_.total_bytes, " bytes in use"));
    used_bytes_ += size_bytes;
    return Status::Ok();
  }

  void drop_if_unused(std::unordered_map<uint64_t, Physical>::iterator it) {
    if (it->second.handle || it->second.mapped) return;
    used_bytes_ -= it->second.size_bytes;
    physicals_.erase(it);
  }

  bool reserved(Addr address, Bytes size_bytes) const {
    auto it = ranges_.upper_bound(address);
    if (it == ranges_.begin()) return false;
    --it;
    return it->second.segment_bytes == 0 && size_bytes <= it->second.size_bytes &&
           address - it->first <= it->second.size_bytes - size_bytes;
  }

  bool mapped(Addr address, Bytes size_bytes) const {
    Addr reached = address;
    for (auto it = mappings_.find(address);
         it != mappings_.end() && it->first == reached && reached < address + size_bytes; ++it)
      reached += it->second.size_bytes;
    return size_bytes > 0 && reached == address + size_bytes;
  }

  // Address space aligned to the granule: asks for more and gives the ends back.
  Status take_range(Bytes size_bytes, Addr hint, bool usable, Addr* address) {
    const int protection = usable ? PROT_READ | PROT_WRITE : PROT_NONE;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    const Bytes granule = info_.granule_bytes;
    if (hint != kNullAddr && hint % granule == 0) {
      void* got = mmap(at(hint), size_bytes, protection, flags | MAP_FIXED_NOREPLACE, -1, 0);
      if (got != MAP_FAILED && reinterpret_cast<Addr>(got) == hint) {
        ranges_[hint] = Range{size_bytes, 0};
        *address = hint;
        return Status::Ok();
      }
      if (got != MAP_FAILED) munmap(got, size_bytes);
    }
    if (size_bytes > UINT64_MAX - granule) return Status::Oom("cpu: no such address range");
    void* got = mmap(nullptr, size_bytes + granule, protection, flags, -1, 0);
    if (got == MAP_FAILED)
      return Status::Oom(detail::concat("cpu: mmap of ", size_bytes, " bytes: ", std::strerror(errno)),
                         errno);
    const Addr start = reinterpret_cast<Addr>(got);
    const Addr aligned = round_up(start, granule);
    if (aligned > start) munmap(at(start), aligned - start);
    if (aligned - start < granule) munmap(at(aligned + size_bytes), granule - (aligned - start));
    ranges_[aligned] = Range{size_bytes, 0};
    *address = aligned;
    return Status::Ok();
  }

  DeviceInfo info_;
  std::mutex mutex_;
  Bytes used_bytes_ = 0;
  uint64_t next_physical_ = 1;
  uint64_t next_event_ = 1;
  std::map<Addr, Range> ranges_;
  std::map<Addr, Mapping> mappings_;
  std::unordered_map<uint64_t, Physical> physicals_;
};

}  // namespace

std::unique_ptr<Driver> make_host_driver(const HostConfig& config) {
  return std::make_unique<HostDriver>(config);
}

}  // namespace staticrt::alloc
