// What calls of one key have in common, so that an operator that was called before is only enqueued again.
//
// torch's rules for results are mostly Python, a hundred times slower than an enqueue, and describing a call
// takes as long as the rest of an enqueue. Each thread keeps what it learnt of its calls.
//
// Thread safety: full.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "simulated/inference.h"
#include "simulated/inference_key.h"

namespace staticrt::simulated {

// The bytes of a tensor's elements; nullopt: it has none.
std::optional<alloc::SimRange> range_of(const TensorPlace& place, bool writes);
// A tensor that is read and written, as by an update in place, is written.
void add_range(std::vector<alloc::SimRange>& ranges, alloc::SimRange range);

class KnownCall {
 public:
  KnownCall(std::shared_ptr<const Inference> inference, Call call);

  const Inference& inference() const { return *inference_; }
  const std::shared_ptr<const Inference>& shared_inference() const { return inference_; }
  const Call& call() const { return call_; }
  // Another call of this key is this one, in other storages: it neither draws random numbers nor resizes.
  bool is_reusable() const { return !call_.draws() && inference_->resized.empty(); }
  // What a call in these storages reads and writes, besides results of its own.
  std::vector<alloc::SimRange> ranges_in(const Storages& storages) const;

 private:
  struct Touched {
    size_t storage = 0;     // among the call's
    alloc::SimRange range;  // its address counts from the storage's
  };
  std::shared_ptr<const Inference> inference_;
  Call call_;
  std::vector<Touched> touched_;
};

// Of this thread: the call with that key, or null.
std::shared_ptr<const KnownCall> find_known(const InferenceKey& key);
// REQUIRES: there is none with that key.
void keep_known(InferenceKey key, std::shared_ptr<const KnownCall> call);

}  // namespace staticrt::simulated
