#include "archive/trace_record.h"

#include "archive/program_record.h"

namespace staticrt {

void write_trace(const TraceSpec& spec, ByteWriter& out, TensorTable& tensors) {
  write_program(*spec.program, out, tensors);
  out.put_size(spec.model_tensors.size());
  for (const uint32_t number : spec.model_tensors) out.put(number);
  out.put_size(spec.leaves.size());
  for (const LeafSpec& leaf : spec.leaves) {
    out.put(static_cast<uint8_t>(leaf.kind));
    out.put_string(leaf.name);
    out.put(static_cast<uint8_t>(leaf.dtype));
    out.put(leaf.dim);
    out.put(static_cast<uint8_t>(leaf.layout.has_value()));
    out.put_ints(leaf.layout.value_or(std::vector<int64_t>()));
    out.put_string(leaf.constant);
    out.put(leaf.input);
    out.put(leaf.same);
    out.put(leaf.empty_dims);
    out.put(tensors.add_device(leaf.device));
  }
  out.put_size(spec.symbols.size());
  for (const SizeSymbol& symbol : spec.symbols) {
    out.put_string(symbol.name);
    out.put(symbol.leaf);
    out.put(static_cast<uint8_t>(symbol.prop));
    out.put(symbol.dim);
  }
  out.put(static_cast<uint8_t>(spec.guards != nullptr));
  if (spec.guards) write_program(*spec.guards, out, tensors);
  out.put_size(spec.guard_texts.size());
  for (const std::string& text : spec.guard_texts) out.put_string(text);
  out.put_string(spec.autocast);
  out.put_size(spec.outputs.size());
  for (const int32_t output : spec.outputs) out.put(output);
  out.put_string(spec.structure);
  out.put_size(spec.packed.size());
  for (const PackedSpec& packed : spec.packed) {
    out.put_string(packed.key);
    out.put(packed.tensor);
  }
  out.put_size(spec.choices.size());
  for (const RouteChoice& c : spec.choices) {
    out.put_string(c.kind);
    out.put_ints(c.key);
    out.put(c.choice);
  }
  out.put(static_cast<uint8_t>(spec.decided));
  out.put(static_cast<uint8_t>(spec.random));
  out.put(static_cast<uint8_t>(spec.asks_layout));
  out.put_size(spec.plans.size());
  for (const planner::KnownPlan& plan : spec.plans) {
    out.put(plan.key);
    out.put(plan.lower_bound);
    out.put_ints(plan.offsets);
  }
}

namespace {

LeafSpec read_leaf(ByteReader& in, const LoadedTensors& tensors) {
  LeafSpec leaf;
  const auto kind = in.get<uint8_t>();
  SRT_ARCHIVE(kind <= static_cast<uint8_t>(LeafKind::kConstant), in.damaged(), "leaf of kind ",
              static_cast<int>(kind));
  leaf.kind = static_cast<LeafKind>(kind);
  leaf.name = in.get_string();
  leaf.dtype = get_dtype(in);
  leaf.dim = in.get<int64_t>();
  SRT_ARCHIVE(leaf.dim >= 0 && leaf.dim <= 64, in.damaged(), "leaf ", leaf.name, " of ", leaf.dim,
              " dimensions");
  const bool strided = in.get_bool();
  std::vector<int64_t> layout = in.get_ints();
  if (strided) {
    SRT_ARCHIVE(static_cast<int64_t>(layout.size()) == leaf.dim, in.damaged(), "leaf ", leaf.name,
                " has a layout of ", layout.size(), " dimensions");
    leaf.layout = std::move(layout);
  }
  leaf.constant = in.get_string();
  leaf.input = in.get<int32_t>();
  if (tensors.format() >= 3) {
    leaf.same = in.get<int32_t>();
    leaf.empty_dims = in.get<uint64_t>();
  }
  leaf.device = read_device(in, tensors);
  return leaf;
}

// A leaf that is the same tensor as another names the first of them.
void check_sameness(ByteReader& in, const std::vector<LeafSpec>& leaves) {
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (leaves[i].same == -1) continue;
    const auto first = static_cast<size_t>(leaves[i].same);
    SRT_ARCHIVE(first < i && leaves[first].same < 0 && leaves[first].kind == LeafKind::kTensor &&
                    leaves[i].kind == LeafKind::kTensor,
                in.damaged(), "leaf ", leaves[i].name, " is the same as leaf ", leaves[i].same);
  }
}

// Kernels that read addresses on the host are chosen by the devices that the program declares.
void check_device(ByteReader& in, const ValueInfo& info, at::Device device) {
  const at::Device said = info.device.value_or(at::kCPU);
  SRT_ARCHIVE(said == device, in.damaged(), "input ", info.name, " of the program is on ", said.str(),
              ", what it gets on ", device.str());
}

// Each leaf that the program reads is one of its inputs, and each input is read from one leaf, or is one of
// the model's tensors.
void check_inputs(ByteReader& in, const TraceSpec& spec, const LoadedTensors& tensors) {
  const size_t first = spec.model_tensors.size();
  SRT_ARCHIVE(first <= spec.program->num_inputs(), in.damaged(), first, " model tensors for ",
              spec.program->num_inputs(), " inputs");
  const std::vector<ValueInfo>& values = spec.program->values();
  for (size_t i = 0; i < first; ++i) check_device(in, values[i], tensors.device_of(spec.model_tensors[i]));
  std::vector<bool> seen(spec.program->num_inputs() - first, false);
  for (const LeafSpec& leaf : spec.leaves) {
    if (leaf.input < 0) continue;
    const auto input = static_cast<size_t>(leaf.input);
    SRT_ARCHIVE(leaf.kind != LeafKind::kConstant && input < seen.size() && !seen[input], in.damaged(),
                "leaf ", leaf.name, " is input ", leaf.input, " of ", seen.size());
    seen[input] = true;
    if (leaf.kind == LeafKind::kTensor) check_device(in, values[first + input], leaf.device);
  }
  for (const bool found : seen) SRT_ARCHIVE(found, in.damaged(), "an input of the program is not a leaf");
}

void check_guards(ByteReader& in, const TraceSpec& spec) {
  for (const SizeSymbol& symbol : spec.symbols) {
    const LeafSpec& leaf = spec.leaves[symbol.leaf];
    const bool fits = symbol.prop == SizeSymbol::Prop::kValue
                          ? leaf.kind == LeafKind::kInt
                          : leaf.kind == LeafKind::kTensor && symbol.dim < leaf.dim;
    SRT_ARCHIVE(fits, in.damaged(), "size symbol ", symbol.name, " of leaf ", leaf.name);
  }
  SRT_ARCHIVE(!spec.guards || (spec.guards->num_inputs() == spec.symbols.size() &&
                               spec.guards->outputs().size() == spec.guard_texts.size()),
              in.damaged(), "size conditions over ", spec.symbols.size(), " symbols");
}

void read_work(ByteReader& in, const LoadedTensors& tensors, TraceSpec& spec) {
  spec.packed.resize(in.get_count(12));
  for (PackedSpec& packed : spec.packed) {
    packed.key = in.get_string();
    packed.tensor = in.get_index(tensors.size(), "tensor");
    const at::Tensor bytes = tensors.saved(packed.tensor);
    SRT_ARCHIVE(bytes.scalar_type() == at::kByte && bytes.is_contiguous() && bytes.storage_offset() == 0,
                in.damaged(), "packed weights ", packed.key, " are not bytes");
  }
  spec.choices.resize(in.get_count(24));
  for (RouteChoice& choice : spec.choices) {
    choice.kind = in.get_string();
    choice.key = in.get_ints();
    choice.choice = in.get<int64_t>();
  }
}

}  // namespace

