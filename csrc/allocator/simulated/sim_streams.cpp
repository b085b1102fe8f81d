#include "allocator/simulated/sim_streams.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace staticrt::alloc {
namespace {

// Streams whose work this thread runs. Such work may run other streams', which must not go past it.
thread_local std::vector<const void*> running;

bool is_running(const auto& stream) {
  return std::ranges::find(running, &stream) != running.end();
}

}  // namespace

thread_local int SimStreams::working_ = 0;

SimStreams::Stream& SimStreams::at(StreamId stream) {
  const auto [it, fresh] = streams_.try_emplace(raw(stream));
  if (fresh) {
    it->second.slot = clocks_->slots.size();
    clocks_->slots.push_back({device_, stream});
  }
  return it->second;
}

VectorClock SimStreams::next_clock(StreamId stream) {
  VectorClock next = at(stream).clock;
  next.join(host());
  return next;
}

uint64_t SimStreams::enqueue(StreamId id, std::function<void()> work) {
  Stream& stream = at(id);
  stream.clock.join(host());
  const uint64_t operation = stream.clock.tick(stream.slot);
  stream.queue.push_back({std::move(work), nullptr, Operation::Kind::work});
  ++stream.pending;
  return operation;
}

void SimStreams::at_once(StreamId id, std::function<void()> work) {
  Stream& stream = at(id);
  stream.queue.push_back({std::move(work), nullptr, Operation::Kind::at_once});
  if (stream.queue.size() == 1) settle();
}

SimStreams::RecordPtr SimStreams::record(StreamId id) {
  Stream& stream = at(id);
  auto record = std::make_shared<Record>();
  record->stream = id;
  record->clock = stream.clock;
  stream.queue.push_back({{}, record, Operation::Kind::record});
  if (stream.queue.size() == 1) settle();
  return record;
}

void SimStreams::wait(StreamId id, const RecordPtr& record) {
  Stream& stream = at(id);
  stream.clock.join(record->clock);
  if (record->done && stream.queue.empty()) return;
  stream.queue.push_back({{}, record, Operation::Kind::wait});
}

void SimStreams::pop(Stream& stream) {
  Operation operation = std::move(stream.queue.front());
  stream.queue.pop_front();
  if (operation.kind == Operation::Kind::record) operation.record->done = true;
  if (operation.kind == Operation::Kind::work) --stream.pending;
  if (!operation.work) return;
  ++working_;
  running.push_back(&stream);
  operation.work();
  operation.work = nullptr;  // what it holds is dropped as part of the work
  running.pop_back();
  --working_;
}

void SimStreams::settle() {
  for (bool moved = true; moved;) {
    moved = false;
    for (auto& [id, stream] : streams_)
      while (!stream.queue.empty() && stream.queue.front().kind != Operation::Kind::work &&
             !blocked(stream) && !is_running(stream)) {
        pop(stream);
        moved = true;
      }
  }
}

uint64_t SimStreams::advance(StreamId id, uint64_t count) {
  Stream& stream = at(id);
  uint64_t done = 0;
  settle();
  while (done < count && !stream.queue.empty() && stream.queue.front().kind == Operation::Kind::work) {
    pop(stream);
    ++done;
    settle();
  }
  return done;
}

void SimStreams::move_others(StreamId needed) {
  // Work may wait too: what it needs is then moved for it alone.
  if (order_ == SimOrder::needed || in_work()) return;
  std::vector<Stream*> movable;
  settle();
  for (auto& [id, stream] : streams_)
    if (!stream.queue.empty() && !blocked(stream) && (order_ == SimOrder::random || id != raw(needed)))
      movable.push_back(&stream);
  if (movable.empty()) return;
  if (order_ == SimOrder::random) {
    pop(*movable[random_() % movable.size()]);
    return;
  }
  for (; !movable.empty();) {
    pop(*movable.back());
    settle();
    std::erase_if(movable, [](Stream* stream) { return stream->queue.empty() || blocked(*stream); });
  }
}

void SimStreams::finish(const RecordPtr& record) {
  // A stack of what is needed, innermost last: chains of waits may be thousands deep.
  std::vector<RecordPtr> needed{record};
  while (!needed.empty()) {
    if (needed.back()->done) {
      needed.pop_back();
      continue;
    }
    move_others(needed.back()->stream);
    if (needed.back()->done) continue;
    Stream& stream = at(needed.back()->stream);
    if (blocked(stream))
      needed.push_back(stream.queue.front().record);
    else
      pop(stream);
  }
  settle();
}

void SimStreams::finish_all() {
  for (const StreamId stream : streams()) finish(record(stream));
}

void SimStreams::shorten(StreamId id, uint64_t most) {
  Stream& stream = at(id);
  while (stream.pending > most) {
    if (blocked(stream))
      finish(stream.queue.front().record);
    else
      pop(stream);
  }
  settle();
}

uint64_t SimStreams::pending(StreamId id) const {
  const auto it = streams_.find(raw(id));
  return it == streams_.end() ? 0 : it->second.pending;
}

bool SimStreams::idle(StreamId id) const {
  const auto it = streams_.find(raw(id));
  return it == streams_.end() || it->second.queue.empty();
}

std::string SimStreams::text_of(DeviceStream stream) const {
  const std::string text = "stream " + std::to_string(raw(stream.stream));
  return stream.device == device_ ? text : text + " of sim:" + std::to_string(stream.device);
}

std::vector<StreamId> SimStreams::streams() const {
  std::vector<StreamId> streams;
  for (const auto& [id, stream] : streams_) streams.push_back(StreamId{id});
  return streams;
}

}  // namespace staticrt::alloc
