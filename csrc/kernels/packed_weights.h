// Constant matrices in the panel layout of the own kernels, shared by all programs that hold them.
#pragma once

#include <cstdint>
#include <memory>

namespace staticrt {

class PackedWeights {
 public:
  explicit PackedWeights(int64_t floats);
  PackedWeights(const PackedWeights&) = delete;
  PackedWeights& operator=(const PackedWeights&) = delete;
  ~PackedWeights();
  float* data() { return data_; }
  const float* data() const { return data_; }

 private:
  float* data_;  // 64-byte aligned
};

// B[k, n] = b[k * b_k + n * b_n], packed. Kept as long as someone holds it, so that each weight is packed
// once however many signatures and programs use it. Bytes are compared by content: a swapped weight is packed
// anew.
std::shared_ptr<const PackedWeights> packed_weights(const float* b, int64_t b_k, int64_t b_n, int64_t k,
                                                    int64_t n);

}  // namespace staticrt
