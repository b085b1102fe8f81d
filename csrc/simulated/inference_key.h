// All that an operator's rule for meta tensors can see of a call: two calls of one key have equal results.
//
// Addresses are not part of it, only which arguments share a storage.
#pragma once

#include <bit>
#include <vector>

#include "simulated/call.h"
#include "simulated/thread_state.h"

namespace staticrt::simulated {

class InferenceKey {
 public:
  // Describes a call of `op` with the arguments of `stack` from `first` on; what it held before is gone.
  // False where a rule may read more than a key holds, such as a host tensor of several elements.
  bool describe(const c10::OperatorHandle& op, const torch::jit::Stack& stack, size_t first,
                const ThreadState& state);

  const std::vector<int64_t>& words() const { return words_; }
  // Of the tensors on sim, in their order.
  const Storages& storages() const { return storages_; }
  bool operator==(const InferenceKey& other) const { return words_ == other.words_; }
  struct Hash {
    size_t operator()(const InferenceKey& key) const {
      uint64_t hash = 0;
      for (const int64_t word : key.words_)
        hash = (std::rotl(hash, 5) ^ static_cast<uint64_t>(word)) * kFactor;
      return hash ^ hash >> 32;
    }
    static constexpr uint64_t kFactor =
        0x9E3779B97F4A7C15;  // 2^64 over the golden ratio: odd, with mixed bits
  };

 private:
  bool add(const c10::IValue& value, bool written);
  bool add(const at::Tensor& tensor, bool written);
  void add_bytes(const void* bytes, size_t size_bytes);
  void add_list(c10::IntArrayRef list);

  std::vector<int64_t> words_;
  Storages storages_;
};

}  // namespace staticrt::simulated
