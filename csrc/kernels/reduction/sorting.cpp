// Sorting, selection by rank, and search.
#include <ATen/core/ivalue.h>
#include <ATen/ops/bucketize_native.h>
#include <ATen/ops/kthvalue_native.h>
#include <ATen/ops/searchsorted_native.h>
#include <ATen/ops/sort_cpu_dispatch.h>
#include <ATen/ops/sort_native.h>
#include <ATen/ops/topk_cpu_dispatch.h>

#include "kernels/registry/bind.h"

namespace staticrt {
namespace {

namespace cpu = at::cpu;
namespace n = at::native;
using T = at::Tensor;

const RegisterKernels kSorting{
    out<n::kthvalue_out_cpu>("aten::kthvalue"),
    out<as<std::tuple<T&, T&>(const T&, int64_t, bool, T&, T&)>(n::sort_out)>("aten::sort"),
    out<cpu::sort_outf>("aten::sort.stable"),
    out<cpu::topk_outf>("aten::topk"),
    out<n::bucketize_out_cpu>("aten::bucketize.Tensor"),
    out<as<T&(const T&, const T&, bool, bool, std::optional<c10::string_view>,
              const std::optional<at::Tensor>&, T&)>(n::searchsorted_out_cpu)>("aten::searchsorted.Tensor"),
    out<as<T&(const T&, const at::Scalar&, bool, bool, std::optional<c10::string_view>,
              const std::optional<at::Tensor>&, T&)>(n::searchsorted_out_cpu)>("aten::searchsorted.Scalar"),
};

}  // namespace
}  // namespace staticrt
