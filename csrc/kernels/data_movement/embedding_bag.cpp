// Sums and means of table rows by bag. torch's own kernel takes no output, so the common case is summed here,
// row by row in the order of the indices: the order eager sums in, so results are equal bitwise.
#include <ATen/Parallel.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/_embedding_bag_forward_only_native.h>
#include <ATen/ops/embedding_bag_native.h>
#include <ATen/ops/fill_native.h>

#include <algorithm>

#include "common/tuning.h"
#include "kernels/registry/bind.h"
#include "kernels/registry/prepare_args.h"
#include "kernels/registry/sizing.h"

namespace staticrt {
namespace {

namespace n = at::native;
using T = at::Tensor;
using Optional = std::optional<T>;
using Results = std::tuple<T, T, T, T>;

enum Mode : int64_t { kSum = 0, kMean = 1 };

// One call: bags [offsets[i], offsets[i + 1]) of rows of a float table.
template <class Index>
struct Bags {
  const float* table;
  int64_t rows;
  int64_t columns;
  int64_t row_stride;
  const Index* indices;
  int64_t num_indices;
  const Index* offsets;
  int64_t num_bags;
  int64_t num_offsets;  // num_bags, or one more

  int64_t end(int64_t bag) const { return bag + 1 < num_offsets ? offsets[bag + 1] : num_indices; }

  // What eager checks, and raises errors for.
  bool valid() const {
    if (num_bags < 1 || offsets[0] != 0) return false;
    for (int64_t bag = 0; bag < num_bags; ++bag) {
      if (offsets[bag] > end(bag) || end(bag) > num_indices) return false;
    }
    if (end(num_bags - 1) != num_indices) return false;  // indices outside of all bags
    return std::all_of(indices, indices + num_indices, [&](Index i) { return i >= 0 && i < rows; });
  }

