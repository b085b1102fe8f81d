#include "bindings/guards/operator_kernels.h"

#include <algorithm>
#include <utility>

#include "common/error.h"
#include "program/library_operators.h"

namespace staticrt::bindings {

// What the dispatcher keeps private: an explicit instantiation may name it.
const c10::impl::OperatorEntry& entry_of(const c10::OperatorHandle& handle);
const std::array<c10::KernelFunction, c10::num_runtime_entries>& table_of(
    const c10::impl::OperatorEntry& entry);
const c10::intrusive_ptr<c10::OperatorKernel>& functor_of(const c10::KernelFunction& kernel);
const void* function_of(const c10::KernelFunction& kernel);
const std::shared_ptr<c10::KernelToken>& token_of(const c10::SafeKernelFunction& kernel);

template <auto Definition, auto Table, auto Boxed, auto Functor, auto Function, auto Token>
struct Private {
  friend const c10::impl::OperatorEntry& entry_of(const c10::OperatorHandle& handle) {
    return (handle.*Definition)->op;
  }
  friend const std::array<c10::KernelFunction, c10::num_runtime_entries>& table_of(
      const c10::impl::OperatorEntry& entry) {
    return entry.*Table;
  }
  friend const c10::intrusive_ptr<c10::OperatorKernel>& functor_of(const c10::KernelFunction& kernel) {
    return kernel.*Boxed.*Functor;
  }
  friend const void* function_of(const c10::KernelFunction& kernel) {
    return reinterpret_cast<const void*>(kernel.*Boxed.*Function);
  }
  friend const std::shared_ptr<c10::KernelToken>& token_of(const c10::SafeKernelFunction& kernel) {
    return kernel.*Token;
  }
};
template struct Private<&c10::OperatorHandle::operatorDef_, &c10::impl::OperatorEntry::dispatchTable_,
                        &c10::KernelFunction::boxed_kernel_func_, &c10::BoxedKernel::functor_,
                        &c10::BoxedKernel::boxed_kernel_func_, &c10::SafeKernelFunction::token_>;

namespace {

c10::OperatorName parsed(const std::string& name) {
  const size_t dot = name.find('.');
  return dot == std::string::npos ? c10::OperatorName(name, "")
                                  : c10::OperatorName(name.substr(0, dot), name.substr(dot + 1));
}

// Whether a kernel was written in Python. Others are compiled, or fall through.
bool is_python(const c10::KernelFunction& kernel) {
  return functor_of(kernel) && !kernel.isValidUnboxed() && !kernel.isValidSymUnboxed() &&
         !kernel.isFallthrough();
}

}  // namespace

struct OperatorObserver {
  static thread_local OperatorWatch* current;

  static std::unique_ptr<at::ObserverContext> called(const at::RecordFunction& function) {
    const auto name = current ? function.operator_name() : std::nullopt;
    if (name) current->names_.insert(c10::toString(*name));
    return nullptr;
  }
};
thread_local OperatorWatch* OperatorObserver::current = nullptr;

void OperatorWatch::start() {
  if (handle_) return;
  outer_ = std::exchange(OperatorObserver::current, this);
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&OperatorObserver::called).scopes({at::RecordScope::FUNCTION}));
}

void OperatorWatch::stop() {
  if (!handle_) return;
  at::removeCallback(*std::exchange(handle_, std::nullopt));
  OperatorObserver::current = outer_;
}

OperatorKernels::OperatorKernels(const std::vector<std::string>& names,
                                 const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    keys_.push_back(c10::parseDispatchKey(key));
    const int place = c10::DispatchKeySet(keys_.back()).getDispatchTableIndexForDispatchKeySet();
    SRT_INTERNAL(place >= 0, key, " has no place in dispatch tables");
    places_.push_back(static_cast<size_t>(place));
  }
  for (const std::string& name : names) {
    const auto handle = c10::Dispatcher::singleton().findSchema(parsed(name));
    if (!handle) continue;
    Operator added{handle->operator_name(), *handle, is_of_torch(name), {}};
    const auto& table = table_of(entry_of(*handle));
    for (size_t i = 0; i < places_.size(); ++i) {
      const c10::KernelFunction& found = table[places_[i]];
      Kernel& kernel = added.kernels.emplace_back();
      kernel.functor = functor_of(found).get();
      kernel.function = function_of(found);
      if (is_python(found)) {
        kernel.token = token_of(handle->getComputedKernelForDispatchKey(keys_[i]));
      } else {
        kernel.owned = functor_of(found);
      }
    }
    operators_.push_back(std::move(added));
  }
}

bool OperatorKernels::hold() const {
  return std::all_of(operators_.begin(), operators_.end(), [&](const Operator& each) { return holds(each); });
}

bool OperatorKernels::holds(const Operator& saved) const {
  if (!saved.is_of_torch) {
    const auto found = c10::Dispatcher::singleton().findSchema(saved.name);
    if (!found || *found != saved.handle) return false;
  }
  const auto& table = table_of(entry_of(saved.handle));
  for (size_t i = 0; i < places_.size(); ++i) {
    const c10::KernelFunction& now = table[places_[i]];
    const Kernel& kernel = saved.kernels[i];
    if (functor_of(now).get() != kernel.functor || function_of(now) != kernel.function) return false;
    if (kernel.token && !kernel.token->isValid()) return false;
  }
  return true;
}

std::vector<std::tuple<std::string, std::string, std::string>> OperatorKernels::in_python() const {
  std::vector<std::tuple<std::string, std::string, std::string>> found;
  for (const Operator& each : operators_) {
    if (!each.is_of_torch) continue;
    const auto& table = table_of(entry_of(each.handle));
    for (size_t i = 0; i < places_.size(); ++i) {
      if (!is_python(table[places_[i]])) continue;
      found.emplace_back(c10::toString(each.name), each.handle.debug(),
                         each.handle.getComputedKernelForDispatchKey(keys_[i]).debug());
    }
  }
  return found;
}

}  // namespace staticrt::bindings
