// A matrix product with its route chosen: what gemm_routes.cpp decides and gemm_run.cpp runs.
#pragma once

#include <memory>

#include "kernels/gemm/gemm_routes.h"

namespace staticrt {

enum class Route : uint8_t { kBlas, kPacked, kDirect, kPackEach, kDots, kTurned };

struct GemmPlan {
  MatmulShape s;
  Route route = Route::kBlas;
  Operand packed;  // kPacked: B in panels
};

// Whether torch's BLAS exports what the route needs.
bool has_blas(bool is_double);
PreparedCall call_of(std::shared_ptr<GemmPlan> plan);
// B[k, n] = weight[k * b_k + n * b_n] in panels, as GemmKernels::pack makes them.
Derivation packed_weight(const TensorOperand& weight, int64_t k, int64_t n, int64_t b_k, int64_t b_n);
// Bytes of scratch memory of a route, of all its parts.
int64_t workspace_of(const MatmulShape& s, Route route);

}  // namespace staticrt
