// Kernels of prepared programs: everything that depends on shapes, dtypes and constants is done once, in
// `prepare`; `run` only computes.
//
// A prepared call addresses bytes as base + offset, never by pointer, so that it is immutable and shared:
// each frame has its own table of bases (arena, inputs, constants, escaping outputs).
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/registry/autotuning.h"
#include "kernels/registry/finish.h"
#include "kernels/registry/operands.h"
#include "kernels/registry/partition.h"

namespace staticrt {

// Where the first element of a tensor lies during a run: bases[base] + offset_bytes.
struct Operand {
  uint32_t base = 0;
  int64_t offset_bytes = 0;
  char* at(char* const* bases) const { return bases[base] + offset_bytes; }
};

struct TensorMeta {
  at::ScalarType dtype = at::ScalarType::Undefined;  // Undefined: no tensor (an absent optional)
  Ints sizes;                                        // elements
  Ints strides;                                      // elements
  bool defined() const { return dtype != at::ScalarType::Undefined; }
  int64_t numel() const;
  bool is_contiguous() const;
};

struct TensorOperand {
  TensorMeta meta;
  Operand where;
  // A weight or constant, or made of those alone: the bytes are the same in every run until the weights
  // change, so that what is made of them can be kept (PrepareRequest::derive).
  bool is_fixed = false;
};

// Bytes that a call wants to have made of fixed operands before it runs: packed weights.
struct Derivation {
  std::string layout;  // tells derivations of the same sources apart; equal layouts give equal bytes
  std::vector<TensorOperand> sources;
  int64_t size_bytes = 0;
  // From the first bytes of the sources to `out`, which is 64-aligned. Must not keep pointers.
  std::function<void(const char* const* sources, char* out)> make;
};

// FinishArgs of a run: column n is the index along the output's dimension whose elements are adjacent.
struct Finish {
  std::optional<Operand> scale, shift, residual;
  int64_t columns = 0;  // of scale and shift; 0: neither is there
  bool clamps = false;
  float low = 0, high = 0;

  FinishArgs at(char* const* bases) const {
    const auto floats = [&](const std::optional<Operand>& operand) {
      return operand ? reinterpret_cast<const float*>(operand->at(bases)) : nullptr;
    };
    return {floats(scale), floats(shift), floats(residual), clamps, low, high};
  }
  // Whether a kernel whose output has so many columns indexes them as scale and shift are indexed.
  bool suits(int64_t columns_of_kernel) const { return columns == 0 || columns == columns_of_kernel; }
};

// Pointwise operations on a call's output, run part by part while its elements are in the cache.
struct Epilogue {
  // Elements [begin, end) of the output in memory order. Returns kRan or kRedo. Any number of threads may run
  // different parts.
  int (*run)(const void* params, char* const* bases, int64_t begin, int64_t end) = nullptr;
  std::shared_ptr<const void> params;
  // The same operations, for kernels that do them before they write an element; nullopt if a Finish cannot
  // express them.
  std::optional<Finish> finish;
};

// One node, on one signature: CPU, strided, no conj or neg bit, recorded by a run of the general path.
struct PrepareRequest {
  std::string_view op;
  struct Argument {
    std::vector<TensorOperand> tensors;  // one, or a Tensor[]'s elements; empty for a non-tensor
    c10::IValue value;                   // a non-tensor: number, list, None, dtype, ...
    bool is_tensor() const { return tensors.size() == 1; }
    bool is_none() const { return tensors.empty() && value.isNone(); }
  };
  std::vector<Argument> args;         // in schema order
  std::vector<bool> is_read;          // per output: whether it is read; the others need not be written
  std::vector<TensorOperand> outs;    // sizes and strides are final: the kernel must honour them
  int num_threads = 1;                // intra-op threads the call may use (run_tiles)
  bool deterministic = false;         // choose kernels by rule, not by measuring
  bool copies_large_weights = false;  // where that is faster; off: kernels read them where they lie
  // The largest size of derived bytes: a kernel that needs less is chosen where they would not fit.
  int64_t most_derived_bytes = std::numeric_limits<int64_t>::max();

