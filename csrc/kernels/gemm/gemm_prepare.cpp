// Matrix products: linear, mm, addmm, bmm, baddbmm, matmul, mv.
#include <algorithm>

#include "kernels/gemm/gemm_routes.h"
#include "kernels/pointwise/pointwise_ops.h"

namespace staticrt {
namespace {

using at::ScalarType;

// Merges the dimensions [begin, end) of a tensor into one of a single stride; false if they do not merge.
bool merge_dims(const TensorMeta& t, size_t begin, size_t end, int64_t* size, int64_t* stride) {
  *size = 1;
  *stride = 0;
  for (size_t d = end; d-- > begin;) {
    if (t.sizes[d] == 1) continue;
    if (*size == 1) {
      *stride = t.strides[d];
    } else if (t.strides[d] != *stride * *size) {
      return false;
    }
    *size *= t.sizes[d];
  }
  return true;
}

bool supported(const TensorMeta& t) {
  return t.dtype == ScalarType::Float || t.dtype == ScalarType::Double;
}

// The last two dims of each, as rows and columns.
void set_a(MatmulShape& s, const TensorOperand& t) {
  const size_t r = t.meta.sizes.size();
  s.a = t.where;
  s.m = t.meta.sizes[r - 2];
  s.k = t.meta.sizes[r - 1];
  s.a_row = t.meta.strides[r - 2];
  s.a_col = t.meta.strides[r - 1];
}

void set_b(MatmulShape& s, const TensorOperand& t) {
  const size_t r = t.meta.sizes.size();
  s.b = t.where;
  s.n = t.meta.sizes[r - 1];
  s.b_k = t.meta.strides[r - 2];
  s.b_n = t.meta.strides[r - 1];
  s.b_fixed = t.is_fixed;
  s.b_fixed_operand = t;
}

bool set_c(MatmulShape& s, const TensorOperand& t) {
  const size_t r = t.meta.sizes.size();
  s.c = t.where;
  s.c_row = t.meta.strides[r - 2];
  return t.meta.strides[r - 1] == 1 || t.meta.sizes[r - 1] == 1;
}

// Strides of dims of one element mean nothing; give them values that fit a plain layout.
void tidy(MatmulShape& s) {
  if (s.k == 1) s.a_col = 1;
  if (s.m == 1 && s.a_col != 1 && s.k > 1) {
    s.a_row = 1;  // one strided row is a transposed column
  }
  if (s.n == 1 && s.b_k == 1) s.b_n = std::max<int64_t>(s.k, 1);
  if (s.n == 1 && s.b_k != 1) s.b_n = 1;
  if (s.k == 1 && s.b_n == 1) s.b_k = std::max<int64_t>(s.n, 1);
  if (s.k == 1 && s.b_n != 1) s.b_k = 1;
  if (s.m == 1) s.c_row = s.n;
}

// Bias broadcast to [m, n] (or [batch, m, n]).
bool set_bias(MatmulShape& s, const TensorOperand& t, double beta) {
  if (beta == 0) return true;
  const auto& sizes = t.meta.sizes;
  const size_t r = sizes.size();
  if (r > 3) return false;
  s.has_bias = true;
  s.bias = t.where;
  s.beta = beta;
  s.bias_col = r >= 1 && sizes[r - 1] != 1 ? t.meta.strides[r - 1] : s.n == 1 ? 1 : 0;
  s.bias_row = r >= 2 && sizes[r - 2] != 1 ? t.meta.strides[r - 2] : 0;
  s.bias_batch[1] = r >= 3 && sizes[0] != 1 ? t.meta.strides[0] : 0;
  return true;
}

// Batch dims of operand t (all but the last two), broadcast against those of the output, as at most two.
bool batch_strides(const TensorMeta& t, const TensorMeta& out, int64_t (&batch)[2], int64_t (&strides)[2]) {
  const size_t dims = out.sizes.size() - 2;
  const size_t own = t.sizes.size() - 2;
  if (dims > 2) return false;
  for (size_t d = 0; d < dims; ++d) {
    const size_t slot = d + 2 - dims;
    batch[slot] = out.sizes[d];
    const bool present = d + own >= dims;
    const size_t at = d + own - dims;
    strides[slot] = present && t.sizes[at] != 1 ? t.strides[at] : 0;
  }
  return true;
}

// Operands of one product, or of a batch of products; false if a layout has no kernel.
bool set_operands(MatmulShape& s, const TensorOperand& a, const TensorOperand& b, const TensorOperand& c) {
  set_a(s, a);
  set_b(s, b);
  return set_c(s, c) && batch_strides(a.meta, c.meta, s.batch, s.a_batch) &&
         batch_strides(b.meta, c.meta, s.batch, s.b_batch) &&
         batch_strides(c.meta, c.meta, s.batch, s.c_batch);
}

// All tensors of one floating dtype.
bool one_dtype(const PrepareRequest& request) {
  const ScalarType dtype = request.outs[0].meta.dtype;
  for (const auto& arg : request.args) {
    for (const TensorOperand& t : arg.tensors) {
      if (t.meta.defined() && t.meta.dtype != dtype) return false;
    }
  }
  return supported(request.outs[0].meta) && request.outs.size() == 1;
}

double number_or(const PrepareRequest& request, size_t i, double otherwise) {
  if (i >= request.args.size() || !request.args[i].value.isScalar()) return otherwise;
  return request.args[i].value.toScalar().toDouble();
}

std::optional<PreparedCall> finish(MatmulShape& s, PrepareRequest& request) {
  s.is_double = request.outs[0].meta.dtype == ScalarType::Double;
  s.num_threads = request.num_threads;
  s.deterministic = request.deterministic;
  s.copies_large_weights = request.copies_large_weights;
  tidy(s);
  return prepare_matmul(s, request);
}

}  // namespace

std::optional<PreparedCall> prepare_product(MatmulShape shape, PrepareRequest& request) {
  if (!one_dtype(request)) return std::nullopt;
  return finish(shape, request);
}

SRT_PREPARE("aten::linear", prepare_linear) {
  if (!one_dtype(request)) return std::nullopt;
  const TensorOperand& x = request.args[0].tensors[0];
  const TensorOperand& w = request.args[1].tensors[0];
  const TensorOperand& out = request.outs[0];
  const size_t rank = x.meta.sizes.size();
  if (rank == 0 || w.meta.sizes.size() != 2) return std::nullopt;
  MatmulShape s;
  s.a = x.where;
  s.k = x.meta.sizes[rank - 1];
  s.a_col = x.meta.strides[rank - 1];
  int64_t rows_out = 0;
  if (!merge_dims(x.meta, 0, rank - 1, &s.m, &s.a_row)) return std::nullopt;
  if (!merge_dims(out.meta, 0, rank - 1, &rows_out, &s.c_row)) return std::nullopt;
  s.b = w.where;
  s.n = w.meta.sizes[0];
  s.b_n = w.meta.strides[0];
  s.b_k = w.meta.strides[1];
  s.b_fixed = w.is_fixed;
  s.b_fixed_operand = w;
  s.c = out.where;
  if (s.n != 1 && out.meta.strides[rank - 1] != 1) return std::nullopt;
  if (request.args.size() > 2 && request.args[2].is_tensor() && request.args[2].tensors[0].meta.defined()) {
    if (!set_bias(s, request.args[2].tensors[0], 1)) return std::nullopt;
  }
  return finish(s, request);
}

static std::optional<PreparedCall> product_of(PrepareRequest& request, const TensorOperand& a,
                                              const TensorOperand& b, const TensorOperand& c) {
  MatmulShape s;
  if (!one_dtype(request) || !set_operands(s, a, b, c)) return std::nullopt;
  return finish(s, request);
}

SRT_PREPARE_AS("aten::mm",
               product_of(request, request.args[0].tensors[0], request.args[1].tensors[0], request.outs[0]));
SRT_PREPARE_AS("aten::bmm",
               product_of(request, request.args[0].tensors[0], request.args[1].tensors[0], request.outs[0]));

static std::optional<PreparedCall> addmm_with(PrepareRequest& request, Prim activation, bool activates) {
  MatmulShape s;
  if (!one_dtype(request) ||
      !set_operands(s, request.args[1].tensors[0], request.args[2].tensors[0], request.outs[0]) ||
      !set_bias(s, request.args[0].tensors[0], number_or(request, 3, 1))) {
    return std::nullopt;
  }
  s.alpha = number_or(request, 4, 1);
  if (activates) {
    if (request.outs[0].meta.dtype != ScalarType::Float) return std::nullopt;
    if (activation == Prim::kGelu && request.outs[0].meta.numel() > 1) {
      const GeluOfEager eager = gelu_of_eager(ScalarType::Float);
      s.activation_imm[0].f32 = eager.infinity_is_nan ? 1.0F : 0.0F;
      s.activation_imm[1].f32 = eager.drops_sign_of_zero ? 1.0F : 0.0F;
    }
    s.activation = tile_prims().op[static_cast<int>(activation)][static_cast<int>(TileClass::kF32)][0];
  }
  return finish(s, request);
}

SRT_PREPARE_AS("aten::addmm", addmm_with(request, Prim::kClampMin, false));

// eager on CPU: relu or gelu
SRT_PREPARE("aten::_addmm_activation", prepare_addmm_activation) {
  const bool gelu =
      request.args.size() > 5 && request.args[5].value.isBool() && request.args[5].value.toBool();
  return addmm_with(request, gelu ? Prim::kGelu : Prim::kClampMin, true);
}

SRT_PREPARE("aten::baddbmm", prepare_baddbmm) {
  // Eager multiplies NaN by an alpha of 0 in small products, and leaves large ones out.
  if (number_or(request, 4, 1) == 0) return std::nullopt;
  return addmm_with(request, Prim::kClampMin, false);
}

// A vector operand becomes a matrix of one row (left) or one column (right); the output loses that dim.
static TensorOperand as_matrix(const TensorOperand& t, bool left) {
  TensorOperand m = t;
  const int64_t size = t.meta.sizes[0];
  const int64_t stride = t.meta.strides[0];
  m.meta.sizes = left ? Ints{1, size} : Ints{size, 1};
  m.meta.strides = left ? Ints{size, stride} : Ints{stride, 1};
  return m;
}

SRT_PREPARE("aten::matmul", prepare_matmul_op) {
  if (!one_dtype(request)) return std::nullopt;
  TensorOperand a = request.args[0].tensors[0];
  TensorOperand b = request.args[1].tensors[0];
  TensorOperand out = request.outs[0];
  if (a.meta.sizes.empty() || b.meta.sizes.empty()) return std::nullopt;
  const bool row = a.meta.sizes.size() == 1;
  const bool column = b.meta.sizes.size() == 1;
  if (column) {
    b = as_matrix(b, false);
    out.meta.sizes.push_back(1);
    out.meta.strides.push_back(1);
  }
  if (row) {
    a = as_matrix(a, true);
    out.meta.sizes.insert(out.meta.sizes.end() - 1, 1);
    out.meta.strides.insert(out.meta.strides.end() - 1, 0);
  }
  const size_t rank = a.meta.sizes.size();
  if (b.meta.sizes.size() == 2 && rank > 2) {  // all rows on the left times one matrix
    MatmulShape s;
    set_a(s, a);
    set_b(s, b);
    int64_t rows_out = 0;
    if (set_c(s, out) && merge_dims(a.meta, 0, rank - 1, &s.m, &s.a_row) &&
        merge_dims(out.meta, 0, rank - 1, &rows_out, &s.c_row)) {
      return finish(s, request);
    }
  }
  return product_of(request, a, b, out);
}

SRT_PREPARE("aten::mv", prepare_mv) {
  TensorOperand out = request.outs[0];
  out.meta.sizes.push_back(1);
  out.meta.strides.push_back(1);
  return product_of(request, request.args[0].tensors[0], as_matrix(request.args[1].tensors[0], false), out);
}

}  // namespace staticrt
