// The exhaustive small model: every program of up to 6 operations over 2 streams and 2 sizes on a device that
// holds 2 large blocks. Operations: allocate (4 kinds), free the oldest or the newest block, use the newest
// on the other stream, complete one piece of work of a stream; so every order of completions is among them.
#include <cstdlib>
#include <iostream>

#include "allocator/device_fixture.h"

namespace staticrt::test {
namespace {

constexpr int kOps = 9;

class Program {
 public:
  explicit Program(const char* mode)
      : device_(24 * kMiB, mode, config()), streams_{kDefaultStream, device_.sim().create_stream()} {}

  // Plays the operation; false if it would do nothing here, or the same as an operation of a lower number.
  bool play(int op) {
    if (op < 4) return allocate(op % 2 == 0 ? 12 * kMiB : 2 * kMiB, op / 2);
    if (op < 6) return release(op == 4 ? 0 : live_.size() - 1, op);
    if (op == 6) return use();
    return device_.sim().advance(streams_[op - 7]) != 0;
  }
  void check() { device_.check(); }

 private:
  static SimConfig config() {
    SimConfig config;
    config.backed = false;
    return config;
  }
  bool allocate(Bytes bytes, int stream) {
    Addr address = kNullAddr;
    const Status status = device_.allocator().allocate({bytes, streams_[stream]}, &address);
    if (!status.ok() && !status.oom()) fail(__FILE__, __LINE__, status.describe());
    if (!status.ok()) return true;
    device_.sim().allocated(address, bytes, streams_[stream]);
    device_.sim().touch(streams_[stream], address, bytes);
    live_.emplace_back(address, stream);
    return true;
  }
  bool release(size_t index, int op) {
    if (live_.empty() || (op == 5 && live_.size() == 1)) return false;
    device_.sim().freed(live_[index].first);
    const Status status = device_.allocator().release(live_[index].first);
    if (!status.ok()) fail(__FILE__, __LINE__, status.describe());
    live_.erase(live_.begin() + static_cast<ptrdiff_t>(index));
    return true;
  }
  bool use() {
    if (live_.empty()) return false;
    const StreamId other = streams_[1 - live_.back().second];
    // The program orders the use behind the owner's work, which it has seen end.
    (void)device_.sim().stream_sync(streams_[live_.back().second]).ok();
    device_.sim().touch(other, live_.back().first, 512);
    if (!device_.allocator().record_use(live_.back().first, other).ok())
      fail(__FILE__, __LINE__, "record_use");
    return true;
  }

  Device device_;
  const StreamId streams_[2];
  std::vector<std::pair<Addr, int>> live_;
};

// Programs in lexicographic order. A step is checked where it is new; a prefix whose last operation does
// nothing is not continued. Returns how many were played to their end.
uint64_t play_all(const char* mode, size_t length) {
  std::vector<int> ops(length, 0);
  size_t fresh = 0;  // first step that differs from the program before
  uint64_t played = 0;
  while (true) {
    size_t bad = length;
    {
      Program program(mode);
      for (size_t i = 0; i < length && bad == length; ++i) {
        if (!program.play(ops[i])) {
          bad = i;
        } else if (i >= fresh) {
          try {
            program.check();
          } catch (const Failure& failure) {
            std::string text = std::string(mode) + ":";
            for (size_t k = 0; k <= i; ++k) text += " " + std::to_string(ops[k]);
            throw Failure(text + ": " + failure.what());
          }
        }
      }
    }
    played += bad == length;
    // The next program that differs at `bad` or, if all was played, anywhere.
    size_t at = bad == length ? length : bad + 1;
    while (at > 0 && ops[at - 1] == kOps - 1) --at;
    if (at == 0) return played;
    ++ops[at - 1];
    std::fill(ops.begin() + static_cast<ptrdiff_t>(at), ops.end(), 0);
    fresh = at - 1;
  }
}

}  // namespace

TEST(Small_model_is_exhaustive) {
  // Sanitizers make it ten times slower: STATICRT_MODEL_LENGTH=4 there.
  const char* text = std::getenv("STATICRT_MODEL_LENGTH");
  const size_t length = text == nullptr ? 6 : std::strtoull(text, nullptr, 10);
  for (const char* mode : {"thread_cache:False", "mode:compat"}) {
    const uint64_t played = play_all(mode, length);
    std::cout << "small model, " << mode << ": " << played << " programs of " << length << " operations\n";
    EXPECT(played > 1000);
  }
}

}  // namespace staticrt::test
