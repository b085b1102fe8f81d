// An address range in cells of equal history.
//
// Thread safety: none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>

namespace staticrt::alloc {

template <class History>
class ByteCells {
 public:
  struct Cell {
    uint64_t end = 0;
    History history;
  };
  using Cells = std::map<uint64_t, Cell>;

  // Calls visit(begin, end, history) for the cells of [begin, end), in order; bytes without a history get an
  // empty one.
  template <class Visit>
  void update(uint64_t begin, uint64_t end, Visit visit) {
    split(begin);
    split(end);
    auto it = cells_.lower_bound(begin);
    for (uint64_t at = begin; at < end; ++it) {
      if (it == cells_.end() || it->first > at) {
        const uint64_t gap_end = it == cells_.end() ? end : std::min(end, it->first);
        it = cells_.emplace_hint(it, at, Cell{gap_end, {}});
      }
      visit(at, it->second.end, it->second.history);
      at = it->second.end;
    }
    merge(begin, end);
  }

  // The first cell that reaches beyond `begin`, and the end of all cells.
  Cells::const_iterator first(uint64_t begin) const {
    const auto it = cells_.upper_bound(begin);
    if (it == cells_.begin()) return it;
    const auto previous = std::prev(it);
    return previous->second.end > begin ? previous : it;
  }
  Cells::const_iterator end() const { return cells_.end(); }

  void forget(uint64_t begin, uint64_t end) {
    split(begin);
    split(end);
    cells_.erase(cells_.lower_bound(begin), cells_.lower_bound(end));
  }

  size_t size() const { return cells_.size(); }

 private:
  void split(uint64_t at) {
    auto it = cells_.upper_bound(at);
    if (it == cells_.begin()) return;
    --it;
    if (it->first == at || it->second.end <= at) return;
    Cell right = it->second;
    it->second.end = at;
    cells_.emplace(at, std::move(right));
  }

  // Neighbours of equal history become one cell again, or a long run would end in 512-byte cells.
  void merge(uint64_t begin, uint64_t end) {
    auto it = cells_.lower_bound(begin);
    if (it != cells_.begin()) --it;
    while (it != cells_.end() && it->first < end) {
      const auto next = std::next(it);
      if (next == cells_.end()) break;
      if (it->second.end == next->first && it->second.history == next->second.history) {
        it->second.end = next->second.end;
        cells_.erase(next);
      } else {
        it = next;
      }
    }
  }

  Cells cells_;
};

}  // namespace staticrt::alloc
