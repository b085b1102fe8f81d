#include "archive/saved_trace.h"

#include <ATen/Context.h>

#include <algorithm>
#include <unordered_map>

#include "program/process_state.h"
#include "runtime/call/decisions.h"
#include "runtime/call/program_graph.h"
#include "runtime/call/written_memory.h"
#include "runtime/record/matrix_shapes.h"

namespace staticrt {
namespace {

std::string sizes_text(const at::Tensor& tensor) {
  std::string text = "[";
  for (int64_t d = 0; d < tensor.dim(); ++d) text += (d ? ", " : "") + std::to_string(tensor.size(d));
  return text + "]";
}

uint64_t empty_dims_of(const at::Tensor& tensor) {
  uint64_t dims = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) dims |= static_cast<uint64_t>(tensor.size(d) == 0) << d;
  return dims;
}

at::Tensor generator_state(at::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void put_back_generator(at::Device device, const at::Tensor& state) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

// The CPU, and whatever else values of the program lie on.
std::vector<at::Device> devices_of(const Program& program) {
  std::vector<at::Device> devices{at::Device(at::kCPU)};
  for (const ValueInfo& info : program.values()) {
    if (info.device && std::ranges::find(devices, *info.device) == devices.end())
      devices.push_back(*info.device);
  }
  return devices;
}

int64_t value_of(const SizeSymbol& symbol, std::span<const Leaf> leaves) {
  const Leaf& leaf = leaves[symbol.leaf];
  switch (symbol.prop) {
    case SizeSymbol::Prop::kSize:
      return leaf.tensor.size(symbol.dim);
    case SizeSymbol::Prop::kStride:
      return leaf.tensor.stride(symbol.dim);
    case SizeSymbol::Prop::kValue:
      break;
  }
  return leaf.number;
}

// Whether an operator's values depend on how its operands lie in memory: it reads memory by strides of its
// own, or draws random numbers in the order of memory.
bool reads_layout(const Node& node) {
  return node.op.starts_with("aten::as_strided") || draws_random(node) ||
         std::ranges::any_of(
             node.bodies, [](const auto& body) { return std::ranges::any_of(body->nodes(), reads_layout); });
}

// Whether its results are sizes or row-major tensors, however its operands lie in memory.
bool hides_layout(const Node& node) {
  return is_one_of(
      node.op, {"aten::linear", "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::embedding",
                "aten::size.int", "aten::sym_size.int", "aten::numel", "aten::sym_numel"});
}

// Values on whose layout others depend. Strides of results follow from those of operands.
std::vector<bool> layout_decides(const Program& program) {
  std::vector<bool> decides(program.num_values(), false);
  for (auto node = program.nodes().rbegin(); node != program.nodes().rend(); ++node) {
    if (hides_layout(*node)) continue;
    bool depends = reads_layout(*node);
    for (uint32_t i = 0; i < node->num_outputs && !depends; ++i) depends = decides[node->first_output + i];
    if (!depends) continue;
    for (const ValueId id : program.reads(*node)) decides[id] = true;
  }
  return decides;
}

}  // namespace

// The model's tensors are the first inputs: what is made of them alone is kept between runs.
static ExecutableOptions with_weights(ExecutableOptions options, size_t count) {
  for (ValueId id = 0; id < count; ++id) options.weights.push_back(id);
  options.bind.check_arguments = true;
  return options;
}

SavedTrace::SavedTrace(TraceSpec spec, LoadedTensors& tensors, const ExecutableOptions& options)
    : spec_(std::move(spec)),
      executable_(
          std::make_shared<Executable>(spec_.program, with_weights(options, spec_.model_tensors.size()))) {
  for (const uint32_t number : spec_.model_tensors) model_tensors_.push_back(tensors.at(number));
  if (spec_.guards) {
    ExecutableOptions plain;
    plain.prepared = false;
    guards_ = std::make_shared<Executable>(spec_.guards, plain);
  }
  written_inputs_ = executable_->written_inputs();
  const Liveness& live = executable_->bound().liveness;
  const Program& program = executable_->program();
  const std::vector<bool> decides = layout_decides(program);
  may_copy_.assign(program.num_inputs(), true);
  for (ValueId id = 0; id < program.num_inputs(); ++id)
    may_copy_[id] = !live.touches_output[id] && !decides[id];
  for (const uint32_t id : written_inputs_) may_copy_[id] = false;
}

void SavedTrace::offer_work(const LoadedTensors& tensors, const std::string& machine) {
  const auto capability_of = [](const std::string& name) { return name.substr(0, name.find(',')); };
  const bool same_kernels = capability_of(machine) == capability_of(machine_name());
  PriorWork work;
  work.plans = spec_.plans;
  for (const PackedSpec& spec : spec_.packed) {
    if (!same_kernels) break;
    const auto bytes = std::make_shared<at::Tensor>(tensors.saved(spec.tensor));
    const auto* data = static_cast<const char*>(bytes->const_data_ptr());
    packed_bytes_ += bytes->numel();
    work.packed.push_back({spec.key, std::shared_ptr<const char>(bytes, data), bytes->numel()});
  }
  if (machine == machine_name()) work.choices = spec_.choices;
  std::vector<InputView> inputs(executable_->program().num_inputs());
  for (size_t i = 0; i < model_tensors_.size(); ++i) inputs[i].tensor = &model_tensors_[i];
  executable_->offer(std::move(work), inputs);
}

std::string SavedTrace::leaf_refusal(const LeafSpec& spec, const Leaf& leaf) const {
  if (spec.kind == LeafKind::kConstant) {
    const std::string given = leaf.kind == LeafKind::kInt ? std::to_string(leaf.number) : leaf.constant;
    if (leaf.kind != LeafKind::kTensor && given == spec.constant) return "";
    return "'" + spec.name + "' is " + (leaf.kind == LeafKind::kTensor ? "a tensor" : given) +
           ", traced as the constant " + spec.constant;
  }
  if (leaf.kind != spec.kind) {
    return "'" + spec.name + "' is " + (leaf.kind == LeafKind::kTensor ? "a tensor" : "not a tensor") +
           ", expected " + (spec.kind == LeafKind::kTensor ? "a tensor" : "an int");
  }
  if (spec.kind == LeafKind::kInt) return "";
  const at::Tensor& t = leaf.tensor;
  const std::string name = "'" + spec.name + "' ";
  if (!t.defined() || t.layout() != at::kStrided || t.is_quantized() || t.is_conj() || t.is_neg())
    return name + "is not a dense tensor";
  if (t.device() != spec.device) {
    return name + "is on " + t.device().str() + ", expected on " + spec.device.str() +
           "; move it there, or load the archive on its device";
  }
  if (t.scalar_type() != spec.dtype) {
    return name + "has dtype " + c10::toString(t.scalar_type()) + ", expected " + c10::toString(spec.dtype);
  }
  if (t.dim() != spec.dim) {
    return name + "has " + std::to_string(t.dim()) + " dimensions, " + sizes_text(t) + ", expected " +
           std::to_string(spec.dim);
  }
  if (spec_.knows_empty && empty_dims_of(t) != spec.empty_dims) {
    return name + "has sizes " + sizes_text(t) + ", traced was a tensor " +
           (spec.empty_dims ? "with other or more" : "without") + " dimensions of size 0";
  }
  if (layout_of(t) == spec.layout) return "";
  const bool copy = !spec_.asks_layout &&
                    (spec.input < 0 || may_copy_[model_tensors_.size() + static_cast<size_t>(spec.input)]);
  if (copy && laid_out(t, spec.layout).defined()) return "";
  return name + "is laid out in memory otherwise than when traced; pass x.contiguous()";
}

std::string SavedTrace::sameness_refusal(std::span<const Leaf> leaves) const {
  std::unordered_map<const void*, size_t> first;
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (leaves[i].kind != LeafKind::kTensor) continue;
    const auto [found, is_first] = first.emplace(leaves[i].tensor.unsafeGetTensorImpl(), i);
    const int32_t same = is_first ? -1 : static_cast<int32_t>(found->second);
    if (same == spec_.leaves[i].same) continue;
    const int32_t other = std::max(same, spec_.leaves[i].same);
    const std::string names =
        "'" + spec_.leaves[i].name + "' and '" + spec_.leaves[static_cast<size_t>(other)].name + "' are ";
    if (same < 0) return names + "two tensors, traced was one for both";
    return names + "the same tensor, traced were two; pass x.clone() as one of them, or save a trace of such";
  }
  return "";
}

