// The routes of matrix products.

#include <algorithm>
#include <atomic>
#include <cstring>

#include "common/tuning.h"
#include "kernels/gemm/gemm_plan.h"

// torch's BLAS, if it exports one (Fortran: column-major).
extern "C" {
__attribute__((weak)) void sgemm_(const char* ta, const char* tb, const int* m, const int* n, const int* k,
                                  const float* alpha, const float* a, const int* lda, const float* b,
                                  const int* ldb, const float* beta, float* c, const int* ldc);
__attribute__((weak)) void dgemm_(const char* ta, const char* tb, const int* m, const int* n, const int* k,
                                  const double* alpha, const double* a, const int* lda, const double* b,
                                  const int* ldb, const double* beta, double* c, const int* ldc);
}

namespace staticrt {
namespace {

constexpr std::string_view kRouteNames[] = {"gemm: blas",         "gemm: packed weights",
                                            "gemm: own kernel",   "gemm: packed per call",
                                            "gemm: dot products", "gemm: weights where they lie"};

template <class T>
const T* at_base(const Operand& o, char* const* bases) {
  return reinterpret_cast<const T*>(o.at(bases));
}

int64_t offset(const int64_t (&strides)[2], int64_t i, int64_t j) {
  return i * strides[0] + j * strides[1];
}

// A part of one matrix of the batch.
struct Patch {
  int64_t part = 0;  // whose scratch memory it may use
  int64_t i = 0, j = 0;
  int64_t row = 0, rows = 0, column = 0, columns = 0;
  bool begins = false;  // the first of its part with this B
};

// Nothing is to be done where the bias lies in the output's bytes.
template <class T>
void preset(const MatmulShape& s, const T* bias, T* c, int64_t rows, int64_t columns) {
  if (bias == c) return;
  for (int64_t m = 0; m < rows; ++m) {
    T* row = c + m * s.c_row;
    const T* from = bias + m * s.bias_row;
    if (s.bias_col == 1) {
      std::memcpy(row, from, static_cast<size_t>(columns) * sizeof(T));
    } else {
      for (int64_t n = 0; n < columns; ++n) row[n] = from[n * s.bias_col];
    }
  }
}

// Runs the epilogue on rows of a patch that are done.
struct RowsDone {
  const MatmulShape& s;
  char* const* bases;
  const Patch& patch;
  int status = kRan;

