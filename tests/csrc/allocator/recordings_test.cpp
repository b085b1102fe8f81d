// Differential: compat mode against recordings of torch's own CUDA caching allocator (recordings/*.txt).
//
// The recordings are torch 2.13's libc10_cuda.so at work on a CUDA runtime without a device;
// recordings/record.py makes them anew. Each line is a step and the statistics it moved; ours must give the
// same addresses, refuse the same requests, and move the same statistics.
#include <dirent.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "allocator/device_fixture.h"

namespace staticrt::test {
namespace {

constexpr Bytes kUnit = 512;  // of addresses and sizes in recordings

struct Recording {
  std::string name, config;
  Bytes total_bytes = 0;
  std::vector<std::string> steps;
};

Recording read(const std::string& path) {
  Recording recording{path, {}, 0, {}};
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("# config: ", 0) == 0) {
      recording.config = line.substr(10);
    } else if (line.rfind("# total MiB: ", 0) == 0) {
      recording.total_bytes = std::stoull(line.substr(13)) * MiB;
    } else if (!line.empty() && line[0] != '#') {
      recording.steps.push_back(line);
    }
  }
  EXPECT(recording.total_bytes > 0 && !recording.steps.empty());
  return recording;
}

std::vector<std::string> files() {
  const std::string folder = STATICRT_RECORDINGS;
  std::vector<std::string> found;
  DIR* opened = opendir(folder.c_str());
  EXPECT(opened != nullptr);
  while (const dirent* entry = readdir(opened)) {
    const std::string name = entry->d_name;
    if (name.size() > 4 && name.substr(name.size() - 4) == ".txt") found.push_back(folder + "/" + name);
  }
  closedir(opened);
  std::sort(found.begin(), found.end());
  return found;
}

class Player {
 public:
  explicit Player(const Recording& recording)
      : device_(recording.total_bytes, compat(recording.config), unbacked()),
        streams_{kDefaultStream, device_.sim().create_stream()} {}

  // What the step gives, as recordings write it: where an allocation is.
  std::string play(const std::string& kind, std::istringstream& words) {
    int number = 0;
    if (kind != "e" && kind != "c" && kind != "g") words >> number;
    const PoolId pool{0, static_cast<uint64_t>(number)};
    if (kind == "a") {
      size_t stream = 0;
      Bytes bytes = 0;
      words >> stream >> bytes;
      const Addr address = device_.try_alloc(bytes, streams_[stream]);
      if (address == kNullAddr) return "oom";
      live_[number] = address;
      return where(address);
    }
    if (kind == "f") {
      device_.free(live_.at(number));
      live_.erase(number);
    } else if (kind == "u") {
      size_t stream = 0;
      words >> stream;
      device_.use(live_.at(number), streams_[stream]);
    } else if (kind == "w") {
      device_.sim().enqueue(streams_[static_cast<size_t>(number)]);
    } else if (kind == "d") {
      device_.sim().advance(streams_[static_cast<size_t>(number)], UINT64_MAX);
    } else if (kind == "e") {
      device_.empty_cache();
    } else if (kind == "p") {
      routed_ = pool;
      device_.expect_ok(device_.pools().begin_route(pool));
    } else if (kind == "q") {
      device_.expect_ok(device_.pools().end_route(pool));
    } else if (kind == "x") {
      device_.expect_ok(device_.pools().release(pool));
    } else if (kind == "c") {
      device_.expect_ok(device_.pools().begin_capture(routed_, &token_));
      device_.expect_ok(device_.sim().capture_begin(streams_[1]));
    } else if (kind == "g") {
      GraphId graph = kNoGraph;
      device_.expect_ok(device_.sim().capture_end(streams_[1], &graph));
      device_.expect_ok(device_.pools().end_capture(token_, true));
    } else {
      fail(__FILE__, __LINE__, "a step of no known kind: " + kind);
    }
    return "";
  }

  std::map<char, int64_t> statistics() {
    const auto units = [&](Gauge gauge) { return device_.current(gauge) / static_cast<int64_t>(kUnit); };
    const Counters counters = device_.counters();
    return {{'R', units(Gauge::reserved_bytes)},
            {'A', units(Gauge::allocated_bytes)},
            {'B', units(Gauge::active_bytes)},
            {'I', units(Gauge::inactive_split_bytes)},
            {'D', device_.current(Gauge::requested_bytes)},
            {'S', device_.current(Gauge::segment)},
            {'T', counters.alloc_retries},
            {'O', counters.ooms}};
  }
  void finish() {
    for (const auto& [number, address] : live_) device_.free(address);
  }

 private:
  static std::string compat(const std::string& config) {
    return config.empty() ? "mode:compat" : "mode:compat," + config;
  }
  static SimConfig unbacked() {
    SimConfig config;
    config.backed = false;
    config.fresh_addresses = true;  // older segments have lower addresses
    config.va_bytes = 64 * 1024 * kGiB;
    return config;
  }
  // SEGMENT+OFFSET, segments numbered as they appear.
  std::string where(Addr address) {
    Core& core = device_.allocator().core();
    const Addr base = core.segments[core.pages.segment_of(address)].base;
    bases_.emplace(base, bases_.size());
    return std::to_string(bases_.at(base)) + "+" + std::to_string((address - base) / kUnit);
  }

  Device device_;
  const StreamId streams_[2];
  std::map<int, Addr> live_;
  std::map<Addr, size_t> bases_;
  PoolId routed_{};
  uint64_t token_ = 0;
};

void play(const Recording& recording) {
  Player player(recording);
  std::map<char, int64_t> want = player.statistics();
  for (const auto& [name, value] : want) EXPECT_EQ(value, 0);
  int at = 0;
  for (const std::string& step : recording.steps) {
    ++at;
    const std::string where = recording.name + ", step " + std::to_string(at) + " (" + step + "): ";
    std::istringstream words(step);
    std::string kind, word;
    words >> kind;
    const std::string got = player.play(kind, words);
    if (!got.empty()) {
      words >> word;
      if (word != got) fail(__FILE__, __LINE__, where + "ours gave " + got);
    }
    // At the bounds of a capture ours looks for work that has ended, torch in the request after it.
    if (kind == "c" || kind == "g") continue;
    while (words >> word) want.at(word[0]) = std::stoll(word.substr(1));
    for (const auto& [name, value] : player.statistics())
      if (value != want[name])
        fail(__FILE__, __LINE__,
             where + name + " is " + std::to_string(value) + ", torch's " + std::to_string(want[name]));
  }
  player.finish();
}

}  // namespace

TEST(Compat_mode_gives_what_torch_gave_in_recordings) {
  const std::vector<std::string> found = files();
  EXPECT_EQ(found.size(), 19u);
  for (const std::string& path : found) play(read(path));
}

}  // namespace staticrt::test
