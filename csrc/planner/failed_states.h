// States of a search that are known to fail: found by hash, and confirmed by comparing the whole state.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace staticrt::planner {

class FailedStates {
 public:
  explicit FailedStates(size_t most_words) : most_words_(most_words) {}

  // If the state is known to fail, gives the reason kept with it.
  bool contains(uint64_t hash, std::span<const int64_t> state, std::span<uint64_t> reason) const {
    const auto found = last_.find(hash);
    if (found == last_.end()) return false;
    const Entry& entry = entries_[found->second];
    const auto words = words_.begin() + static_cast<int64_t>(entry.start);
    if (entry.count != state.size() || !std::equal(state.begin(), state.end(), words)) return false;
    std::copy_n(words + static_cast<int64_t>(entry.count), reason.size(), reason.begin());
    return true;
  }

  // Keeps one state per hash, the latest; forgets all when full. All reasons have the same size.
  void insert(uint64_t hash, std::span<const int64_t> state, std::span<const uint64_t> reason) {
    if (words_.size() + state.size() + reason.size() > most_words_) {
      words_.clear();
      entries_.clear();
      last_.clear();
    }
    last_[hash] = entries_.size();
    entries_.push_back({words_.size(), state.size()});
    words_.insert(words_.end(), state.begin(), state.end());
    words_.insert(words_.end(), reason.begin(), reason.end());
  }

 private:
  struct Entry {
    size_t start, count;
  };
  const size_t most_words_;
  std::unordered_map<uint64_t, size_t> last_;  // only looked up, never walked: no order depends on it
  std::vector<Entry> entries_;
  std::vector<int64_t> words_;
};

}  // namespace staticrt::planner
