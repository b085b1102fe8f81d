// Products of packed panels and convolutions of channels-last pixels, against sums in double.

#include "kernels/gemm/gemm_kernels.h"
#include "vector_kernels/sets.h"

namespace {

using namespace staticrt;
using namespace staticrt::test;

int negate(void* dst, const void* a, const void*, const void*, int64_t n, const Imm*) {
  for (int64_t i = 0; i < n; ++i) static_cast<float*>(dst)[i] = -static_cast<const float*>(a)[i];
  return 0;
}

struct Product {
  int64_t m, n, k;
  int64_t a_gap = 0, c_gap = 0;  // floats between rows
  bool bias = true, accumulate = false, activation = false;
  bool packed = true;     // else B is read where it lies: n is whole panels
  bool turned_b = false;  // B's elements along k are adjacent, before it is packed
};

void check(const GemmKernels& set, const Product& t, uint32_t seed) {
  std::mt19937 rng(seed);
  const auto a = numbers(rng, t.m == 0 ? 0 : (t.m - 1) * (t.k + t.a_gap) + t.k);
  const auto b = numbers(rng, t.k * t.n);
  const auto bias = numbers(rng, t.n);
  const int64_t b_k = t.turned_b ? 1 : t.n, b_n = t.turned_b ? t.k : 1;
  GemmArgs g;
  g.m = t.m;
  g.n = t.n;
  g.k = t.k;
  g.a = a.data();
  g.a_row = t.k + t.a_gap;
  std::vector<float> panels(static_cast<size_t>(set.packed_floats(t.k, t.n)));
  if (t.packed) {
    set.pack(b.data(), b_k, b_n, t.k, t.n, panels.data(), 0, set.panels(t.n));
    g.b = panels.data();
    g.b_row = set.nr;
    g.b_panel = set.nr * t.k;
  } else {
    g.b = b.data();
    g.b_row = t.n;
    g.b_panel = set.nr;
  }
  g.c_row = t.n + t.c_gap;
  std::vector<float> c(static_cast<size_t>(t.m * g.c_row), kUntouched);
  g.c = c.data();
  g.bias = t.bias ? bias.data() : nullptr;
  g.accumulate = t.accumulate;
  if (t.activation) g.activation = &negate;
  const RandomFinish finish(rng, t.m * g.c_row, t.n, t.activation ? 0 : seed % 16);
  g.finish = finish.args;
  int64_t told = 0;
  g.rows_done_context = &told;
  g.rows_done = [](void* context, int64_t begin, int64_t end) {
    EXPECT_EQ(*static_cast<int64_t*>(context), begin);
    *static_cast<int64_t*>(context) = end;
  };
  std::vector<double> want(c.begin(), c.end());
  for (int64_t i = 0; i < t.m; ++i) {
    for (int64_t j = 0; j < t.n; ++j) {
      const auto at = static_cast<size_t>(i * g.c_row + j);
      double sum = t.bias ? bias[static_cast<size_t>(j)] : 0;
      if (t.accumulate) sum += c[at] = 0.5F;
      for (int64_t k = 0; k < t.k; ++k)
        sum += static_cast<double>(a[static_cast<size_t>(i * g.a_row + k)]) *
               b[static_cast<size_t>(k * b_k + j * b_n)];
      want[at] = t.activation ? -sum : finish.of(sum, i * g.c_row + j, j);
    }
  }
  if (t.turned_b) g.instead = b.data();
  set.multiply(g, 0, set.panels(t.n));
  EXPECT_EQ(told, t.m);
  const double tolerance = 1e-5 * (1 + std::sqrt(static_cast<double>(t.k)));
  for (size_t i = 0; i < c.size(); ++i) expect_near(c[i], want[i], tolerance);
}

// Output pixels of a kernel of `rows` lines that are `length` floats wide, in an image of lines of `a_line`.
void check_convolution(const GemmKernels& set, int64_t lines, int64_t m, int64_t n, int64_t rows,
                       int64_t length, int64_t stride, bool gap, uint32_t seed) {
  std::mt19937 rng(seed);
  const int64_t a_line = (m - 1) * stride + length + 3;
  const int64_t c_row = n, c_line = m * n + (gap ? 5 : 0);
  const auto a = numbers(rng, (lines + rows - 1) * a_line);
  const auto b = numbers(rng, rows * length * n);
  const auto bias = numbers(rng, n);
  std::vector<float> panels(static_cast<size_t>(set.packed_floats(rows * length, n)));
  set.pack(b.data(), n, 1, rows * length, n, panels.data(), 0, set.panels(n));
  std::vector<int64_t> segments;
  for (int64_t r = 0; r < rows; ++r) segments.push_back(r * a_line);
  std::vector<float> c(static_cast<size_t>(lines * c_line), kUntouched);
  std::vector<double> want(c.begin(), c.end());
  const RandomFinish finish(rng, lines * c_line, n, seed % 16);
  for (int64_t line = 0; line < lines; ++line) {
    for (int64_t pixel = 0; pixel < m; ++pixel) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = bias[static_cast<size_t>(j)];
        for (int64_t k = 0; k < rows * length; ++k)
          sum += static_cast<double>(
                     a[static_cast<size_t>((line + k / length) * a_line + pixel * stride + k % length)]) *
                 b[static_cast<size_t>(k * n + j)];
        const int64_t at = line * c_line + pixel * c_row + j;
        want[static_cast<size_t>(at)] = finish.of(sum, at, j);
      }
    }
  }
  ConvArgs g;
  g.lines = lines;
  g.m = m;
  g.n = n;
  g.a = a.data();
  g.a_line = a_line;
  g.a_row = stride;
  g.segments = segments.data();
  g.num_segments = rows;
  g.length = length;
  g.b = panels.data();
  g.c = c.data();
  g.c_line = c_line;
  g.c_row = c_row;
  g.bias = bias.data();
  g.finish = finish.args;
  set.convolve(g, 0, set.panels(n));
  for (size_t i = 0; i < c.size(); ++i) expect_near(c[i], want[i], 1e-4);
}

}  // namespace

