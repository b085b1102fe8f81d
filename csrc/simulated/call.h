// One call of an operator on "sim": its arguments, described without keeping any storage alive.
//
// A kernel that waits on a stream must not keep its tensors alive, because that would hide programs that free
// or reuse memory too early. So a Call keeps addresses, sizes and strides, and makes CPU tensors over the
// kernels' view of those addresses when it runs.
//
// Thread safety: one thread makes a call; any thread may run it.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <string>
#include <vector>

#include "simulated/device.h"

namespace staticrt::simulated {

// The device address of a tensor's storage; 0: no bytes. `written`: the tensor gets bytes of its own before,
// if it shares them with others until it is written.
alloc::Addr address_of(const at::Tensor& tensor, bool written);
// Of several tensors.
using Storages = c10::SmallVector<alloc::Addr, 6>;

// Where a tensor's values are and how they lie.
struct TensorPlace {
  alloc::Addr storage = 0;  // address_of the tensor
  size_t storage_bytes = 0;
  int64_t offset = 0;  // in elements
  c10::SmallVector<int64_t, 5> sizes, strides;
  at::ScalarType dtype = at::kFloat;
  bool conjugate = false, negative = false;
  bool contiguous = true;

  TensorPlace() = default;
  explicit TensorPlace(const at::Tensor& tensor, bool written = false);
};

// A tensor, or one of a list, among the arguments.
struct TensorArgument {
  size_t argument = 0;
  std::optional<size_t> in_list;     // its place in the argument's list
  bool written = false;              // the schema says the operator writes it
  bool out = false;                  // it is an out argument: its sizes do not matter
  std::optional<TensorPlace> place;  // of a tensor on sim
  at::Tensor host;                   // a copy of a tensor on the CPU; undefined if there is a place
};

class Call {
 public:
  // Describes the arguments on top of `stack`. Throws c10::Error if they are on several devices.
  Call(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

  const c10::OperatorHandle& op() const { return op_; }
  const c10::FunctionSchema& schema() const { return op_.schema(); }
  std::string name() const { return toString(op_.operator_name()); }
  // Without its overload, which callers may not know: aten::add becomes aten::add.out before it comes here.
  const std::string& base_name() const { return op_.operator_name().name; }
  SimulatedDevice& device() const { return device_at(device_); }
  const std::vector<TensorArgument>& tensors() const { return tensors_; }
  // The arguments, with None for tensors and the length for a list of them.
  const std::vector<c10::IValue>& values() const { return values_; }
  // The CPU has a kernel for the operator, or for what takes its place.
  bool runs_on_cpu() const;
  // No argument is an output whose size the operator sets.
  bool only_updates() const;
  // The caller's tensor. REQUIRES: the stack of the constructor.
  static at::Tensor given(const torch::jit::Stack& stack, size_t first, const TensorArgument& argument);

  // Arguments on meta tensors, whose storages are shared as the originals' are. Devices are meta.
  torch::jit::Stack on_meta() const;
  // Arguments on CPU tensors over the kernels' addresses. The operator may resize outs, which are therefore
  // empty tensors, or tensors over copies of their storages where it must see what they share with other
  // arguments. Devices are the CPU; the generator is a CPU generator of the seed taken at construction.
  enum class Outs { kEmpty, kCopied };
  torch::jit::Stack on_cpu(Outs outs) const;
  // Arguments on CPU tensors of zeros, laid out as the originals.
  torch::jit::Stack on_zeros() const;
  // It draws random numbers.
  bool draws() const { return seed_.has_value(); }
  // The same call with the generator's next numbers, for one more replay of a graph.
  Call drawn_again() const;
  // Of its tensors on sim, in their order; and the same call with others.
  Storages storages() const;
  Call moved_to(const Storages& storages) const;
  // The operator itself on such a stack: as called, or what takes its place on the CPU.
  void call(torch::jit::Stack& stack) const;
  // The same on CPU tensors. What has no generator argument draws from a generator of the call's own, too.
  void call_on_cpu(torch::jit::Stack& stack) const;

 private:
  void add(const at::Tensor& tensor, TensorArgument argument);
  void take_seed();
  void call_seeded(torch::jit::Stack& stack) const;

  c10::OperatorHandle op_;
  int device_ = -1;
  std::vector<c10::IValue> values_;
  std::vector<TensorArgument> tensors_;
  std::vector<size_t> devices_;      // arguments that name a device
  std::optional<size_t> generator_;  // argument that is a generator
  std::optional<uint64_t> seed_;
  at::Generator drawn_from_;
};

// A CPU tensor over the kernels' view of a place. Tensors of one storage get one storage.
class CpuTensors {
 public:
  explicit CpuTensors(const alloc::SimDriver& driver) : driver_(driver) {}
  at::Tensor at(const TensorPlace& place);
  // Later tensors of its storage lie in a copy, which is resizable.
  void copy_storage(const TensorPlace& place);

 private:
  const alloc::SimDriver& driver_;
  std::vector<std::pair<alloc::Addr, c10::Storage>> storages_;
};

}  // namespace staticrt::simulated
