#include "allocator/streams.h"

#include <algorithm>
#include <bit>

namespace staticrt::alloc {

Streams::~Streams() {
  for (Line& line : lines_)
    for (const Batch& batch : line.batches) (void)driver_.event_destroy(batch.event).ok();
  for (const EventId event : events_) (void)driver_.event_destroy(event).ok();
}

Slot Streams::find_slot(StreamId stream) {
  const auto [at, fresh] = slots_.emplace(raw(stream), static_cast<Slot>(lines_.size()));
  if (fresh) lines_.push_back({stream, {}, {}});
  last_stream_ = stream;
  return last_slot_ = at->second;
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
    if (line.open.empty()) continue;
    EventId event = kNoEvent;
    SRT_TRY(take_event(&event));
    if (Status status = driver_.event_record(event, line.stream); !status.ok()) {
      give_event(event);
      return status;
    }
    line.batches.push_back({event, std::move(line.open)});
    line.open.clear();
    ++batches_;
  }
  dirty_ = false;
  return Status::Ok();
}

Status Streams::poll(std::vector<BlockId>* done) {
  if (batches_ == 0) return Status::Ok();
  for (Line& line : lines_) {
    while (!line.batches.empty()) {
      Batch& oldest = line.batches.front();
      Status status = driver_.event_query(oldest.event);
      if (status.code() == Code::not_ready) break;
      if (!status.ok()) return status;
      done->insert(done->end(), oldest.blocks.begin(), oldest.blocks.end());
      give_event(oldest.event);
      line.batches.pop_front();
      --batches_;
      waiting_ = dirty_ || batches_ != 0;
    }
  }
  return Status::Ok();
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
  const uint32_t mask = in_capture ? block.capture_uses : block.uses;
  std::vector<Slot> slots;
  for (uint32_t rest = mask & ~kManyUses; rest != 0; rest &= rest - 1)
    slots.push_back(static_cast<Slot>(std::countr_zero(rest)));
  if (mask & kManyUses) {
    const auto& more = many_[in_capture].at(block.id);
    slots.insert(slots.end(), more.begin(), more.end());
  }
  return slots;
}

void Streams::clear_uses(Block& block, bool in_capture) {
  uint32_t& mask = in_capture ? block.capture_uses : block.uses;
  if (mask & kManyUses) many_[in_capture].erase(block.id);
  mask = 0;
}

}  // namespace staticrt::alloc
