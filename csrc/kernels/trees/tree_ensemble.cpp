// staticrt::tree_ensemble: the totals of decision trees (tree_walk.h). Its tables are constants of a model,
// so prepared calls pack them once; elsewhere every call does.

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "common/error.h"
#include "kernels/registry/bind.h"
#include "kernels/registry/prepare_args.h"
#include "kernels/trees/tree_walk.h"

namespace staticrt {
namespace {

using T = at::Tensor;
using Optional = std::optional<at::Tensor>;

enum Argument : size_t {
  kX,
  kNodes,
  kThresholds,
  kMembers,
  kRoots,
  kTargets,
  kWeights,
  kCountTargets,
  kAggregate,
  kWithSaid
};

TreeAggregate to_aggregate(int64_t number) {
  SRT_CHECK(number >= 0 && number <= 2, "tree_ensemble: aggregate ", number, " is none of 0, 1, 2");
  return static_cast<TreeAggregate>(number);
}

bool is_float_type(at::ScalarType type) {
  return type == at::kFloat || type == at::kDouble;
}

TreeSizes checked_sizes(const T& x, const T& nodes, const T& thresholds, const Optional& members,
                        const T& roots, const T& targets, const T& weights, int64_t num_targets) {
  SRT_CHECK(x.device().is_cpu() && x.dim() == 2 && is_float_type(x.scalar_type()),
            "tree_ensemble: x is float32 or float64 [rows, features] on the CPU");
  const auto is_table = [&](const T& t, at::ScalarType type, int64_t dim) {
    return t.device().is_cpu() && t.scalar_type() == type && t.dim() == dim && t.is_contiguous();
  };
  SRT_CHECK(is_table(nodes, at::kInt, 2) && nodes.size(1) == kTreeColumns && nodes.size(0) > 0 &&
                is_table(roots, at::kInt, 1) && is_table(targets, at::kInt, 1),
            "tree_ensemble: nodes are int32 [nodes, ", static_cast<int64_t>(kTreeColumns),
            "], roots and targets int32 lists");
  SRT_CHECK(is_table(thresholds, x.scalar_type(), 1) && thresholds.size(0) == nodes.size(0) &&
                is_table(weights, x.scalar_type(), 1) && weights.size(0) == targets.size(0),
            "tree_ensemble: thresholds [nodes] and weights [targets] are of x's dtype");
  SRT_CHECK(!members || (is_table(*members, x.scalar_type(), 2) && members->size(0) == nodes.size(0)),
            "tree_ensemble: members are of x's dtype, [nodes, most]");
  SRT_CHECK(num_targets > 0, "tree_ensemble: ", num_targets, " targets");
  return {nodes.size(0), roots.size(0), weights.size(0), members ? members->size(1) : 0,
          x.size(1),     num_targets};
}

template <class F>
void run(const T& x, const T& nodes, const T& thresholds, const Optional& members, const T& roots,
         const T& targets, const T& weights, const TreeSizes& sizes, TreeAggregate aggregate, T& totals,
         T& said) {
  const T packed = at::detail::empty_cpu({packed_tree_bytes<F>(sizes)}, at::kByte);
  const TreeTables<F> tables{
      nodes.const_data_ptr<int32_t>(), thresholds.const_data_ptr<F>(),
      roots.const_data_ptr<int32_t>(), targets.const_data_ptr<int32_t>(),
      weights.const_data_ptr<F>(),     members ? members->const_data_ptr<F>() : nullptr};
  auto* bytes = static_cast<char*>(packed.mutable_data_ptr());
  pack_trees(tables, sizes, bytes);
  walk_trees(bytes, sizes, aggregate, x.contiguous().const_data_ptr<F>(), x.size(0), at::get_num_threads(),
             totals.mutable_data_ptr<F>(), said.numel() > 0 ? said.mutable_data_ptr<bool>() : nullptr);
}

void tree_ensemble_out(const T& x, const T& nodes, const T& thresholds, const Optional& members,
                       const T& roots, const T& targets, const T& weights, int64_t num_targets,
                       int64_t aggregate, bool with_said, T& totals, T& said) {
  const TreeSizes sizes = checked_sizes(x, nodes, thresholds, members, roots, targets, weights, num_targets);
  resize(totals, {x.size(0), num_targets});
  resize(said, {with_said ? x.size(0) : 0, num_targets});
  const auto compute = x.scalar_type() == at::kFloat ? &run<float> : &run<double>;
  compute(x, nodes, thresholds, members, roots, targets, weights, sizes, to_aggregate(aggregate), totals,
          said);
}

std::tuple<T, T> tree_ensemble(const T& x, const T& nodes, const T& thresholds, const Optional& members,
                               const T& roots, const T& targets, const T& weights, int64_t num_targets,
                               int64_t aggregate, bool with_said) {
  T totals = at::empty({0}, x.options());
  T said = at::empty({0}, x.options().dtype(at::kBool));
  tree_ensemble_out(x, nodes, thresholds, members, roots, targets, weights, num_targets, aggregate, with_said,
                    totals, said);
  return {totals, said};
}

std::tuple<T, T> tree_ensemble_meta(const T& x, const T&, const T&, const Optional&, const T&, const T&,
                                    const T&, int64_t num_targets, int64_t, bool with_said) {
  const c10::SymInt rows = x.sym_size(0);
  return {at::empty_symint({rows, num_targets}, x.options()),
          at::empty_symint({with_said ? rows : c10::SymInt(0), num_targets}, x.options().dtype(at::kBool))};
}

// -- prepared -----------------------------------------------------------------------------------------------

template <class F>
struct Trees {
  Operand x, packed, totals, said;
  bool with_said;
  TreeSizes sizes;
  TreeAggregate aggregate;
  int64_t rows;
  int num_threads;

