// Kernels by operator name. A second registration of a name throws at load time.
//
//   SRT_OUT_VARIANT("aten::relu", relu_out) { at::cpu::clamp_min_out(op.out(), op.tensor(0), 0); }
//   SRT_NATIVE("aten::view", view) { op.slot() = at::native::view(op.tensor(0), op.ints(1)); }
#pragma once

#include <string_view>
#include <vector>

#include "kernels/registry/operands.h"

namespace staticrt {

enum class KernelKind : uint8_t {
  kOut,     // writes into outputs it is given; resizes them itself; never keeps or replaces them
  kNative,  // stores views, numbers or lists in its output slots; allocates no tensor bytes
};

using KernelFn = void (*)(Operands& op);

struct Kernel {
  std::string_view op;  // "aten::add.Tensor", as the dispatcher names it
  KernelKind kind;
  KernelFn run;
  std::string_view name;
};

void register_kernel(const Kernel& kernel);
// `op` is another name of `same_as`, with the same arguments: they share a kernel.
void register_alias(std::string_view op, std::string_view same_as);
const Kernel* find_kernel(std::string_view op);  // nullptr if there is none
std::vector<Kernel> all_kernels();               // by name, for reports and tests

// Out variants for devices whose bytes the host cannot address, composed of torch's own operators: a second
// table, for values that the kernels of the first table, which run on the host, cannot compute.
void register_dispatched(const Kernel& kernel);
const Kernel* find_dispatched(std::string_view op);  // nullptr if there is none
std::vector<Kernel> all_dispatched();                // by name

namespace detail {
struct KernelRegistrar {
  explicit KernelRegistrar(const Kernel& kernel) { register_kernel(kernel); }
};
struct DispatchedRegistrar {
  explicit DispatchedRegistrar(const Kernel& kernel) { register_dispatched(kernel); }
};
}  // namespace detail

}  // namespace staticrt

#define SRT_KERNEL_(op_name, fn, kind)                             \
  static void fn(::staticrt::Operands& op);                        \
  static const ::staticrt::detail::KernelRegistrar fn##_registrar{ \
      ::staticrt::Kernel{op_name, kind, &fn, #fn}};                \
  static void fn([[maybe_unused]] ::staticrt::Operands& op)
#define SRT_OUT_VARIANT(op_name, fn) SRT_KERNEL_(op_name, fn, ::staticrt::KernelKind::kOut)
#define SRT_NATIVE(op_name, fn) SRT_KERNEL_(op_name, fn, ::staticrt::KernelKind::kNative)
#define SRT_DISPATCHED(op_name, fn)                                         \
  static void fn(::staticrt::Operands& op);                                 \
  static const ::staticrt::detail::DispatchedRegistrar fn##_dispatched{     \
      ::staticrt::Kernel{op_name, ::staticrt::KernelKind::kOut, &fn, #fn}}; \
  static void fn([[maybe_unused]] ::staticrt::Operands& op)
