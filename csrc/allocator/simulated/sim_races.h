// Data races of a program within live allocations: reads and writes of the same bytes that nothing orders.
//
// SimOracle's AccessMap tells whether an allocator reused bytes too early; it does not distinguish reads from
// writes. Here each cell of equal history has its last write and, per stream, the last read since. Two
// accesses race if one of them writes and the later one's clock does not include the earlier one (Flanagan
// and Freund, FastTrack, PLDI 2009). Two reads never do.
//
// Thread safety: none. SimDriver holds its mutex around every call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "allocator/core/types.h"
#include "allocator/simulated/byte_cells.h"
#include "allocator/simulated/vector_clock.h"
#include "common/tuning.h"

namespace staticrt::alloc {

// Bytes that a piece of work uses: one range, or equal runs at fixed distances, as views of tensors lie.
struct SimRange {
  struct Step {
    uint64_t count = 1;
    Bytes stride_bytes = 0;
    bool operator==(const Step&) const = default;
  };
  Addr address = kNullAddr;
  Bytes size_bytes = 0;  // from the first byte to past the last one
  bool writes = true;    // it may read them besides
  Bytes run_bytes = 0;   // of one run; 0: all bytes are one
  std::vector<Step> steps = {};

  // Calls visit(begin, end) for the runs, in any order. At most tuning::kMaxSimRuns, so that a view of very
  // many is followed in part: races may be missed then, but no false one is reported.
  template <class Visit>
  void runs(Visit visit) const {
    if (run_bytes == 0) {
      if (size_bytes > 0) visit(address, address + size_bytes);
      return;
    }
    std::vector<uint64_t> at(steps.size(), 0);
    Addr begin = address;
    for (uint64_t done = 0; done < tuning::kMaxSimRuns; ++done) {
      visit(begin, begin + run_bytes);
      size_t step = steps.size();
      for (; step > 0; --step) {
        begin += steps[step - 1].stride_bytes;
        if (++at[step - 1] < steps[step - 1].count) break;
        begin -= steps[step - 1].stride_bytes * steps[step - 1].count;
        at[step - 1] = 0;
      }
      if (step == 0) return;
    }
  }
};

class RaceMap {
 public:
  struct Access {
    size_t slot = 0;  // of the stream
    uint64_t operation = 0;
    const std::string* name = nullptr;  // lives as long as the map
    bool writes = false;
    friend bool operator==(const Access& a, const Access& b) {
      return a.slot == b.slot && a.operation == b.operation && a.writes == b.writes;
    }
  };
  struct Conflict {
    Addr begin = 0, end = 0;
    Access earlier;
  };

  // Adds an access whose clock is `clock`; the first earlier one that it races with. `known`: what every
  // later access is ordered after anyway; history below it is dropped.
  std::optional<Conflict> access(Addr begin, Addr end, const Access& access, const VectorClock& clock,
                                 const VectorClock& known);
  // The bytes have another owner from now on.
  void forget(Addr begin, Addr end) { cells_.forget(begin, end); }
  size_t cell_count() const { return cells_.size(); }

 private:
  struct History {
    std::optional<Access> write;
    std::vector<Access> reads;
    bool operator==(const History&) const = default;
  };

  ByteCells<History> cells_;
};

}  // namespace staticrt::alloc