  std::vector<Grid> grids() const { return {tree_grid(sizes, rows)}; }
  int operator()(char* const* bases, char*) const {
    walk_trees(packed.at(bases), sizes, aggregate, reinterpret_cast<const F*>(x.at(bases)), rows, num_threads,
               reinterpret_cast<F*>(totals.at(bases)),
               with_said ? reinterpret_cast<bool*>(said.at(bases)) : nullptr);
    return kRan;
  }
};

template <class F>
PreparedCall prepare_as(PrepareRequest& request, const TreeSizes& sizes, bool with_said) {
  Derivation packing;
  packing.layout = "trees";
  packing.size_bytes = packed_tree_bytes<F>(sizes);
  for (const size_t i : {kNodes, kThresholds, kRoots, kTargets, kWeights, kMembers}) {
    if (request.args[i].is_tensor()) packing.sources.push_back(request.args[i].tensors[0]);
  }
  packing.make = [sizes](const char* const* sources, char* out) {
    const auto floats = [&](size_t i) { return reinterpret_cast<const F*>(sources[i]); };
    const auto ints = [&](size_t i) { return reinterpret_cast<const int32_t*>(sources[i]); };
    pack_trees<F>({ints(0), floats(1), ints(2), ints(3), floats(4), sizes.members > 0 ? floats(5) : nullptr},
                  sizes, out);
  };
  Trees<F> trees;
  trees.x = request.args[kX].tensors[0].where;
  trees.totals = request.outs[0].where;
  trees.said = request.outs[1].where;
  trees.with_said = with_said;
  trees.sizes = sizes;
  trees.aggregate = to_aggregate(int_or(request, kAggregate, 0));
  trees.rows = request.args[kX].tensors[0].meta.sizes[0];
  trees.num_threads = request.num_threads;
  trees.packed = request.derive(std::move(packing));
  return call_with(std::move(trees), "tree walk");
}

// Sizes and types are compared again: a program may be prepared before it ran.
std::optional<TreeSizes> sizes_of(const PrepareRequest& request) {
  const at::ScalarType type = request.args[kX].tensors[0].meta.dtype;
  const auto is_table = [&](size_t i, at::ScalarType wanted, size_t dim) {
    const TensorOperand* t = tensor_or_null(request, i);
    return t && t->is_fixed && t->meta.dtype == wanted && t->meta.sizes.size() == dim &&
           t->meta.is_contiguous();
  };
  const auto size = [&](size_t i, size_t dim) { return request.args[i].tensors[0].meta.sizes[dim]; };
  if (!is_table(kNodes, at::kInt, 2) || !is_table(kThresholds, type, 1) || !is_table(kRoots, at::kInt, 1) ||
      !is_table(kTargets, at::kInt, 1) || !is_table(kWeights, type, 1))
    return std::nullopt;
  const bool has_members = !request.args[kMembers].is_none();
  if (has_members && (!is_table(kMembers, type, 2) || size(kMembers, 0) != size(kNodes, 0)))
    return std::nullopt;
  const TreeSizes sizes{size(kNodes, 0),   size(kRoots, 0),
                        size(kWeights, 0), has_members ? size(kMembers, 1) : 0,
                        size(kX, 1),       int_or(request, kCountTargets, 0)};
  const bool fits = sizes.nodes > 0 && size(kNodes, 1) == kTreeColumns &&
                    size(kThresholds, 0) == sizes.nodes && size(kTargets, 0) == sizes.weights &&
                    sizes.targets > 0;
  return fits ? std::optional(sizes) : std::nullopt;
}

SRT_PREPARE("staticrt::tree_ensemble", prepare_tree_ensemble) {
  const TensorOperand* x = tensor_or_null(request, kX);
  if (!x || x->meta.sizes.size() != 2 || !x->meta.is_contiguous() || !is_float_type(x->meta.dtype))
    return std::nullopt;
  const std::optional<TreeSizes> sizes = sizes_of(request);
  const bool with_said = bool_or(request, kWithSaid, false);
  const int64_t aggregate = int_or(request, kAggregate, -1);
  if (!sizes || aggregate < 0 || aggregate > 2) return std::nullopt;
  if (is_float(x->meta)) return prepare_as<float>(request, *sizes, with_said);
  return prepare_as<double>(request, *sizes, with_said);
}

const RegisterKernels kTrees{out<&tree_ensemble_out>("staticrt::tree_ensemble")};

}  // namespace

TORCH_LIBRARY_FRAGMENT(staticrt, m) {
  m.def(
      "tree_ensemble(Tensor x, Tensor nodes, Tensor thresholds, Tensor? members, Tensor roots, Tensor "
      "targets, "
      "Tensor weights, int num_targets, int aggregate, bool with_said) -> (Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(staticrt, CPU, m) {
  m.impl("tree_ensemble", &tree_ensemble);
}
TORCH_LIBRARY_IMPL(staticrt, Meta, m) {
  m.impl("tree_ensemble", &tree_ensemble_meta);
}

}  // namespace staticrt
