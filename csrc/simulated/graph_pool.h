// GraphPool: memory of the graphs of one tree on a simulated device: a private pool of its allocator.
//
// Note [Who uses a pool]
//   Graphs write the pool's free blocks, and the allocator does not know when or on which stream. So code
//   that is about to write calls hand_over(), which makes its stream wait for all that used the pool so far:
//   the stream that used it last, and each that the program named by record_stream.
//
// Note [Owners after a restore]
//   restore() rebuilds the blocks. A storage that owned one and is not named there keeps its deleter, which
//   cannot be removed; its device ignores it once (SimulatedDevice::forget_owner). That can delay the free of
//   a later block at the address, but not cause a wrong one.
//
// Thread safety: full.
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "allocator/core/stats.h"
#include "allocator/pools/checkpoint.h"
#include "simulated/device.h"

namespace staticrt::simulated {

class GraphPool {
 public:
  using Storage = c10::intrusive_ptr<c10::StorageImpl>;

  explicit GraphPool(int device);
  // Live blocks stay valid; everything else goes back to the device.
  ~GraphPool();
  GraphPool(const GraphPool&) = delete;
  GraphPool& operator=(const GraphPool&) = delete;

  alloc::PoolId id() const { return id_; }

  // Lets `to` wait for all users of the pool and for the work queued on `from`; `to` is then the user.
  void hand_over(alloc::StreamId from, alloc::StreamId to);
  void note_use(int device, alloc::StreamId stream);

  // Between these, allocations of the calling thread are the pool's. Throws if a thread has done so already.
  void begin_route();
  void end_route();

  // A block that the caller owns and frees with free(). Null for 0 bytes.
  alloc::Addr allocate(alloc::Bytes size_bytes);
  // Throws InputError unless the block is live and no storage owns it.
  void free(alloc::Addr address);
  // The storage owns its block from now on. Throws InputError if its address is no live block of the pool.
  void adopt(c10::StorageImpl& storage);

  // Throw InputError while freed blocks wait for a capture.
  alloc::PoolImage checkpoint();
  // Addresses that are no longer live, and that were not: ascending. Throws InputError, and nothing has
  // changed, if a storage of `alive` has no block in the image.
  std::pair<std::vector<alloc::Addr>, std::vector<alloc::Addr>> restore(const alloc::PoolImage& image,
                                                                        const std::vector<Storage>& alive);
  // Address and size asked for, ascending.
  std::vector<std::pair<alloc::Addr, alloc::Bytes>> live();
  alloc::StatsReport stats();
  // Gives free memory back, unless a graph may write it; bytes.
  alloc::Bytes trim();

 private:
  void order_streams();  // those of blocks after all users
  template <class Call>
  void at_rest(Call call);

  SimulatedDevice& device_;
  const alloc::PoolId id_;
  std::mutex users_mutex_;                           // nothing else is called under it
  std::set<std::pair<int, alloc::StreamId>> users_;  // by device
  std::set<alloc::StreamId> streams_;                // that blocks may belong to
  std::mutex mutex_;
  std::set<alloc::Addr> unowned_;
};

}  // namespace staticrt::simulated
