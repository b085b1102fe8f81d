// The race oracle: finds memory that an allocator reused, unmapped or replayed over too early.
//
// Its callers report allocations (allocated, freed), what the streams touch, and unmaps. It keeps a history
// per physical byte, so that one page at two addresses is one page. It reports:
//   - bytes given to a stream that is not ordered after the last touch of their former owner;
//   - bytes given while another live allocation has them, by address or by physical page;
//   - a touch of bytes that are free, unmapped, or without access;
//   - an unmap while the host does not know that all touches have ended;
//   - two accesses of a live allocation of which one writes and that nothing orders, and accesses that leave
//     their allocation (of work that says what it reads and writes: used());
//   - a launch of a graph over bytes that now belong to another owner, or are unmapped.
// Pools of graphs: a launch brings back what its capture allocated and kept, although no allocator gives it
// again. The end of such an allocation is not reported: it is lent until a launch or an allocator writes over
// it, and using it afterwards is reported as a use after free. "Ordered" means by stream order, event waits
// and what the host has seen end, not by timing.
//
// Thread safety: none. SimDriver holds its mutex around every call.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "allocator/simulated/sim_access.h"
#include "allocator/simulated/sim_graph.h"
#include "allocator/simulated/sim_memory.h"
#include "allocator/simulated/sim_races.h"
#include "allocator/simulated/sim_streams.h"
#include "common/tuning.h"

namespace staticrt::alloc {

// An allocation of a program.
struct SimPlace {
  Addr address = kNullAddr;
  Bytes size_bytes = 0;
};

class SimOracle {
 public:
  SimOracle(const SimMemory& memory, SimStreams& streams) : memory_(memory), streams_(streams) {}

  // `graph`: the capture the stream is in, or nullptr.
  // `reusable`: programs write there again after it is freed, before launches that read it: a buffer.
  void allocated(Addr address, Bytes size_bytes, StreamId stream, SimGraph* graph, bool reusable = false);
  void freed(Addr address);
  // A pool is as it was: these allocations are gone, and those are there again.
  void restored(const std::vector<SimPlace>& gone, const std::vector<SimPlace>& there, StreamId stream);
  // A stream, and the device's it is: this one's, or another's of the machine, which has access.
  struct User {
    SimStreams& streams;
    StreamId stream{0};
    const VectorClock& clock() const { return streams.clock(stream); }
    size_t slot() const { return streams.slot(stream); }
    DeviceStream place() const { return {streams.device(), stream}; }
  };
  // After the operation was added to its stream (or graph).
  void touched(Addr address, Bytes size_bytes, const User& user);
  void touched_in_graph(Addr address, Bytes size_bytes, const User& user, SimGraph& graph,
                        std::function<void()> work);
  // `here`: whether an address is one of this device.
  void launched(const SimGraph& graph, const User& user, const std::function<bool(Addr)>& here);
  // As touched(), by the stream's last operation, an operator of this name that reads or writes the range.
  void used(const SimRange& range, const User& user, const std::string* name);
  void used_in_graph(const SimRange& range, const User& user, SimGraph& graph, const std::string* name);
  // A text that lives as long as the machine.
  const std::string* name(const std::string& text) { return &*streams_.clocks().names.insert(text).first; }
  // The number of a live allocation; 0 if there is none.
  uint64_t owner_of(Addr address) const {
    const auto it = live_.find(address);
    return it == live_.end() ? 0 : it->second.owner;
  }
  // Of the live allocation that the address lies in; 0 if there is none.
  uint64_t owner_at(Addr address) const {
    const Live* live = live_around(address, 1);
    return live ? live->owner : 0;
  }
  // Whether all that touched the bytes is ordered before the next operation of `stream`.
  bool is_over(Addr address, Bytes size_bytes, StreamId stream);
  // "allocation #3 (4000 bytes at 0x…, of stream 0), last used by …", about the address, into `text`.
  // Allocates nothing: it is for a signal handler.
  void describe(Addr address, char* text, size_t size) const;
  void unmapping(Addr address, Bytes size_bytes, const char* what);
  // Drops the history of physical memory that is gone. `extents`: as before the unmap.
  void unmapped(const std::vector<SimMemory::Extent>& extents);

