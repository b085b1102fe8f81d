// Which kernel a convolution of channels-last images takes: measured where several fit.
#include "kernels/conv/conv_routes.h"

#include <array>
#include <functional>
#include <map>
#include <vector>

#include "common/tuning.h"
#include "kernels/conv/conv_pixels.h"
#include "kernels/gemm/gemm_kernels.h"
#include "kernels/registry/evicted_floats.h"

namespace staticrt {
namespace {

// The side of Winograd's tiles; 0: the sum by its definition.
using Side = int64_t;

PreparedCall prepare(const ConvPlan& plan, Side side, PrepareRequest& request) {
  return side == 0 ? *prepare_pixel_conv(plan, request) : prepare_winograd_conv(plan, side, request);
}

// One way to compute a convolution.
struct Way {
  PreparedCall call;
  int64_t weight_floats;
  EvictedFloats workspace;

  Way(const ConvPlan& p, Side side, PrepareRequest request)
      : call(prepare(p, side, request)),
        weight_floats(request.derivations[0].size_bytes / 4),
        workspace({request.workspace_bytes / 4}, false) {}
};

// The least times of both sides.
std::array<double, 2> times_ns(const ConvPlan& original, Side side, Side other) {
  ConvPlan p = original;
  p.x = {0, 0};
  p.out = {1, 0};
  p.bias = {2, 0};
  EvictedFloats x({p.batch * p.in_channels * p.w.in_h * p.w.in_w}, false);
  EvictedFloats bias({p.out_channels}, false);
  PrepareRequest request;
  request.first_derived = 3;
  std::array<Way, 2> ways{Way(p, side, request), Way(p, other, request)};
  EvictedFloats others({std::max(ways[0].weight_floats, ways[1].weight_floats),
                        p.batch * p.out_channels * p.w.out_h * p.w.out_w});
  std::vector<std::function<void()>> runs;
  for (Way& way : ways) {
    runs.emplace_back([&x, &bias, &others, &way, scratch = way.workspace.buffer()] {
      others.advance();
      char* bases[] = {x.buffer(), others.buffer(1), bias.buffer(), others.buffer(0)};
      way.call.run(way.call.params.get(), bases, scratch);
    });
  }
  const std::vector<double> least = least_ns(runs, p.num_threads, tuning::kMaxRouteNs);
  return {least[0], least[1]};
}

// F(4x4)'s weights take 20 floats per pair of channels more than F(2x2)'s. A model reads them from memory,
// which does not pay off for few pixels.
constexpr int64_t kPixelsOfFour = 512;

Side largest_side(const ConvPlan& p, const PrepareRequest& request) {
  const bool pays = p.batch * p.w.out_h * p.w.out_w >= kPixelsOfFour && p.w.out_h > 4 && p.w.out_w > 4;
  return pays && winograd_bytes(p, 4) <= request.most_derived_bytes ? 4 : 2;
}

// The sum by its definition, unless Winograd gains enough; F(2x2) is tried where F(4x4) does not.
Side fastest(const ConvPlan& original, Side largest) {
  // As many lines of an image as the budget allows, and as many images as the choice of the side needs.
  ConvPlan p = original;
  const int64_t pixels = p.w.out_h * p.w.out_w;
  p.batch = largest == 4 ? std::min(p.batch, (kPixelsOfFour + pixels - 1) / pixels) : 1;
  const int64_t line = std::max<int64_t>(1, p.multiply_adds() / p.w.out_h);
  const int64_t lines =
      std::min(p.w.out_h,
               std::max(tuning::kMinMeasuredLines, p.num_threads * tuning::kMaxMeasuredMultiplyAdds / line));
  p.w.in_h -= p.w.out_h - lines;
  p.w.out_h = lines;
  for (Side side = largest; side >= 2; side -= 2) {
    const auto [direct, winograd] = times_ns(p, 0, side);
    if (direct > tuning::kMinWinogradGain * winograd) return side;
  }
  return 0;
}

// From measurements on machines with AVX2 and AVX-512.
bool is_faster_by_rule(const ConvPlan& p) {
  const int64_t tiles = p.batch * ((p.w.out_h + 1) / 2) * ((p.w.out_w + 1) / 2);
  return p.in_channels >= 48 && p.out_channels >= 48 && tiles >= 40;
}

Side choose_side(const ConvPlan& p, PrepareRequest& request) {
  // One thread decides at a time.
  static int64_t spent_ns = 0;
  static std::map<std::array<int64_t, 3>, Side> measured;  // the last one of these channels and threads
  const Side largest = largest_side(p, request);
  RouteChoice choice = choose_route(
      "winograd",
      {p.batch, p.in_channels, p.out_channels, p.w.out_h, p.w.out_w, p.w.pad_h, p.w.pad_w, p.num_threads,
       largest},
      [&](int64_t kept) { return kept == 0 || kept == 2 || kept == largest; },
      [&]() -> Side {
        const std::array<int64_t, 3> channels{p.in_channels, p.out_channels, p.num_threads};
        if (spent_ns >= tuning::kWinogradBudgetNs) {
          // Images of another size tell more about this machine than the rule does.
          const auto found = measured.find(channels);
          if (found != measured.end()) return std::min(found->second, largest);
          return is_faster_by_rule(p) ? largest : 0;
        }
        const int64_t start = measuring_clock_ns(p.num_threads);
        const Side side = fastest(p, largest);
        spent_ns += measuring_clock_ns(p.num_threads) - start;
        measured[channels] = side;
        return side;
      });
  request.choices.push_back(std::move(choice));
  return request.choices.back().choice;
}

}  // namespace

std::optional<PreparedCall> prepare_image_conv(const ConvPlan& p, PrepareRequest& request) {
  // With few pixels and several taps, reading a copy of the weight takes the time that it would save.
  if (reads_weight_in_place(p) && (p.w.taps() > 1 || !request.copies_large_weights))
    return prepare_in_place_conv(p, request);
  // A sum in the order of the definition where results must not depend on a measurement.
  if (request.deterministic || !winograd_fits(p) || winograd_bytes(p, 2) > request.most_derived_bytes)
    return prepare_pixel_conv(p, request);
  return prepare(p, choose_side(p, request), request);
}

}  // namespace staticrt