  void sum_bag(int64_t bag, bool mean, float* __restrict out) const {
    std::fill(out, out + columns, 0.0F);
    for (int64_t k = offsets[bag]; k < end(bag); ++k) {
      const float* __restrict row = table + indices[k] * row_stride;
      for (int64_t c = 0; c < columns; ++c) out[c] += row[c];
    }
    const auto count = static_cast<float>(end(bag) - offsets[bag]);
    if (mean && count > 1) {
      for (int64_t c = 0; c < columns; ++c) out[c] /= count;
    }
  }
};

template <class Index>
bool run_bags(const T& weight, const T& indices, const T& offsets, bool mean, bool include_last, T& out,
              T& bag_of_index, T& bag_size) {
  const int64_t num_offsets = offsets.numel();
  const Bags<Index> bags{weight.const_data_ptr<float>(),
                         weight.size(0),
                         weight.size(1),
                         weight.stride(0),
                         indices.const_data_ptr<Index>(),
                         indices.numel(),
                         offsets.const_data_ptr<Index>(),
                         num_offsets - (include_last ? 1 : 0),
                         num_offsets};
  if (!bags.valid()) return false;
  resize(out, {bags.num_bags, bags.columns});
  auto* result = out.mutable_data_ptr<float>();
  const Grid grid = rows_grid(bags.num_bags, bags.columns * (bags.num_indices / bags.num_bags + 1));
  for_rows(grid, at::get_num_threads(),
           [&](int64_t bag) { bags.sum_bag(bag, mean, result + bag * bags.columns); });
  if (!mean) {  // a sum's gradient does not need them: eager leaves them empty and zero
    resize(bag_of_index, {0});
    resize(bag_size, {include_last && !weight.requires_grad() ? num_offsets : bags.num_bags});
    n::fill_(bag_size, 0);
    return true;
  }
  resize(bag_of_index, {bags.num_indices});
  resize(bag_size, {bags.num_bags});
  auto* bag_numbers = bag_of_index.mutable_data_ptr<Index>();
  auto* sizes = bag_size.mutable_data_ptr<Index>();
  for (int64_t bag = 0; bag < bags.num_bags; ++bag) {
    sizes[bag] = static_cast<Index>(bags.end(bag) - bags.offsets[bag]);
    std::fill(bag_numbers + bags.offsets[bag], bag_numbers + bags.end(bag), static_cast<Index>(bag));
  }
  return true;
}

bool is_common(const T& weight, const T& indices, const T& offsets, int64_t mode, const Optional& per_sample,
               bool include_last) {
  const auto list = [](const T& t) { return t.dim() == 1 && t.is_contiguous() && t.numel() > 0; };
  return weight.scalar_type() == at::kFloat && weight.dim() == 2 && weight.stride(1) == 1 &&
         (mode == kSum || mode == kMean) && !(per_sample && per_sample->defined()) && list(indices) &&
         list(offsets) && offsets.numel() > (include_last ? 1 : 0) &&
         indices.scalar_type() == offsets.scalar_type() &&
         (indices.scalar_type() == at::kLong || indices.scalar_type() == at::kInt);
}

// False: eager has to run.
bool bag_into(const T& weight, const T& indices, const T& offsets, int64_t mode, const Optional& per_sample,
              bool include_last, T& out, T& bag_of_index, T& bag_size, T& max_indices) {
  if (!is_common(weight, indices, offsets, mode, per_sample, include_last)) return false;
  const auto run = indices.scalar_type() == at::kLong ? &run_bags<int64_t> : &run_bags<int32_t>;
  if (bag_size.scalar_type() != indices.scalar_type() ||
      !run(weight, indices, offsets, mode == kMean, include_last, out, bag_of_index, bag_size)) {
    return false;
  }
  resize(max_indices, bag_size.sizes());
  max_indices.copy_(bag_size);
  return true;
}

void copy_results(const Results& results, T& out, T& bag_of_index, T& bag_size, T& max_indices) {
  const auto copy = [](T& to, const T& from) {
    resize_like(to, from);
    to.copy_(from);
  };
  copy(out, std::get<0>(results));
  copy(bag_of_index, std::get<1>(results));
  copy(bag_size, std::get<2>(results));
  copy(max_indices, std::get<3>(results));
}

void forward_only(const T& weight, const T& indices, const T& offsets, bool by_freq, int64_t mode,
                  bool sparse, const Optional& per_sample, bool include_last, int64_t padding, T& out,
                  T& bag_of_index, T& bag_size, T& max_indices) {
  if (padding < 0 && !weight.requires_grad() &&
      bag_into(weight, indices, offsets, mode, per_sample, include_last, out, bag_of_index, bag_size,
               max_indices)) {
    return;
  }
  copy_results(n::_embedding_bag_forward_only_cpu(weight, indices, offsets, by_freq, mode, sparse, per_sample,
                                                  include_last, padding),
               out, bag_of_index, bag_size, max_indices);
}

void bag(const T& weight, const T& indices, const T& offsets, bool by_freq, int64_t mode, bool sparse,
         const Optional& per_sample, bool include_last, T& out, T& bag_of_index, T& bag_size,
         T& max_indices) {
  if (bag_into(weight, indices, offsets, mode, per_sample, include_last, out, bag_of_index, bag_size,
               max_indices)) {
    return;
  }
  copy_results(n::embedding_bag(weight, indices, offsets, by_freq, mode, sparse, per_sample, include_last),
               out, bag_of_index, bag_size, max_indices);
}

void bag_with_padding(const T& weight, const T& indices, const T& offsets, bool by_freq, int64_t mode,
                      bool sparse, const Optional& per_sample, bool include_last,
                      std::optional<int64_t> padding, T& out, T& bag_of_index, T& bag_size, T& max_indices) {
  if (!padding && bag_into(weight, indices, offsets, mode, per_sample, include_last, out, bag_of_index,
                           bag_size, max_indices)) {
    return;
  }
  copy_results(
      n::embedding_bag(weight, indices, offsets, by_freq, mode, sparse, per_sample, include_last, padding),
      out, bag_of_index, bag_size, max_indices);
}

const RegisterKernels kEmbeddingBag{
    out<&forward_only>("aten::_embedding_bag_forward_only"),
    out<&bag>("aten::embedding_bag"),
    out<&bag_with_padding>("aten::embedding_bag.padding_idx"),
};

}  // namespace
}  // namespace staticrt