TraceSpec read_trace(ByteReader& in, LoadedTensors& tensors) {
  const uint32_t format = tensors.format();
  TraceSpec spec;
  spec.program = read_program(in, tensors);
  spec.model_tensors.resize(in.get_count(4));
  for (uint32_t& number : spec.model_tensors) number = in.get_index(tensors.size(), "tensor");
  spec.leaves.resize(in.get_count(39));
  for (LeafSpec& leaf : spec.leaves) leaf = read_leaf(in, tensors);
  check_sameness(in, spec.leaves);
  spec.symbols.resize(in.get_count(17));
  for (SizeSymbol& symbol : spec.symbols) {
    symbol.name = in.get_string();
    symbol.leaf = in.get_index(spec.leaves.size(), "leaf");
    const auto prop = in.get<uint8_t>();
    SRT_ARCHIVE(prop <= static_cast<uint8_t>(SizeSymbol::Prop::kValue), in.damaged(), "symbol ", symbol.name);
    symbol.prop = static_cast<SizeSymbol::Prop>(prop);
    symbol.dim = in.get<uint32_t>();
  }
  if (in.get_bool()) spec.guards = read_program(in, tensors);
  spec.guard_texts.resize(in.get_count(8));
  for (std::string& text : spec.guard_texts) text = in.get_string();
  spec.autocast = in.get_string();
  spec.outputs.resize(in.get_count(4));
  for (int32_t& output : spec.outputs) {
    output = in.get<int32_t>();
    SRT_ARCHIVE(output < static_cast<int32_t>(spec.program->outputs().size()), in.damaged(), "output ",
                output, " of ", spec.program->outputs().size());
  }
  spec.structure = in.get_string();
  if (format >= 2) read_work(in, tensors, spec);
  spec.knows_empty = format >= 3;
  if (format >= 3) {
    spec.decided = in.get_bool();
    spec.random = in.get_bool();
  }
  if (format >= 6) spec.asks_layout = in.get_bool();
  if (format >= 4) {
    // KnownPlans validates a plan before it is used.
    spec.plans.resize(in.get_count(24));
    for (planner::KnownPlan& plan : spec.plans) {
      plan.key = in.get<uint64_t>();
      plan.lower_bound = in.get<int64_t>();
      plan.offsets = in.get_ints();
    }
  }
  check_inputs(in, spec, tensors);
  check_guards(in, spec);
  return spec;
}

}  // namespace staticrt