TEST(products_of_panels_equal_sums_in_double_at_all_edges) {
  uint32_t seed = 1;
  for (const GemmKernels* set : SETS_OF(gemm_kernels)) {
    for (int64_t m = 1; m <= 30; m += m < 16 ? 1 : 7) {
      for (const int64_t n : {1, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 65, 130}) {
        for (const int64_t k : {1, 2, 31, 64})
          check(*set, {m, n, k, m % 3, n % 4, n % 2 == 0, m % 2 == 0, k % 2 == 0, true, m % 5 == 0}, ++seed);
      }
    }
    for (const int64_t panels : {1, 2, 3, 5, 8})
      check(*set, {17, panels * set->nr, 40, 2, 3, true, true, false, false}, ++seed);
    check(*set, {5, 19, 0}, ++seed);  // an empty sum is the bias
  }
}

TEST(rows_that_share_a_set_of_the_cache_are_summed_in_lower_blocks) {
  uint32_t seed = 400;
  for (const GemmKernels* set : SETS_OF(gemm_kernels)) {
    for (const int64_t distance : {1023, 1024, 1025, 2048}) {
      for (const int64_t m : {1, 4, 7, 8, 13, 14, 15, 29}) {
        for (const int64_t n : {9, 31, 64, 65, 100})
          check(*set, {m, n, 24, distance - 24, 1, true, m % 2 == 0, n % 2 == 0}, ++seed);
        check_convolution(*set, 3, m, 70, 2, 24, distance, m % 2 == 0, ++seed);
      }
    }
  }
}

TEST(products_of_panels_are_cut_into_chunks_of_rows_and_terms) {
  uint32_t seed = 500;
  for (const GemmKernels* set : SETS_OF(gemm_kernels)) {
    for (const int64_t k : {1023, 1024, 1025, 2100}) {
      check(*set, {3, 37, k, 0, 0, true, false, true}, ++seed);
      check(*set, {195, 21, k, 1, 2, true, true, true}, ++seed);
    }
  }
}

TEST(convolutions_of_pixels_equal_sums_in_double) {
  uint32_t seed = 900;
  for (const GemmKernels* set : SETS_OF(gemm_kernels)) {
    for (const int64_t m : {1, 2, 3, 5, 7, 14, 15, 29}) {
      for (const int64_t n : {1, 8, 19, 40, 70}) {
        for (const int64_t lines : {1, 2, 5})
          check_convolution(*set, lines, m, n, 3, 3 * (1 + n % 4), 1 + m % 3, (m + n) % 2 == 0, ++seed);
      }
    }
  }
}

TEST(pixels_are_packed_with_zeros_beyond) {
  std::mt19937 rng(4);
  for (const GemmKernels* set : SETS_OF(gemm_kernels)) {
    for (int64_t count = 1; count <= set->nr; ++count) {
      for (const int64_t channels : {1, 3, 4, 8, 17, 32}) {
        std::vector<std::vector<float>> pixels;
        std::vector<const float*> begins;
        for (int64_t j = 0; j < count; ++j)
          begins.push_back(pixels.emplace_back(numbers(rng, channels)).data());
        const int64_t step = set->nr + 1;
        std::vector<float> panel(static_cast<size_t>(channels * step), kUntouched);
        set->pack_pixels(begins.data(), count, channels, panel.data(), step);
        for (int64_t c = 0; c < channels; ++c) {
          for (int64_t j = 0; j < step; ++j) {
            const float want = j < count     ? pixels[static_cast<size_t>(j)][static_cast<size_t>(c)]
                               : j < set->nr ? 0
                                             : kUntouched;
            if (c + 1 < channels || j < set->nr) EXPECT_EQ(panel[static_cast<size_t>(c * step + j)], want);
          }
        }
      }
    }
  }
}
