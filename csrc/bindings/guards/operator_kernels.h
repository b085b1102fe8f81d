// Which kernels the dispatcher has for the operators that a trace called: a library may register others, or
// take its own back, at any time.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace staticrt::bindings {

// The operators that one thread calls, composite ones and those that they call included.
//
// Thread safety: used by the thread that starts it.
class OperatorWatch {
 public:
  OperatorWatch() = default;
  OperatorWatch(const OperatorWatch&) = delete;
  OperatorWatch& operator=(const OperatorWatch&) = delete;
  ~OperatorWatch() { stop(); }

  void start();
  // REQUIRES: watches that began after it have stopped.
  void stop();
  // "aten::add.Tensor".
  const std::set<std::string>& names() const { return names_; }

 private:
  friend struct OperatorObserver;

  OperatorWatch* outer_ = nullptr;  // that this one interrupts
  std::optional<at::CallbackHandle> handle_;
  std::set<std::string> names_;
};

// Operators at the dispatch keys that calls of plain tensors of some devices meet.
class OperatorKernels {
 public:
  // Keys are given as "CPU"; names of operators that are not defined are left out.
  OperatorKernels(const std::vector<std::string>& names, const std::vector<std::string>& keys);

  // Whether the dispatcher still has the same kernels.
  bool hold() const;
  // Operators of torch's namespaces that a kernel written in Python serves, each with where the operator and
  // where the kernel was registered.
  std::vector<std::tuple<std::string, std::string, std::string>> in_python() const;
  size_t size() const { return operators_.size(); }

 private:
  struct Kernel {
    const c10::OperatorKernel* functor = nullptr;  // compared only
    // That no other functor gets its address: a compiled one is owned. One of Python may lead back to the
    // guard, which the garbage collector would not see, so only a token says that the dispatcher has it
    // still.
    c10::intrusive_ptr<c10::OperatorKernel> owned;
    std::shared_ptr<const c10::KernelToken> token;
    const void* function = nullptr;
  };
  struct Operator {
    c10::OperatorName name;
    c10::OperatorHandle handle;  // valid while the operator is defined, which torch's own always are
    bool is_of_torch = false;
    std::vector<Kernel> kernels;  // one for each of `keys_`
  };
  bool holds(const Operator& saved) const;

  std::vector<c10::DispatchKey> keys_;
  std::vector<size_t> places_;  // of the keys, in dispatch tables
  std::vector<Operator> operators_;
};

}  // namespace staticrt::bindings
