// A matrix product with its route chosen: what gemm_routes.cpp decides and gemm_run.cpp runs.
#pragma once

#include <memory>
#include <string_view>

#include "kernels/gemm_routes.h"

namespace staticrt {

enum class Route : uint8_t { kBlas, kPacked, kDirect, kPackEach, kDots };

struct GemmPlan {
  MatmulShape s;
  Route route = Route::kBlas;
  Operand packed;  // kPacked: B in panels
};

// Whether torch's BLAS exports what the route needs.
bool has_blas(bool is_double);
PreparedCall call_of(std::shared_ptr<GemmPlan> plan);
// Bytes of scratch memory of a route.
int64_t workspace_of(const MatmulShape& s, Route route);

}  // namespace staticrt
