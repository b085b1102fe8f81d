// What of a call's inputs selects a prepared program.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/registry/prepare.h"

namespace staticrt {

// One input of a call: a tensor that the caller keeps alive, or a number, None, ...
struct InputView {
  const at::Tensor* tensor = nullptr;
  c10::IValue value;
};

class Signature {
 public:
  Signature(std::span<const InputView> inputs, int num_threads);

  // Equal dtypes, sizes, strides, devices, dispatch keys (conj, neg, ...), numbers and thread count. The full
  // key always decides; no hash stands in for it.
  bool matches(std::span<const InputView> inputs, int num_threads) const;
  // Whether inputs of other sizes are alike in all else. The first `num_own`, the model's own, must match;
  // the others must be contiguous and not empty, and so must the signature's; numbers may be any.
  bool matches_but_sizes(std::span<const InputView> inputs, size_t num_own) const;
  uint64_t hash() const { return hash_; }
  int num_threads() const { return num_threads_; }

 private:
  struct Key {
    bool is_tensor = false;
    uint64_t dispatch_keys = 0;
    c10::DeviceIndex device_index = -1;  // of its type, which the dispatch keys tell; -1: there is only one
    TensorMeta meta;
    c10::IValue value;

    bool is_like(const at::TensorImpl& impl) const;
    bool matches(const InputView& input) const;
  };
  std::vector<Key> keys_;
  int num_threads_;
  uint64_t hash_ = 0;
};

// Every input is None, a number, or a dense tensor of a registered device without lazy bits.
bool can_be_prepared(std::span<const InputView> inputs);

}  // namespace staticrt
