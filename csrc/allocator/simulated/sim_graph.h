// A graph under capture on the simulated device, and afterwards the graph that can be launched.
//
// Each stream in the capture is a branch: it holds the nodes its next node comes after (its frontier) and
// a clock local to the graph. Streams of other devices of the machine may be in it. Work in one graph is
// checked against other work in the same graph here; a launch is checked as one operation of its stream by
// SimDriver.
//
// Thread safety: none. SimDriver holds its mutex around every call.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "allocator/core/device_api.h"
#include "allocator/simulated/sim_access.h"
#include "allocator/simulated/sim_races.h"

namespace staticrt::alloc {

// A stream of one of the devices of a machine.
struct DeviceStream {
  int device = 0;
  StreamId stream{0};
  auto operator<=>(const DeviceStream&) const = default;
};

class SimGraph {
 public:
  using Node = uint32_t;  // index into the nodes, in the order of capture

  // Where an event recorded in this capture stands.
  struct Mark {
    std::vector<Node> nodes;
    VectorClock clock;
  };
  // Bytes a node touches, and the allocation they belonged to then.
  struct Touched {
    Addr address = 0;
    Bytes size_bytes = 0;
    uint64_t owner = 0;
    int device = 0;        // that the node runs on
    bool in_used = false;  // used() says whether it reads or writes
    bool operator==(const Touched&) const = default;
  };

  // `device`: ends with the device whose stream it is, here and in join().
  SimGraph(uint64_t id, DeviceStream origin, CaptureMode mode, const std::weak_ptr<const void>& device)
      : id_(id),
        origin_(origin),
        mode_(mode == CaptureMode::trial ? CaptureMode::relaxed : mode),
        is_trial_(mode == CaptureMode::trial),
        thread_(std::this_thread::get_id()) {
    branches_[origin].slot = 0;
    devices_[origin.device] = device;
  }

  uint64_t id() const { return id_; }
  DeviceStream origin() const { return origin_; }
  CaptureMode mode() const { return mode_; }
  bool is_trial() const { return is_trial_; }
  void make_trial() { is_trial_ = true; }
  std::thread::id thread() const { return thread_; }
  bool invalidated() const { return invalidated_; }
  const std::string& why() const { return why_; }
  void invalidate(const std::string& why);

  // Work that differs between launches: called at each launch, it gives the work of that one.
  using EachLaunch = std::function<std::function<void()>()>;

  // A new node of `stream`'s branch. REQUIRES: the stream is in the capture (for all calls below).
  Node add(DeviceStream stream, std::function<void()> work, EachLaunch each_launch = {});
  // The touch of `owner`'s bytes by a new node; the first earlier touch of the graph that the node does
  // not come after, if any.
  std::optional<AccessConflict> touch(DeviceStream stream, const Touched& touched,
                                      std::function<void()> work);
  // As AccessMap::unordered for the next node of `stream`.
  std::optional<AccessConflict> unordered(DeviceStream stream, Addr address, Bytes size_bytes) const;

  // The read or write of a range by the last node of `stream`'s branch; the first earlier access of the graph
  // that it races with, if any. `name`: of the operator.
  std::optional<RaceMap::Conflict> access(DeviceStream stream, const SimRange& range,
                                          const std::string* name);

  Mark mark(DeviceStream stream) const;
  // Also takes a new stream into the capture.
  void join(DeviceStream stream, const Mark& mark, const std::weak_ptr<const void>& device);
  std::vector<Node> settled(DeviceStream stream) const;
  // Streams whose nodes the origin's branch does not come after.
  std::vector<DeviceStream> unjoined() const;
  DeviceStream stream_of_slot(size_t slot) const;
  std::vector<std::vector<Node>> edges() const;  // per node, the nodes it comes after

  // A copy, whose addresses may change after the capture. Each launch uses what lies there by then, as an
  // operator that is enqueued does.
  struct Copy {
    EachLaunch each_launch;
    std::vector<SimRange> ranges;
    const std::string* name = nullptr;
  };
  // A new node of `stream`'s branch. `noted`: as of size() before what it uses was noted.
  using Size = std::pair<size_t, size_t>;
  Size size() const { return {touched_.size(), used_.size()}; }
  Node add_copy(DeviceStream stream, Copy copy, Size noted);
  bool is_copy(Node node) const { return copies_.count(node) > 0; }
  int device_of(Node node) const { return nodes_[node].device; }
  void set_copy(Node node, Copy copy);

  // --- After the capture.
  const std::vector<Touched>& touched() const { return touched_; }
  struct Used {
    SimRange range;
    const std::string* name = nullptr;
  };
  const std::vector<Used>& used() const { return used_; }
  const std::map<Node, Copy>& copies() const { return copies_; }
  // Whether a node uses bytes of the range.
  bool uses(Addr address, Bytes size_bytes) const;
  bool owns(uint64_t owner) const { return owners_.count(owner) > 0; }
  // Allocations that the capture made and kept: every launch fills their bytes again.
  struct Kept {
    Addr address = 0;
    Bytes size_bytes = 0;
    uint64_t owner = 0;
  };
  const std::vector<Kept>& kept() const { return kept_; }
  void adopt(const Kept& made) {
    owners_.insert(made.owner);
    kept_.push_back(made);
    made_.push_back(made);
  }
  // The owner of an allocation around the range that the capture made, also if it freed it again; 0: none.
  uint64_t maker_of(const SimRange& range) const;
  // At each launch, the program passes the graph the allocation that lies at this address then.
  void fix(uint64_t owner) { fixed_.insert(owner); }
  bool is_fixed(uint64_t owner) const { return fixed_.count(owner) > 0; }
  void freed(uint64_t owner) {
    std::erase_if(kept_, [&](const Kept& each) { return each.owner == owner; });
  }
  uint64_t launched_work() const { return launched_work_; }  // operators of one launch
  // The work of one launch that differs from that of others, in the order of capture.
  std::vector<std::function<void()>> work_of_launch() const;
  // Runs the work of all nodes in that order, but not of devices that have been destroyed; whether there was
  // none.
  bool run(const std::vector<std::function<void()>>& of_launch) const;
  // The first of its devices that has been destroyed.
  std::optional<int> gone() const;

 private:
  struct Branch {
    std::vector<Node> frontier;
    VectorClock clock;
    size_t slot = 0;
  };
  struct NodeData {
    std::vector<Node> before;
    int device = 0;
    std::function<void()> work;
    EachLaunch each_launch;
  };
  std::vector<bool> reached_from(const std::vector<Node>& nodes) const;

  uint64_t id_;
  DeviceStream origin_;
  CaptureMode mode_;
  bool is_trial_;
  std::thread::id thread_;
  bool invalidated_ = false;
  std::string why_;
  std::vector<NodeData> nodes_;
  std::map<DeviceStream, Branch> branches_;
  std::map<int, std::weak_ptr<const void>> devices_;  // of its branches
  AccessMap accesses_;                                // by device address, clocks of branches
  RaceMap races_;                                     // the same
  std::vector<Touched> touched_;
  std::vector<Used> used_;
  std::map<Node, Copy> copies_;
  std::set<uint64_t> owners_;
  std::set<uint64_t> fixed_;
  std::vector<Kept> kept_;
  std::vector<Kept> made_;
  uint64_t launched_work_ = 0;
};

}  // namespace staticrt::alloc
