#include "runtime/execution_plan/fixed_values.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <set>

#include "common/error.h"
#include "common/tuning.h"
#include "runtime/general/free_memory.h"
#include "runtime/general/general_path.h"
#include "runtime/general/run_error.h"

namespace staticrt {
namespace {

constexpr uint32_t kNoNode = ~0U;

// What a stamp keeps (see the note in the header).
constexpr int64_t kWordBytes = 4;

// From the first element to the end of the last.
int64_t spanned_bytes(const at::Tensor& weight) {
  if (weight.numel() == 0) return 0;
  int64_t last = 0;
  for (int64_t i = 0; i < weight.dim(); ++i) last += (weight.size(i) - 1) * weight.stride(i);
  return (last + 1) * weight.element_size();
}

// Every word goes through one of eight chains of steps that are one-to-one, so a change of one word always
// shows; changes of several cancel out in one of 2^64 cases.
uint64_t hash_of(const char* data, int64_t size_bytes) {
  constexpr int kLanes = 8;
  constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15U;
  uint64_t lanes[kLanes] = {1, 2, 3, 4, 5, 6, 7, 8};
  constexpr auto kStep = static_cast<int64_t>(sizeof(lanes));
  const auto mix = [&](const char* from) {
    uint64_t words[kLanes];
    std::memcpy(words, from, sizeof(words));
    for (int lane = 0; lane < kLanes; ++lane) {
      const uint64_t mixed = (lanes[lane] ^ words[lane]) * kMultiplier;
      lanes[lane] = mixed ^ (mixed >> 32);
    }
  };
  int64_t done = 0;
  for (; done + kStep <= size_bytes; done += kStep) mix(data + done);
  if (done < size_bytes) {
    char rest[kStep] = {};
    std::memcpy(rest, data + done, static_cast<size_t>(size_bytes - done));
    mix(rest);
  }
  uint64_t hash = 0;
  for (const uint64_t lane : lanes) hash = (std::rotl(hash, 23) ^ lane) * kMultiplier;
  return hash;
}

std::vector<ValueId> merged(const std::vector<ValueId>& a, const std::vector<ValueId>& b) {
  std::vector<ValueId> all;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(all));
  return all;
}

}  // namespace

bool WeightStamp::can_stamp(const at::Tensor& weight) {
  if (!weight.defined() || !weight.has_storage()) return false;
  const DeviceMemory* memory = find_memory(weight.device());
  return memory && memory->is_host();
}

WeightStamp::WeightStamp(const at::Tensor& weight)
    : storage_(weight.storage().getWeakStorageImpl()),
      identity_(weight.storage().unsafeGetStorageImpl()),
      data_(static_cast<const char*>(weight.const_data_ptr())),
      version_(weight.is_inference() ? 0 : weight.unsafeGetTensorImpl()->version_counter().current_version()),
      sizes_(weight.sizes()),
      strides_(weight.strides()) {
  const int64_t bytes = spanned_bytes(weight);
  // Batch norms update their running statistics past the version counter: of vectors, all bytes of 16 KiB.
  if (bytes <= (weight.dim() == 1 ? 4 * tuning::kWholeStampBytes : tuning::kWholeStampBytes)) {
    bytes_.assign(data_, data_ + bytes);
    return;
  }
  if (weight.is_inference()) {
    hashed_bytes_ = bytes;
    hash_ = hash_of(data_, bytes);
    return;
  }
  const auto block_bytes = static_cast<uint64_t>(
      std::max(tuning::kStampBlockBytes, (bytes + tuning::kMaxStampBlocks - 1) / tuning::kMaxStampBlocks));
  block_words_ = static_cast<int64_t>(std::bit_ceil(block_bytes)) / kWordBytes;
  words_.resize(static_cast<size_t>(bytes / (block_words_ * kWordBytes)));
  for (size_t i = 0; i < words_.size(); ++i) words_[i] = word_of_block(static_cast<int64_t>(i));
}

uint32_t WeightStamp::word_of_block(int64_t block) const {
  const uint64_t scattered = (static_cast<uint64_t>(block) * 0x9E3779B97F4A7C15U) >> 32;
  const int64_t word = block * block_words_ + (static_cast<int64_t>(scattered) & (block_words_ - 1));
  uint32_t value = 0;
  std::memcpy(&value, data_ + word * kWordBytes, kWordBytes);
  return value;
}

