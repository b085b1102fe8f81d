// Memory of the simulated device: physical bytes, address space, and mappings between them.
//
// Backed: physical memory is a memory file that grows sparsely, the address space one PROT_NONE
// reservation; mapping is mmap(MAP_SHARED | MAP_FIXED), release punches a hole. "Device" pointers are then
// ordinary pointers, and two mappings of one physical page show the same bytes. Unbacked: bookkeeping
// only, for devices larger than any machine and for speed.
//
// With `kernel_alias` device addresses stay PROT_NONE: host code that accesses one ends the process, as on a
// real device. Kernels access the bytes through a second reservation at a fixed distance.
//
// Physical offsets are never reused, so an offset names one byte of one physical allocation. What is imported
// from another file gets offsets of its own. Addresses are given lowest first: the same calls get the same
// addresses relative to base().
//
// Thread safety: none. SimDriver holds its mutex around every call.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include "allocator/core/types.h"
#include "allocator/simulated/sim_sharing.h"

namespace staticrt::alloc {

struct SimMemoryLimits {
  Bytes total_bytes = 0;
  Bytes va_bytes = 0;
  uint64_t max_handles = 0;  // physical handles alive at a time
  Bytes granule_bytes = 2 * kMiB;
  bool backed = true;
  bool fresh_addresses = false;
  bool kernel_alias = false;  // only if backed
  Addr base = 0;              // of the address space; only a hint if backed
};

class SimMemory {
 public:
  // A stretch of mapped addresses and the physical bytes behind it.
  struct Extent {
    Addr address = 0;
    Bytes size_bytes = 0;
    uint64_t offset = 0;
    bool accessible = false;
    PhysicalId physical = kNoPhysical;
  };
  static constexpr int kOwner = -1;  // as a device: the memory's own

  // Throws InputError if the limits make no device or the system refuses the reservation.
  explicit SimMemory(const SimMemoryLimits& limits);
  ~SimMemory();
  SimMemory(const SimMemory&) = delete;
  SimMemory& operator=(const SimMemory&) = delete;

  Status reserve(Bytes size_bytes, Addr hint, Addr* address);
  Status release(Addr address, Bytes size_bytes);
  Status create(Bytes size_bytes, PhysicalId* physical);
  Status destroy(PhysicalId physical);
  Status map(Addr address, Bytes size_bytes, PhysicalId physical);
  Status unmap(Addr address, Bytes size_bytes);
  Status set_access(Addr address, Bytes size_bytes, int device = kOwner);
  Status revoke_access(Addr address, Bytes size_bytes, int device);
  // All segments become accessible for another device.
  void enable_peer(int device) { peers_.insert(device); }
  // A file descriptor of the memory for other processes, and memory that such a one names (sim_sharing.h).
  // Imported memory is charged to the device it came from.
  Status export_physical(PhysicalId physical, FileDescriptor* fd);
  Status import_physical(int fd, Bytes size_bytes, PhysicalId* physical);
  // Drops memory that was released while other processes had it, and that they have closed since.
  void drop_let_go();
  Status segment_alloc(Bytes size_bytes, Addr* address);
  Status segment_free(Addr address, Bytes size_bytes);

  // Extents that cover [address, address + size) without a hole, or nothing. Accessible: for `device`.
  std::vector<Extent> translate(Addr address, Bytes size_bytes, int device = kOwner) const;
  // Whether every byte is mapped and accessible.
  bool usable(Addr address, Bytes size_bytes, int device = kOwner) const;

  // Whether the memory has not been released yet.
  bool exists(PhysicalId physical) const { return physicals_.count(raw(physical)) > 0; }

  // Physical bytes taken by other processes; if they exceed what is free, no bytes are free.
  void set_other_bytes(Bytes bytes) { other_bytes_ = bytes; }
  Bytes other_bytes() const { return other_bytes_; }
  Bytes free_bytes() const;
  Bytes used_bytes() const { return used_bytes_; }
  Bytes reserved_va_bytes() const { return reserved_va_bytes_; }
  uint64_t handle_count() const { return handle_count_; }
  Addr base() const { return base_; }
  Addr end() const { return base_ + limits_.va_bytes + alias_distance_; }
  bool backed() const { return limits_.backed; }
  bool owns(Addr address) const { return address >= base_ && address - base_ < limits_.va_bytes; }
  // Where kernels, which are host code, find the byte of a device address.
  Addr kernel_address(Addr address) const { return address + alias_distance_; }

 private:
  struct Physical {
    Bytes size_bytes = 0;
    uint64_t offset = 0;
    uint64_t mappings = 0;
    bool handle = true;
    bool exported = false;
    std::shared_ptr<ImportedFile> imported;  // null: memory of this device
    uint64_t imported_offset = 0;
  };
  struct Mapping {
    Bytes size_bytes = 0;
    PhysicalId physical = kNoPhysical;
    bool accessible = false;
    std::set<int> peers = {};  // other devices with access
  };
  struct Segment {
    Bytes size_bytes = 0;
    PhysicalId physical = kNoPhysical;
  };

  bool accessible(Addr address, const Mapping& mapping, int device) const;
  Status check_reserved(Addr address, Bytes size_bytes, const char* what) const;
  Status check_mapped(Addr address, Bytes size_bytes, const char* what) const;
  Status make_physical(Bytes size_bytes, PhysicalId* physical);
  Status show(Addr address, const Mapping& mapping);  // mmap it
  void hide(Addr address, Bytes size_bytes);          // back to PROT_NONE
  void drop_if_unused(PhysicalId physical);
  void punch(uint64_t offset, Bytes size_bytes);

  SimMemoryLimits limits_;
  Addr base_ = 0;
  Bytes alias_distance_ = 0;  // 0: device addresses can be followed
  int file_ = -1;
  Bytes file_bytes_ = 0;
  Bytes next_offset_ = 0;
  uint64_t next_physical_ = 1;
  Bytes other_bytes_ = 0;
  Bytes used_bytes_ = 0;
  Bytes reserved_va_bytes_ = 0;
  uint64_t handle_count_ = 0;
  std::map<Addr, Bytes> free_va_;
  std::map<Addr, Bytes> reserved_va_;
  std::map<Addr, Mapping> mappings_;
  std::map<Addr, Segment> segments_;
  std::set<int> peers_;  // with access to segments
  std::unordered_map<uint64_t, Physical> physicals_;
  std::map<uint64_t, Bytes> held_by_others_;  // given up here: size by offset
  std::map<ImportedFile::Identity, std::weak_ptr<ImportedFile>> imported_;
};

}  // namespace staticrt::alloc