  void rows(int64_t begin, int64_t end) {
    const int64_t first = (patch.i * s.batch[1] + patch.j) * s.m + patch.row;
    if (patch.columns == s.n) return run((first + begin) * s.n, (first + end) * s.n);
    for (int64_t r = first + begin; r < first + end; ++r) {
      const int64_t at = r * s.n + patch.column;
      run(at, at + patch.columns);
    }
  }
  void run(int64_t begin, int64_t end) {
    status |= s.epilogue.run(s.epilogue.params.get(), bases, begin, end);
  }
  static void call(void* self, int64_t begin, int64_t end) { static_cast<RowsDone*>(self)->rows(begin, end); }
};

int64_t matrices(const MatmulShape& s) {
  return s.batch[0] * s.batch[1];
}

// How a route is cut. A thread reads only its part of the operand that is cut, and all of the other one: so
// A, whose rows are the output's, is cut where it is larger than B, and B's columns are otherwise. A batch is
// cut between its rows, which count over all matrices.
Grid product_grid(const MatmulShape& s, Route route) {
  int64_t unit = tuning::kProductRowUnit;
  if (route == Route::kPackEach || route == Route::kDots) unit = s.m;
  if (route == Route::kTurned) unit = gemm_kernels().nr;  // rows of a panel
  // Reading B decides the time of few rows; the rate is half where other layers have evicted it.
  const double read_ns =
      static_cast<double>(2 * s.k) * sizeof(float) / tuning::kReadBytesPerNs / static_cast<double>(s.m);
  return {.rows = matrices(s) * s.m,
          .columns = s.n,
          .row_unit = unit,
          .column_unit = gemm_kernels().nr,
          .cell_ns = std::max(product_ns(2 * s.k), read_ns) * (s.is_double ? 2 : 1),
          .columns_first = matrices(s) == 1 && s.m <= s.n};
}

// Columns of B that are packed at once. With AVX2 they stay in the second-level cache while all rows are
// multiplied; this was not measured with other vectors.
int64_t packed_columns(const MatmulShape& s) {
  constexpr int64_t kFloats = 1 << 16;
  const int64_t nr = gemm_kernels().nr;
  if (nr != 16) return s.n;
  return std::max<int64_t>(kFloats / std::max<int64_t>(s.k, 1) / nr, 1) * nr;
}

// Scratch memory of a part.
int64_t part_bytes(const MatmulShape& s, Route route) {
  const GemmKernels& kernels = gemm_kernels();
  const auto bytes = [](int64_t floats) {
    return (floats * static_cast<int64_t>(sizeof(float)) + 63) / 64 * 64;
  };
  const Grid grid = product_grid(s, route);
  const Tile tile = largest_tile(grid, cut_of(grid, s.num_threads));
  if (route == Route::kTurned) {
    // A tile with fewer rows may have higher chunks than the largest tile: bounds those of both.
    const int64_t rows = std::min(std::min(s.m, tile.row_end), tuning::kMaxTurnedRows);
    const int64_t panel = (rows + kernels.nr - 1) / kernels.nr * kernels.nr;
    return bytes(panel * s.k + kernels.turned_floats(rows));
  }
  if (route == Route::kPackEach)
    return bytes(kernels.packed_floats(s.k, std::min(tile.column_end, packed_columns(s))));
  if (route == Route::kDirect && s.n % kernels.nr != 0) return bytes(kernels.nr * s.k);
  return 0;
}

// How a tall product is done in chunks of rows, which are put into panels that stay in the cache.
struct TurnedChunks {
  explicit TurnedChunks(int64_t m) : panel(gemm_kernels().nr) {
    const int64_t chunks = (m + tuning::kMaxTurnedRows - 1) / tuning::kMaxTurnedRows;
    rows = ((m + chunks - 1) / chunks + panel - 1) / panel * panel;
    rows = std::min(rows, m);
  }
  int64_t panel_floats(int64_t k) const { return (rows + panel - 1) / panel * panel * k; }
  int64_t panel;
  int64_t rows;
};

// Calls f(patch) for the patches of each tile; f returns kRan or kRedo.
template <class F>
int run_patches(const MatmulShape& s, Route route, const F& f) {
  std::atomic<int> status{kRan};
  run_tiles(product_grid(s, route), s.num_threads, [&](const Tile& tile) {
    Patch patch{
        .part = tile.part, .column = tile.column_begin, .columns = tile.column_end - tile.column_begin};
    int of_tile = kRan;
    for (int64_t row = tile.row_begin; row < tile.row_end; row += patch.rows) {
      const int64_t matrix = row / s.m;
      patch.i = matrix / s.batch[1];
      patch.j = matrix % s.batch[1];
      patch.row = row % s.m;
      patch.rows = std::min(s.m - patch.row, tile.row_end - row);
      // B is the same for the whole batch where its strides are 0.
      patch.begins = row == tile.row_begin || s.b_batch[0] != 0 || s.b_batch[1] != 0;
      of_tile |= f(patch);
    }
    if (of_tile != kRan) status |= of_tile;
  });
  return status;
}

// Rows of one call of BLAS: all, unless the output is initialised before or finished after it. Then as many
// as the second-level cache keeps, but enough to amortise that each call packs the weights again.
template <class T>
int64_t rows_of_a_call(const MatmulShape& s, const Patch& patch) {
  if (!s.has_bias && s.activation == nullptr && !s.has_epilogue) return patch.rows;
  const int64_t rows = std::max(tuning::kBlasBandBytes / (patch.columns * static_cast<int64_t>(sizeof(T))),
                                tuning::kMinBlasRows);
  return patch.rows < 2 * rows ? patch.rows : rows;
}

template <class T, class Gemm>
int run_blas(const MatmulShape& s, Gemm* gemm, char* const* bases) {
  const char ta = s.a_col == 1 ? 'N' : 'T';
  const char tb = s.b_n == 1 ? 'N' : 'T';
  const int k = static_cast<int>(s.k);
  const int lda = static_cast<int>(std::max<int64_t>(s.a_col == 1 ? s.a_row : s.a_col, 1));
  const int ldb = static_cast<int>(std::max<int64_t>(s.b_n == 1 ? s.b_k : s.b_n, 1));
  const int ldc = static_cast<int>(std::max<int64_t>(s.c_row, 1));
  const T alpha = static_cast<T>(s.alpha);
  const T beta = s.has_bias ? static_cast<T>(s.beta) : T(0);
  return run_patches(s, Route::kBlas, [&](const Patch& patch) {
    const int n = static_cast<int>(patch.columns);
    const int64_t rows = rows_of_a_call<T>(s, patch);
    T* c = const_cast<T*>(at_base<T>(s.c, bases)) + offset(s.c_batch, patch.i, patch.j) +
           patch.row * s.c_row + patch.column;
    const T* a = at_base<T>(s.a, bases) + offset(s.a_batch, patch.i, patch.j) + patch.row * s.a_row;
    const T* b = at_base<T>(s.b, bases) + offset(s.b_batch, patch.i, patch.j) + patch.column * s.b_n;
    const T* bias = s.has_bias ? at_base<T>(s.bias, bases) + offset(s.bias_batch, patch.i, patch.j) +
                                     patch.row * s.bias_row + patch.column * s.bias_col
                               : nullptr;
    RowsDone done{s, bases, patch};
    for (int64_t begin = 0; begin < patch.rows; begin += rows) {
      const int64_t end = std::min(begin + rows, patch.rows);
      const int m = static_cast<int>(end - begin);
      T* first = c + begin * s.c_row;
      if (bias) preset(s, bias + begin * s.bias_row, first, end - begin, patch.columns);
      gemm(&tb, &ta, &n, &m, &k, &alpha, b, &ldb, a + begin * s.a_row, &lda, &beta, first, &ldc);
      if (s.activation) {
        for (int64_t r = begin; r < end; ++r) {
          T* row = c + r * s.c_row;
          s.activation(row, row, row, row, patch.columns, s.activation_imm);
        }
      }
      if (s.has_epilogue) done.rows(begin, end);
    }
    return done.status;
  });
}

int run_sgemm(const void* params, char* const* bases, char*) {
  return run_blas<float>(static_cast<const GemmPlan*>(params)->s, &sgemm_, bases);
}
int run_dgemm(const void* params, char* const* bases, char*) {
  return run_blas<double>(static_cast<const GemmPlan*>(params)->s, &dgemm_, bases);
}

GemmArgs args_of(const MatmulShape& s, char* const* bases, const Patch& patch) {
  GemmArgs g;
  g.m = patch.rows;
  g.n = patch.columns;
  g.k = s.k;
  g.a = at_base<float>(s.a, bases) + offset(s.a_batch, patch.i, patch.j) + patch.row * s.a_row;
  g.a_row = s.a_row;
  g.c = const_cast<float*>(at_base<float>(s.c, bases)) + offset(s.c_batch, patch.i, patch.j) +
        patch.row * s.c_row + patch.column;
  g.c_row = s.c_row;
  g.activation = s.activation;
  g.activation_imm = s.activation_imm;
  if (s.has_bias) {
    const float* bias = at_base<float>(s.bias, bases) + offset(s.bias_batch, patch.i, patch.j) +
                        patch.row * s.bias_row + patch.column * s.bias_col;
    if (s.bias_row == 0 && s.bias_col == 1) {
      g.bias = bias;
    } else {
      preset(s, bias, g.c, patch.rows, patch.columns);
      g.accumulate = true;
    }
  }
  if (s.finish) g.finish = s.finish->at(bases).moved(g.c - at_base<float>(s.c, bases), patch.column);
  return g;
}

const float* b_of(const MatmulShape& s, char* const* bases, const Patch& patch) {
  return at_base<float>(s.b, bases) + offset(s.b_batch, patch.i, patch.j) + patch.column * s.b_n;
}

// All panels of a patch, and the epilogue on each block of rows.
int multiply(const MatmulShape& s, GemmArgs g, char* const* bases, const Patch& patch) {
  RowsDone done{s, bases, patch};
  if (s.has_epilogue) {
    g.rows_done = &RowsDone::call;
    g.rows_done_context = &done;
  }
  gemm_kernels().multiply(g, 0, gemm_kernels().panels(g.n));
  return done.status;
}

// The epilogue on a patch that is done.
int finish(const MatmulShape& s, char* const* bases, const Patch& patch) {
  RowsDone done{s, bases, patch};
  if (s.has_epilogue) done.rows(0, patch.rows);
  return done.status;
}

float* scratch_of(char* workspace, const MatmulShape& s, Route route, const Patch& patch) {
  return reinterpret_cast<float*>(workspace + patch.part * part_bytes(s, route));
}

int run_packed(const void* params, char* const* bases, char*) {
  const auto& plan = *static_cast<const GemmPlan*>(params);
  const GemmKernels& kernels = gemm_kernels();
  return run_patches(plan.s, plan.route, [&](const Patch& patch) {
    GemmArgs g = args_of(plan.s, bases, patch);
    g.b_row = kernels.nr;
    g.b_panel = kernels.nr * plan.s.k;
    g.b = at_base<float>(plan.packed, bases) + patch.column / kernels.nr * g.b_panel;
    return multiply(plan.s, g, bases, patch);
  });
}

int run_pack_each(const void* params, char* const* bases, char* workspace) {
  const auto& plan = *static_cast<const GemmPlan*>(params);
  const MatmulShape& s = plan.s;
  const GemmKernels& kernels = gemm_kernels();
  const int64_t each = packed_columns(s);
  return run_patches(s, plan.route, [&](const Patch& patch) {
    const GemmArgs all = args_of(s, bases, patch);
    const float* b = b_of(s, bases, patch);
    float* packed = scratch_of(workspace, s, plan.route, patch);
    int status = kRan;
    for (int64_t n = 0; n < all.n; n += each) {
      Patch part = patch;
      part.column += n;
      part.columns = std::min(each, all.n - n);
      GemmArgs g = all;
      g.n = part.columns;
      g.c += n;
      if (g.bias) g.bias += n;
      g.finish = g.finish.moved(n, n);
      if (patch.begins || all.n > each)
        kernels.pack(b + n * s.b_n, s.b_k, s.b_n, s.k, g.n, packed, 0, kernels.panels(g.n));
      g.b = packed;
      g.b_row = kernels.nr;
      g.b_panel = kernels.nr * s.k;
      const bool is_one_run = s.b_k == 1 && s.b_n == s.k;
      if (is_one_run && n + 2 * each <= all.n) g.instead = b + (n + each) * s.b_n;
      status |= multiply(s, g, bases, part);
    }
    return status;
  });
}

// B is read where it lies; a last, narrower panel is packed.
int run_direct(const void* params, char* const* bases, char* workspace) {
  const auto& plan = *static_cast<const GemmPlan*>(params);
  const MatmulShape& s = plan.s;
  const GemmKernels& kernels = gemm_kernels();
  return run_patches(s, plan.route, [&](const Patch& patch) {
    GemmArgs g = args_of(s, bases, patch);
    const int64_t full = g.n / kernels.nr;
    const int64_t rest = g.n - full * kernels.nr;
    g.b = b_of(s, bases, patch);
    g.b_row = s.b_k;
    g.b_panel = kernels.nr;
    if (full > 0) kernels.multiply(g, 0, full);
    if (rest > 0) {
      float* packed = scratch_of(workspace, s, plan.route, patch);
      const int64_t at = full * kernels.nr;
      if (patch.begins) kernels.pack(g.b + at, s.b_k, 1, s.k, rest, packed, 0, 1);
      g.b = packed;
      g.b_row = kernels.nr;
      g.c += at;
      if (g.bias) g.bias += at;
      g.finish = g.finish.moved(at, at);
      g.n = rest;
      kernels.multiply(g, 0, 1);
    }
    return finish(s, bases, patch);
  });
}

int run_dots(const void* params, char* const* bases, char*) {
  const auto& plan = *static_cast<const GemmPlan*>(params);
  return run_patches(plan.s, plan.route, [&](const Patch& patch) {
    GemmArgs g = args_of(plan.s, bases, patch);
    g.b = b_of(plan.s, bases, patch);
    gemm_kernels().dots(g, plan.s.b_n);
    return finish(plan.s, bases, patch);
  });
}

int run_turned(const void* params, char* const* bases, char* workspace) {
  const auto& plan = *static_cast<const GemmPlan*>(params);
  const MatmulShape& s = plan.s;
  const GemmKernels& kernels = gemm_kernels();
  return run_patches(s, plan.route, [&](const Patch& patch) {
    const TurnedChunks chunks(patch.rows);
    float* panels = scratch_of(workspace, s, plan.route, patch);
    float* sums = panels + chunks.panel_floats(s.k);
    GemmArgs g = args_of(s, bases, patch);
    g.b = b_of(s, bases, patch);
    RowsDone done{s, bases, patch};
    for (int64_t m = 0; m < patch.rows; m += chunks.rows) {
      g.m = std::min(chunks.rows, patch.rows - m);
      const int64_t packed_rows = kernels.packed_rows(g.m);
      kernels.pack(g.a, 1, g.a_row, s.k, packed_rows, panels, 0, kernels.panels(packed_rows));
      g.a += packed_rows * g.a_row;
      kernels.turned(g, s.b_n, panels, packed_rows, sums);
      if (s.has_epilogue) done.rows(m, m + g.m);
      g.a += (g.m - packed_rows) * g.a_row;
      g.c += g.m * g.c_row;
      g.finish = g.finish.moved(g.m * g.c_row, 0);
    }
    return done.status;
  });
}

}  // namespace

bool has_blas(bool is_double) {
  return is_double ? &dgemm_ != nullptr : &sgemm_ != nullptr;
}

PreparedCall call_of(std::shared_ptr<GemmPlan> plan) {
  PreparedCall call;
  switch (plan->route) {
    case Route::kBlas:
      call.run = plan->s.is_double ? &run_dgemm : &run_sgemm;
      break;
    case Route::kPacked:
      call.run = &run_packed;
      break;
    case Route::kDirect:
      call.run = &run_direct;
      break;
    case Route::kPackEach:
      call.run = &run_pack_each;
      break;
    case Route::kDots:
      call.run = &run_dots;
      break;
    case Route::kTurned:
      call.run = &run_turned;
      break;
  }
  call.route = kRouteNames[static_cast<int>(plan->route)];
  call.grids = {product_grid(plan->s, plan->route)};
  call.params = std::move(plan);
  return call;
}

int64_t workspace_of(const MatmulShape& s, Route route) {
  return cut_of(product_grid(s, route), s.num_threads).parts() * part_bytes(s, route);
}

}  // namespace staticrt
