#include "allocator/core/streams.h"

#include <algorithm>
#include <utility>

#include "allocator/graphs/capture.h"

namespace staticrt::alloc {

Streams::~Streams() {
  for (Line& line : lines_)
    for (const Batch& batch : line.batches) (void)driver_of(line).event_destroy(batch.event).ok();
  for (const EventId event : events_) (void)driver_.event_destroy(event).ok();
  for (const auto& [peer, events] : peer_events_)
    for (const EventId event : events) (void)peer->event_destroy(event).ok();
}

Slot Streams::find_slot(StreamId stream) {
  // Streams of CUDA are addresses, whose low bits differ little.
  Recent& recent = recent_[(raw(stream) ^ raw(stream) >> 6) % kRecent];
  if (recent.stream != stream) {
    auto at = slots_.find(raw(stream));
    if (at == slots_.end()) {
      if (lines_.size() == kNoSlot || stream == kNoStream) return kNoSlot;
      at = slots_.emplace(raw(stream), static_cast<Slot>(lines_.size())).first;
      lines_.push_back({stream, nullptr, {}, {}});
    }
    recent = {stream, at->second};
  }
  last_stream_ = stream;
  return last_slot_ = recent.slot;
}

Slot Streams::slot_of_peer(const std::shared_ptr<Driver>& peer, StreamId stream) {
  const auto known = peer_slots_.find({peer.get(), stream});
  if (known != peer_slots_.end()) return known->second;
  if (lines_.size() == kNoSlot) return kNoSlot;
  lines_.push_back({stream, peer, {}, {}});
  return peer_slots_[{peer.get(), stream}] = static_cast<Slot>(lines_.size() - 1);
}

Slot Streams::known_slot_of_peer(int device, StreamId stream) const {
  for (const auto& [peer, slot] : peer_slots_)
    if (peer.second == stream && peer.first->info().index == device) return slot;
  return kNoSlot;
}

Status Streams::take(std::vector<EventId>& idle, Driver& driver, EventId* event) {
  if (idle.empty()) return driver.event_create(event);
  *event = idle.back();
  idle.pop_back();
  return Status::Ok();
}

bool Streams::beside_captures(const Line& line) const {
  return line.peer || Captures::anywhere.load(std::memory_order_relaxed) != 0;
}

Status Streams::close(Line& line) {
  Driver& driver = driver_of(line);
  if (CaptureState state; beside_captures(line) && driver.info().captures) {
    SRT_TRY(driver.capture_state(line.stream, &state));
    if (state.status != CaptureStatus::none) return Status::NotReady();
  }
  std::vector<EventId>& idle = idle_events(line);
  EventId event = kNoEvent;
  SRT_TRY(take(idle, driver, &event));
  if (Status status = driver.event_record(event, line.stream); !status.ok()) {
    idle.push_back(event);
    return status;
  }
  line.batches.push({event, std::exchange(line.open, 0)});
  ++batches_;
  return Status::Ok();
}

Status Streams::close_open() {
  if (!dirty_) return Status::Ok();
  bool left = false;
  for (Line& line : lines_) {
    if (line.open == 0) continue;
    const Status status = close(line);
    // A peer that fails, or a stream that is captured, keeps its own blocks waiting, not those of others.
    if (!status.ok() && status.code() != Code::not_ready && !line.peer) return status;
    left |= !status.ok();
  }
  dirty_ = left;
  return Status::Ok();
}

const std::vector<BlockId>& Streams::poll() {
  done_.clear();
  if (batches_ == 0) return done_;
  for (Line& line : lines_) {
    if (line.batches.empty()) continue;
    // This thread may be capturing even if the allocator has no capture open: it does not know of torch's.
    const RelaxedCapture relaxed(driver_of(line));
    while (!line.batches.empty()) {
      const Batch oldest = line.batches.front();
      const Status status = driver_of(line).event_query(oldest.event);
      if (!status.ok()) break;
      done_.insert(done_.end(), line.blocks.begin(),
                   line.blocks.begin() + static_cast<ptrdiff_t>(oldest.count));
      line.blocks.pop(oldest.count);
      line.batches.pop(1);
      idle_events(line).push_back(oldest.event);
      --batches_;
      waiting_ = dirty_ || batches_ != 0;
    }
  }
  return done_;
}

std::vector<std::pair<Driver*, EventId>> Streams::outstanding() const {
  std::vector<std::pair<Driver*, EventId>> events;
  for (const Line& line : lines_)
    for (const Batch& batch : line.batches) events.emplace_back(&driver_of(line), batch.event);
  return events;
}

void Streams::add_use(Block& block, Slot slot, bool in_capture) {
  uint32_t& mask = in_capture ? block.capture_uses : block.uses;
  if (slot < 31) {
    mask |= 1u << slot;
    return;
  }
  mask |= kManyUses;
  auto& slots = many_[in_capture][block.id];
  const auto at = std::lower_bound(slots.begin(), slots.end(), slot);
  if (at == slots.end() || *at != slot) slots.insert(at, slot);
}

std::vector<Slot> Streams::uses(const Block& block, bool in_capture) const {
  std::vector<Slot> slots;
  for_each_use(block, in_capture, [&](Slot slot) { slots.push_back(slot); });
  return slots;
}

void Streams::clear_uses(Block& block, bool in_capture) {
  uint32_t& mask = in_capture ? block.capture_uses : block.uses;
  if (mask & kManyUses) many_[in_capture].erase(block.id);
  mask = 0;
}

}  // namespace staticrt::alloc
