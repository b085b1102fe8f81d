// Virtual streams and events of the simulated device.
//
// A stream is a queue of work, event records and event waits. It runs only on request: advance() runs a
// number of pieces of work, finish() all that a record or stream needs and nothing else. Records and waits
// take no time: they happen as soon as they are at the head of their queue and what they wait for is done.
//
// set_order() decides how far streams that a wait does not need advance during it: a real device may be
// anywhere between "not at all" and "as far as they can".
//
// Each stream also has a vector clock: what its next work is ordered after. The host has one too, which only
// queries that returned ok and syncs advance.
//
// Thread safety: none. SimDriver holds its mutex around every call.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "allocator/core/types.h"
#include "allocator/simulated/sim_graph.h"
#include "allocator/simulated/vector_clock.h"

namespace staticrt::alloc {

// Which streams advance during a wait.
enum class SimOrder : uint8_t {
  needed,        // only those that the wait needs: every other stream is as late as it can be
  random,        // besides, at each step, a stream chosen at random
  others_first,  // all other streams first, as far as they can: what is waited for is as late as it can be
};

// What the streams and allocations of the devices of one machine share.
struct SimClocks {
  std::vector<DeviceStream> slots;  // of streams, in the order of first use
  VectorClock host;
  uint64_t allocations = 0;  // numbers given
  uint64_t graphs = 0;
  std::set<std::string> names;  // of operators; a text lives as long as the machine
};

class SimStreams {
 public:
  explicit SimStreams(std::shared_ptr<SimClocks> clocks = std::make_shared<SimClocks>(), int device = 0)
      : clocks_(std::move(clocks)), device_(device) {}

  // One recording of an event: done once its stream has passed it. A recording made under capture is
  // never done: it marks a place in the graph.
  struct Record {
    StreamId stream{0};
    VectorClock clock;
    bool done = false;
    uint64_t graph = 0;  // capture it was made in, or 0
    SimGraph::Mark mark;
  };
  using RecordPtr = std::shared_ptr<Record>;

  // Adds work; returns the number of the operation on the stream.
  uint64_t enqueue(StreamId stream, std::function<void()> work);
  // Work that takes no time: it runs as soon as the stream has come to it, and is not counted as pending.
  void at_once(StreamId stream, std::function<void()> work);
  RecordPtr record(StreamId stream);
  void wait(StreamId stream, const RecordPtr& record);
  // Orders later work of `stream` after `clock`. REQUIRES: the stream waits for that work.
  void comes_after(StreamId stream, const VectorClock& clock) { at(stream).clock.join(clock); }

  // Runs up to `count` pieces of work; fewer if the stream is empty or waits for another one.
  uint64_t advance(StreamId stream, uint64_t count);
  void finish(const RecordPtr& record);  // moves the streams the record needs, no further than needed
  void finish_all();
  // Runs the stream's oldest work, and what it waits for, until at most `most` pieces are pending.
  void shorten(StreamId stream, uint64_t most);

  void set_order(SimOrder order, uint64_t seed) {
    order_ = order;
    random_.seed(seed);
  }

  uint64_t pending(StreamId stream) const;  // pieces of work not yet run
  bool idle(StreamId stream) const;

  // The clock of the last operation of `stream`, and of its next one.
  const VectorClock& clock(StreamId stream) { return at(stream).clock; }
  VectorClock next_clock(StreamId stream);
  const VectorClock& host() const { return clocks_->host; }
  void host_learns(const VectorClock& clock) { clocks_->host.join(clock); }
  size_t slot(StreamId stream) { return at(stream).slot; }
  // "stream 3" of this device, "stream 3 of sim:1" of another one.
  std::string text_of(DeviceStream stream) const;
  std::string text_of(StreamId stream) const { return text_of({device_, stream}); }
  std::string text_of_slot(size_t slot) const { return text_of(clocks_->slots[slot]); }
  SimClocks& clocks() const { return *clocks_; }
  int device() const { return device_; }
  std::vector<StreamId> streams() const;
  // Whether the calling thread is inside some stream's work.
  static bool in_work() { return working_ != 0; }

 private:
  struct Operation {
    std::function<void()> work;
    RecordPtr record;  // to make done, or to wait for
    enum class Kind : uint8_t { work, at_once, record, wait } kind = Kind::work;
  };
  struct Stream {
    std::deque<Operation> queue;
    VectorClock clock;
    size_t slot = 0;
    uint64_t pending = 0;
  };

  Stream& at(StreamId stream);
  void move_others(StreamId needed);  // as the order says, at one step of a wait
  void settle();                      // what takes no time, on all streams, until nothing changes
  void pop(Stream& stream);           // performs the head. REQUIRES: it is not a wait for an undone record
  static bool blocked(const Stream& stream) {
    return stream.queue.front().kind == Operation::Kind::wait && !stream.queue.front().record->done;
  }

  static thread_local int working_;
  const std::shared_ptr<SimClocks> clocks_;
  const int device_;
  std::map<uint64_t, Stream> streams_;
  SimOrder order_ = SimOrder::needed;
  std::mt19937_64 random_;
};

}  // namespace staticrt::alloc
