// The prepared programs of one executable: least recently used go first.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "runtime/execution_plan/prepared.h"

namespace staticrt {

struct CacheCounters {
  int64_t hits = 0;
  int64_t misses = 0;
  int64_t prepared = 0;
  int64_t evicted = 0;
  int64_t diverged = 0;  // runs whose results were not as recorded
};

// Thread safety: all operations. The counters of hits are the frames' own.
class PreparedCache {
 public:
  explicit PreparedCache(size_t capacity) : capacity_(capacity) {}

  // By default 64, and up to 256 small programs that together have no more nodes than 64 programs of 512.
  // Text that grows token by token has as many sizes as tokens.
  static size_t capacity_for(std::optional<int64_t> wanted, size_t num_nodes);

  // The program for these inputs, which becomes the most recently used, or null.
  // is_only_asked: null counts as no miss.
  std::shared_ptr<const PreparedProgram> find(std::span<const InputView> inputs, int num_threads,
                                              bool is_only_asked = false);

  // The same question, which counts as no call.
  bool has(std::span<const InputView> inputs, int num_threads) const;

  // Whether a program of this signature was taken out by reject().
  bool was_rejected(const Signature& signature) const;

  // Whether a miss on this signature should be prepared. The first at once. Preparing costs more than a call
  // on the general path, so others only when they come again: sizes that come once cost no preparation and
  // no measuring. And only if seen lately or there is room: more sizes than fit do not evict each other in
  // turn.
  bool worth_preparing(const Signature& signature);

  // Adds a program, unless another thread added one for this signature; returns the one in the cache.
  std::shared_ptr<const PreparedProgram> publish(std::shared_ptr<const PreparedProgram> program,
                                                 std::span<const InputView> inputs);
  // Takes a program out: its record does not hold. It is not prepared again.
  void reject(const PreparedProgram& program);

  // Takes all programs out, and forgets which signatures were seen or rejected.
  void clear();

  // Changes when a program leaves; frames then drop what the cache no longer holds.
  uint64_t epoch() const;
  bool holds(const PreparedProgram& program) const;
  CacheCounters counters() const;
  std::vector<std::shared_ptr<const PreparedProgram>> programs() const;

 private:
  mutable std::mutex mutex_;
  const size_t capacity_;
  std::vector<std::shared_ptr<const PreparedProgram>> programs_;  // most recently used last
  std::deque<uint64_t> seen_;                                     // hashes of recent misses
  std::vector<uint64_t> rejected_;                                // hashes of signatures that diverged
  uint64_t epoch_ = 0;
  CacheCounters counters_;
};

}  // namespace staticrt
