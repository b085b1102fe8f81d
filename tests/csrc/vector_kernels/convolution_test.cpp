// Lines of depthwise convolutions, and Winograd's transforms around products that this test makes itself.
#include <algorithm>
#include <array>
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
  const RandomFinish finish(rng, g.out_w * t.channels, t.channels, seed % 16);
  g.finish = finish.args;
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
      const int64_t at = m * t.channels + c;
      expect_near(out[static_cast<size_t>(at)], finish.of(sum, at, c), 1e-5);
    }
  }
}

// The rows of G of F(2, 3) and F(4, 3), as the products' exact result requires: powers of each point, over
// the product of its distances to the other points.
std::vector<std::array<double, 3>> filter_rows(int64_t side) {
  std::vector<double> points = {0, 1, -1};
  if (side == 4) points = {0, kInnerPoint, -kInnerPoint, kOuterPoint, -kOuterPoint};
  std::vector<std::array<double, 3>> rows;
  for (const double p : points) {
    double distances = 1;
    for (const double q : points) distances *= p == q ? 1 : p - q;
    rows.push_back({1 / distances, p / distances, p * p / distances});
  }
  rows.push_back({0, 0, 1});
  if (side == 2) rows[0][0] = 1;  // its transform of the input changes the first element's sign
  return rows;
}

// `tiles` tiles through both transforms and a product of `channels` by `n` for each element.
void check_winograd(const WinogradTransforms& f, int64_t tiles, int64_t channels, int64_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  const auto x = numbers(rng, tiles * f.inputs() * channels);
  const auto w = numbers(rng, 9 * channels * n);  // [3, 3, channels, n]
  const auto bias = numbers(rng, n);
  std::vector<const float*> pixels;
  for (int64_t i = 0; i < tiles * f.inputs(); ++i) pixels.push_back(x.data() + i * channels);
  const int64_t in_element = tiles * channels + 3;
  std::vector<float> in(static_cast<size_t>(f.inputs() * in_element), kUntouched);
  f.transform_inputs(pixels.data(), tiles, channels, in.data(), in_element);
  const auto rows = filter_rows(f.side);
  const int64_t row = n + 2, element = tiles * row;
  std::vector<float> products(static_cast<size_t>(f.inputs() * element));
  for (int64_t e = 0; e < f.inputs(); ++e) {
    for (int64_t t = 0; t < tiles; ++t) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t c = 0; c < channels; ++c) {
          double weight = 0;
          for (int64_t k = 0; k < 9; ++k)
            weight += rows[static_cast<size_t>(e / f.window())][static_cast<size_t>(k / 3)] *
                      rows[static_cast<size_t>(e % f.window())][static_cast<size_t>(k % 3)] *
                      w[static_cast<size_t>((k * channels + c) * n + j)];
          sum += weight * in[static_cast<size_t>(e * in_element + t * channels + c)];
        }
        products[static_cast<size_t>(e * element + t * row + j)] = static_cast<float>(sum);
      }
    }
  }
  std::vector<float> out(static_cast<size_t>(tiles * f.outputs() * n), kUntouched);
  std::vector<float*> out_pixels;
  for (int64_t i = 0; i < tiles * f.outputs(); ++i) out_pixels.push_back(out.data() + i * n);
  const RandomFinish finish(rng, 0, n, seed % 16 & ~4U);
  const auto transform = [&] {
    return f.transform_outputs(products.data(), element, row, tiles, n, bias.data(), finish.args,
                               out_pixels.data());
  };
  const float all = transform();
  EXPECT_EQ(all, 0.0F);
  for (int64_t t = 0; t < tiles; ++t) {
    for (int64_t p = 0; p < f.outputs(); ++p) {
      for (int64_t j = 0; j < n; ++j) {
        double want = bias[static_cast<size_t>(j)];
        for (int64_t k = 0; k < 9; ++k) {
          const int64_t pixel = (p / f.side + k / 3) * f.window() + p % f.side + k % 3;
          for (int64_t c = 0; c < channels; ++c)
            want += static_cast<double>(x[static_cast<size_t>((t * f.inputs() + pixel) * channels + c)]) *
                    w[static_cast<size_t>((k * channels + c) * n + j)];
        }
        expect_near(out[static_cast<size_t>((t * f.outputs() + p) * n + j)], finish.of(want, 0, j), 1e-4);
      }
    }
  }
  products[static_cast<size_t>(5 * element)] = std::numeric_limits<float>::infinity();
  EXPECT(std::isnan(transform()));
}

}  // namespace

TEST(lines_of_depthwise_convolutions_equal_sums_in_double) {
  uint32_t seed = 1;
  for (const DepthwiseKernels* set : SETS_OF(depthwise_kernels)) {
    for (const int64_t channels : {1, 3, 4, 9, 16, 37}) {
      for (const int64_t taps : {1, 2, 3, 5, 7, 9}) {
        for (const int64_t stride : {1, 2, 3}) {
          for (const int64_t dilation : {1, 2}) {
            for (const int64_t in_w : {1, 4, 7, 8, 13, 14, 30})
              for (const int64_t more : {-1, 0, 1})
                check_line(*set,
                           {in_w, channels, taps, stride,
                            std::max<int64_t>(0, (taps - 1) / 2 * dilation + more), dilation, 1 + in_w % 3},
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
    for (const int64_t channels : {1, 3, 4, 17}) {
      for (const int64_t n : {1, 5, 8, 35}) {
        check_winograd(set->two, 1 + n % 3, channels, n, ++seed);
        check_winograd(set->four, 1 + n % 3, channels, n, ++seed);
      }
    }
  }
}

TEST(magnitudes_of_pixels_are_their_largest_channels) {
  std::mt19937 rng(50);
  for (const WinogradKernels* set : SETS_OF(winograd_kernels)) {
    for (const int64_t channels : {1, 3, 4, 17, 40}) {
      auto x = numbers(rng, 7 * channels);
      x[static_cast<size_t>(3 * channels)] = std::numeric_limits<float>::infinity();
      x[static_cast<size_t>(5 * channels)] = std::nanf("");  // does not count
      std::vector<float> out(8, kUntouched);
      set->magnitudes(x.data(), 7, channels, out.data());
      for (int64_t i = 0; i < 7; ++i) {
        float most = 0;
        for (int64_t c = 0; c < channels; ++c) {
          const float size = std::fabs(x[static_cast<size_t>(i * channels + c)]);
          if (size > most) most = size;
        }
        EXPECT_EQ(out[static_cast<size_t>(i)], most);
      }
      EXPECT_EQ(out[7], kUntouched);
    }
  }
}