  void report(std::string text) {
    if (reports_.size() < tuning::kMaxSimReports) reports_.push_back(std::move(text));
    ++report_count_;
  }
  const std::vector<std::string>& reports() const { return reports_; }
  uint64_t report_count() const { return report_count_; }
  void clear_reports() {
    reports_.clear();
    report_count_ = 0;
  }
  bool is_live_address(Addr address) const { return live_.count(address) > 0; }

 private:
  struct Live {
    Bytes size_bytes = 0;
    uint64_t owner = 0;
    StreamId stream{0};
    const std::string* last = nullptr;  // the last operator that used it, and on which stream
    StreamId last_stream{0};
    int last_device = 0;
    bool reusable = false;
    bool lent = false;  // by a launch
  };
  // Bytes of a freed allocation that were not allocated again.
  struct Freed {
    Addr end = 0;    // of these bytes
    Addr first = 0;  // of the allocation
    Bytes size_bytes = 0;
    uint64_t owner = 0;
    bool contained(Addr begin, Addr past) const { return first <= begin && past - first <= size_bytes; }
  };
  void insert(Addr address, const Live& live);
  // Ends lent allocations with bytes in the range. The first other live allocation that `keeps` does not
  // name.
  const std::pair<const Addr, Live>* end_lent(Addr begin, Addr end, const SimGraph* keeps);
  void end(std::map<Addr, Live>::iterator it);
  // The freed reusable allocation that contains the range is live again, lent, unless its bytes were
  // allocated again.
  const Live* lend_again(Addr address, Bytes size_bytes);
  // The live allocation that contains the range, or nullptr.
  const Live* live_around(Addr address, Bytes size_bytes) const;
  // The allocation that the address lies in or is at the end of, and its first address.
  std::pair<Addr, const Live*> live_at(Addr address) const;
  void check_bounds(const SimRange& range, const std::string& who);
  // The freed allocation that held the range, if some of its bytes are free still; or nullptr.
  const Freed* freed_around(Addr begin, Addr end) const;
  void give_again(Addr begin, Addr end);  // freed bytes
  void report_race(const SimRange& range, const RaceMap::Conflict& conflict, const std::string& stream,
                   const std::string& earlier_stream, const std::string& where, const std::string* name);
  void remember(size_t slot, uint64_t operation, const std::string* name);
  bool is_live(uint64_t owner) const { return live_owners_.count(owner) > 0; }
  void touch_physical(const std::vector<SimMemory::Extent>& extents, uint64_t owner, const User& user,
                      const std::string& who);
  std::vector<SimMemory::Extent> usable_extents(Addr address, Bytes size_bytes, const std::string& who,
                                                int device = SimMemory::kOwner);
  // As in messages: of this device, "stream 3".
  std::string text_of(const User& user) const { return streams_.text_of_slot(user.slot()); }
  // As memory_ counts devices.
  int device_of(int device) const { return device == streams_.device() ? SimMemory::kOwner : device; }
  int device_of(const User& user) const { return device_of(user.streams.device()); }
  std::string describe(const AccessConflict& conflict) const;

  const SimMemory& memory_;
  SimStreams& streams_;
  AccessMap accesses_;  // by physical offset, clocks of streams
  RaceMap races_;       // by device address, clocks of streams
  std::map<std::pair<size_t, uint64_t>, const std::string*> operations_;  // by slot and number
  size_t most_operations_ = 1024;  // then those that the host knows to be over are dropped
  std::map<Addr, Freed> freed_;
  std::map<Addr, Live> live_;
  std::map<uint64_t, Addr> live_owners_;
  std::map<std::pair<Addr, Bytes>, uint64_t> reusable_;  // freed: owner
  std::vector<std::string> reports_;
  uint64_t report_count_ = 0;
};

}  // namespace staticrt::alloc