  // Bytes of scratch memory the call needs while it runs, 64-aligned; where they lie is filled in by the
  // runtime after prepare returns. Set by prepare.
  int64_t workspace_bytes = 0;

  // Operations on the output after the kernel, or null. The output is dense, and its first bytes are those of
  // the epilogue's. A kernel that runs them once on every element, after it is final, says so.
  const Epilogue* epilogue = nullptr;
  bool takes_epilogue = false;
  bool finishes = false;  // the kernel does `epilogue->finish` instead of calling `epilogue->run`

  // Asks for derived bytes; their place in a run. REQUIRES: every source is fixed.
  Operand derive(Derivation derivation) {
    derivations.push_back(std::move(derivation));
    return {first_derived + static_cast<uint32_t>(derivations.size() - 1), 0};
  }
  std::vector<Derivation> derivations;
  uint32_t first_derived = 0;  // base entry of the first of them; set by the runtime

  std::vector<RouteChoice> choices;  // what was chosen by measuring, for this call
};

inline constexpr int kRan = 0;
inline constexpr int kRedo = 1;

// The output at base `output` may lie in the bytes of the input at base `input`, where both have equal
// extents: each element is read before it is written, and no other of that input's elements is read later.
struct Reuse {
  uint32_t input = 0;
  uint32_t output = 0;
};

// All that the call does with the tensor at base `input` is to copy its bytes to a run of the output's. If
// they lie there already, it leaves them alone.
struct Slice {
  uint32_t input = 0;
  uint32_t output = 0;
  int64_t offset_bytes = 0;  // of the run, from the output's first byte
  int64_t size_bytes = 0;
};

struct PreparedCall {
  // workspace: at least workspace_bytes, or null if 0. Must not throw, allocate, or keep anything.
  // Returns kRan, or kRedo if the values need eager's error (an index out of range, an integer divided by
  // zero): the runtime then runs the node's out variant, which raises it. Outputs are unspecified after
  // kRedo.
  int (*run)(const void* params, char* const* bases, char* workspace) = nullptr;
  std::shared_ptr<const void> params;
  std::string_view route;  // the kernel chosen, for explain() and profiles: "sgemm", "tile loop"
  // How a plan may reuse the operands' bytes. A call that may return kRedo allows no reuse, because the node
  // would then run again on its own results.
  std::vector<Reuse> reuses;
  // Empty, or all inputs of which the output is made: if each lies in its place, nothing is left to do.
  std::vector<Slice> slices;
  // What it hands to run_tiles, one grid after another, and to how many threads; empty: one thread does all.
  std::vector<Grid> grids;
};

// nullopt: not for these shapes or dtypes; the node then runs its out variant.
using PrepareFn = std::optional<PreparedCall> (*)(PrepareRequest& request);

void register_prepare(std::string_view op, PrepareFn prepare);
PrepareFn find_prepare(std::string_view op);  // nullptr if there is none

namespace detail {
struct PrepareRegistrar {
  PrepareRegistrar(std::string_view op, PrepareFn prepare) { register_prepare(op, prepare); }
};
}  // namespace detail

}  // namespace staticrt

#define SRT_PREPARE(op_name, fn)                                                          \
  static std::optional<::staticrt::PreparedCall> fn(::staticrt::PrepareRequest& request); \
  static const ::staticrt::detail::PrepareRegistrar fn##_registrar{op_name, &fn};         \
  static std::optional<::staticrt::PreparedCall> fn([[maybe_unused]] ::staticrt::PrepareRequest& request)

// The same for a function that returns one expression of `request`.
#define SRT_PREPARE_AS(op_name, ...)                                                              \
  static const ::staticrt::detail::PrepareRegistrar SRT_PREPARE_NAME(__LINE__) {                  \
    op_name, [](::staticrt::PrepareRequest& request) -> std::optional<::staticrt::PreparedCall> { \
      return __VA_ARGS__;                                                                         \
    }                                                                                             \
  }
#define SRT_PREPARE_NAME(line) SRT_PREPARE_JOIN(prepare_registrar_, line)
#define SRT_PREPARE_JOIN(a, b) a##b
