#include "allocator/core/trace.h"

#include <algorithm>
#include <chrono>
#include <list>
#include <unordered_map>

#include "common/tuning.h"

namespace staticrt::alloc {
namespace {

int64_t now_us() {
  using namespace std::chrono;
  return duration_cast<microseconds>(system_clock::now().time_since_epoch()).count();
}

#if !defined(__x86_64__)
}  // namespace
uint64_t Trace::slow_ticks() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}
namespace {
#endif

// Both clocks at one moment: of a few pairs of readings, the pair that was closest together.
struct Moment {
  uint64_t ticks = 0;
  int64_t us = 0;

  static Moment now() {
    Moment best;
    uint64_t least = ~uint64_t{0};
    for (int i = 0; i < 3; ++i) {
      const uint64_t before = Trace::ticks();
      const int64_t us = now_us();
      const uint64_t between = Trace::ticks() - before;
      if (between < least) best = {before + between / 2, us};
      least = std::min(least, between);
    }
    return best;
  }
};
const Moment kStart = Moment::now();

// Microseconds of ticks. Two moments, as far apart as the process is old, give the rate: one for all that is
// read at once, so that times keep the order of ticks.
class Times {
 public:
  Times() {
    const Moment now = Moment::now();
    if (now.ticks > kStart.ticks && now.us > kStart.us)
      us_per_tick_ = static_cast<double>(now.us - kStart.us) / static_cast<double>(now.ticks - kStart.ticks);
  }
  int64_t us_of(uint64_t ticks) const {
    const double passed = ticks <= kStart.ticks ? 0 : static_cast<double>(ticks - kStart.ticks);
    return kStart.us + static_cast<int64_t>(passed * us_per_tick_);
  }

 private:
  double us_per_tick_ = 0;
};

// Texts by number. Records outlive the threads that made them, so a text stays after the last thread that
// carries it; of these idle texts the latest are kept, up to a number and to bytes. Records of dropped texts
// have none.
class Texts {
 public:
  // The number of a text, kept until it has been given back as often.
  uint32_t take(const std::string& text) {
    if (text.empty()) return 0;
    const std::lock_guard lock(mutex_);
    const auto [at, fresh] = numbers_.try_emplace(text, 0);
    if (fresh) {
      while (next_ == 0 || entries_.contains(next_)) ++next_;
      at->second = next_++;
    }
    Entry& entry = entries_[at->second];
    entry.text = &at->first;
    if (!fresh && entry.holders == 0) leave_idle(entry);
    ++entry.holders;
    return at->second;
  }
  void give_back(uint32_t number) {
    if (number == 0) return;
    const std::lock_guard lock(mutex_);
    Entry& entry = entries_.at(number);
    if (--entry.holders != 0) return;
    entry.idle = idle_.insert(idle_.end(), number);
    idle_bytes_ += entry.text->size();
    while (idle_.size() > tuning::kIdleStacks || idle_bytes_ > tuning::kIdleStackBytes) forget(idle_.front());
  }
  // "" if it has been forgotten.
  std::string text(uint32_t number) {
    const std::lock_guard lock(mutex_);
    const auto at = entries_.find(number);
    return at == entries_.end() ? std::string() : *at->second.text;
  }

 private:
  struct Entry {
    const std::string* text = nullptr;  // the key in numbers_
    size_t holders = 0;
    std::list<uint32_t>::iterator idle;  // in idle_, without holders
  };
  void leave_idle(Entry& entry) {
    idle_.erase(entry.idle);
    idle_bytes_ -= entry.text->size();
  }
  void forget(uint32_t number) {
    const auto at = entries_.find(number);
    leave_idle(at->second);
    numbers_.erase(numbers_.find(*at->second.text));
    entries_.erase(at);
  }

  std::mutex mutex_;
  std::unordered_map<std::string, uint32_t> numbers_;
  std::unordered_map<uint32_t, Entry> entries_;
  std::list<uint32_t> idle_;  // the longest idle first
  size_t idle_bytes_ = 0;
  uint32_t next_ = 1;
};
Texts& texts() {
  static Texts& leaked = *new Texts;
  return leaked;
}

// The texts that a thread carries, given back at its end.
struct Carried {
  uint32_t metadata = 0, compile = 0;
  std::vector<uint32_t> outer;  // compile contexts around the innermost

  ~Carried() {
    texts().give_back(metadata);
    texts().give_back(compile);
    for (const uint32_t number : outer) texts().give_back(number);
  }
};
thread_local Carried carried;

}  // namespace

[[gnu::tls_model("initial-exec")]] constinit thread_local Trace::ThreadTexts Trace::texts_;

void set_thread_metadata(const std::string& text) {
  const uint32_t before = std::exchange(carried.metadata, texts().take(text));
  Trace::texts_.metadata = carried.metadata;
  texts().give_back(before);
}
void push_compile_context(const std::string& text) {
  carried.outer.push_back(std::exchange(carried.compile, texts().take(text)));
  Trace::texts_.compile = carried.compile;
}
void pop_compile_context() {
  if (carried.outer.empty()) return;
  texts().give_back(std::exchange(carried.compile, carried.outer.back()));
  carried.outer.pop_back();
  Trace::texts_.compile = carried.compile;
}

