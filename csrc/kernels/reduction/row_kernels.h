// float32 kernels over one contiguous row, compiled once per instruction set.
#pragma once

#include <cstdint>

namespace staticrt {

inline constexpr int64_t kRowSlack = 16;  // floats: a vector of any instruction set

// Rows of n floats: out = (x - mean) / sqrt(variance + eps) * weight + bias.
struct NormRows {
  float* out = nullptr;  // may be x
  const float* x = nullptr;
  int64_t rows = 0, n = 0;
  float eps = 0;
  bool centers = true;            // else the mean is taken to be 0 (RMS norm)
  const float* weight = nullptr;  // n floats, or null
  const float* bias = nullptr;
  float* means = nullptr;  // a float for each row, or null
  float* rstds = nullptr;
};

struct RowKernels {
  float (*sum)(const float* x, int64_t n);
  // NaN if any element is; n > 0.
  float (*max)(const float* x, int64_t n);
  float (*min)(const float* x, int64_t n);
  // Of each of `rows` rows of n > 0 floats, one behind the other; sums are divided by `divisor`. A row's
  // result does not depend on the others.
  void (*sum_each)(float* out, const float* x, int64_t rows, int64_t n, float divisor);
  void (*max_each)(float* out, const float* x, int64_t rows, int64_t n);
  void (*min_each)(float* out, const float* x, int64_t rows, int64_t n);
  // out may be x.
  void (*softmax)(float* out, const float* x, int64_t n);
  void (*softmax_each)(float* out, const float* x, int64_t rows, int64_t n);
  void (*log_softmax_each)(float* out, const float* x, int64_t rows, int64_t n);
  // out = exp(x - top), and the sum of these; top >= every x, finite. out may be x.
  float (*exponents)(float* out, const float* x, int64_t n, float top);
  // Mean and 1 / sqrt(variance + eps).
  void (*moments)(const float* x, int64_t n, float eps, float* mean, float* rstd);
  float (*sum_of_squares)(const float* x, int64_t n);
  // Sums of x - center and of (x - center)^2.
  void (*deviations)(const float* x, int64_t n, float center, float* sum, float* squares);
  // out = x * scale + shift, and out = (x - mean) * scale * weight + bias, where weight and bias are vectors
  // and may be null.
  void (*affine)(float* out, const float* x, int64_t n, float scale, float shift);
  void (*affine_vectors)(float* out, const float* x, int64_t n, float scale, float mean, const float* weight,
                         const float* bias);
  // out[i] = x[i] * a[i] + b[i]
  void (*multiply_add)(float* out, const float* x, int64_t n, const float* a, const float* b);
  // x[i] = keep[i] ? x[i] : fill
  void (*fill_where_not)(float* x, const uint8_t* keep, int64_t n, float fill);
  // acc[i] += x[i] * a
  void (*accumulate_scaled)(float* acc, const float* x, int64_t n, float a);
  // Over `count` rows: out[i] = bias + sum_t x[t][i] * weights[t]. Each x[t] is readable kRowSlack floats
  // past n.
  void (*weighted_rows)(float* out, const float* const* x, const float* weights, int64_t count, int64_t n,
                        float bias);
  // out[i] = bias[i] + sum_t x[t][i] * weights[t][i]; bias may be null
  void (*multiplied_rows)(float* out, const float* const* x, const float* const* weights, int64_t count,
                          int64_t n, const float* bias);
  // out[i] = sum_t x[t][i] * weights[t]; nothing past n is read.
  void (*scaled_rows)(float* out, const float* const* x, const float* weights, int64_t count, int64_t n);
  // out[i] = scale * sum_t x[t][i]
  void (*sum_rows)(float* out, const float* const* x, int64_t count, int64_t n, float scale);
  // out[i] = max_t x[t][i], NaN if any is
  void (*max_rows)(float* out, const float* const* x, int64_t count, int64_t n);
  // A row's result does not depend on the others.
  void (*norm_rows)(const NormRows& rows);
};

const RowKernels& row_kernels();  // of the instruction set that cpu_level() gives

const RowKernels* row_kernels_default();
const RowKernels* row_kernels_avx2();
const RowKernels* row_kernels_avx512();

}  // namespace staticrt
