// torch.special: pointwise functions and orthogonal polynomials.
#include <ATen/core/ivalue.h>
#include <ATen/ops/special_airy_ai_cpu_dispatch.h>
#include <ATen/ops/special_bessel_j0_cpu_dispatch.h>
#include <ATen/ops/special_bessel_j1_cpu_dispatch.h>
#include <ATen/ops/special_bessel_y0_cpu_dispatch.h>
#include <ATen/ops/special_bessel_y1_cpu_dispatch.h>
#include <ATen/ops/special_chebyshev_polynomial_t_cpu_dispatch.h>
#include <ATen/ops/special_chebyshev_polynomial_t_native.h>
#include <ATen/ops/special_chebyshev_polynomial_u_cpu_dispatch.h>
#include <ATen/ops/special_chebyshev_polynomial_u_native.h>
#include <ATen/ops/special_chebyshev_polynomial_v_cpu_dispatch.h>
#include <ATen/ops/special_chebyshev_polynomial_v_native.h>
#include <ATen/ops/special_chebyshev_polynomial_w_cpu_dispatch.h>
#include <ATen/ops/special_chebyshev_polynomial_w_native.h>
#include <ATen/ops/special_entr_cpu_dispatch.h>
#include <ATen/ops/special_erfcx_cpu_dispatch.h>
#include <ATen/ops/special_hermite_polynomial_h_cpu_dispatch.h>
#include <ATen/ops/special_hermite_polynomial_h_native.h>
#include <ATen/ops/special_hermite_polynomial_he_cpu_dispatch.h>
#include <ATen/ops/special_hermite_polynomial_he_native.h>
#include <ATen/ops/special_i0e_cpu_dispatch.h>
#include <ATen/ops/special_i1_cpu_dispatch.h>
#include <ATen/ops/special_i1e_cpu_dispatch.h>
#include <ATen/ops/special_laguerre_polynomial_l_cpu_dispatch.h>
#include <ATen/ops/special_laguerre_polynomial_l_native.h>
#include <ATen/ops/special_legendre_polynomial_p_cpu_dispatch.h>
#include <ATen/ops/special_legendre_polynomial_p_native.h>
#include <ATen/ops/special_log_ndtr_cpu_dispatch.h>
#include <ATen/ops/special_modified_bessel_i0_cpu_dispatch.h>
#include <ATen/ops/special_modified_bessel_i1_cpu_dispatch.h>
#include <ATen/ops/special_modified_bessel_k0_cpu_dispatch.h>
#include <ATen/ops/special_modified_bessel_k1_cpu_dispatch.h>
#include <ATen/ops/special_ndtri_cpu_dispatch.h>
#include <ATen/ops/special_scaled_modified_bessel_k0_cpu_dispatch.h>
#include <ATen/ops/special_scaled_modified_bessel_k1_cpu_dispatch.h>
#include <ATen/ops/special_shifted_chebyshev_polynomial_t_cpu_dispatch.h>
#include <ATen/ops/special_shifted_chebyshev_polynomial_t_native.h>
#include <ATen/ops/special_shifted_chebyshev_polynomial_u_cpu_dispatch.h>
#include <ATen/ops/special_shifted_chebyshev_polynomial_u_native.h>
#include <ATen/ops/special_shifted_chebyshev_polynomial_v_cpu_dispatch.h>
#include <ATen/ops/special_shifted_chebyshev_polynomial_v_native.h>
#include <ATen/ops/special_shifted_chebyshev_polynomial_w_cpu_dispatch.h>
#include <ATen/ops/special_shifted_chebyshev_polynomial_w_native.h>
#include <ATen/ops/special_spherical_bessel_j0_cpu_dispatch.h>
#include <ATen/ops/special_xlog1py_cpu_dispatch.h>
#include <ATen/ops/special_xlog1py_native.h>
#include <ATen/ops/special_zeta_cpu_dispatch.h>
#include <ATen/ops/special_zeta_native.h>

#include "kernels/registry/bind.h"

