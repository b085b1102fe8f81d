// Streams: slots for stream ids, pooled events, and the blocks that wait for them.
//
// A slot is a small number for a stream, given at first use and kept. Blocks freed with recorded uses
// wait per used stream in batches, oldest first; one event closes a batch:
//
//   slot 3:  [E7: 12 40] [E8: 41] | open: 55 56        <- E9 is recorded at the next poll
//
// In compat mode every free closes its batch at once (S2). In native mode frees gather in the open batch
// until the next allocation, sync or flush: one event for many frees; later is always safe.
//
// Thread safety: none; the core mutex is held. Nothing here blocks.
#pragma once

#include <array>
#include <bit>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "allocator/core/block.h"
#include "allocator/core/device_api.h"

namespace staticrt::alloc {

// First in, first out, in one array that is kept: no allocation in steady state.
template <class T>
class Fifo {
 public:
  bool empty() const { return first_ == items_.size(); }
  const T& front() const { return items_[first_]; }
  void push(T item) { items_.push_back(item); }
  void pop(size_t count) {
    first_ += count;
    if (first_ >= (items_.size() + 1) / 2) {  // each item moves about once
      items_.erase(items_.begin(), items_.begin() + static_cast<ptrdiff_t>(first_));
      first_ = 0;
    }
  }
  auto begin() const { return items_.begin() + static_cast<ptrdiff_t>(first_); }
  auto end() const { return items_.end(); }

 private:
  std::vector<T> items_;
  size_t first_ = 0;
};

// The next `count` blocks of a line, and the event behind which they are free.
struct Batch {
  EventId event = kNoEvent;
  size_t count = 0;
};

class Streams {
 public:
  explicit Streams(Driver& driver) : driver_(driver) {}
  ~Streams();

  // The slot of a stream, made if new; kNoSlot if all are taken. Slots count from 0 in order of first use.
  Slot slot_of(StreamId stream) { return stream == last_stream_ ? last_slot_ : find_slot(stream); }
  StreamId stream_of(Slot slot) const { return lines_[slot].stream; }
  // A stream of another device, which uses this one's memory. Its blocks are never for that stream.
  Slot slot_of_peer(const std::shared_ptr<Driver>& peer, StreamId stream);
  // The same if that device has used memory before, by its number; else kNoSlot.
  Slot known_slot_of_peer(int device, StreamId stream) const;
  bool is_peers(Slot slot) const { return lines_[slot].peer != nullptr; }
  Driver& driver_of(Slot slot) const { return driver_of(lines_[slot]); }
  size_t count() const { return lines_.size(); }

  // Adds `block` to the open batch of `slot`. The caller counts block.pending.
  void wait_for(Slot slot, BlockId block) {
    Line& line = lines_[slot];
    line.blocks.push(block);
    ++line.open;
    dirty_ = true;
    waiting_ = true;
  }
  bool has_waiting() const { return waiting_; }
  // Records an event for every open batch. Where that fails the batch stays open; an error of a peer and a
  // captured stream are not returned.
  Status close_open();
  // Takes the blocks of all completed batches, per slot from the oldest to the first unfinished (S3);
  // a block comes once for each batch it was in. An event query's error ends that of its slot. The result
  // holds until the next poll.
  const std::vector<BlockId>& poll();
  // Events of all closed batches, oldest first per slot, and their streams' devices.
  std::vector<std::pair<Driver*, EventId>> outstanding() const;

  Status take_event(EventId* event) { return take(events_, driver_, event); }
  void give_event(EventId event) { events_.push_back(event); }

  // Use sets: a bit per slot below 31, a side table for the rest.
  void add_use(Block& block, Slot slot, bool in_capture);
  // Slots of the block's uses outside (or inside) captures, ascending.
  std::vector<Slot> uses(const Block& block, bool in_capture) const;
  // The same, for each: f(slot).
  template <class F>
  void for_each_use(const Block& block, bool in_capture, F f) const {
    const uint32_t mask = in_capture ? block.capture_uses : block.uses;
    for (uint32_t rest = mask & ~kManyUses; rest != 0; rest &= rest - 1)
      f(static_cast<Slot>(std::countr_zero(rest)));
    if (mask & kManyUses) [[unlikely]]
      for (const Slot slot : many_[in_capture].at(block.id)) f(slot);
  }
  void clear_uses(Block& block, bool in_capture);

  // For validate(): calls f(slot, block id) for every waiting block.
  template <class F>
  void for_each_waiting(F f) const {
    for (size_t slot = 0; slot < lines_.size(); ++slot)
      for (const BlockId id : lines_[slot].blocks) f(static_cast<Slot>(slot), id);
  }

 private:
  struct Line {
    StreamId stream;
    std::shared_ptr<Driver> peer;  // whose stream it is; null: this device's
    Fifo<BlockId> blocks;          // of the batches, then of the open one
    Fifo<Batch> batches;           // closed
    size_t open = 0;               // blocks of the open one
  };
  Slot find_slot(StreamId stream);
  Status close(Line& line);  // its open batch; not_ready where the stream is captured
  // Whether the line's stream may be captured, or a query of its events break a capture, although the
  // allocator has no capture open: it knows of those that began on its own device only.
  bool beside_captures(const Line& line) const;
  static Status take(std::vector<EventId>& idle, Driver& driver, EventId* event);
  Driver& driver_of(const Line& line) const { return line.peer ? *line.peer : driver_; }
  std::vector<EventId>& idle_events(const Line& line) {
    return line.peer ? peer_events_[line.peer.get()] : events_;
  }

  Driver& driver_;
  std::vector<Line> lines_;
  std::unordered_map<uint64_t, Slot> slots_;
  std::map<std::pair<Driver*, StreamId>, Slot> peer_slots_;
  static constexpr StreamId kNoStream{~uint64_t{0}};  // has no slot
  StreamId last_stream_ = kNoStream;
  Slot last_slot_ = kNoSlot;
  // The latest slots, so that a program that alternates between a few streams needs no lookup.
  static constexpr size_t kRecent = 8;
  struct Recent {
    StreamId stream = kNoStream;
    Slot slot = kNoSlot;
  };
  std::array<Recent, kRecent> recent_;
  std::vector<BlockId> done_;                                      // of the last poll
  bool dirty_ = false;                                             // some open batch is not empty
  size_t batches_ = 0;                                             // closed batches of all slots
  bool waiting_ = false;                                           // dirty_, or batches_ is not 0
  std::vector<EventId> events_;                                    // idle
  std::unordered_map<Driver*, std::vector<EventId>> peer_events_;  // idle, of other devices
  std::unordered_map<BlockId, std::vector<Slot>> many_[2];         // by in_capture: slots from 31 on
};

}  // namespace staticrt::alloc
