// Trace: a ring of 48-byte records of what the allocator did (I4 to I7, N9), and trackers that see all.
//
// Contexts (stack traces, for example) are opaque here: a caller's function makes them outside all locks.
// Times are raw ticks, turned into microseconds when read.
//
// Thread safety: add() under the core mutex; dispatch() and the text functions need no lock.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "allocator/core/types.h"

namespace staticrt::alloc {

enum class Action : uint8_t {
  alloc,
  free_requested,
  free_completed,
  segment_alloc,
  segment_free,
  segment_map,
  segment_unmap,
  snapshot,
  oom,
};
constexpr const char* name_of(Action action) {
  constexpr const char* names[] = {"alloc",         "free_requested", "free_completed",
                                   "segment_alloc", "segment_free",   "segment_map",
                                   "segment_unmap", "snapshot",       "oom"};
  return names[static_cast<int>(action)];
}

// What of a history keeps its context: nothing; live blocks; also allocations; also frees.
enum class ContextLevel : uint8_t { never, state, alloc, all };

using Context = std::shared_ptr<const void>;
using ContextFunction = std::function<Context()>;

struct TraceRecord {
  uint64_t ticks = 0;
  Addr address = kNullAddr;  // oom: free bytes of the device
  Bytes size = 0;
  StreamId stream{};
  uint32_t pool_name = 0;        // see Trace::pool_name
  uint32_t metadata = 0;         // see text_of
  uint32_t compile_context = 0;  // see text_of
  Action action = Action::alloc;
};
static_assert(sizeof(TraceRecord) == 48);

// A record as readers and trackers get it.
struct TraceEntry {
  Action action = Action::alloc;
  Addr address = kNullAddr;
  Bytes size = 0;
  StreamId stream{};
  PoolId pool;
  int64_t time_us = 0;  // since the epoch
  std::string metadata, compile_context;
  Context context;
};
using TraceTracker = std::function<void(const TraceEntry&)>;

struct HistoryOptions {
  bool on = false;
  ContextFunction context = {};  // may be empty
  size_t max_entries = 1;        // at least 1
  ContextLevel level = ContextLevel::never;
  bool clear = true;
  uint32_t skip_actions = 0;  // bit per Action
};

// Annotations by the user (I7).
struct Annotation {
  int64_t time_us = 0;
  std::string text;
};

// Texts carried by records made by this thread from now on (N9); "" is none.
void set_thread_metadata(const std::string& text);
void push_compile_context(const std::string& text);
void pop_compile_context();

class Trace {
 public:
  // REQUIRES: options.max_entries >= 1.
  void configure(const HistoryOptions& options);
  // True if add() has any effect: history or a tracker. One load on the hot path.
  bool watching() const { return watching_; }
  bool history() const { return options_.on; }
  ContextLevel level() const { return options_.on ? options_.level : ContextLevel::never; }
  const ContextFunction& context_function() const { return options_.context; }

  void add(Action action, Addr address, Bytes size, StreamId stream, uint32_t pool_name) {
    // A full ring without trackers, contexts or skipped actions: one record goes over the oldest.
    if (rolling_) [[likely]] {
      TraceRecord* record = &ring_[next_];
      next_ = record == last_ ? 0 : next_ + 1;
      *record = {ticks(), address, size, stream, pool_name, texts_.metadata, texts_.compile, action};
      return;
    }
    add(action, address, size, stream, pool_name, nullptr);
  }
  void add(Action action, Addr address, Bytes size, StreamId stream, uint32_t pool_name,
           const Context& context);
  // A number for a pool in records; it stays until forget_pool and while a kept record has it.
  uint32_t name_pool(PoolId id);
  void forget_pool(uint32_t name) { pool_names_[name].live = false; }
  size_t pool_names() const { return pool_names_.size(); }

  // Oldest first.
  std::vector<TraceEntry> entries() const;
  void clear();

  void annotate(const std::string& text);
  std::vector<Annotation> annotations() const { return {annotations_.begin(), annotations_.end()}; }

  void attach(TraceTracker tracker);
  // Entries added since, for dispatch outside the core mutex; see Core::Lock.
  bool has_undelivered() const { return undelivered_any_; }
  std::deque<TraceEntry> take_undelivered() {
    undelivered_any_ = false;
    return std::exchange(undelivered_, {});
  }
  const std::vector<TraceTracker>& trackers() const { return trackers_; }

  static uint64_t ticks() {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return slow_ticks();
#endif
  }

 private:
  static uint64_t slow_ticks();
  // Numbers of the texts that this thread's records carry.
  struct ThreadTexts {
    uint32_t metadata = 0, compile = 0;
  };
  friend void set_thread_metadata(const std::string& text);
  friend void push_compile_context(const std::string& text);
  friend void pop_compile_context();
  // initial-exec: one load, also in a shared library.
  [[gnu::tls_model("initial-exec")]] static constinit thread_local ThreadTexts texts_;

  TraceEntry entry_of(const TraceRecord& record, const Context& context) const;

  HistoryOptions options_;
  bool watching_ = false;
  bool rolling_ = false;               // see add()
  const TraceRecord* last_ = nullptr;  // of the ring, while rolling_
  std::vector<TraceRecord> ring_;
  std::vector<Context> contexts_;  // beside ring_ if the level keeps any
  size_t next_ = 0;                // where the next record goes once the ring is full
  std::deque<Annotation> annotations_;
  struct PoolName {
    PoolId id;
    bool live = true;  // the pool exists
  };
  void sweep_pool_names();
  std::vector<PoolName> pool_names_{{kDefaultPool}};
  std::unordered_map<PoolId, uint32_t, PoolIdHash> numbers_{{kDefaultPool, 0}};
  std::vector<uint32_t> unused_names_;
  size_t sweep_at_ = 64;  // names there are when unused ones are next looked for
  std::vector<TraceTracker> trackers_;
  std::deque<TraceEntry> undelivered_;
  bool undelivered_any_ = false;
};

}  // namespace staticrt::alloc
