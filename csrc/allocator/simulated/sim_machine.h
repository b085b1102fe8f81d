// What simulated devices of one machine have in common: a lock, the numbering of streams, and which device
// reaches the memory of which.
//
// Thread safety: the mutex. The devices hold it around every call.
#pragma once

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "allocator/simulated/sim_streams.h"

namespace staticrt::alloc {

class SimDriver;

struct SimMachine {
  std::recursive_mutex mutex;
  SimClocks clocks;
  std::map<int, SimDriver*> devices;               // alive, by index
  std::set<std::pair<int, int>> unreachable = {};  // pairs without a way between them, the lower index first

  bool reaches(int device, int other) const { return unreachable.count(std::minmax(device, other)) == 0; }
};

}  // namespace staticrt::alloc
