// Convolutions of channels-last images, by the kernel that is fastest for their shape.
#pragma once

#include "kernels/conv/conv_plan.h"

namespace staticrt {

// Any convolution of channels-last images but depthwise and 1x1 ones; nullopt unless the weight is fixed.
// Measures where several kernels fit, unless the request is deterministic.
std::optional<PreparedCall> prepare_image_conv(const ConvPlan& plan, PrepareRequest& request);

// Whether Winograd's kernel computes this convolution.
bool winograd_fits(const ConvPlan& plan);
// Of its transformed weight, for tiles of `side` output pixels: 2 or 4.
int64_t winograd_bytes(const ConvPlan& plan, int64_t side);
// REQUIRES: winograd_fits(plan).
PreparedCall prepare_winograd_conv(const ConvPlan& plan, int64_t side, PrepareRequest& request);

// Whether the weight is large enough, and the image small enough, to do without a copy of the weight.
bool reads_weight_in_place(const ConvPlan& plan);
// REQUIRES: reads_weight_in_place(plan).
PreparedCall prepare_in_place_conv(const ConvPlan& plan, PrepareRequest& request);

}  // namespace staticrt
