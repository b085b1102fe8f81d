#include "program/process_state.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include <string_view>
#include <tuple>

namespace staticrt {

using at::Context;
using Backend = at::Float32Backend;
using Op = at::Float32Op;

// What Context keeps private: an explicit instantiation may name it. Its own reader searches a hash table.
const at::Float32Precision* place_of(const Context& context, Backend backend, Op op);

template <auto Precisions>
struct Private {
  friend const at::Float32Precision* place_of(const Context& context, Backend backend, Op op) {
    return &(context.*Precisions).at({backend, op});
  }
};
template struct Private<&Context::fp32_precision>;

namespace {

// As it was set; what "none" inherits is another row.
template <Backend backend, Op op>
at::Float32Precision precision(const Context& context) {
  static const at::Float32Precision* const place = place_of(context, backend, op);  // there is one Context
  return *place;
}

enum Scope : bool { kProcess = false, kThread = true };

template <class Read>
struct Row {
  const char* name;
  Scope scope;
  Read read;  // of a Context&
};
template <class Read>
Row(const char*, Scope, Read) -> Row<Read>;

// Flush-to-zero and denormals-are-zero: torch.set_flush_denormal.
uint16_t flushes_denormals() {
#if defined(__SSE__)
  return (_mm_getcsr() & 0x8040) != 0;
#elif defined(__aarch64__)
  uint64_t control = 0;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  return (control >> 24) & 1;
#else
  return 0;
#endif
}

uint16_t packed(const auto& sdpa_priority) {
  uint16_t word = 0;
  for (const auto backend : sdpa_priority)
    word = static_cast<uint16_t>(word << 3 | static_cast<int>(backend));
  return word;
}

// Reads what some versions of torch do not have; 0 for those.
#define SRT_WHERE_KNOWN(read)             \
  [](auto& c) {                           \
    if constexpr (requires { read; })     \
      return static_cast<uint16_t>(read); \
    else                                  \
      return uint16_t{0};                 \
  }

constexpr auto kTable = std::tuple{
    Row{"grad_mode", kThread, [](auto&) { return at::GradMode::is_enabled(); }},
    Row{"inference_mode", kThread, [](auto&) { return c10::InferenceMode::is_enabled(); }},
    Row{"autocast_cpu", kThread, [](auto&) { return at::autocast::is_autocast_enabled(at::kCPU); }},
    Row{"autocast_cpu_dtype", kThread, [](auto&) { return at::autocast::get_autocast_dtype(at::kCPU); }},
    Row{"autocast_cuda", kThread, [](auto&) { return at::autocast::is_autocast_enabled(at::kCUDA); }},
    Row{"autocast_cuda_dtype", kThread, [](auto&) { return at::autocast::get_autocast_dtype(at::kCUDA); }},
    // Of a backend outside of torch, whose casts traced graphs do not contain: 0, or 1 plus the type.
    Row{"autocast_other", kThread,
        [](auto&) {
          if (!at::autocast::is_autocast_enabled(at::kPrivateUse1)) return uint16_t{0};
          return static_cast<uint16_t>(1 +
                                       static_cast<int>(at::autocast::get_autocast_dtype(at::kPrivateUse1)));
        }},
    Row{"autocast_cache", kThread, [](auto&) { return at::autocast::is_autocast_cache_enabled(); }},
    Row{"flush_denormal", kThread, [](auto&) { return flushes_denormals(); }},
    Row{"default_dtype", kProcess, [](auto&) { return c10::typeMetaToScalarType(c10::get_default_dtype()); }},
    Row{"anomaly_mode", kProcess, [](auto&) { return torch::autograd::AnomalyMode::is_enabled(); }},
    Row{"anomaly_check_nan", kProcess,
        [](auto&) { return torch::autograd::AnomalyMode::should_check_nan(); }},
    Row{"deterministic", kProcess, [](auto& c) { return c.deterministicAlgorithms(); }},
    Row{"deterministic_warn_only", kProcess, [](auto& c) { return c.deterministicAlgorithmsWarnOnly(); }},
    Row{"deterministic_fill", kProcess, [](auto& c) { return c.deterministicFillUninitializedMemory(); }},
    // All of float32's precision: torch.set_float32_matmul_precision and the allow_tf32 switches of cuBLAS
    // and cuDNN write these too, and reading through them raises once the newer switches were used.
    Row{"fp32_precision", kProcess, &precision<Backend::GENERIC, Op::ALL>},
    Row{"fp32_mkldnn", kProcess, &precision<Backend::MKLDNN, Op::ALL>},
    Row{"fp32_mkldnn_conv", kProcess, &precision<Backend::MKLDNN, Op::CONV>},
    Row{"fp32_mkldnn_rnn", kProcess, &precision<Backend::MKLDNN, Op::RNN>},
    Row{"fp32_mkldnn_matmul", kProcess, &precision<Backend::MKLDNN, Op::MATMUL>},
    Row{"fp32_cuda", kProcess, &precision<Backend::CUDA, Op::ALL>},
    Row{"fp32_cuda_conv", kProcess, &precision<Backend::CUDA, Op::CONV>},
    Row{"fp32_cuda_rnn", kProcess, &precision<Backend::CUDA, Op::RNN>},
    Row{"fp32_cuda_matmul", kProcess, &precision<Backend::CUDA, Op::MATMUL>},
    Row{"mkldnn", kProcess, [](auto& c) { return c.userEnabledMkldnn(); }},
    Row{"mkldnn_deterministic", kProcess, [](auto& c) { return c.deterministicMkldnn(); }},
    Row{"mkldnn_tf32", kProcess, [](auto& c) { return c.allowTF32OneDNN(); }},
    Row{"nnpack", kProcess, [](auto& c) { return c.userEnabledNNPACK(); }},
    Row{"cudnn", kProcess, [](auto& c) { return c.userEnabledCuDNN(); }},
    Row{"cudnn_benchmark", kProcess, [](auto& c) { return c.benchmarkCuDNN(); }},
    Row{"cudnn_benchmark_limit", kProcess, [](auto& c) { return c.benchmarkLimitCuDNN(); }},
    Row{"cudnn_deterministic", kProcess, [](auto& c) { return c.deterministicCuDNN(); }},
    Row{"cudnn_depthwise", kProcess, SRT_WHERE_KNOWN(c.cudnnDepthwiseKernel())},
    Row{"miopen_immediate", kProcess, SRT_WHERE_KNOWN(c.immediateMiopen())},
    Row{"cublas_fp16_reduction", kProcess, [](auto& c) { return c.allowFP16ReductionCuBLAS(); }},
    Row{"cublas_bf16_reduction", kProcess, [](auto& c) { return c.allowBF16ReductionCuBLAS(); }},
    Row{"cublas_fp16_accumulation", kProcess, [](auto& c) { return c.allowFP16AccumulationCuBLAS(); }},
    Row{"cpu_fp16_reduction", kProcess, [](auto& c) { return c.allowFP16ReductionCPU(); }},
    Row{"sm_carveout", kProcess, [](auto& c) { return c._SMCarveout_EXPERIMENTAL().value_or(-1) + 1; }},
    Row{"linalg_library", kProcess, [](auto& c) { return c.linalgPreferredBackend(); }},
    Row{"blas_library", kProcess, [](auto& c) { return c.blasPreferredBackend(); }},
    Row{"quantized_engine", kProcess, [](auto& c) { return c.qEngine(); }},
    Row{"sdpa_flash", kProcess, [](auto& c) { return c.userEnabledFlashSDP(); }},
    Row{"sdpa_fa3", kProcess, SRT_WHERE_KNOWN(c.userEnabledFA3SDP())},
    Row{"sdpa_mem_efficient", kProcess, [](auto& c) { return c.userEnabledMemEfficientSDP(); }},
    Row{"sdpa_math", kProcess, [](auto& c) { return c.userEnabledMathSDP(); }},
    Row{"sdpa_cudnn", kProcess, [](auto& c) { return c.userEnabledCuDNNSDP(); }},
    Row{"sdpa_overrideable", kProcess, [](auto& c) { return c.userEnabledOverrideableSDP(); }},
    Row{"sdpa_math_reduction", kProcess, [](auto& c) { return c.allowFP16BF16ReductionMathSDP(); }},
    Row{"sdpa_priority", kProcess, [](auto& c) { return packed(c.sDPPriorityOrder()); }},
    Row{"sparse_invariants", kProcess, SRT_WHERE_KNOWN(c.checkSparseTensorInvariants().value_or(false))},
};

size_t index_of(std::string_view name) {
  const auto flags = process_flags();
  size_t index = 0;
  while (name != flags[index].name) ++index;
  return index;
}

template <class IsOn, class Dtype>
std::string text_of(const IsOn& is_on, const Dtype& dtype) {
  std::string text;
  for (const at::DeviceType device : kAutocastDevices) {
    if (!is_on(device)) continue;
    if (!text.empty()) text += ",";
    text += c10::DeviceTypeName(device, true) + ":" + c10::toString(dtype(device));
  }
  return text;
}

}  // namespace

std::span<const ProcessFlag, kNumProcessFlags> process_flags() {
  static constexpr auto flags =
      std::apply([](const auto&... row) { return std::array{ProcessFlag{row.name, row.scope}...}; }, kTable);
  static_assert(flags.size() == kNumProcessFlags);
  return flags;
}

ProcessState process_state() {
  Context& context = at::globalContext();
  return std::apply(
      [&](const auto&... row) { return ProcessState{static_cast<uint16_t>(row.read(context))...}; }, kTable);
}

std::string autocast_text(const ProcessState& state) {
  const auto flag = [&](at::DeviceType device, const char* suffix) {
    return state[index_of("autocast_" + c10::DeviceTypeName(device, true) + suffix)];
  };
  return text_of([&](at::DeviceType device) { return flag(device, "") != 0; },
                 [&](at::DeviceType device) { return static_cast<at::ScalarType>(flag(device, "_dtype")); });
}

std::string autocast_text() {
  return text_of(&at::autocast::is_autocast_enabled, &at::autocast::get_autocast_dtype);
}

}  // namespace staticrt