namespace staticrt {
namespace {

namespace cpu = at::cpu;
namespace n = at::native;

const RegisterKernels kSpecial{
    out<cpu::special_entr_outf>("aten::special_entr"),
    out<cpu::special_ndtri_outf>("aten::special_ndtri"),
    out<cpu::special_log_ndtr_outf>("aten::special_log_ndtr"),
    out<cpu::special_erfcx_outf>("aten::special_erfcx"),
    out<cpu::special_i0e_outf>("aten::special_i0e"),
    out<cpu::special_i1_outf>("aten::special_i1"),
    out<cpu::special_i1e_outf>("aten::special_i1e"),
    out<cpu::special_airy_ai_outf>("aten::special_airy_ai"),
    out<cpu::special_bessel_j0_outf>("aten::special_bessel_j0"),
    out<cpu::special_bessel_j1_outf>("aten::special_bessel_j1"),
    out<cpu::special_bessel_y0_outf>("aten::special_bessel_y0"),
    out<cpu::special_bessel_y1_outf>("aten::special_bessel_y1"),
    out<cpu::special_modified_bessel_i0_outf>("aten::special_modified_bessel_i0"),
    out<cpu::special_modified_bessel_i1_outf>("aten::special_modified_bessel_i1"),
    out<cpu::special_modified_bessel_k0_outf>("aten::special_modified_bessel_k0"),
    out<cpu::special_modified_bessel_k1_outf>("aten::special_modified_bessel_k1"),
    out<cpu::special_scaled_modified_bessel_k0_outf>("aten::special_scaled_modified_bessel_k0"),
    out<cpu::special_scaled_modified_bessel_k1_outf>("aten::special_scaled_modified_bessel_k1"),
    out<cpu::special_spherical_bessel_j0_outf>("aten::special_spherical_bessel_j0"),
    out<cpu::special_xlog1py_outf>("aten::special_xlog1py"),
    out<as<ScalarTensorOut>(n::special_xlog1py_out)>("aten::special_xlog1py.self_scalar"),
    out<as<TensorScalarOut>(n::special_xlog1py_out)>("aten::special_xlog1py.other_scalar"),
    out<cpu::special_zeta_outf>("aten::special_zeta"),
    out<as<ScalarTensorOut>(n::special_zeta_out)>("aten::special_zeta.self_scalar"),
    out<as<TensorScalarOut>(n::special_zeta_out)>("aten::special_zeta.other_scalar"),
    out<cpu::special_chebyshev_polynomial_t_outf>("aten::special_chebyshev_polynomial_t"),
    out<as<ScalarTensorOut>(n::special_chebyshev_polynomial_t_out)>(
        "aten::special_chebyshev_polynomial_t.x_scalar"),
    out<as<TensorScalarOut>(n::special_chebyshev_polynomial_t_out)>(
        "aten::special_chebyshev_polynomial_t.n_scalar"),
    out<cpu::special_chebyshev_polynomial_u_outf>("aten::special_chebyshev_polynomial_u"),
    out<as<ScalarTensorOut>(n::special_chebyshev_polynomial_u_out)>(
        "aten::special_chebyshev_polynomial_u.x_scalar"),
    out<as<TensorScalarOut>(n::special_chebyshev_polynomial_u_out)>(
        "aten::special_chebyshev_polynomial_u.n_scalar"),
    out<cpu::special_chebyshev_polynomial_v_outf>("aten::special_chebyshev_polynomial_v"),
    out<as<ScalarTensorOut>(n::special_chebyshev_polynomial_v_out)>(
        "aten::special_chebyshev_polynomial_v.x_scalar"),
    out<as<TensorScalarOut>(n::special_chebyshev_polynomial_v_out)>(
        "aten::special_chebyshev_polynomial_v.n_scalar"),
    out<cpu::special_chebyshev_polynomial_w_outf>("aten::special_chebyshev_polynomial_w"),
    out<as<ScalarTensorOut>(n::special_chebyshev_polynomial_w_out)>(
        "aten::special_chebyshev_polynomial_w.x_scalar"),
    out<as<TensorScalarOut>(n::special_chebyshev_polynomial_w_out)>(
        "aten::special_chebyshev_polynomial_w.n_scalar"),
    out<cpu::special_hermite_polynomial_h_outf>("aten::special_hermite_polynomial_h"),
    out<as<ScalarTensorOut>(n::special_hermite_polynomial_h_out)>(
        "aten::special_hermite_polynomial_h.x_scalar"),
    out<as<TensorScalarOut>(n::special_hermite_polynomial_h_out)>(
        "aten::special_hermite_polynomial_h.n_scalar"),
    out<cpu::special_hermite_polynomial_he_outf>("aten::special_hermite_polynomial_he"),
    out<as<ScalarTensorOut>(n::special_hermite_polynomial_he_out)>(
        "aten::special_hermite_polynomial_he.x_scalar"),
    out<as<TensorScalarOut>(n::special_hermite_polynomial_he_out)>(
        "aten::special_hermite_polynomial_he.n_scalar"),
    out<cpu::special_laguerre_polynomial_l_outf>("aten::special_laguerre_polynomial_l"),
    out<as<ScalarTensorOut>(n::special_laguerre_polynomial_l_out)>(
        "aten::special_laguerre_polynomial_l.x_scalar"),
    out<as<TensorScalarOut>(n::special_laguerre_polynomial_l_out)>(
        "aten::special_laguerre_polynomial_l.n_scalar"),
    out<cpu::special_legendre_polynomial_p_outf>("aten::special_legendre_polynomial_p"),
    out<as<ScalarTensorOut>(n::special_legendre_polynomial_p_out)>(
        "aten::special_legendre_polynomial_p.x_scalar"),
    out<as<TensorScalarOut>(n::special_legendre_polynomial_p_out)>(
        "aten::special_legendre_polynomial_p.n_scalar"),
    out<cpu::special_shifted_chebyshev_polynomial_t_outf>("aten::special_shifted_chebyshev_polynomial_t"),
    out<as<ScalarTensorOut>(n::special_shifted_chebyshev_polynomial_t_out)>(
        "aten::special_shifted_chebyshev_polynomial_t.x_scalar"),
    out<as<TensorScalarOut>(n::special_shifted_chebyshev_polynomial_t_out)>(
        "aten::special_shifted_chebyshev_polynomial_t.n_scalar"),
    out<cpu::special_shifted_chebyshev_polynomial_u_outf>("aten::special_shifted_chebyshev_polynomial_u"),
    out<as<ScalarTensorOut>(n::special_shifted_chebyshev_polynomial_u_out)>(
        "aten::special_shifted_chebyshev_polynomial_u.x_scalar"),
    out<as<TensorScalarOut>(n::special_shifted_chebyshev_polynomial_u_out)>(
        "aten::special_shifted_chebyshev_polynomial_u.n_scalar"),
    out<cpu::special_shifted_chebyshev_polynomial_v_outf>("aten::special_shifted_chebyshev_polynomial_v"),
    out<as<ScalarTensorOut>(n::special_shifted_chebyshev_polynomial_v_out)>(
        "aten::special_shifted_chebyshev_polynomial_v.x_scalar"),
    out<as<TensorScalarOut>(n::special_shifted_chebyshev_polynomial_v_out)>(
        "aten::special_shifted_chebyshev_polynomial_v.n_scalar"),
    out<cpu::special_shifted_chebyshev_polynomial_w_outf>("aten::special_shifted_chebyshev_polynomial_w"),
    out<as<ScalarTensorOut>(n::special_shifted_chebyshev_polynomial_w_out)>(
        "aten::special_shifted_chebyshev_polynomial_w.x_scalar"),
    out<as<TensorScalarOut>(n::special_shifted_chebyshev_polynomial_w_out)>(
        "aten::special_shifted_chebyshev_polynomial_w.n_scalar"),
};

}  // namespace
}  // namespace staticrt
