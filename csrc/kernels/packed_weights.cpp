#include "kernels/packed_weights.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

#include "kernels/gemm_kernels.h"

namespace staticrt {
namespace {

// 64 bits of the matrix' content: two independent multiplicative lanes over its rows.
uint64_t content_of(const float* b, int64_t b_k, int64_t b_n, int64_t k, int64_t n) {
  uint64_t h0 = 0x9E3779B97F4A7C15ULL;
  uint64_t h1 = 0xC2B2AE3D27D4EB4FULL;
  const bool along_n = b_n <= b_k;
  const int64_t rows = along_n ? k : n;
  const int64_t row = along_n ? b_k : b_n;
  const int64_t cols = along_n ? n : k;
  const int64_t col = along_n ? b_n : b_k;
  for (int64_t i = 0; i < rows; ++i) {
    const float* p = b + i * row;
    for (int64_t j = 0; j < cols; j += 2) {
      uint32_t x = 0;
      uint32_t y = 0;
      std::memcpy(&x, p + j * col, sizeof x);
      if (j + 1 < cols) std::memcpy(&y, p + (j + 1) * col, sizeof y);
      h0 = (h0 ^ x) * 0xFF51AFD7ED558CCDULL;
      h1 = (h1 ^ y) * 0xC4CEB9FE1A85EC53ULL;
      h0 ^= h0 >> 32;
      h1 ^= h1 >> 32;
    }
  }
  return h0 ^ (h1 * 0x9E3779B97F4A7C15ULL);
}

}  // namespace

PackedWeights::PackedWeights(int64_t floats)
    : data_(static_cast<float*>(
          ::operator new(static_cast<size_t>(floats) * sizeof(float), std::align_val_t{64}))) {}

PackedWeights::~PackedWeights() {
  ::operator delete(data_, std::align_val_t{64});
}

std::shared_ptr<const PackedWeights> packed_weights(const float* b, int64_t b_k, int64_t b_n, int64_t k,
                                                    int64_t n) {
  using Key = std::array<uint64_t, 6>;
  static std::mutex mutex;
  static std::map<Key, std::weak_ptr<const PackedWeights>> cache;
  const GemmKernels& kernels = gemm_kernels();
  const Key key = {reinterpret_cast<uintptr_t>(b), static_cast<uint64_t>(b_k), static_cast<uint64_t>(b_n),
                   static_cast<uint64_t>(k),       static_cast<uint64_t>(n),   content_of(b, b_k, b_n, k, n)};
  const std::lock_guard<std::mutex> lock(mutex);
  if (const auto found = cache.find(key); found != cache.end()) {
    if (auto alive = found->second.lock()) return alive;
  }
  auto packed = std::make_shared<PackedWeights>(kernels.packed_floats(k, n));
  kernels.pack(b, b_k, b_n, k, n, packed->data(), 0, kernels.panels(n));
  std::erase_if(cache, [](const auto& entry) { return entry.second.expired(); });
  cache[key] = packed;
  return packed;
}

}  // namespace staticrt
