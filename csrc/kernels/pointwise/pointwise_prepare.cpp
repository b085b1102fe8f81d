// Prepares single pointwise nodes and chains of them.
#include <algorithm>

#include "common/tuning.h"
#include "kernels/pointwise/pointwise_chain.h"
#include "kernels/pointwise/pointwise_ops.h"
#include "kernels/pointwise/transposition.h"

namespace staticrt {

bool is_pointwise(std::string_view op) {
  return find_emit(op) != nullptr;
}

// The chain as a program; nullptr if some node, dtype or layout is not covered.
static std::shared_ptr<TileProgram> chain_program(const ChainRequest& request, bool keeps_order) {
  if (request.nodes.empty() || request.nodes.size() > tuning::kMaxChainNodes) return nullptr;
  TileBuilder builder(request.sizes, request.num_threads);
  std::vector<std::vector<int>> operand_of(request.nodes.size());
  std::vector<int> output_of(request.nodes.size(), -1);
  // Outputs first: the layout follows the first of them.
  for (size_t i = 0; i < request.nodes.size(); ++i) {
    const ChainNode& node = request.nodes[i];
    if (!tile_supports(node.out.dtype) || node.out.sizes != request.sizes) return nullptr;
    if (node.store) output_of[i] = builder.declare(node.out, *node.store, true);
  }
  for (size_t i = 0; i < request.nodes.size(); ++i) {
    for (const ChainArg& arg : request.nodes[i].args) {
      const bool is_tensor = arg.kind == ChainArg::Kind::kTensor;
      operand_of[i].push_back(is_tensor ? builder.declare(arg.tensor.meta, arg.tensor.where, false) : -1);
    }
  }
  if (!builder.layout(keeps_order)) return nullptr;

  std::vector<Reg> results;
  for (size_t i = 0; i < request.nodes.size(); ++i) {
    const ChainNode& node = request.nodes[i];
    const EmitFn emit = find_emit(node.op);
    if (emit == nullptr) return nullptr;
    std::vector<PointwiseNode::Argument> args;
    for (size_t k = 0; k < node.args.size(); ++k) {
      const ChainArg& arg = node.args[k];
      PointwiseNode::Argument out;
      out.is_tensor = arg.kind != ChainArg::Kind::kValue;
      if (arg.kind == ChainArg::Kind::kTensor) {
        out.reg = builder.load(operand_of[i][k]);
        out.rank = arg.tensor.meta.sizes.size();
        out.numel = arg.tensor.meta.numel();
        out.contiguous = arg.tensor.meta.is_contiguous();
      } else if (arg.kind == ChainArg::Kind::kResult) {
        if (arg.result >= i) return nullptr;
        out.reg = results[arg.result];
        out.rank = request.sizes.size();
        out.numel = request.nodes[arg.result].out.numel();
        out.contiguous = request.nodes[arg.result].out.is_contiguous();
      } else {
        out.value = arg.value;
      }
      args.push_back(std::move(out));
    }
    PointwiseNode pointwise(builder, std::move(args), node.out.dtype);
    const Reg result = emit(pointwise);
    if (!result.valid()) return nullptr;
    results.push_back(result);
  }
  for (size_t i = 0; i < request.nodes.size(); ++i) {
    if (output_of[i] >= 0) builder.store(output_of[i], results[i]);
  }
  return builder.finish();
}

// A lone copy into another layout.
static std::optional<PreparedCall> layout_copy(const ChainRequest& request) {
  if (request.nodes.size() != 1) return std::nullopt;
  const ChainNode& node = request.nodes[0];
  if (node.op != "aten::clone" || node.args.empty() || node.args[0].kind != ChainArg::Kind::kTensor ||
      !node.store) {
    return std::nullopt;
  }
  return prepare_transposition(node.args[0].tensor, {node.out, *node.store}, request.num_threads);
}

static bool is_narrow_integer(at::ScalarType dtype) {
  return c10::isIntegralType(dtype, /*includeBool=*/false) && dtype != at::kLong;
}

// Whether torch's loops are faster: all values are narrow integers, of which a vector of theirs holds as many
// as fit, or flags of such. The tile loop computes integers in 64 bits. torch's `where` has no vectors.
static bool torch_is_faster(const ChainRequest& request) {
  return std::ranges::all_of(request.nodes, [](const ChainNode& node) {
    if (node.op == "aten::where.self") return false;
    const bool reads = std::ranges::any_of(node.args, [](const ChainArg& arg) {
      return arg.kind == ChainArg::Kind::kTensor && !is_narrow_integer(arg.tensor.meta.dtype);
    });
    return !reads && (is_narrow_integer(node.out.dtype) || node.out.dtype == at::kBool);
  });
}

std::optional<PreparedCall> prepare_chain(const ChainRequest& request) {
  if (auto call = layout_copy(request)) return call;
  if (torch_is_faster(request)) return std::nullopt;
  auto program = chain_program(request, false);
  if (!program) return std::nullopt;
  return make_tile_call(std::move(program));
}

std::optional<Epilogue> prepare_chain_epilogue(const ChainRequest& request) {
  const TensorMeta& last = request.nodes.back().out;
  for (const ChainNode& node : request.nodes) {
    if (node.store && node.out.strides != last.strides) return std::nullopt;
  }
  auto program = chain_program(request, true);
  if (!program || program->numel == 0) return std::nullopt;
  Epilogue epilogue = make_tile_epilogue(std::move(program));
  epilogue.finish = finish_of(request);
  return epilogue;
}

namespace {

std::optional<PreparedCall> prepare_pointwise(PrepareRequest& request) {
  if (request.outs.size() != 1) return std::nullopt;
  ChainRequest chain;
  chain.sizes = request.outs[0].meta.sizes;
  chain.num_threads = request.num_threads;
  ChainNode node;
  node.op = request.op;
  node.out = request.outs[0].meta;
  node.store = request.outs[0].where;
  for (const auto& arg : request.args) {
    ChainArg out;
    if (arg.is_tensor()) {
      if (!arg.tensors[0].meta.defined()) return std::nullopt;
      out.kind = ChainArg::Kind::kTensor;
      out.tensor = arg.tensors[0];
    } else if (!arg.tensors.empty()) {
      return std::nullopt;
    } else {
      out.value = arg.value;
    }
    node.args.push_back(std::move(out));
  }
  chain.nodes.push_back(std::move(node));
  return prepare_chain(chain);
}

const bool registered = [] {
  for (const std::string_view op : pointwise_ops()) register_prepare(op, &prepare_pointwise);
  return true;
}();

}  // namespace
}  // namespace staticrt
