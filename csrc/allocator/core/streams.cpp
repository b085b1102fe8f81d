#include "allocator/core/streams.h"

#include <algorithm>
#include <utility>

namespace staticrt::alloc {

Streams::~Streams() {
  for (Line& line : lines_)
    for (const Batch& batch : line.batches) (void)driver_.event_destroy(batch.event).ok();
  for (const EventId event : events_) (void)driver_.event_destroy(event).ok();
}

Slot Streams::find_slot(StreamId stream) {
  // Streams of CUDA are addresses: their low bits say little.
  Recent& recent = recent_[(raw(stream) ^ raw(stream) >> 6) % kRecent];
  if (recent.stream != stream) {
    auto at = slots_.find(raw(stream));
    if (at == slots_.end()) {
      if (lines_.size() == kNoSlot || stream == kNoStream) return kNoSlot;
      at = slots_.emplace(raw(stream), static_cast<Slot>(lines_.size())).first;
      lines_.push_back({stream, {}, {}});
    }
    recent = {stream, at->second};
  }
  last_stream_ = stream;
  return last_slot_ = recent.slot;
}

Status Streams::take_event(EventId* event) {
  if (!events_.empty()) {
    *event = events_.back();
    events_.pop_back();
    return Status::Ok();
  }
  return driver_.event_create(event);
}

Status Streams::close_open() {
  if (!dirty_) return Status::Ok();
  for (Line& line : lines_) {
    if (line.open == 0) continue;
    EventId event = kNoEvent;
    SRT_TRY(take_event(&event));
    if (Status status = driver_.event_record(event, line.stream); !status.ok()) {
      give_event(event);
      return status;
    }
    line.batches.push({event, std::exchange(line.open, 0)});
    ++batches_;
  }
  dirty_ = false;
  return Status::Ok();
}

const std::vector<BlockId>& Streams::poll() {
  done_.clear();
  if (batches_ == 0) return done_;
  for (Line& line : lines_) {
    while (!line.batches.empty()) {
      const Batch oldest = line.batches.front();
      const Status status = driver_.event_query(oldest.event);
      if (status.code() == Code::not_ready) break;
      if (!status.ok()) return done_;
      done_.insert(done_.end(), line.blocks.begin(),
                   line.blocks.begin() + static_cast<ptrdiff_t>(oldest.count));
      line.blocks.pop(oldest.count);
      line.batches.pop(1);
      give_event(oldest.event);
      --batches_;
      waiting_ = dirty_ || batches_ != 0;
    }
  }
  return done_;
}

std::vector<EventId> Streams::outstanding() const {
  std::vector<EventId> events;
  for (const Line& line : lines_)
    for (const Batch& batch : line.batches) events.push_back(batch.event);
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
