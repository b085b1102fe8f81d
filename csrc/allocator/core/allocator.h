// DeviceAllocator: the caching allocator of one device. DeviceFront (front.h) holds one per device.
//
//   DeviceAllocator device(std::make_shared<SimDriver>(config));
//   Addr a = kNullAddr;
//   SRT_TRY(device.allocate({.size = 4096}, &a));
//   SRT_TRY(device.release(a));
//
// Nothing throws; every failure is a Status. docs/design/allocator.md defines the rules that are cited (R1,
// G1, ...).
//
// Thread safety: full.
#pragma once

#include <memory>
#include <optional>

#include "allocator/core/config.h"
#include "allocator/core/core.h"
#include "allocator/core/device_api.h"
#include "allocator/core/fork.h"
#include "allocator/core/snapshot.h"
#include "allocator/core/stats.h"
#include "allocator/pools/checkpoint.h"
#include "allocator/pools/pool.h"

namespace staticrt::alloc {

class Pools;
class Inspector;
class Exports;
class Imports;

struct Request {
  Bytes size = 0;  // 0: null address, no block (R1)
  StreamId stream = kDefaultStream;
  Addr address = kNullAddr;                   // N8: exactly there, or oom without change
  std::optional<PoolId> pool = std::nullopt;  // served by this pool, even inside a route
};

class DeviceAllocator {
 public:
  explicit DeviceAllocator(std::shared_ptr<Driver> driver, Config config = {});
  ~DeviceAllocator();
  DeviceAllocator(const DeviceAllocator&) = delete;
  DeviceAllocator& operator=(const DeviceAllocator&) = delete;

  // oom: nothing has changed and the text is the full message (G10).
  Status allocate(const Request& request, Addr* address);
  // Null does nothing. invalid_pointer: not ours, or already freed (B9).
  Status release(Addr address);
  // The bytes are also used on `stream` until its work enqueued before the release has ended. The own
  // stream, null and foreign pointers are ignored (S1).
  Status record_use(Addr address, StreamId stream) { return record_use(address, stream, nullptr); }
  // The same for a stream of `peer`, which it keeps; null: of this device.
  Status record_use(Addr address, StreamId stream, const std::shared_ptr<Driver>& peer);
  // Lets work of another device use all present and later memory; ok if it may already. unsupported: it
  // cannot reach this device. On any failure nothing has changed.
  Status add_peer(const Driver& peer);
  bool has_peer(const Driver& peer);  // or it is this device
  // unsupported: no work of `peer` can use this device's memory.
  Status check_reached(const Driver& peer);
  // Returns free memory to the driver (G6, G7): of the default and Draining pools, or of one pool.
  Status empty_cache(std::optional<PoolId> pool = std::nullopt, Bytes* released = nullptr);
  // New options. invalid_argument: mode cannot change after first use (I11).
  Status configure(const Config& config);
  // Bytes this allocator may map; Budget::kNoLimit lifts it. Memory above a new limit stays until it is
  // freed.
  Status set_limit(Bytes limit);

  Pools& pools() { return *pools_; }              // pools.h: routes, captures, checkpoints, hibernation
  Inspector& inspector() { return *inspector_; }  // inspector.h: statistics, snapshots, history
  Exports& exports() { return *exports_; }        // exports.h: blocks that other processes have
  Imports& imports() { return *imports_; }        // imports.h: blocks of other processes
  // internal: names the first broken invariant, V1 to V9.
  Status validate();
  Core& core() { return *core_; }  // for the other parts of allocator/

 private:
  // From the fastest path to the slowest; each falls back to the next one.
  [[gnu::noinline]] Status allocate_cached(const Request& request, Addr* address);
  [[gnu::noinline]] Status allocate_small(const Request& request, Addr* address);  // fast.cpp
  [[gnu::noinline]] Status allocate_large(const Request& request, Addr* address);  // fast.cpp
  template <SizeClass c>
  Status serve(const Request& request, Addr* address);
  [[gnu::noinline]] Status allocate_any(const Request& request, Addr* address);
  [[gnu::noinline]] Status release_cached(Addr address);
  [[gnu::noinline]] Status release_shared(Addr address);  // fast.cpp
  [[gnu::noinline]] Status release_any(Addr address);
  [[gnu::noinline]] Status release_exported(Addr address);
  [[gnu::noinline]] static Status invalid_pointer(Addr address);
  Status allocate_uncached(const Request& request, Addr* address);
  Status release_uncached(Addr address);

  const std::shared_ptr<Driver> driver_;
  std::unique_ptr<Core> core_;
  std::unique_ptr<ForkGuard> fork_guard_;
  std::unique_ptr<Pools> pools_;
  std::unique_ptr<Inspector> inspector_;
  std::unique_ptr<Exports> exports_;
  std::unique_ptr<Imports> imports_;
};

}  // namespace staticrt::alloc
