#include "kernels/registry/prepare_args.h"

namespace staticrt {

Ints ints_or_empty(const PrepareRequest& request, size_t i) {
  Ints result;
  const c10::IValue* v = value_or_null(request, i);
  if (!v) return result;
  if (v->isInt()) {
    result.push_back(v->toInt());
  } else if (v->isIntList()) {
    for (const int64_t x : v->toIntList()) result.push_back(x);
  } else if (v->isList()) {
    for (const c10::IValue& x : v->toListRef()) result.push_back(x.toInt());
  }
  return result;
}

bool is_channels_last(const TensorMeta& t) {
  if (t.sizes.size() != 4) return false;
  int64_t expected = 1;
  for (const size_t d : {1, 3, 2, 0}) {
    if (t.sizes[d] != 1 && t.strides[d] != expected) return false;
    expected *= t.sizes[d];
  }
  return true;
}

Blocks blocks_of(const TensorMeta& t, size_t first, size_t last) {
  Blocks b;
  for (size_t d = 0; d < t.sizes.size(); ++d) {
    (d < first ? b.outer : d <= last ? b.middle : b.inner) *= t.sizes[d];
  }
  return b;
}

}  // namespace staticrt