bool WeightStamp::holds(const at::Tensor& weight) const {
  c10::TensorImpl& impl = *weight.unsafeGetTensorImpl();
  if (impl.unsafe_storage().unsafeGetStorageImpl() != identity_ || impl.data() != data_) return false;
  if (!impl.is_inference() && impl.version_counter().current_version() != version_) return false;
  if (hashed_bytes_ != 0 && hash_of(data_, hashed_bytes_) != hash_) return false;
  uint32_t differs = 0;
  for (size_t i = 0; i < words_.size(); ++i) differs |= word_of_block(static_cast<int64_t>(i)) ^ words_[i];
  // Whole copies are kept of small weights only; memcmp takes no null pointer, whatever the length.
  return differs == 0 && (bytes_.empty() || std::memcmp(data_, bytes_.data(), bytes_.size()) == 0);
}

bool WeightStamp::has_layout_of(const at::Tensor& weight) const {
  return weight.sizes() == sizes_ && weight.strides() == strides_;
}

bool WeightStamp::operator==(const WeightStamp& other) const {
  return identity_ == other.identity_ && data_ == other.data_ && version_ == other.version_ &&
         sizes_ == other.sizes_ && strides_ == other.strides_ && words_ == other.words_ &&
         bytes_ == other.bytes_ && hashed_bytes_ == other.hashed_bytes_ && hash_ == other.hash_;
}

bool FixedState::holds(std::span<const InputView> inputs, std::span<const ValueId> weights) const {
  for (const ValueId id : weights) {
    if (!inputs[id].tensor || !stamps_[id].holds(*inputs[id].tensor)) return false;
  }
  return true;
}

FixedValues::FixedValues(const BoundProgram& bound, std::vector<ValueId> weights, bool checks)
    : bound_(bound), weights_(std::move(weights)), checks_(checks) {
  const Program& program = *bound.program;
  const Liveness& liveness = bound.liveness;
  fixed_.assign(program.num_values(), false);
  definition_.assign(program.num_values(), kNoNode);
  // A value that some node writes into is not fixed.
  std::vector<bool> written(program.num_values(), false);
  for (const Node& node : program.nodes()) {
    for (const uint32_t index : node.written_args) {
      const Arg& arg = program.arg(node, index);
      for (uint32_t k = 0; k < arg.count; ++k)
        written[liveness.alias_class[program.operands()[arg.first + k]]] = true;
    }
  }
  for (const ValueId id : weights_) {
    SRT_CHECK(program.is_input(id), "weight ", id, " is not an input: there are ", program.num_inputs());
    fixed_[id] = !written[liveness.alias_class[id]];
  }
  for (size_t i = 0; i < program.constants().size(); ++i) {
    const ValueId id = program.first_constant() + static_cast<ValueId>(i);
    fixed_[id] = !written[liveness.alias_class[id]];
  }
  for (uint32_t index = 0; index < program.nodes().size(); ++index) {
    const Node& node = program.nodes()[index];
    bool fixed = !node.has_effects && node.written_args.empty() && node.num_outputs > 0 &&
                 bound.nodes[index].kind != BoundKind::kControl;
    bool reads_tensor = false;
    for (const ValueId id : program.reads(node)) {
      fixed &= fixed_[id];
      reads_tensor |=
          !program.is_constant(id) || program.constants()[id - program.first_constant()].isTensor();
    }
    // Other operators may have state of their own.
    if (node.handle) fixed &= node.handle->schema().name().rfind("aten::", 0) == 0;
    for (uint32_t i = 0; i < node.num_outputs; ++i) {
      const ValueId id = node.first_output + i;
      definition_[id] = index;
      // A value that an operator or the caller may keep may be written by them.
      fixed_[id] = fixed && reads_tensor && !written[liveness.alias_class[id]] && !liveness.may_be_kept[id];
    }
  }
}

std::vector<ValueId> FixedValues::weights_of(ValueId id) const {
  const Program& program = *bound_.program;
  if (program.is_input(id)) return {id};
  std::vector<ValueId> found;
  if (definition_[id] == kNoNode) return found;
  std::vector<ValueId> open{id};
  std::set<ValueId> seen;
  while (!open.empty()) {
    const ValueId next = open.back();
    open.pop_back();
    if (!seen.insert(next).second) continue;
    if (program.is_input(next)) found.push_back(next);
    if (definition_[next] == kNoNode) continue;
    for (const ValueId read : program.reads(program.nodes()[definition_[next]])) open.push_back(read);
  }
  std::sort(found.begin(), found.end());
  return found;
}