void Trace::configure(const HistoryOptions& options) {
  const bool keep = options.on && !options.clear;
  options_ = options;
  watching_ = options_.on || !trackers_.empty();
  rolling_ = false;
  if (!keep) return clear();
  if (ring_.size() > options_.max_entries || next_ != 0) {
    // Straighten the ring, then keep the newest.
    std::rotate(ring_.begin(), ring_.begin() + static_cast<ptrdiff_t>(next_), ring_.end());
    if (!contexts_.empty())
      std::rotate(contexts_.begin(), contexts_.begin() + static_cast<ptrdiff_t>(next_), contexts_.end());
    next_ = 0;
    const size_t drop = ring_.size() - std::min(ring_.size(), options_.max_entries);
    ring_.erase(ring_.begin(), ring_.begin() + static_cast<ptrdiff_t>(drop));
    if (!contexts_.empty())
      contexts_.erase(contexts_.begin(), contexts_.begin() + static_cast<ptrdiff_t>(drop));
  }
}

void Trace::add(Action action, Addr address, Bytes size, StreamId stream, uint32_t pool_name,
                const Context& context) {
  if (!watching_) return;
  if ((options_.skip_actions >> static_cast<int>(action)) & 1 && trackers_.empty()) return;
  const TraceRecord record{
      ticks(), address, size, stream, pool_name, Trace::texts_.metadata, Trace::texts_.compile, action};
  if (!trackers_.empty()) {
    undelivered_.push_back(entry_of(record, context));
    undelivered_.back().time_us = now_us();
    undelivered_any_ = true;
  }
  if (!options_.on || (options_.skip_actions >> static_cast<int>(action)) & 1) return;
  const bool keeps = options_.level >= ContextLevel::alloc && context != nullptr;
  if (keeps && contexts_.size() < ring_.size()) contexts_.resize(ring_.size());
  if (ring_.size() < options_.max_entries) {
    ring_.push_back(record);
    if (keeps || !contexts_.empty()) contexts_.push_back(context);
    return;
  }
  ring_[next_] = record;
  if (!contexts_.empty()) contexts_[next_] = context;
  if (++next_ == ring_.size()) next_ = 0;
  last_ = &ring_.back();
  rolling_ = trackers_.empty() && options_.skip_actions == 0 && contexts_.empty();
}

uint32_t Trace::name_pool(PoolId id) {
  if (const auto at = numbers_.find(id); at != numbers_.end()) {
    pool_names_[at->second].live = true;
    return at->second;
  }
  if (unused_names_.empty() && pool_names_.size() >= sweep_at_) sweep_pool_names();
  auto name = static_cast<uint32_t>(pool_names_.size());
  if (unused_names_.empty()) {
    pool_names_.emplace_back();
  } else {
    name = unused_names_.back();
    unused_names_.pop_back();
  }
  pool_names_[name] = {id};
  numbers_.emplace(id, name);
  return name;
}

// Names of pools that are gone and that no kept record has are given again, so that a program which makes
// pools without end holds as many names as it has pools and kept records, within a factor of two.
void Trace::sweep_pool_names() {
  std::vector<bool> used(pool_names_.size(), false);
  used[0] = true;
  for (const TraceRecord& record : ring_) used[record.pool_name] = true;
  for (size_t name = pool_names_.size(); name-- > 1;) {
    if (used[name] || pool_names_[name].live) continue;
    numbers_.erase(pool_names_[name].id);
    unused_names_.push_back(static_cast<uint32_t>(name));
  }
  // The sweep walks the history, so the next one waits until enough names were added to pay for it.
  sweep_at_ = std::max({size_t{64}, 2 * (pool_names_.size() - unused_names_.size()), ring_.size() / 16});
}

// All but the time.
TraceEntry Trace::entry_of(const TraceRecord& record, const Context& context) const {
  return {record.action,
          record.address,
          record.size,
          record.stream,
          pool_names_[record.pool_name].id,
          /*time_us=*/0,
          texts().text(record.metadata),
          texts().text(record.compile_context),
          context};
}

std::vector<TraceEntry> Trace::entries() const {
  std::vector<TraceEntry> found;
  found.reserve(ring_.size());
  const Times times;
  for (size_t i = 0; i < ring_.size(); ++i) {
    const size_t at = (next_ + i) % ring_.size();
    found.push_back(entry_of(ring_[at], at < contexts_.size() ? contexts_[at] : nullptr));
    found.back().time_us = times.us_of(ring_[at].ticks);
  }
  return found;
}

void Trace::clear() {
  rolling_ = false;
  ring_.clear();
  contexts_.clear();
  next_ = 0;
}

void Trace::annotate(const std::string& text) {
  annotations_.push_back({now_us(), text});
  while (annotations_.size() > std::max<size_t>(options_.max_entries, 1)) annotations_.pop_front();
}

void Trace::attach(TraceTracker tracker) {
  trackers_.push_back(std::move(tracker));
  watching_ = true;
  rolling_ = false;
}

}  // namespace staticrt::alloc
