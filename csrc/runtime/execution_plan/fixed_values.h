// Note [Weights are constants with a version]
//
// Parameters and buffers are inputs of a program, so that every change of them is seen. Most calls change
// none: what depends on weights and constants alone (a folded batch norm, a transposed or packed weight) is
// computed once and kept, together with a stamp of each weight that it depends on. Every run compares the
// stamps; when one differs, values that depend on that weight are computed again, and the rest is kept.
// Running calls keep the state they began with.
//
// A stamp is the weight's storage, address, layout and version counter, which every in-place operator,
// optimizer step, load_state_dict and swap of `.data` changes. Writes through `.data` or a numpy view leave
// the counter alone; therefore a stamp also holds bytes of the weight: all of one of at most 4 KiB, and of a
// larger one a word of every block of 1 KiB, or of at most 64 larger blocks. So every contiguous write of
// 2 KiB, or of a sixteenth of the weight if that is more, is seen. The words' offsets within their blocks are
// scattered, so that a write to a whole column is not missed. A smaller write that goes around the counter
// can miss every word: `freeze=False` never keeps anything.
//
// Inference tensors have no counter: their stamp is a hash of all bytes. It reads the weight in every call,
// which pays off for convolutions but not for products of few rows, so a model whose weights are mostly large
// matrices keeps no values of them.
#pragma once

#include <ATen/core/DimVector.h>
#include <ATen/core/Tensor.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "kernels/registry/prepare.h"
#include "runtime/general/bind.h"
#include "runtime/record/signature.h"

namespace staticrt {

class WeightStamp {
 public:
  WeightStamp() = default;
  explicit WeightStamp(const at::Tensor& weight);
  // Whether nothing was written since. Assumes the same sizes and strides, which signatures compare.
  bool holds(const at::Tensor& weight) const;
  bool has_layout_of(const at::Tensor& weight) const;
  bool operator==(const WeightStamp& other) const;

  // A tensor whose changes can be seen.
  static bool can_stamp(const at::Tensor& weight);

 private:
  // Of the bytes that the weight spans, gaps between its elements included.
  uint32_t word_of_block(int64_t block) const;

  // Weak: the address cannot come back for another storage while this stamp lives.
  c10::weak_intrusive_ptr<c10::StorageImpl> storage_{c10::intrusive_ptr<c10::StorageImpl>()};
  const c10::StorageImpl* identity_ = nullptr;
  const char* data_ = nullptr;
  uint32_t version_ = 0;
  at::DimVector sizes_, strides_;
  int64_t block_words_ = 0;      // a power of two; 0: all bytes are kept or hashed
  int64_t hashed_bytes_ = 0;     // of an inference tensor; else 0
  uint64_t hash_ = 0;            // of these
  std::vector<uint32_t> words_;  // one of each block
  std::vector<char> bytes_;
};

// A derivation of a prepared program: what to make, and which values it is made of.
struct DerivedBytes {
  Derivation derivation;
  std::vector<ValueId> owners;  // of the sources
  std::string key;              // equal for equal bytes
  uint32_t base = 0;            // of the frame's table
};

// Derived bytes as they pass from one process to another, with the weights they were made of.
struct PackedBytes {
  std::string key;                   // DerivedBytes::key, of the same program
  std::shared_ptr<const char> data;  // 64-aligned
  int64_t size_bytes = 0;
};

// What was made of one state of the weights. Filled under the mutex of its FixedValues; entries never change.
class FixedState {
 public:
  // Whether the weights (program inputs, by index) are still those this was made of.
  bool holds(std::span<const InputView> inputs, std::span<const ValueId> weights) const;

 private:
  friend class FixedValues;
  struct Made {
    c10::IValue value;                 // of a node
    std::shared_ptr<const char> data;  // of a derivation
    int64_t size_bytes = 0;            // of data
    std::vector<ValueId> weights;      // inputs that it depends on, ascending
  };
  std::vector<WeightStamp> stamps_;  // per program input; only of weights
  std::map<ValueId, Made> values_;
  std::map<std::string, Made> derived_;
};

// The fixed values of one executable. Thread safety: all operations.
class FixedValues {
 public:
  // checks: compare stamps in every run; off: weights are taken to keep the values of the first run.
  FixedValues(const BoundProgram& bound, std::vector<ValueId> weights, bool checks);

  // Whether the value depends on weights and constants alone, by the structure of the program. Weights
  // and constants themselves count.
  bool is_fixed(ValueId id) const { return fixed_[id]; }
  bool checks() const { return checks_; }
  // Weights that the value depends on, ascending.
  std::vector<ValueId> weights_of(ValueId id) const;
  // Whether every weight among these inputs can be kept track of.
  bool can_track(std::span<const InputView> inputs) const;

  // What a prepared program needs, for the weights among `inputs`. Computes what is missing; an exception
  // leaves everything as it was. Runs under the executable's run state.
  std::shared_ptr<const FixedState> acquire(std::span<const InputView> inputs,
                                            std::span<const ValueId> values,
                                            std::span<const DerivedBytes> derived);
  // Bytes that another process derived of these weights. They are used while the weights that they depend on
  // equal those in `inputs`. REQUIRES: nothing was acquired yet.
  void offer(std::vector<PackedBytes> packed, std::span<const InputView> inputs);
  // What is derived now, ordered by key; nothing if the weights among `inputs` are not those it was made of.
  std::vector<PackedBytes> packed(std::span<const InputView> inputs);
  // Offered bytes that are in use.
  int64_t taken_bytes() const { return taken_bytes_; }

  // REQUIRES: acquire() was asked for it in this state. Under the mutex: for another signature another thread
  // may be adding to the same state.
  c10::IValue value_of(const FixedState& state, ValueId id) const;
  char* data_of(const FixedState& state, const DerivedBytes& derived) const;

 private:
  // acquire() under the lock; adds up the bytes it derived.
  std::shared_ptr<const FixedState> make(std::span<const InputView> inputs, std::span<const ValueId> values,
                                         std::span<const DerivedBytes> derived, int64_t& made_bytes);
  class Computation;
  std::shared_ptr<FixedState> state_for(std::span<const InputView> inputs);
  bool take_offered(const DerivedBytes& bytes, const FixedState& state, FixedState::Made& made);

  const BoundProgram& bound_;
  const std::vector<ValueId> weights_;
  const bool checks_;
  std::vector<bool> fixed_;           // per value
  std::vector<uint32_t> definition_;  // per value: its node
  mutable std::mutex mutex_;
  std::shared_ptr<FixedState> latest_;
  std::map<std::string, PackedBytes> offered_;
  std::vector<WeightStamp> offered_stamps_;  // per program input
  std::atomic<int64_t> taken_bytes_{0};
  std::atomic<int64_t> times_made_{0};  // calls of acquire() that derived bytes
};

}  // namespace staticrt
