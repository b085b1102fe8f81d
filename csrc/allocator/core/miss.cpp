// The reclaim steps that follow a miss.
//
// Native mode: after any step that freed bytes the request is searched again and growth tried again, so
// that no step is taken in vain (U1). Compat mode: upstream's order, rule G1, which does neither.
#include "allocator/core/core.h"
#include "allocator/core/format.h"
#include "common/error.h"

namespace staticrt::alloc {

void ReclaimLog::freed(const char* step, Bytes bytes) {
  note(step, format_bytes(bytes));
}
void ReclaimLog::note(const char* step, std::string what) {
  for (auto& [name, text] : steps)
    if (name == step) {
      text = std::move(what);
      return;
    }
  steps.emplace_back(step, std::move(what));
}

namespace {

Status hibernated_error(const Pool& pool) {
  return Status::InvalidArgument(
      detail::concat("pool ", pool.id, " is hibernated; wake it before allocating from it"));
}

}  // namespace

Status Core::allocate(Want& want, Addr* address) {
  {
    const Lock lock(*this);
    if (!pools.is(want.pool, want.pool_serial)) [[unlikely]]
      return Status::NotReady();
    want.slot = streams.slot_of(want.stream);
    if (want.slot == kNoSlot) [[unlikely]]
      return too_many_streams(want.stream);
    Pool& pool = pools[want.pool];
    if (!broken.empty()) [[unlikely]]
      return Status::Internal(broken);
    if (pool.hibernated) [[unlikely]]
      return hibernated_error(pool);
    if (streams.has_waiting()) poll_ready();
    if (!captures.markers.empty()) [[unlikely]]
      return_settled(want.stream);
    if (Block* block = search(want)) [[likely]] {
      *address = take(*block, want);
      return Status::Ok();
    }
    ++pool.pins;
  }
  Status status = allocate_on_miss(want, address);
  unpin(want.pool);
  return status;
}

Status Core::hibernated(const Want& want) {
  const Lock lock(*this);
  const Pool& pool = pools[want.pool];
  return pool.hibernated ? hibernated_error(pool) : Status::Ok();
}

Status Core::too_many_streams(StreamId stream) {
  if (raw(stream) == ~uint64_t{0}) return Status::InvalidArgument(detail::concat(stream, " is not a stream"));
  return Status::InvalidArgument(detail::concat("stream ", stream, ": memory of ", kNoSlot,
                                                " other streams of ", info.name,
                                                " has been asked for already, and no more can be told apart; "
                                                "use streams again instead of making new ones"));
}

// One missed request: tries to serve it after each step, and remembers what the steps gave.
class Miss {
 public:
  Miss(Core& core, Want& want, Addr* address) : core_(core), want_(want), address_(address) {}

  bool done() const { return done_; }
  const Status& status() const { return status_; }
  ReclaimLog& log() { return log_; }

  bool search() {
    const Core::Lock lock(core_);
    return finish(core_.search(want_));
  }
  // True if the request is over: served, or the driver failed for another reason than memory.
  bool grow() {
    if (core_.move_pages(want_) && search()) return true;
    Block* grown = nullptr;
    status_ = core_.grow(want_, &grown);
    if (status_.ok()) {
      const Core::Lock lock(core_);
      return finish(grown);
    }
    log_.note("grow", status_.oom() && status_.text() == "limit" ? "over limit" : name_of(status_.code()));
    return done_ = !status_.oom();
  }
  // After a step: bytes it freed. Search and grow again if any.
  bool retry(const char* step, Bytes freed) {
    log_.freed(step, freed);
    return freed != 0 && (search() || grow());
  }
  bool overflow() {
    if (want_.pool != 0) return false;
    const Core::Lock lock(core_);
    Want adopted = want_;
    Block* block = core_.overflow(want_, &adopted);
    if (block == nullptr) return false;
    *address_ = core_.take(*block, adopted);
    return done_ = true;
  }
  bool finish(Block* block) {
    if (block == nullptr) return false;
    *address_ = core_.take(*block, want_);
    status_ = Status::Ok();
    return done_ = true;
  }