// "s0 = size of 'x' in dimension 1".
std::string SavedTrace::source_of(const SizeSymbol& symbol) const {
  const std::string leaf = "'" + spec_.leaves[symbol.leaf].name + "'";
  if (symbol.prop == SizeSymbol::Prop::kValue) return symbol.name + " = " + leaf;
  return symbol.name + " = " + (symbol.prop == SizeSymbol::Prop::kSize ? "size" : "stride") + " of " + leaf +
         " in dimension " + std::to_string(symbol.dim);
}

std::string SavedTrace::guard_refusal(std::span<const Leaf> leaves) const {
  if (!guards_) return "";
  std::vector<c10::IValue> numbers;
  for (const SizeSymbol& symbol : spec_.symbols) numbers.emplace_back(value_of(symbol, leaves));
  std::vector<c10::IValue> held;
  try {
    held = guards_->run(numbers);
  } catch (const std::exception& error) {
    return std::string("its size conditions cannot be computed: ") + error.what();
  }
  for (size_t i = 0; i < held.size(); ++i) {
    if (held[i].isBool() && held[i].toBool()) continue;
    std::string text = "the condition " + spec_.guard_texts[i] + " does not hold";
    for (size_t k = 0; k < spec_.symbols.size(); ++k) {
      if (spec_.guard_texts[i].find(spec_.symbols[k].name) != std::string::npos)
        text += ", " + source_of(spec_.symbols[k]) + " = " + std::to_string(numbers[k].toInt());
    }
    return text;
  }
  return "";
}

