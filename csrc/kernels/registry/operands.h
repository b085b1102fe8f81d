// What a kernel sees of one node in one frame: its arguments by schema position, and its outputs.
//
// A view over the frame's slots: it owns nothing and is made for each call of a kernel.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <vector>

#include "common/arg.h"

namespace staticrt {

using Ints = c10::SmallVector<int64_t, 6>;
using Tensors = c10::SmallVector<at::Tensor, 6>;

class Operands {
 public:
  Operands(c10::IValue* slots, const ValueId* ids, const Arg* args, uint32_t num_args, ValueId first_output,
           uint32_t num_outputs)
      : slots_(slots),
        ids_(ids),
        args_(args),
        num_args_(num_args),
        first_output_(first_output),
        num_outputs_(num_outputs) {}

  uint32_t num_args() const { return num_args_; }
  uint32_t num_outputs() const { return num_outputs_; }

  // REQUIRES for all below: i < num_args(), and the argument has the type asked for.
  const c10::IValue& arg(uint32_t i) const { return slots_[ids_[args_[i].first]]; }
  bool is_list(uint32_t i) const { return args_[i].is_list; }
  uint32_t list_size(uint32_t i) const { return args_[i].count; }
  const c10::IValue& element(uint32_t i, uint32_t k) const { return slots_[ids_[args_[i].first + k]]; }

  bool is_none(uint32_t i) const { return !args_[i].is_list && arg(i).isNone(); }
  const at::Tensor& tensor(uint32_t i) const { return arg(i).toTensor(); }
  // An undefined tensor if the argument is None.
  at::Tensor optional_tensor(uint32_t i) const { return is_none(i) ? at::Tensor() : tensor(i); }
  int64_t integer(uint32_t i) const { return arg(i).toInt(); }
  double real(uint32_t i) const {
    return arg(i).isInt() ? static_cast<double>(arg(i).toInt()) : arg(i).toDouble();
  }
  bool boolean(uint32_t i) const { return arg(i).toBool(); }
  at::Scalar scalar(uint32_t i) const { return arg(i).toScalar(); }
  // int[] or SymInt[], whether constant, mixed or made by another node; a single int gives one element.
  Ints ints(uint32_t i) const;
  // Tensor[], whether a span of operands or one list value.
  Tensors tensors(uint32_t i) const;
  // The argument as one IValue, as the schema types it (lists are built).
  c10::IValue boxed(uint32_t i) const;

  // Output k of an out variant: a defined tensor of the right dtype and device, size 0 or its final
  // size, that the kernel resizes as needed and fills.
  at::Tensor& out(uint32_t k = 0) { return slots_[first_output_ + k].toTensor(); }
  // The slot of output k, for native kernels and fallbacks, which store what they made.
  c10::IValue& slot(uint32_t k = 0) { return slots_[first_output_ + k]; }
  // The Tensor[] a native kernel made, element by element: a node that makes a list has one output per
  // element. Throws InputError if it has another number of outputs.
  void store_list(std::vector<at::Tensor>&& list);

 private:
  c10::IValue* slots_;
  const ValueId* ids_;
  const Arg* args_;
  uint32_t num_args_;
  ValueId first_output_;
  uint32_t num_outputs_;
};

}  // namespace staticrt
