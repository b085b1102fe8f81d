// Lines of depthwise convolutions, and Winograd's transforms around products that this test makes itself.
#include <algorithm>
#include <limits>

#include "kernels/conv/depthwise_kernels.h"
#include "kernels/conv/winograd_kernels.h"
#include "vector_kernels/sets.h"

namespace {

using namespace staticrt;
using namespace staticrt::test;

struct Line {
  int64_t in_w, channels, taps, stride, pad, dilation, rows;
};

void check_line(const DepthwiseKernels& set, const Line& t, bool bias, uint32_t seed) {
  std::mt19937 rng(seed);
  DepthwiseLine g;
  g.out_w = (t.in_w + 2 * t.pad - t.dilation * (t.taps - 1) - 1) / t.stride + 1;
  if (g.out_w <= 0) return;
  g.in_w = t.in_w;
  g.channels = t.channels;
  g.taps = t.taps;
  g.stride = t.stride;
  g.pad = t.pad;
  g.dilation = t.dilation;
  g.num_rows = t.rows;
  std::vector<std::vector<float>> x, w;
  std::vector<const float*> rows, weights;
  for (int64_t r = 0; r < t.rows; ++r) {
    rows.push_back(x.emplace_back(numbers(rng, t.in_w * t.channels)).data());
    weights.push_back(w.emplace_back(numbers(rng, t.taps * t.channels)).data());
  }
  const auto add = numbers(rng, t.channels);
  g.rows = rows.data();
  g.weights = weights.data();
  g.bias = bias ? add.data() : nullptr;
  std::vector<float> out(static_cast<size_t>(g.out_w * t.channels), kUntouched);
  g.out = out.data();
  set.line(g);
  for (int64_t m = 0; m < g.out_w; ++m) {
    for (int64_t c = 0; c < t.channels; ++c) {
      double sum = bias ? add[static_cast<size_t>(c)] : 0;
      for (int64_t k = 0; k < t.taps; ++k) {
        const int64_t at = m * t.stride - t.pad + k * t.dilation;
        if (at < 0 || at >= t.in_w) continue;
        for (size_t r = 0; r < x.size(); ++r)
          sum += static_cast<double>(x[r][static_cast<size_t>(at * t.channels + c)]) *
                 w[r][static_cast<size_t>(k * t.channels + c)];
      }
      expect_near(out[static_cast<size_t>(m * t.channels + c)], sum, 1e-5);
    }
  }
}

// One tile of each of `tiles`, through both transforms and 16 products of `channels` by `n`.
void check_winograd(const WinogradKernels& set, int64_t tiles, int64_t channels, int64_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  const auto x = numbers(rng, tiles * kTileInputs * channels);
  const auto w = numbers(rng, 9 * channels * n);  // [3, 3, channels, n]
  const auto bias = numbers(rng, n);
  std::vector<const float*> pixels;
  for (int64_t i = 0; i < tiles * kTileInputs; ++i) pixels.push_back(x.data() + i * channels);
  const int64_t in_element = tiles * channels + 3;
  std::vector<float> in(static_cast<size_t>(16 * in_element), kUntouched);
  set.transform_inputs(pixels.data(), tiles, channels, in.data(), in_element);
  // Lavin and Gray's G: the weights' transform.
  constexpr double g[4][3] = {{1, 0, 0}, {0.5, 0.5, 0.5}, {0.5, -0.5, 0.5}, {0, 0, 1}};
  const int64_t row = n + 2, element = tiles * row;
  std::vector<float> products(static_cast<size_t>(16 * element));
  for (int64_t e = 0; e < 16; ++e) {
    for (int64_t t = 0; t < tiles; ++t) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t c = 0; c < channels; ++c) {
          double weight = 0;
          for (int64_t k = 0; k < 9; ++k)
            weight += g[e / 4][k / 3] * g[e % 4][k % 3] * w[static_cast<size_t>((k * channels + c) * n + j)];
          sum += weight * in[static_cast<size_t>(e * in_element + t * channels + c)];
        }
        products[static_cast<size_t>(e * element + t * row + j)] = static_cast<float>(sum);
      }
    }
  }
  std::vector<float> out(static_cast<size_t>(tiles * kTileOutputs * n), kUntouched);
  std::vector<float*> out_pixels;
  for (int64_t i = 0; i < tiles * kTileOutputs; ++i) out_pixels.push_back(out.data() + i * n);
  const float all =
      set.transform_outputs(products.data(), element, row, tiles, n, bias.data(), out_pixels.data());
  EXPECT_EQ(all, 0.0F);
  for (int64_t t = 0; t < tiles; ++t) {
    for (int64_t p = 0; p < kTileOutputs; ++p) {
      for (int64_t j = 0; j < n; ++j) {
        double want = bias[static_cast<size_t>(j)];
        for (int64_t k = 0; k < 9; ++k) {
          const int64_t pixel = (p / 2 + k / 3) * 4 + p % 2 + k % 3;
          for (int64_t c = 0; c < channels; ++c)
            want += static_cast<double>(x[static_cast<size_t>((t * kTileInputs + pixel) * channels + c)]) *
                    w[static_cast<size_t>((k * channels + c) * n + j)];
        }
        expect_near(out[static_cast<size_t>((t * kTileOutputs + p) * n + j)], want, 1e-4);
      }
    }
  }
  products[static_cast<size_t>(5 * element)] = std::numeric_limits<float>::infinity();
  EXPECT(std::isnan(
      set.transform_outputs(products.data(), element, row, tiles, n, bias.data(), out_pixels.data())));
}

}  // namespace

TEST(lines_of_depthwise_convolutions_equal_sums_in_double) {
  uint32_t seed = 1;
  for (const DepthwiseKernels* set : SETS_OF(depthwise_kernels)) {
    for (const int64_t channels : {1, 3, 4, 9, 16, 37}) {
      for (const int64_t taps : {1, 2, 3, 5, 7, 9}) {
        for (const int64_t stride : {1, 2, 3}) {
          for (const int64_t dilation : {1, 2}) {
            for (const int64_t in_w : {1, 4, 7, 13, 30})
              check_line(*set,
                         {in_w, channels, taps, stride, (taps - 1) / 2 * dilation, dilation, 1 + in_w % 3},
                         in_w % 2 == 0, ++seed);
          }
        }
      }
    }
    check_line(*set, {9, 5, 3, 1, 2, 1, 0}, true, ++seed);  // all lines of the kernel are outside
  }
}

TEST(winograd_transforms_make_a_convolution) {
  uint32_t seed = 40;
  for (const WinogradKernels* set : SETS_OF(winograd_kernels)) {
    for (const int64_t channels : {1, 3, 4, 17})
      for (const int64_t n : {1, 5, 8, 35}) check_winograd(*set, 1 + n % 3, channels, n, ++seed);
  }
}