 private:
  Core& core_;
  Want& want_;
  Addr* address_;
  ReclaimLog log_;
  Status status_;
  bool done_ = false;
};

Status Core::allocate_on_miss(Want& want, Addr* address) {
  Status status = reclaim_steps(want, address);
  update_gate();  // growth may have come near the limit, or reclaim away from it
  return status;
}

// Whether one of these gave memory back. They are copied under the lock and called without any: a callback
// may use the allocator.
bool Core::ask_for_memory(const std::vector<FreeCallback>& asked) {
  std::vector<FreeCallback> hooks;
  {
    const Lock lock(*this);
    hooks = asked;
  }
  bool freed = false;
  for (const FreeCallback& hook : hooks) freed |= hook();
  return freed;
}

// Out of memory: no step served the request.
Status Core::reclaim(Miss& miss, const Want& want) {
  const Growth growth(*this);
  SRT_TRY(hibernated(want));  // it may have been until now
  // The thread that held the mutex before may have grown enough for this request too.
  if (!compat && miss.search()) return Status::Ok();
  bool capturing = false;
  {
    const Lock lock(*this);
    capturing = captures.any();
    if (!compat && !capturing) miss.log().freed("ready", poll_ready());
    if (settings().stream_wait_reuse && !compat)
      if (Block* block = steal(want)) {
        miss.finish(block);
        return Status::Ok();
      }
  }
  if (settings().gc_threshold > 0) miss.log().freed("gc", collect_garbage());
  if (miss.grow()) return miss.status();
  if (!compat) {
    if (miss.overflow()) return Status::Ok();
    const Lock lock(*this);
    Block* block = steal(want);
    miss.log().freed("steal", block == nullptr ? 0 : block->size);
    if (miss.finish(block)) return Status::Ok();
  }
  if (settings().max_split_bytes != std::numeric_limits<Bytes>::max() && !capturing) {
    const Bytes bytes = release_oversize(want);
    if (compat ? bytes != 0 && miss.grow() : miss.retry("oversize", bytes)) return miss.status();
  }
  if (!compat) {
    if (const Bytes bytes = caches->flush_all(); bytes != 0 && miss.retry("thread caches", bytes))
      return miss.status();
  }
  if (!capturing) {
    if (!compat && miss.retry("drain", drain())) return miss.status();
    const Bytes bytes = flush();
    {
      const Lock lock(*this);
      ++counters.alloc_retries;
    }
    miss.log().freed("flush", bytes);
    if (compat ? miss.grow() : miss.retry("flush", bytes)) return miss.status();
  }
  if (compat && miss.overflow()) return Status::Ok();
  if (!compat) {
    // Growth maps at least 2 MiB granules; trimming less would have to be repeated.
    const Bytes goal = round_up(want.size, kGranule);
    Bytes total = 0;
    for (Bytes bytes = trim(goal); bytes != 0; bytes = trim(goal)) {
      total += bytes;
      if (miss.retry("trim", total)) return miss.status();
    }
    miss.log().freed("trim", total);
    Block* block = nullptr;
    if (stitch(want, &block).ok()) {
      const Lock lock(*this);
      if (miss.finish(block)) return Status::Ok();
    }
  }
  return miss.status();
}

Status Core::reclaim_steps(Want& want, Addr* address) {
  if (want.address != kNullAddr) {
    // N8: exactly there. Steps that free memory elsewhere do not help.
    return Status::Oom(oom_text(want, Status::Oom("address"), ReclaimLog()));
  }
  Miss miss(*this, want, address);
  const bool freed = ask_for_memory(callbacks);
  SRT_TRY(hibernated(want));
  if (freed && miss.search()) return Status::Ok();

  Status status = reclaim(miss, want);
  if (status.oom() && ask_for_memory(last_callbacks)) status = reclaim(miss, want);
  if (!status.oom()) return status;
  const bool rejected = status.text() == "rejected";
  std::string text;
  {
    const Growth growth(*this);
    text = oom_text(want, status, miss.log());
    const Lock lock(*this);
    ++counters.ooms;
  }
  OomEvent event{info.name, want.requested, allowed_bytes(), 0, rejected};
  Bytes total = 0;
  if (!driver.memory_info(&event.free, &total).ok()) event.free = 0;
  std::vector<OomObserver> watchers;
  {
    const Lock lock(*this);
    trace.add(Action::oom, event.free, want.requested, want.stream, pools[want.pool].trace_name,
              trace.level() >= ContextLevel::alloc ? want.context : nullptr);
    watchers = observers;
  }
  for (const OomObserver& observer : watchers) observer(event);
  return Status::Oom(std::move(text));
}

// An idle block of another stream, taken over behind an event wait: later work of our stream runs after
// all that the owner has enqueued so far. We take the part we need; the rest stays the owner's.
Block* Core::steal(const Want& want) {
  if (pools[want.pool].captured || captures.any() || slot_captured(want.slot)) return nullptr;
  const std::vector<BlockId> idle = collect_free([&](const Block& block) {
    return block.pool == want.pool && block.size_class == want.size_class && block.slot != want.slot &&
           block.size >= want.size &&
           (want.size >= settings().max_split_bytes || block.size < settings().max_split_bytes);
  });
  Block* best = nullptr;
  for (const BlockId id : idle)
    if ((best == nullptr || blocks[id].size < best->size) && !slot_captured(blocks[id].slot))
      best = &blocks[id];
  if (best == nullptr) return nullptr;
  EventId event = kNoEvent;
  if (!streams.take_event(&event).ok()) return nullptr;
  const bool ordered = driver.event_record(event, streams.stream_of(best->slot)).ok() &&
                       driver.stream_wait(want.stream, event).ok();
  streams.give_event(event);
  if (!ordered) return nullptr;
  remove_free(*best);
  if (should_split(*best, want)) insert_free(split(*best, want.size));
  best->slot = want.slot;
  return best;
}

// N2: free blocks of pools that offer them when the default pool cannot grow.
Block* Core::overflow(const Want& want, Want* adopted) {
  for (const Pool& pool : pools.all()) {
    if (pool.index == 0 || !pool.options.use_on_oom || pool.state != PoolState::open || pool.captured ||
        pool.hibernated)
      continue;
    adopted->pool = pool.index;
    if (Block* block = search(*adopted)) return block;
  }
  return nullptr;
}

Bytes Core::allowed_bytes() const {
  return budget.limited() ? std::min(budget.limit(), info.total_bytes) : info.total_bytes;
}

void Core::deliver_and_unlock() {
  // One thread delivers at a time, in order; others leave their entries to it.
  if (delivering) return mutex.unlock();
  delivering = true;
  while (trace.has_undelivered()) {
    const std::deque<TraceEntry> entries = trace.take_undelivered();
    const std::vector<TraceTracker> trackers = trace.trackers();
    mutex.unlock();
    for (const TraceEntry& entry : entries)
      for (const TraceTracker& tracker : trackers) tracker(entry);
    mutex.lock();
  }
  delivering = false;
  mutex.unlock();
}

}  // namespace staticrt::alloc
