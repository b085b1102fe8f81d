// Writes one recording of torch's own CUDA caching allocator: a random program and what came of each step.
//
//   record CONFIG TOTAL_MIB SEED STEPS WORDS   (WORDS: letters of the steps to draw from, after a and f)
//
// A line is one step, then what of the statistics it moved. Sizes are in units of 512 bytes, requests in
// bytes.
//   a ID STREAM BYTES WHERE     allocate; WHERE: SEGMENT+OFFSET, segments numbered as they appear, or "oom"
//   f ID                        free
//   u ID STREAM                 also used on the stream (record_stream)
//   w STREAM / d STREAM         the stream gets work that takes time / all its work is done
//   e                           empty the cache
//   p POOL / q POOL / x POOL    allocations go to a private pool / no longer / one reference less
//   c / g                       a graph capture begins in the routed pool / ends; an allocation follows
// Statistics: R reserved, A allocated, B active, I inactive split, D requested bytes (all sizes), S segments,
// T retries, O refusals.
//
// Built by record.py against torch's headers; not part of any build or test.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/PeerToPeerAccess.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>

#include "stub_cuda.h"

namespace alloc = c10::cuda::CUDACachingAllocator;

namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*)(DeviceIndex));  // in no header of the wheel
}

namespace {

struct Live {
  void* address;
  int stream;
  int pool;
};

alignas(64) char kSide[64];  // its address is the second stream; torch tells its own streams by low bits
cudaStream_t stream_of(int number) {
  return number == 0 ? nullptr : reinterpret_cast<cudaStream_t>(kSide);
}

std::map<char, int64_t> stats() {
  const auto all = alloc::getDeviceStats(0);
  const auto of = [](const auto& stat) { return stat[0].current; };
  return {{'R', of(all.reserved_bytes) / 512}, {'A', of(all.allocated_bytes) / 512},
          {'B', of(all.active_bytes) / 512},   {'I', of(all.inactive_split_bytes) / 512},
          {'D', of(all.requested_bytes)},      {'S', of(all.segment)},
          {'T', all.num_alloc_retries},        {'O', all.num_ooms}};
}

}  // namespace

