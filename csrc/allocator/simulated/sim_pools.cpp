// SimOracle, third part: allocations in pools of graphs, which end and begin again without an allocator.
#include <iterator>

#include "allocator/simulated/sim_oracle.h"

namespace staticrt::alloc {

void SimOracle::insert(Addr address, const Live& live) {
  give_again(address, address + live.size_bytes);
  live_[address] = live;
  live_owners_[live.owner] = address;
}

void SimOracle::end(std::map<Addr, Live>::iterator it) {
  const auto& [address, live] = *it;
  freed_[address] = {address + live.size_bytes, address, live.size_bytes, live.owner};
  if (live.reusable) reusable_[{address, live.size_bytes}] = live.owner;
  live_owners_.erase(live.owner);
  live_.erase(it);
}

const std::pair<const Addr, SimOracle::Live>* SimOracle::end_lent(Addr begin, Addr end_of,
                                                                  const SimGraph* keeps) {
  auto it = live_.lower_bound(begin);
  if (it != live_.begin() && std::prev(it)->first + std::prev(it)->second.size_bytes > begin)
    it = std::prev(it);
  const std::pair<const Addr, Live>* other = nullptr;
  while (it != live_.end() && it->first < end_of) {
    const auto next = std::next(it);
    if (!keeps || !keeps->owns(it->second.owner)) {
      if (it->second.lent)
        end(it);
      else if (!other)
        other = &*it;
    }
    it = next;
  }
  return other;
}

const SimOracle::Live* SimOracle::lend_again(Addr address, Bytes size_bytes) {
  for (auto it = reusable_.upper_bound({address, ~Bytes{0}}); it != reusable_.begin();) {
    --it;
    const auto [first, size] = it->first;
    if (address - first > size || size_bytes > size - (address - first)) continue;
    if (end_lent(first, first + size, nullptr)) continue;
    Live live{size, it->second, StreamId{0}};
    live.reusable = live.lent = true;
    insert(first, live);
    return &live_.at(first);
  }
  return nullptr;
}

void SimOracle::restored(const std::vector<SimPlace>& gone, const std::vector<SimPlace>& there,
                         StreamId stream) {
  for (const SimPlace& place : gone)
    if (const auto it = live_.find(place.address); it != live_.end()) end(it);
  for (const SimPlace& place : there) {
    const auto it = live_.find(place.address);
    if (it != live_.end() && it->second.size_bytes == place.size_bytes) {
      it->second.lent = false;
      continue;
    }
    end_lent(place.address, place.address + place.size_bytes, nullptr);
    insert(place.address, {place.size_bytes, ++streams_.clocks().allocations, stream});
  }
}

}  // namespace staticrt::alloc
