#include "kernels/registry/autotuning.h"

#include <ATen/Version.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <map>
#include <mutex>
#include <utility>

namespace staticrt {
namespace {

struct Choices {
  std::mutex deciding;
  std::mutex mutex;  // of `kept`
  std::map<std::pair<std::string, std::vector<int64_t>>, int64_t> kept;
};

Choices& choices() {
  static Choices all;
  return all;
}

// Of the first processor, as Linux names it; empty elsewhere.
std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(": ");
    return colon == std::string::npos ? "" : line.substr(colon + 2);
  }
  return "";
}

}  // namespace

int64_t measuring_clock_ns(int num_threads) {
#ifdef CLOCK_THREAD_CPUTIME_ID
  timespec t{};
  if (num_threads == 1 && clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0)
    return t.tv_sec * 1'000'000'000 + t.tv_nsec;
#endif
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

std::vector<double> least_ns(const std::vector<std::function<void()>>& ways, int num_threads,
                             int64_t most_ns) {
  std::vector<double> least(ways.size(), 1e300);
  std::vector<int64_t> repeat(ways.size(), 1), left(ways.size());
  const auto run = [&](size_t i) {
    const int64_t start = measuring_clock_ns(num_threads);
    for (int64_t r = 0; r < repeat[i]; ++r) ways[i]();
    const int64_t took = std::max<int64_t>(measuring_clock_ns(num_threads) - start, 1);
    least[i] = std::min(least[i], static_cast<double>(took) / static_cast<double>(repeat[i]));
    left[i] -= took;
    return took;
  };
  for (size_t i = 0; i < ways.size(); ++i) {
    ways[i]();  // not counted: caches, threads
    const int64_t once = run(i);
    repeat[i] = std::clamp<int64_t>(20'000 / once, 1, 200);  // 20 µs a batch
    left[i] = std::clamp<int64_t>(5 * once, 120'000, most_ns);
  }
  constexpr double kHopeless = 2;  // times the fastest way's time: not measured further
  for (bool any = true, is_first = true; any; is_first = false) {
    any = false;
    const double fastest = *std::min_element(least.begin(), least.end());
    for (size_t i = 0; i < ways.size(); ++i) {
      if (left[i] <= 0 || (!is_first && least[i] > kHopeless * fastest)) continue;
      run(i);
      any = true;
    }
  }
  return least;
}

RouteChoice choose_route(std::string kind, std::vector<int64_t> key,
                         const std::function<bool(int64_t choice)>& fits,
                         const std::function<int64_t()>& decide) {
  Choices& all = choices();
  const std::lock_guard<std::mutex> alone(all.deciding);
  const std::pair<std::string, std::vector<int64_t>> name{kind, key};
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = all.kept.find(name);
    if (found != all.kept.end() && fits(found->second))
      return {std::move(kind), std::move(key), found->second};
  }
  const int64_t choice = decide();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.kept[name] = choice;
  return {std::move(kind), std::move(key), choice};
}

std::vector<RouteChoice> route_choices() {
  Choices& all = choices();
  const std::lock_guard<std::mutex> lock(all.mutex);
  std::vector<RouteChoice> found;
  for (const auto& [name, choice] : all.kept) found.push_back({name.first, name.second, choice});
  return found;
}

void pin_routes(const std::vector<RouteChoice>& pinned, bool over) {
  Choices& all = choices();
  const std::lock_guard<std::mutex> lock(all.mutex);
  for (const RouteChoice& c : pinned) {
    const auto [at, is_new] = all.kept.try_emplace({c.kind, c.key}, c.choice);
    if (over && !is_new) at->second = c.choice;
  }
}

const std::string& machine_name() {
  static const std::string name = at::get_cpu_capability() + ", " + processor();
  return name;
}

}  // namespace staticrt
