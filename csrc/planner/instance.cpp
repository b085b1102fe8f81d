#include "planner/instance.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "common/bits.h"

namespace staticrt::planner {
namespace {

using detail::concat;

std::string describe(size_t id, const Spec& s) {
  return concat("spec ", id, ": begin=", s.begin, ", end=", s.end, ", size_bytes=", s.size_bytes);
}

void check(std::span<const Spec> specs, int64_t alignment) {
  if (alignment <= 0 || !is_power_of_two(static_cast<uint64_t>(alignment)))
    throw PlanError(concat("alignment ", alignment, " is not a power of two"), "alignment",
                    "give 1, 2, 4, … bytes; 64 suits vector kernels");
  if (specs.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max() / 4))
    throw PlanError(concat(specs.size(), " specs are more than a plan holds"), "specs", "plan them in parts");
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  int64_t total = 0;
  for (size_t i = 0; i < specs.size(); ++i) {
    const Spec& s = specs[i];
    if (s.begin >= s.end)
      throw PlanError(concat("live range [", s.begin, ", ", s.end, ") is empty"), describe(i, s),
                      "give end = index of the last use + 1");
    if (s.size_bytes < 0)
      throw PlanError(concat("size of ", s.size_bytes, " bytes is negative"), describe(i, s),
                      "give a size of at least 0 bytes");
    if (s.size_bytes > kMax - (alignment - 1) || rounded_size(s, alignment) > kMax - total)
      throw PlanError(concat("sizes up to this spec sum to more than ", kMax, " bytes"), describe(i, s),
                      "check the sizes: no arena can hold them");
    total += rounded_size(s, alignment);
  }
}

struct Event {
  int64_t time;
  int32_t starts;  // 0: ends. Ends come first at equal times: ranges are half-open.
  int32_t item;
};

// Sweeps the events in order; a section is closed wherever an end follows a start.
template <class Items>
int32_t sweep(std::vector<Event>& events, Items& items) {
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    if (a.time != b.time) return a.time < b.time;
    if (a.starts != b.starts) return a.starts < b.starts;
    return a.item < b.item;
  });
  int32_t closed = 0;
  bool started = false;
  for (const Event& event : events) {
    if (event.starts) {
      items[event.item].first = closed;
      started = true;
    } else {
      if (started) ++closed;
      started = false;
      items[event.item].last = closed;
    }
  }
  return closed;
}

}  // namespace

std::vector<int64_t> section_loads(std::span<const Item> items, int32_t sections) {
  std::vector<int64_t> load(static_cast<size_t>(sections) + 1, 0);
  for (const Item& item : items) {
    load[item.first] += item.size;
    load[item.last] -= item.size;
  }
  std::partial_sum(load.begin(), load.end(), load.begin());
  load.pop_back();
  return load;
}

int32_t compress(std::span<Item> items) {
  std::vector<Event> events;
  events.reserve(2 * items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    events.push_back({items[i].first, 1, static_cast<int32_t>(i)});
    events.push_back({items[i].last, 0, static_cast<int32_t>(i)});
  }
  return sweep(events, items);
}

Instance make_instance(std::span<const Spec> specs, int64_t alignment) {
  check(specs, alignment);
  Instance instance;
  std::vector<Event> events;
  events.reserve(2 * specs.size());
  int64_t unit = 0;
  for (size_t i = 0; i < specs.size(); ++i) {
    const int64_t size = rounded_size(specs[i], alignment);
    if (size == 0) continue;
    unit = std::gcd(unit, size);
    const int32_t item = static_cast<int32_t>(instance.items.size());
    instance.items.push_back({0, 0, size});
    instance.ids.push_back(static_cast<int32_t>(i));
    events.push_back({specs[i].begin, 1, item});
    events.push_back({specs[i].end, 0, item});
  }
  if (instance.items.empty()) return instance;
  instance.unit = unit;
  for (Item& item : instance.items) item.size /= unit;
  const int32_t sections = sweep(events, instance.items);
  instance.load = section_loads(instance.items, sections);
  instance.lower_bound = *std::max_element(instance.load.begin(), instance.load.end());
  return instance;
}

}  // namespace staticrt::planner
