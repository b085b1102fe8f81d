// Record: the calls that one capture ran, with fixed places for their tensors; replay() runs them without
// Python.
//
// Every storage that a call reads or writes has a slot: a storage of the record's own that points at the
// bytes of this replay. Tensors of calls lie on slots, so that giving a slot another address moves all of
// its views. Calls of our kernels address bytes through `bases`, one entry per slot.
//
// Thread safety: one thread at a time; CpuGraph holds a lock.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "graphs/direct_call.h"
#include "graphs/pointwise_call.h"
#include "graphs/storage_ref.h"
#include "program/program_call.h"

namespace staticrt::graphs {

using SlotId = uint32_t;

struct StorageSlot {
  enum class Kind : uint8_t {
    kPool,      // made by the record, at a fixed address of the pool
    kInput,     // a declared input: its address may change with each replay
    kExternal,  // a tensor the function found somewhere: parameters, closures; used where it is
    kConstant,  // bytes the function made without any operator, kept by the record
  };
  Kind kind = Kind::kPool;
  c10::intrusive_ptr<c10::StorageImpl> storage;
  void* captured = nullptr;
  size_t nbytes = 0;
};

// Result `output` of a call (element `element` of a list, or -1) goes to the place of `target`.
struct ResultCopy {
  uint32_t output = 0;
  int32_t element = -1;
  at::Tensor target;
};

struct Step {
  enum class Kind : uint8_t {
    kPrepared,  // one of our kernels, on addresses
    kOut,       // an out variant, into its final place
    kCall,      // an operator as it is: in-place ones, and those whose results are copied to their places
    kFill,      // bytes that no operator made
    kProgram,   // a compiled program, prepared for these sizes
  };
  Kind kind = Kind::kCall;
  uint32_t first_arg = 0;
  uint32_t num_args = 0;
  uint32_t state = 0;                        // of dispatch, as it was at the capture
  bool grad_mode = false;                    // some operators save for a backward only if gradients are on
  std::optional<c10::OperatorHandle> op;     // kPrepared: runs if our kernel refuses the values
  const DirectCall* direct = nullptr;        // kOut: the same without boxing; lives with the process
  std::unique_ptr<PointwiseCall> pointwise;  // kOut: the same on an iterator built once
  std::vector<ResultCopy> copies;
  int (*run)(const void* params, char* const* bases, char* workspace) = nullptr;  // kPrepared
  std::shared_ptr<const void> params;
  SlotId target = 0;                  // kFill
  std::unique_ptr<FixedRun> program;  // kProgram
  std::string route;                  // for dump()
};

struct RecordStats {
  int64_t prepared = 0;
  int64_t out = 0;
  int64_t calls = 0;
  int64_t fills = 0;
  int64_t programs = 0;
  int64_t shadow_copied_bytes = 0;  // per replay: results of operators without an out variant
  int64_t constant_bytes = 0;
};

// An input or output whose bytes a replay may find elsewhere.
struct Binding {
  SlotId slot = 0;
  TensorSpec spec;  // as captured; sizes, strides and dtype stay
};

class Record {
 public:
  // --- while recording
  SlotId add_slot(StorageSlot slot);
  void add_step(Step step, std::vector<c10::IValue> args);
  uint32_t state_index(const c10::impl::LocalDispatchKeySet& tls);
  void need_workspace(int64_t bytes);
  // A tensor like `like` on a slot.
  at::Tensor on_slot(const at::Tensor& like, SlotId slot) const;
  const StorageSlot& slot(SlotId id) const { return slots_[id]; }
  const std::vector<char*>& bases() const { return bases_; }
  void declare_input(Binding binding) { inputs_.push_back(std::move(binding)); }
  void declare_written(SlotId slot, const c10::VariableVersion& version);
  // Notes that a later step's results may have other sizes in a replay although its operator is not marked
  // so.
  void expect_other_sizes() { may_vary_ = true; }
  // Bytes that no operator made and no argument holds: constants, or tensors found elsewhere.
  void add_unexplained(SlotId slot) { unexplained_.push_back(slot); }

  // --- afterwards
  // Throws InputError unless each tensor has a storage of its own that the capture made.
  void bind_outputs(std::span<const at::Tensor> outputs,
                    const std::vector<std::pair<const void*, SlotId>>& made);
  // nullopt: the tensors of the capture. Throws InputError if one has other sizes, strides or dtype, what
  // kernels throw, and ReplayError if a result has another size than at the capture.
  void replay(const std::vector<at::Tensor>* inputs, const std::vector<at::Tensor>* outputs);
  // Into outputs made for this replay, as bind_outputs() was given them.
  std::vector<at::Tensor> replay_new(const std::vector<at::Tensor>* inputs);
  std::vector<uint32_t> written_inputs() const;
  // Whether a replay may throw ReplayError.
  bool may_vary() const { return may_vary_; }
  size_t num_unexplained() const { return unexplained_.size(); }
  // Whether what no operator made is the same in another record of the function.
  bool agrees_with(const Record& other) const;
  RecordStats stats() const;
  size_t num_steps() const { return steps_.size(); }
  size_t num_inputs() const { return inputs_.size(); }
  std::string describe() const;

 private:
  void bind(std::vector<Binding>& bindings, const std::vector<at::Tensor>* tensors, const char* what);
  void point(SlotId id, void* ptr);
  void run_steps();
  void run_boxed(const Step& step);
  void copy_result(const ResultCopy& copy, const c10::IValue& result);
  class Before;
  Before before() const;

  std::vector<StorageSlot> slots_;
  std::vector<char*> bases_;
  std::vector<Step> steps_;
  std::vector<c10::IValue> args_;
  std::vector<c10::impl::LocalDispatchKeySet> states_;
  std::vector<Binding> inputs_, outputs_;
  std::vector<SlotId> external_;
  struct Written {
    SlotId slot;
    c10::VariableVersion version;  // of the tensor at the capture
  };
  std::vector<Written> written_;
  bool may_vary_ = false;
  std::vector<SlotId> unexplained_;
  int64_t workspace_bytes_ = 0;
  at::DataPtr workspace_;
  std::vector<c10::IValue> stack_;
};

// Guards of any call of a record: below autograd, without modes of Python.
c10::impl::LocalDispatchKeySet replay_state(c10::impl::LocalDispatchKeySet tls);

}  // namespace staticrt::graphs
