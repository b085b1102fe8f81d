#include "runtime/execution_plan/prepared_cache.h"

#include <algorithm>

#include "common/tuning.h"

namespace staticrt {
size_t PreparedCache::capacity_for(std::optional<int64_t> wanted, size_t num_nodes) {
  if (wanted) return static_cast<size_t>(std::max<int64_t>(1, *wanted));
  return std::clamp<size_t>(tuning::kPreparedNodes / std::max<size_t>(1, num_nodes), 64, 256);
}

std::shared_ptr<const PreparedProgram> PreparedCache::find(std::span<const InputView> inputs, int num_threads,
                                                           bool is_only_asked) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = programs_.size(); i-- > 0;) {
    if (!programs_[i]->signature().matches(inputs, num_threads)) continue;
    std::rotate(programs_.begin() + static_cast<ptrdiff_t>(i),
                programs_.begin() + static_cast<ptrdiff_t>(i) + 1, programs_.end());
    ++counters_.hits;
    return programs_.back();
  }
  if (is_only_asked) return nullptr;
  ++counters_.misses;
  return nullptr;
}

bool PreparedCache::has(std::span<const InputView> inputs, int num_threads) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(programs_.begin(), programs_.end(),
                     [&](const auto& program) { return program->signature().matches(inputs, num_threads); });
}

bool PreparedCache::was_rejected(const Signature& signature) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::find(rejected_.begin(), rejected_.end(), signature.hash()) != rejected_.end();
}

bool PreparedCache::worth_preparing(const Signature& signature) {
  if (was_rejected(signature)) return false;
  const std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t hash = signature.hash();
  const auto found = std::find(seen_.begin(), seen_.end(), hash);
  const bool seen = found != seen_.end();
  const bool lately = seen_.end() - found <= tuning::kPreparedPatience;
  if (seen) seen_.erase(found);
  seen_.push_back(hash);
  if (seen_.size() > tuning::kRememberedMisses) seen_.pop_front();
  return programs_.empty() || (seen && (lately || programs_.size() < capacity_));
}

std::shared_ptr<const PreparedProgram> PreparedCache::publish(std::shared_ptr<const PreparedProgram> program,
                                                              std::span<const InputView> inputs) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& other : programs_) {
    if (other->signature().matches(inputs, program->signature().num_threads())) return other;
  }
  programs_.push_back(program);
  ++counters_.prepared;
  if (programs_.size() > capacity_) {
    programs_.erase(programs_.begin());
    ++counters_.evicted;
    ++epoch_;
  }
  return program;
}

void PreparedCache::reject(const PreparedProgram& program) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++counters_.diverged;
  const auto found = std::find_if(programs_.begin(), programs_.end(),
                                  [&](const auto& other) { return other.get() == &program; });
  if (found == programs_.end()) return;
  programs_.erase(found);
  ++epoch_;
  rejected_.push_back(program.signature().hash());
  if (rejected_.size() > tuning::kRememberedMisses) rejected_.erase(rejected_.begin());
}

void PreparedCache::clear() {
  std::vector<std::shared_ptr<const PreparedProgram>> programs;  // destroyed after the lock is gone
  const std::lock_guard<std::mutex> lock(mutex_);
  programs.swap(programs_);
  seen_.clear();
  rejected_.clear();
  ++epoch_;
}

uint64_t PreparedCache::epoch() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return epoch_;
}

bool PreparedCache::holds(const PreparedProgram& program) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(programs_.begin(), programs_.end(),
                     [&](const auto& other) { return other.get() == &program; });
}

CacheCounters PreparedCache::counters() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return counters_;
}

std::vector<std::shared_ptr<const PreparedProgram>> PreparedCache::programs() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return programs_;
}

}  // namespace staticrt
