#include "runtime/record/recorder.h"

#include <ATen/core/enum_tag.h>

#include "runtime/record/declared_dtypes.h"

namespace staticrt {
namespace {

// aten::index(self, indices) has data-dependent results only where a mask selects.
bool selects_by_mask(const Program& program, const Node& node, const std::vector<ValueRecord>& records) {
  const Arg& indices = program.arg(node, 1);
  if (!indices.is_list) return true;  // unknown
  for (uint32_t k = 0; k < indices.count; ++k) {
    const ValueRecord& record = records[program.operands()[indices.first + k]];
    if (record.is_tensor && (record.meta.dtype == at::kBool || record.meta.dtype == at::kByte)) return true;
  }
  return false;
}

}  // namespace

Recorder::Recorder(const BoundProgram& bound, const c10::IValue* slots, const ValueMemories* stand_for)
    : bound_(bound), stand_for_(stand_for) {
  const Program& program = *bound.program;
  records_.resize(program.num_values());
  data_.resize(program.num_values(), nullptr);
  const size_t num_given = program.first_constant() + program.constants().size();
  for (ValueId id = 0; id < num_given; ++id) {
    records_[id].stable = true;
    if (slots[id].isTensor() && slots[id].toTensor().defined()) {
      record_tensor(id, slots[id].toTensor());
    } else {
      records_[id].number = slots[id];
    }
  }
}

// Of an empty tensor too, whose data_ptr() is null wherever in its storage it begins.
static const char* first_byte(const at::Tensor& tensor) {
  const auto begin = reinterpret_cast<uintptr_t>(tensor.storage().data());
  const int64_t bytes = tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
  return reinterpret_cast<const char*>(begin + static_cast<uintptr_t>(bytes));
}

const DeviceMemory* Recorder::memory_of(ValueId id, const at::Tensor& tensor) const {
  if (!stand_for_) return find_memory(tensor.device());
  return tensor.is_meta() ? (*stand_for_)[id] : nullptr;
}

void Recorder::record_tensor(ValueId id, const at::Tensor& tensor) {
  ValueRecord& record = records_[id];
  record.is_tensor = true;
  record.owner = id;
  record.meta.dtype = tensor.scalar_type();
  record.memory = memory_of(id, tensor);
  record.plain = record.memory && tensor.layout() == at::kStrided && !tensor.is_conj() && !tensor.is_neg() &&
                 !tensor.is_quantized() && !tensor._is_zerotensor() && tensor.has_storage();
  const bool lazy = tensor.layout() == at::kStrided && (tensor.is_conj() || tensor.is_neg());
  if (!record.plain && !lazy) return;
  record.meta.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  record.meta.strides.assign(tensor.strides().begin(), tensor.strides().end());
  if (record.plain) data_[id] = first_byte(tensor);
}

// Products and look-ups with a packed weight: sizes follow from those of the input and of the weight, a
// constant.
static bool takes_packed_weight(const std::string& name) {
  for (const char* prefix :
       {"quantized::linear_dynamic", "quantized::linear_relu_dynamic", "quantized::embedding_byte",
        "quantized::embedding_4bit", "quantized::embedding_bag_byte", "quantized::embedding_bag_4bit"}) {
    if (name.rfind(prefix, 0) == 0) return true;
  }
  return false;
}

// Operators whose sizes or numbers data decides; torch tags only the operators that they are composed of.
static bool depends_on_data_untagged(const std::string& op) {
  for (const char* name : {"aten::where", "aten::nonzero_numpy", "aten::repeat_interleave.self_Tensor",
                           "aten::tensor_split.tensor_indices_or_sections", "aten::_pack_padded_sequence",
                           "aten::_pad_packed_sequence", "aten::is_nonzero"}) {
    if (op == name) return true;
  }
  return false;
}

bool Recorder::is_stable(uint32_t node_index) const {
  const Program& program = *bound_.program;
  const Node& node = program.nodes()[node_index];
  for (const ValueId id : program.reads(node)) {
    if (!records_[id].stable) return false;
  }
  if (bound_.nodes[node_index].kind == BoundKind::kControl) return false;
  if (!node.handle) return true;
  // An accelerator's subgraph is compiled for the shapes it is given, which fix those of its results.
  const std::string& name = node.handle->schema().name();
  if (name.rfind("aten::", 0) != 0 && name != "staticrt_accelerators::run" &&
      name != "staticrt::tree_ensemble" && name.rfind("staticrt::recurrent_steps", 0) != 0 &&
      !takes_packed_weight(name))
    return false;
  // Offsets of storages are not part of a signature.
  if (node.op == "aten::as_strided" || node.op == "aten::sym_storage_offset") return false;
  if (node.handle->hasTag(at::Tag::data_dependent_output) || depends_on_data_untagged(node.op)) return false;
  if (node.handle->hasTag(at::Tag::dynamic_output_shape)) {
    return node.op == "aten::index.Tensor" && !selects_by_mask(program, node, records_);
  }
  return true;
}

void Recorder::after_node(uint32_t node_index, const c10::IValue* slots) {
  const Program& program = *bound_.program;
  const Node& node = program.nodes()[node_index];
  const BoundNode& bound_node = bound_.nodes[node_index];
  const bool stable = is_stable(node_index);
  const bool writes_out = bound_node.kind == BoundKind::kOut || bound_node.kind == BoundKind::kBoxedOut;
  if (bound_.check_sizes && writes_out && node.handle)
    check_declared_dtypes(program, node, const_cast<c10::IValue*>(slots));
  for (uint32_t i = 0; i < node.num_outputs; ++i) {
    const ValueId id = node.first_output + i;
    ValueRecord& record = records_[id];
    const c10::IValue& value = slots[id];
    if (!value.isTensor() || !value.toTensor().defined()) {
      // A number made from a tensor's contents is data, whatever the op is called. A gradient that is
      // not needed is an undefined tensor, in every call.
      record.stable = stable && (value.isNone() || value.isScalar() || value.isIntList() || value.isTensor());
      record.number = value;
      continue;
    }
    const at::Tensor& tensor = value.toTensor();
    record_tensor(id, tensor);
    record.stable = stable;
    if (!record.plain || writes_out) continue;
    auto adopt_owner = [&](ValueId source) {
      if (record.owner != id || !slots[source].isTensor() || !records_[source].plain) return;
      const at::Tensor& other = slots[source].toTensor();
      if (!other.defined() || !other.is_alias_of(tensor)) return;
      record.owner = records_[source].owner;
      record.offset_bytes = data_[id] - data_[record.owner];
    };
    for (const ValueId source : program.reads(node)) adopt_owner(source);
    for (uint32_t k = 0; k < i; ++k) adopt_owner(node.first_output + k);
  }
  // A node is prepared whole or not at all: if the signature does not determine one of its results, none of
  // them counts as determined.
  bool all_stable = true;
  for (uint32_t i = 0; i < node.num_outputs; ++i) all_stable &= records_[node.first_output + i].stable;
  for (uint32_t i = 0; i < node.num_outputs; ++i) records_[node.first_output + i].stable = all_stable;
}

int64_t Recorder::bytes() const {
  int64_t bytes = 0;
  for (const Node& node : bound_.program->nodes()) {
    for (ValueId id = node.first_output; id < node.first_output + node.num_outputs; ++id) {
      const ValueRecord& record = records_[id];
      if (record.is_tensor && record.owner == id)
        bytes += record.meta.numel() * static_cast<int64_t>(c10::elementSize(record.meta.dtype));
    }
  }
  return bytes;
}

}  // namespace staticrt
