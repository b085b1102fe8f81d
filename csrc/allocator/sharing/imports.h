// Imports: memory of other processes that is mapped here.
//
// A block is mapped once, however often it is opened, and unmapped after its last close(), once the streams
// that used it have finished their work. Only then does its own process see that it was closed. The bytes are
// charged to that process. A block of this process itself is not mapped again: its own address is used.
//
// Thread safety: full. No lock is held while close() waits.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <set>

#include "allocator/core/core.h"
#include "allocator/sharing/shared_block.h"

namespace staticrt::alloc {

class DeviceAllocator;

class Imports {
 public:
  // Called after each new mapping, and before one is removed.
  struct Observer {
    std::function<void(Addr address, Bytes size, StreamId stream)> mapped;
    std::function<void(Addr address)> leaving;
  };

  Imports(Core& core, DeviceAllocator& allocator) : core_(core), allocator_(allocator) {}
  Imports(const Imports&) = delete;
  Imports& operator=(const Imports&) = delete;
  ~Imports();

  // Where the block lies here, for use on `stream`. On failure nothing has changed.
  Status open(const SharedBlock& block, StreamId stream, Addr* address);
  // The opened block that holds `inside`, if there is one, is also used on `stream`.
  // The stream is one of `peer`, if that is not null.
  Status record_use(Addr inside, StreamId stream, const std::shared_ptr<Driver>& peer = nullptr);
  // One open() less. After the last one, waits for the streams; where it must not (a stream is captured, or
  // `wait` is false), a later call does. REQUIRES: exactly as open() gave it.
  Status close(Addr address, bool wait = true);
  // Unmaps what could not be before.
  void settle();
  // Whether the address is memory of another process.
  bool owns(Addr inside) const;
  size_t count() const;  // blocks that are mapped or of this process
  void observe(Observer observer);
  // Calls visit(address, size) for all that is mapped here.
  void each_mapped(const std::function<void(Addr, Bytes)>& visit) const;

 private:
  struct Mapping {
    ShareKey key;
    Addr base = kNullAddr;  // of the address range; null: a block of this process
    Bytes reserved = 0;     // of the address range
    Bytes mapped = 0;
    Addr address = kNullAddr;  // of the block
    Bytes size = 0;
    uint64_t opens = 1;
    std::set<std::pair<std::shared_ptr<Driver>, StreamId>> streams;  // null: of this device
    FileDescriptor token;
  };
  Status find_or_map(const SharedBlock& block, StreamId stream, Addr* address);
  // On failure `base` is null, unless the driver keeps a part mapped.
  Status map(const SharedBlock& block, Mapping* mapping);
  Status map_pages(const SharedBlock& block, Addr base, Bytes* mapped);
  std::map<Addr, Mapping>::const_iterator find(Addr inside) const;
  // ok: the mapping is gone. Else it is as it was.
  Status unmap(Mapping& mapping);

  Core& core_;
  DeviceAllocator& allocator_;
  mutable std::mutex mutex_;
  std::map<ShareKey, Addr> by_key_;
  std::map<Addr, Mapping> mappings_;
  std::list<Mapping> parked_;  // closed, and mapped still
  Observer observer_;
};

}  // namespace staticrt::alloc
