// Constants of a Program as bytes.
#pragma once

#include <ATen/core/ivalue.h>

#include "archive/bytes.h"
#include "archive/tensor_table.h"

namespace staticrt {

// None, numbers, strings, devices, tensors, and lists of these. Throws ArchiveError for anything else.
void write_constant(const c10::IValue& value, ByteWriter& out, TensorTable& tensors);
c10::IValue read_constant(ByteReader& in, LoadedTensors& tensors);

}  // namespace staticrt
