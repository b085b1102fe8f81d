// torch's per-ISA kernels, without the functions that allocate around them.
//
// DispatchStub's own call is hidden in libtorch_cpu.so; the pointers it chooses from are exported. The
// choice is torch's: the best level at::get_cpu_capability() allows for which there is a kernel.
// Include this header first: it decides what ATen/native/DispatchStub.h declares.
#pragma once

#if defined(__x86_64__)
#define HAVE_AVX2_CPU_DEFINITION
#define HAVE_AVX512_CPU_DEFINITION
#define SRT_HAS_STUBS 1
#endif

#include <ATen/native/DispatchStub.h>

#include "kernels/registry/cpu_level.h"

namespace staticrt {

#ifdef SRT_HAS_STUBS
template <class Stub>
auto pick_stub() {
  if (cpu_level() >= 2 && Stub::AVX512) return Stub::AVX512;
  if (cpu_level() >= 1 && Stub::AVX2) return Stub::AVX2;
  return Stub::DEFAULT;
}
#endif

}  // namespace staticrt

#define SRT_STUB(name) ::staticrt::pick_stub<at::native::name##_DECLARE_DISPATCH_type>()
