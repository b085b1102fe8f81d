// Chains that kernels can do while an element is in a register: (x * scale + shift + residual), clamped.
#include <cmath>
#include <limits>

#include "kernels/pointwise/pointwise_chain.h"

namespace staticrt {
namespace {

bool same_place(const Operand& a, const Operand& b) {
  return a.base == b.base && a.offset_bytes == b.offset_bytes;
}

class FinishOfChain {
 public:
  explicit FinishOfChain(const ChainRequest& request) : request_(request), last_(request.nodes.back()) {}

  std::optional<Finish> find() {
    for (size_t i = 0; i < request_.nodes.size(); ++i) {
      const ChainNode& node = request_.nodes[i];
      const bool is_last = i + 1 == request_.nodes.size();
      if (node.out.dtype != at::ScalarType::Float || is_last != node.store.has_value() || !add(node, i))
        return std::nullopt;
    }
    return finish_;
  }

 private:
  enum Stage : uint8_t { kNothing, kScale, kShift, kResidual, kClamp };

  bool add(const ChainNode& node, size_t index) {
    if (node.op == "aten::mul.Tensor") return add_tensor(node, index, kScale);
    if (node.op == "aten::add.Tensor") return number(node, 2, 1) == 1 && add_tensor(node, index, kShift);
    if (!is_result(node.args[0], index)) return false;
    if (node.op == "aten::relu") return clamp(0, kInfinity);
    if (node.op == "aten::relu6") return clamp(0, 6);
    if (node.op == "aten::hardtanh") return clamp(number(node, 1, -1), number(node, 2, 1));
    if (node.op == "aten::clamp") return clamp(number(node, 1, -kInfinity), number(node, 2, kInfinity));
    if (node.op == "aten::clamp_min") return clamp(number(node, 1, kNaN), kInfinity);
    if (node.op == "aten::clamp_max") return clamp(-kInfinity, number(node, 1, kNaN));
    return false;
  }

  bool add_tensor(const ChainNode& node, size_t index, Stage stage) {
    const size_t other = is_result(node.args[0], index) ? 1 : 0;
    if (!is_result(node.args[1 - other], index) || node.args[other].kind != ChainArg::Kind::kTensor)
      return false;
    const TensorOperand& t = node.args[other].tensor;
    if (t.meta.dtype != at::ScalarType::Float || same_place(t.where, *last_.store)) return false;
    if (t.meta.sizes == last_.out.sizes && t.meta.strides == last_.out.strides && stage == kShift) {
      finish_.residual = t.where;
      return reach(kResidual);
    }
    if (!is_of_columns(t.meta)) return false;
    (stage == kScale ? finish_.scale : finish_.shift) = t.where;
    return reach(stage);
  }

  // What the node before made; of the first node, the result of the call.
  bool is_result(const ChainArg& arg, size_t index) const {
    if (index > 0) return arg.kind == ChainArg::Kind::kResult && arg.result == index - 1;
    return arg.kind == ChainArg::Kind::kTensor && same_place(arg.tensor.where, *last_.store);
  }

  // One element for each index of the output's dimension whose elements are adjacent.
  bool is_of_columns(const TensorMeta& t) {
    const TensorMeta& out = last_.out;
    const size_t skipped = out.sizes.size() - t.sizes.size();
    for (size_t d = skipped; d < out.sizes.size(); ++d) {
      const int64_t size = t.sizes[d - skipped];
      if (size == 1) continue;
      if (size != out.sizes[d] || out.strides[d] != 1 || t.strides[d - skipped] != 1) return false;
      finish_.columns = size;
    }
    return t.numel() > 1 && t.numel() == finish_.columns;
  }

  bool clamp(double low, double high) {
    finish_.clamps = true;
    finish_.low = static_cast<float>(low);
    finish_.high = static_cast<float>(high);
    return !std::isnan(low) && !std::isnan(high) && reach(kClamp);
  }
  static double number(const ChainNode& node, size_t i, double otherwise) {
    if (i >= node.args.size()) return otherwise;
    const ChainArg& arg = node.args[i];
    if (arg.kind != ChainArg::Kind::kValue) return kNaN;
    if (arg.value.isNone()) return otherwise;
    return arg.value.isScalar() ? arg.value.toScalar().toDouble() : kNaN;
  }

  // Stages come in their order, each at most once.
  bool reach(Stage stage) {
    const bool is_later = stage > stage_;
    stage_ = stage;
    return is_later;
  }

  static constexpr double kInfinity = std::numeric_limits<double>::infinity();
  static constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  const ChainRequest& request_;
  const ChainNode& last_;
  Finish finish_;
  Stage stage_ = kNothing;
};

}  // namespace

std::optional<Finish> finish_of(const ChainRequest& request) {
  return FinishOfChain(request).find();
}

}  // namespace staticrt
