// The public C++ API (include/staticrt/staticrt.h).
#include <ATen/core/grad_mode.h>

#include "archive/archive.h"
#include "staticrt/staticrt.h"

namespace staticrt {
namespace {

ArchiveOptions to_archive_options(const LoadOptions& options) {
  ArchiveOptions result;
  result.check_weights = options.check_weights;
  result.device = options.device;
  result.allow_operators = options.allow_operators;
  result.executable.prepared = options.prepared;
  result.executable.max_prepared = options.max_prepared;
  result.executable.preparation.deterministic = options.deterministic;
  result.executable.preparation.weight_memory = options.weight_memory;
  return result;
}

// The leaves of a trace for a C++ call. Constants have their values of the trace.
std::vector<Leaf> leaves_of(const TraceSpec& spec, const std::vector<c10::IValue>& inputs, std::string& why) {
  std::vector<Leaf> leaves(spec.leaves.size());
  size_t next = 0;
  for (size_t i = 0; i < leaves.size(); ++i) {
    Leaf& leaf = leaves[i];
    if (spec.leaves[i].kind == LeafKind::kConstant) {
      leaf.constant = spec.leaves[i].constant;
      continue;
    }
    if (next < inputs.size()) {
      const c10::IValue& value = inputs[next];
      if (value.isTensor()) {
        leaf.kind = LeafKind::kTensor;
        leaf.tensor = value.toTensor();
      } else if (value.isInt()) {
        leaf.kind = LeafKind::kInt;
        leaf.number = value.toInt();
      } else {
        why = "input " + std::to_string(next) + " is neither a tensor nor an int";
      }
    }
    ++next;
  }
  if (next != inputs.size())
    why = "it takes " + std::to_string(next) + " inputs, got " + std::to_string(inputs.size());
  return leaves;
}

void check_gradients(const std::vector<c10::IValue>& inputs) {
  if (!at::GradMode::is_enabled()) return;
  for (const c10::IValue& input : inputs) {
    if (input.isTensor() && input.toTensor().defined() && input.toTensor().requires_grad()) {
      throw CallError(
          "an input requires gradients, which a loaded program does not give\n"
          "  fix: call it under at::NoGradGuard, or pass input.detach()");
    }
  }
}

}  // namespace

struct Module::State {
  Archive archive;

  // Calls `visit` with each trace that the inputs fit, and their leaves, until it returns "": done. Throws
  // CallError that says why each trace refused them.
  template <class Visit>
  void find(const std::vector<c10::IValue>& inputs, const Visit& visit) const {
    std::string reasons;
    for (size_t number = 0; number < archive.traces().size(); ++number) {
      const SavedTrace& trace = *archive.traces()[number];
      std::string why;
      const std::vector<Leaf> leaves = leaves_of(trace.spec(), inputs, why);
      if (why.empty()) why = trace.refusal(leaves);
      if (why.empty()) why = visit(trace, leaves);
      if (why.empty()) return;
      reasons += "\n  trace " + std::to_string(number) + ": " + why;
    }
    throw CallError("the call fits no trace of " + archive.facts().name + reasons +
                    "\n  fix: call the compiled model like this before saving it");
  }
};

Module::Module(std::shared_ptr<const State> state) : state_(std::move(state)) {}

Module load(const std::string& path, const LoadOptions& options) {
  return Module(std::make_shared<Module::State>(
      Module::State{Archive(Blob::map_file(path), path, to_archive_options(options))}));
}

Module load(const void* data, size_t size_bytes, const LoadOptions& options) {
  const std::string_view bytes(static_cast<const char*>(data), size_bytes);
  return Module(std::make_shared<Module::State>(Module::State{Archive(
      Blob::copy_of(bytes), std::to_string(size_bytes) + " bytes in memory", to_archive_options(options))}));
}

std::vector<c10::IValue> Module::run_values(const std::vector<c10::IValue>& inputs) const {
  check_gradients(inputs);
  std::vector<c10::IValue> outputs;
  state_->find(inputs, [&](const SavedTrace& trace, const std::vector<Leaf>& leaves) -> std::string {
    try {
      const std::optional<std::vector<c10::IValue>> found = trace.run(leaves);
      if (!found) return kDecidedOtherwise;
      for (const int32_t output : trace.spec().outputs) {
        outputs.push_back(output < 0 ? c10::IValue() : (*found)[static_cast<size_t>(output)]);
      }
      return "";
    } catch (const InputError& error) {
      throw CallError(error.what());
    }
  });
  return outputs;
}

std::string Module::prepare(const std::vector<c10::IValue>& inputs) const {
  std::string reason;
  state_->find(inputs, [&](const SavedTrace& trace, const std::vector<Leaf>& leaves) {
    // Several traces may fit the sizes: then data decides which one runs.
    reason = trace.spec().decided ? "data decides which trace runs" : trace.prepare(leaves).reason;
    return std::string();
  });
  return reason;
}

std::vector<at::Tensor> Module::run(const std::vector<at::Tensor>& inputs) const {
  std::vector<at::Tensor> outputs;
  for (c10::IValue& value : run_values({inputs.begin(), inputs.end()})) {
    if (value.isTensor()) outputs.push_back(std::move(value).toTensor());
  }
  return outputs;
}

size_t Module::num_traces() const {
  return state_->archive.traces().size();
}

std::vector<InputSpec> Module::inputs(size_t trace) const {
  std::vector<InputSpec> specs;
  for (const LeafSpec& leaf : state_->archive.traces().at(trace)->spec().leaves) {
    if (leaf.kind == LeafKind::kConstant) continue;
    specs.push_back({leaf.name, leaf.kind == LeafKind::kTensor, leaf.dtype, leaf.dim});
  }
  return specs;
}

std::vector<std::pair<std::string, at::Tensor>> Module::weights() const {
  std::vector<std::pair<std::string, at::Tensor>> found;
  for (const Weight& weight : state_->archive.weights()) {
    if (weight.kind != WeightKind::kConstant)
      found.emplace_back(weight.name, state_->archive.value_of(weight));
  }
  return found;
}

const std::string& Module::torch_version() const {
  return state_->archive.facts().torch_version;
}

const std::string& Module::staticrt_version() const {
  return state_->archive.facts().staticrt_version;
}

}  // namespace staticrt