std::string SavedTrace::refusal(std::span<const Leaf> leaves) const {
  if (leaves.size() != spec_.leaves.size()) {
    return "it takes " + std::to_string(spec_.leaves.size()) + " values, got " +
           std::to_string(leaves.size());
  }
  if (const std::string state = autocast_text(); state != spec_.autocast) {
    return "it was traced with autocast " + (spec_.autocast.empty() ? "off" : spec_.autocast) +
           ", the call has it " + (state.empty() ? "off" : "at " + state);
  }
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (std::string why = leaf_refusal(spec_.leaves[i], leaves[i]); !why.empty()) return why;
  }
  if (std::string why = sameness_refusal(leaves); !why.empty()) return why;
  return guard_refusal(leaves);
}

void SavedTrace::check_written_apart(const std::vector<InputView>& inputs) const {
  const std::optional<SharedMemory> shared = shared_memory(written_inputs_, inputs);
  if (!shared) return;
  const std::string& name = spec_.program->values()[shared->written].name;
  SRT_CHECK(shared->written != shared->other, "input '", name,
            "', which the model writes, has one element at two places\n  fix: clone it before the call");
  SRT_CHECK(false, "input '", name, "', which the model writes, shares memory with input '",
            spec_.program->values()[shared->other].name, "'\n  fix: clone one of them before the call");
}

std::vector<InputView> SavedTrace::inputs_of(std::span<const Leaf> leaves,
                                             std::vector<at::Tensor>& copies) const {
  std::vector<InputView> inputs(spec_.program->num_inputs());
  copies.reserve(leaves.size());
  for (size_t i = 0; i < model_tensors_.size(); ++i) inputs[i].tensor = &model_tensors_[i];
  for (size_t i = 0; i < leaves.size(); ++i) {
    const LeafSpec& spec = spec_.leaves[i];
    if (spec.input < 0) continue;
    InputView& input = inputs[model_tensors_.size() + static_cast<size_t>(spec.input)];
    if (leaves[i].kind == LeafKind::kInt) {
      input.value = leaves[i].number;
    } else if (layout_of(leaves[i].tensor) == spec.layout) {
      input.tensor = &leaves[i].tensor;
    } else {
      copies.push_back(laid_out(leaves[i].tensor, spec.layout));
      input.tensor = &copies.back();
    }
  }
  return inputs;
}

PreparedAhead SavedTrace::prepare(std::span<const Leaf> leaves) const {
  std::vector<at::Tensor> copies;
  return executable_->prepare(inputs_of(leaves, copies));
}

std::optional<std::vector<c10::IValue>> SavedTrace::run(std::span<const Leaf> leaves) const {
  std::vector<at::Tensor> copies;
  const std::vector<InputView> inputs = inputs_of(leaves, copies);
  check_written_apart(inputs);
  std::vector<c10::IValue> outputs;
  std::vector<std::pair<at::Device, at::Tensor>> generators;
  if (spec_.decided && spec_.random) {
    for (const at::Device device : devices_of(*spec_.program))
      generators.emplace_back(device, generator_state(device));
  }
  try {
    executable_->call(inputs, outputs);
  } catch (const c10::Error& error) {
    if (!spec_.decided || !decided_otherwise(error)) throw;
    for (const auto& [device, state] : generators) put_back_generator(device, state);
    return std::nullopt;
  }
  return outputs;
}

}  // namespace staticrt