int main(int count, char** words) {
  if (count != 6) return 2;
  setenv("PYTORCH_ALLOC_CONF", words[1], 1);
  stub_set_total(std::strtoull(words[2], nullptr, 10) << 20);
  std::mt19937_64 random(std::strtoull(words[3], nullptr, 10));
  const int steps = std::atoi(words[4]);
  const std::string kinds = words[5];
  const auto has = [&](char kind) { return kinds.find(kind) != std::string::npos; };
  const auto pick = [&](uint64_t below) { return random() % below; };

  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  c10::cuda::detail::init_p2p_access_cache(1);
  alloc::init(1);
  std::map<int, Live> live;
  std::map<uint64_t, size_t> bases;  // of segments, numbered as they are first seen
  std::map<char, int64_t> before = stats();
  std::map<int, int> refs;
  int next = 0, routed = 0, pools = 2;
  int pool_of[] = {1, 2};
  bool capturing = false;
  const auto pool_id = [](int pool) { return c10::MempoolId_t{0, static_cast<uint64_t>(pool)}; };

  const auto ended = [&] {
    const auto now = stats();
    for (const auto& [name, value] : now)
      if (value != before[name]) std::printf(" %c%lld", name, static_cast<long long>(value));
    before = now;
    std::printf("\n");
  };
  const auto allocate = [&] {
    const uint64_t kind = pick(8);
    const uint64_t bounds[] = {700, 4096, 200 << 10, 1 << 20, 10 << 20, 12 << 20, 24 << 20, 60 << 20};
    size_t bytes = 1 + pick(bounds[kind]);
    if (pick(10) == 0) {  // at a bound of the rules
      const size_t exact[] = {512,     513, 1 << 20, (1 << 20) + 1, (10 << 20) - 1, 10 << 20, (10 << 20) + 1,
                              20 << 20};
      bytes = exact[pick(8)];
    }
    const int stream = capturing ? 1 : static_cast<int>(pick(3)) / 2;
    std::printf("a %d %d %zu ", next, stream, bytes);
    try {
      void* address = alloc::raw_alloc_with_stream(bytes, stream_of(stream));
      const uint64_t base = stub_base(address);
      bases.emplace(base, bases.size());
      std::printf("%zu+%llu", bases.at(base),
                  static_cast<unsigned long long>((reinterpret_cast<uint64_t>(address) - base) / 512));
      live[next] = {address, stream, routed};
    } catch (const c10::OutOfMemoryError&) {
      std::printf("oom");
    }
    ++next;
  };

  const auto leave = [&] {
    if (capturing) {
      std::printf("g\n");
      capturing = false;
      stub_capture(stream_of(1), false);
      c10::cuda::setCurrentCUDAStream(c10::cuda::getDefaultCUDAStream(0));
      alloc::markCaptureEnd(0);
      allocate();
      ended();
    }
    std::printf("q %d", routed);
    alloc::endAllocateToPool(0, pool_id(routed));
    routed = 0;
  };

  std::printf("# total MiB: %s\n# config: %s\n", words[2], words[1]);
  for (int step = 0; step < steps; ++step) {
    const uint64_t action = pick(200);
    auto any = live.begin();
    if (!live.empty()) std::advance(any, static_cast<long>(pick(live.size())));
    if (action == 0 && has('e') && !capturing) {
      std::printf("e");
      alloc::emptyCache();
    } else if (action < 14 && has('w')) {
      const int stream = capturing ? 0 : static_cast<int>(pick(2));
      if (pick(2) == 0) {
        std::printf("w %d", stream);
        stub_enqueue(stream_of(stream));
      } else {
        std::printf("d %d", stream);
        stub_finish(stream_of(stream));
      }
    } else if (action < 30 && has('u') && !live.empty()) {
      const int stream = static_cast<int>(pick(2));
      std::printf("u %d %d", any->first, stream);
      at::DataPtr held(any->second.address, any->second.address, alloc::get()->raw_deleter(),
                       at::Device(at::kCUDA, 0));
      alloc::recordStream(held, c10::cuda::getStreamFromExternal(stream_of(stream), 0));
      held.release_context();
    } else if (action < 34 && has('p')) {
      if (routed != 0) {
        leave();
      } else {
        routed = pool_of[pick(2)];
        std::printf("p %d", routed);
        alloc::beginAllocateToPool(0, pool_id(routed), [](cudaStream_t) { return true; });
        ++refs[routed];
        if (has('c') && pick(2) == 0) {
          ended();
          for (const int stream : {0, 1}) {  // so that nothing waits across the capture's beginning
            std::printf("d %d\n", stream);
            stub_finish(stream_of(stream));
          }
          allocate();
          ended();
          std::printf("c");
          capturing = true;
          stub_capture(stream_of(1), true);
          c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromExternal(stream_of(1), 0));
          alloc::markCaptureBegin(0);
          std::printf("\n");
          allocate();
        }
      }
    } else if (action < 37 && has('x') && routed == 0 && !refs.empty()) {
      const int pool = refs.begin()->first;
      std::printf("x %d", pool);
      alloc::releasePool(0, pool_id(pool));
      if (--refs[pool] == 0) {
        refs.erase(pool);
        for (int& id : pool_of)
          if (id == pool) id = ++pools;  // torch does not open a released pool again
      }
    } else if (action < 110) {
      if (live.size() > 60) goto free_one;
      allocate();
    } else if (!live.empty()) {
    free_one:
      std::printf("f %d", any->first);
      alloc::raw_delete(any->second.address);
      live.erase(any);
    } else {
      continue;
    }
    ended();
  }
  if (routed != 0) {
    leave();
    ended();
  }
  return 0;
}