bool FixedValues::can_track(std::span<const InputView> inputs) const {
  int64_t uncounted_bytes = 0, matrix_bytes = 0;  // of inference tensors; of large matrices among them
  for (const ValueId id : weights_) {
    const at::Tensor* weight = inputs[id].tensor;
    if (!weight || !WeightStamp::can_stamp(*weight)) return false;
    if (!checks_ || !weight->is_inference()) continue;
    const int64_t bytes = spanned_bytes(*weight);
    uncounted_bytes += bytes;
    if (weight->dim() == 2 && bytes > tuning::kSmallMatrixBytes) matrix_bytes += bytes;
  }
  return 2 * matrix_bytes <= uncounted_bytes;
}

// The state for these weights: the latest, or a new one with the entries that the changed weights do not
// affect.
std::shared_ptr<FixedState> FixedValues::state_for(std::span<const InputView> inputs) {
  const auto has_layout = [&](ValueId id) { return latest_->stamps_[id].has_layout_of(*inputs[id].tensor); };
  if (latest_ && std::all_of(weights_.begin(), weights_.end(), has_layout) &&
      (!checks_ || latest_->holds(inputs, weights_))) {
    return latest_;
  }
  auto state = std::make_shared<FixedState>();
  state->stamps_.resize(bound_.program->num_inputs());
  for (const ValueId id : weights_) state->stamps_[id] = WeightStamp(*inputs[id].tensor);
  if (latest_) {
    const auto unchanged = [&](const FixedState::Made& made) {
      return std::all_of(made.weights.begin(), made.weights.end(),
                         [&](ValueId id) { return state->stamps_[id] == latest_->stamps_[id]; });
    };
    for (const auto& [id, made] : latest_->values_) {
      if (unchanged(made)) state->values_.emplace(id, made);
    }
    for (const auto& [key, made] : latest_->derived_) {
      if (unchanged(made)) state->derived_.emplace(key, made);
    }
  }
  latest_ = state;
  return state;
}

// Runs the nodes behind fixed values that a state lacks.
class FixedValues::Computation {
 public:
  Computation(FixedValues& owner, FixedState& state, std::span<const InputView> inputs)
      : owner_(owner), state_(state), program_(*owner.bound_.program), inputs_(inputs) {}

  c10::IValue value(ValueId id) {
    if (program_.is_input(id)) return *inputs_[id].tensor;
    if (program_.is_constant(id)) return program_.constants()[id - program_.first_constant()];
    if (const auto found = state_.values_.find(id); found != state_.values_.end()) return found->second.value;
    compute(id);
    return slots_[id];
  }

  // Keeps the value in the state.
  void keep(ValueId id) {
    if (program_.is_input(id) || program_.is_constant(id) || state_.values_.count(id)) return;
    state_.values_[id] = {value(id), nullptr, 0, owner_.weights_of(id)};
  }

 private:
  // In node order, without recursion: chains of nodes may be long.
  void compute(ValueId id) {
    if (slots_.empty()) slots_.resize(program_.num_values());
    std::vector<uint32_t> nodes;
    std::vector<ValueId> open{id};
    while (!open.empty()) {
      const ValueId next = open.back();
      open.pop_back();
      if (!slots_[next].isNone()) continue;
      const uint32_t definition = owner_.definition_[next];
      if (definition == kNoNode || state_.values_.count(next)) {
        slots_[next] = value(next);
        continue;
      }
      nodes.push_back(definition);
      for (const ValueId read : program_.reads(program_.nodes()[definition])) open.push_back(read);
    }
    std::sort(nodes.begin(), nodes.end());
    nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
    for (const uint32_t index : nodes) {
      try {
        run_node(owner_.bound_, index, slots_.data());
      } catch (...) {
        rethrow_at(program_, program_.nodes()[index]);
      }
    }
  }

  FixedValues& owner_;
  FixedState& state_;
  const Program& program_;
  std::span<const InputView> inputs_;
  std::vector<c10::IValue> slots_;
};

