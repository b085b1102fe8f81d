#include "simulated/known_call.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "common/tuning.h"

namespace staticrt::simulated {
namespace {

// It starts anew when it is full.
class KnownCalls {
 public:
  std::shared_ptr<const KnownCall> find(const InferenceKey& key) const {
    const auto found = calls_.find(key);
    return found == calls_.end() ? nullptr : found->second;
  }
  void keep(InferenceKey key, std::shared_ptr<const KnownCall> call) {
    if (words_ + key.words().size() > tuning::kMaxInferenceWords) {
      calls_.clear();
      words_ = 0;
    }
    words_ += key.words().size();
    calls_.emplace(std::move(key), std::move(call));
  }

 private:
  std::unordered_map<InferenceKey, std::shared_ptr<const KnownCall>, InferenceKey::Hash> calls_;
  size_t words_ = 0;  // of all keys
};

thread_local KnownCalls known_calls;

// A view alone reads and writes nothing.
bool is_view(const Call& call, const Inference& inference) {
  const auto is_made = [](const InferredResult& result) {
    return std::ranges::any_of(
        result.tensors, [](const InferredTensor& tensor) { return tensor.defined && !tensor.view_of; });
  };
  return !call.schema().returns().empty() && std::ranges::none_of(inference.results, is_made) &&
         std::ranges::none_of(call.tensors(), &TensorArgument::written);
}

}  // namespace

std::optional<alloc::SimRange> range_of(const TensorPlace& place, bool writes) {
  if (place.storage == 0 || std::ranges::find(place.sizes, 0) != place.sizes.end()) return std::nullopt;
  alloc::SimRange range;
  range.writes = writes;
  const alloc::Bytes itemsize = c10::elementSize(place.dtype);
  range.address = place.storage + static_cast<alloc::Bytes>(place.offset) * itemsize;
  range.size_bytes = range.run_bytes = itemsize;
  for (size_t dim = 0; dim < place.sizes.size(); ++dim) {
    const auto count = static_cast<uint64_t>(place.sizes[dim]);
    if (place.contiguous) {  // one run
      range.size_bytes = range.run_bytes *= count;
      continue;
    }
    const auto stride = static_cast<alloc::Bytes>(place.strides[dim]) * itemsize;
    if (count <= 1 || stride == 0) continue;
    range.steps.push_back({count, stride});
    range.size_bytes += (count - 1) * stride;
  }
  // Outermost first; innermost dimensions that follow each other without a gap are one run.
  std::sort(range.steps.begin(), range.steps.end(),
            [](const auto& a, const auto& b) { return a.stride_bytes > b.stride_bytes; });
  while (!range.steps.empty() && range.steps.back().stride_bytes <= range.run_bytes) {
    const auto& step = range.steps.back();
    range.run_bytes += (step.count - 1) * step.stride_bytes;
    range.steps.pop_back();
  }
  return range;
}

void add_range(std::vector<alloc::SimRange>& ranges, alloc::SimRange range) {
  const auto same = std::ranges::find_if(ranges, [&](const alloc::SimRange& other) {
    return other.address == range.address && other.size_bytes == range.size_bytes &&
           other.run_bytes == range.run_bytes && other.steps == range.steps;
  });
  if (same == ranges.end())
    ranges.push_back(std::move(range));
  else
    same->writes = same->writes || range.writes;
}

KnownCall::KnownCall(std::shared_ptr<const Inference> inference, Call call)
    : inference_(std::move(inference)), call_(std::move(call)) {
  if (is_view(call_, *inference_)) return;
  size_t storage = 0;
  for (const TensorArgument& argument : call_.tensors()) {
    if (!argument.place) continue;
    if (auto range = range_of(*argument.place, argument.written)) {
      range->address -= argument.place->storage;
      touched_.push_back({storage, std::move(*range)});
    }
    ++storage;
  }
}

std::vector<alloc::SimRange> KnownCall::ranges_in(const Storages& storages) const {
  std::vector<alloc::SimRange> ranges;
  ranges.reserve(touched_.size() + inference_->results.size());
  for (const auto& [storage, touched] : touched_) {
    alloc::SimRange range = touched;
    range.address += storages[storage];
    add_range(ranges, std::move(range));
  }
  return ranges;
}

std::shared_ptr<const KnownCall> find_known(const InferenceKey& key) {
  return known_calls.find(key);
}

void keep_known(InferenceKey key, std::shared_ptr<const KnownCall> call) {
  known_calls.keep(std::move(key), std::move(call));
}

}  // namespace staticrt::simulated
