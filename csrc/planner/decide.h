// Is there a plan of at most this height? Simplification, decomposition, then search with restarts.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "planner/conflicts.h"
#include "planner/greedy.h"
#include "planner/instance.h"
#include "planner/terrain.h"

namespace staticrt::planner {

class Decision {
 public:
  // REQUIRES: every size <= capacity (units); `conflicts` are those of `instance`. Both must outlive this.
  Decision(const Instance& instance, const Conflicts& conflicts, int64_t capacity);

  // Continues the search for at most `budget` more steps. kFits and kRefuted are final.
  Verdict run(int64_t budget);

  // Offsets of all items in units. REQUIRES: run() said kFits.
  const Layout& layout() const { return layout_; }
  int64_t steps() const { return steps_; }

 private:
  // Items that no unplaced neighbour ties to others: a problem of its own.
  struct Component {
    std::vector<int32_t> items;  // of the instance
    std::unique_ptr<Terrain> valleys, ordered;
    int64_t restarts = 0;
  };

  Verdict restart(Component& component, int64_t most);
  void assemble();

  const Instance& instance_;
  const Conflicts& conflicts_;
  const int64_t capacity_;
  std::vector<int64_t> sizes_;
  std::vector<int32_t> aside_;
  std::vector<Component> components_;  // not decided yet
  Verdict verdict_ = Verdict::kUndecided;
  Layout layout_;
  int64_t steps_ = 0;
};

}  // namespace staticrt::planner
