#include "runtime/call/written_memory.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "common/tuning.h"

namespace staticrt {
namespace {

struct Bytes {
  const char* begin = nullptr;
  const char* end = nullptr;  // begin: it has none
};

Bytes bytes_of(const InputView& input) {
  const at::Tensor* tensor = input.tensor;
  if (!tensor || !tensor->defined() || !tensor->has_storage() || tensor->numel() == 0) return {};
  int64_t last = 0;
  for (int64_t dim = 0; dim < tensor->dim(); ++dim) last += (tensor->size(dim) - 1) * tensor->stride(dim);
  const auto* begin = static_cast<const char*>(tensor->const_data_ptr());
  return {begin, begin + (last + 1) * static_cast<int64_t>(tensor->itemsize())};
}

bool overlap(const Bytes& a, const Bytes& b) {
  return a.begin < b.end && b.begin < a.end;
}

// By order of addresses: for training steps, which write hundreds of inputs.
std::optional<SharedMemory> shared_in_order(std::span<const uint32_t> written,
                                            std::span<const InputView> inputs) {
  struct Place {
    Bytes bytes;
    uint32_t index;
    bool is_written;
  };
  std::vector<Place> places;
  places.reserve(inputs.size());
  for (uint32_t i = 0; i < inputs.size(); ++i) {
    const Bytes bytes = bytes_of(inputs[i]);
    if (bytes.begin != bytes.end) places.push_back({bytes, i, std::ranges::binary_search(written, i)});
  }
  std::ranges::sort(places, {}, [](const Place& place) { return place.bytes.begin; });
  const Place* furthest = nullptr;          // of all before
  const Place* furthest_written = nullptr;  // of the written ones before
  for (const Place& place : places) {
    if (furthest_written && overlap(furthest_written->bytes, place.bytes))
      return SharedMemory{furthest_written->index, place.index};
    if (place.is_written && furthest && overlap(furthest->bytes, place.bytes))
      return SharedMemory{place.index, furthest->index};
    if (!furthest || furthest->bytes.end < place.bytes.end) furthest = &place;
    if (place.is_written && (!furthest_written || furthest_written->bytes.end < place.bytes.end))
      furthest_written = &place;
  }
  return std::nullopt;
}

}  // namespace

// Each stride must step over all that smaller strides reach.
bool has_elements_apart(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense() || tensor.numel() <= 1) return true;
  std::vector<int64_t> dims(static_cast<size_t>(tensor.dim()));
  std::iota(dims.begin(), dims.end(), 0);
  std::ranges::sort(dims, {}, [&](int64_t dim) { return tensor.stride(dim); });
  int64_t reach = 0;
  for (const int64_t dim : dims) {
    if (tensor.size(dim) == 1) continue;
    if (tensor.stride(dim) <= reach) return false;
    reach += (tensor.size(dim) - 1) * tensor.stride(dim);
  }
  return true;
}

std::optional<SharedMemory> shared_memory(std::span<const uint32_t> written,
                                          std::span<const InputView> inputs) {
  for (const uint32_t index : written) {
    const at::Tensor* tensor = inputs[index].tensor;
    if (tensor && tensor->defined() && tensor->has_storage() && !has_elements_apart(*tensor))
      return SharedMemory{index, index};
  }
  if (written.size() * inputs.size() > tuning::kFewPairs) return shared_in_order(written, inputs);
  for (const uint32_t index : written) {
    const Bytes bytes = bytes_of(inputs[index]);
    for (uint32_t other = 0; other < inputs.size(); ++other) {
      if (other != index && overlap(bytes, bytes_of(inputs[other]))) return SharedMemory{index, other};
    }
  }
  return std::nullopt;
}

}  // namespace staticrt