void FixedValues::offer(std::vector<PackedBytes> packed, std::span<const InputView> inputs) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (packed.empty()) return;
  offered_stamps_.resize(bound_.program->num_inputs());
  for (const ValueId id : weights_) {
    if (!inputs[id].tensor || !WeightStamp::can_stamp(*inputs[id].tensor)) return;
    offered_stamps_[id] = WeightStamp(*inputs[id].tensor);
  }
  for (PackedBytes& bytes : packed) {
    std::string key = bytes.key;
    offered_.emplace(std::move(key), std::move(bytes));
  }
}

std::vector<PackedBytes> FixedValues::packed(std::span<const InputView> inputs) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<PackedBytes> all;
  const auto is_same = [&](ValueId id) {
    return inputs[id].tensor && latest_->stamps_[id].has_layout_of(*inputs[id].tensor);
  };
  if (!latest_ || !std::all_of(weights_.begin(), weights_.end(), is_same) ||
      !latest_->holds(inputs, weights_)) {
    return all;
  }
  for (const auto& [key, made] : latest_->derived_) all.push_back({key, made.data, made.size_bytes});
  return all;
}

bool FixedValues::take_offered(const DerivedBytes& bytes, const FixedState& state, FixedState::Made& made) {
  const auto found = offered_.find(bytes.key);
  if (found == offered_.end() || found->second.size_bytes != made.size_bytes) return false;
  for (const ValueId id : made.weights) {
    if (!(state.stamps_[id] == offered_stamps_[id])) return false;
  }
  made.data = found->second.data;
  taken_bytes_ += made.size_bytes;
  return true;
}

std::shared_ptr<const FixedState> FixedValues::make(std::span<const InputView> inputs,
                                                    std::span<const ValueId> values,
                                                    std::span<const DerivedBytes> derived,
                                                    int64_t& made_bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::shared_ptr<FixedState> state = state_for(inputs);
  Computation computation(*this, *state, inputs);
  for (const DerivedBytes& bytes : derived) {
    if (state->derived_.count(bytes.key)) continue;
    FixedState::Made made;
    made.size_bytes = bytes.derivation.size_bytes;
    for (const ValueId owner : bytes.owners) made.weights = merged(made.weights, weights_of(owner));
    if (take_offered(bytes, *state, made)) {
      state->derived_.emplace(bytes.key, std::move(made));
      continue;
    }
    made_bytes += bytes.derivation.size_bytes;
    std::vector<c10::IValue> kept;  // alive until the bytes are made
    std::vector<const char*> sources;
    for (size_t i = 0; i < bytes.owners.size(); ++i) {
      kept.push_back(computation.value(bytes.owners[i]));
      sources.push_back(static_cast<const char*>(kept.back().toTensor().const_data_ptr()) +
                        bytes.derivation.sources[i].where.offset_bytes);
    }
    constexpr std::align_val_t kAlignment{64};
    auto* data = static_cast<char*>(
        ::operator new(static_cast<size_t>(std::max<int64_t>(bytes.derivation.size_bytes, 1)), kAlignment));
    made.data = std::shared_ptr<const char>(
        data, [](const char* p) { ::operator delete(const_cast<char*>(p), std::align_val_t{64}); });
    bytes.derivation.make(sources.data(), data);
    state->derived_.emplace(bytes.key, std::move(made));
  }
  for (const ValueId id : values) computation.keep(id);
  return state;
}

std::shared_ptr<const FixedState> FixedValues::acquire(std::span<const InputView> inputs,
                                                       std::span<const ValueId> values,
                                                       std::span<const DerivedBytes> derived) {
  int64_t made_bytes = 0;
  std::shared_ptr<const FixedState> state = make(inputs, values, derived, made_bytes);
  // Packing temporarily takes about as much again. Only the first times, because weights that change in every
  // call are packed in every call.
  if (made_bytes > 0 && times_made_.fetch_add(1) < tuning::kTimesMemoryIsReturned)
    return_free_memory(made_bytes);
  return state;
}

c10::IValue FixedValues::value_of(const FixedState& state, ValueId id) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return state.values_.at(id).value;
}

char* FixedValues::data_of(const FixedState& state, const DerivedBytes& derived) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return const_cast<char*>(state.derived_.at(derived.key).data.get());
}

}  // namespace staticrt
