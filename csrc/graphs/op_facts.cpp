#include "graphs/op_facts.h"

#include <ATen/core/enum_tag.h>

#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "kernels/pointwise/pointwise_chain.h"
#include "kernels/registry/structured_ops.h"

namespace staticrt::graphs {
namespace {

// Composite operators of any backend that only call other operators. Others of their kind also touch bytes
// themselves (pack_padded_sequence), so that recording what they call would miss something.
const std::unordered_set<std::string>& transparent() {
  static const auto* names = new std::unordered_set<std::string>{
      "aten::zeros",      "aten::ones",      "aten::full",        "aten::zeros_like", "aten::ones_like",
      "aten::full_like",  "aten::new_zeros", "aten::new_ones",    "aten::new_full",   "aten::clone",
      "aten::_to_copy",   "aten::embedding", "aten::rand",        "aten::randn",      "aten::rand_like",
      "aten::randn_like", "aten::randint",   "aten::randint_like"};
  return *names;
}

// Operators without an out variant whose kernel only calls one other operator, which has one.
bool forwards(const std::string& name) {
  return name == "aten::relu";  // clamp_min(x, 0)
}

bool allocates(const std::string& base) {
  static const auto* names = new std::unordered_set<std::string>{"aten::empty",
                                                                 "aten::empty_strided",
                                                                 "aten::empty_like",
                                                                 "aten::empty_permuted",
                                                                 "aten::new_empty",
                                                                 "aten::new_empty_strided",
                                                                 "aten::_empty_affine_quantized"};
  return names->contains(base);
}

bool overwrites(const std::string& base) {
  static const auto* names = new std::unordered_set<std::string>{
      "aten::fill_",      "aten::zero_",       "aten::copy_",     "aten::normal_",
      "aten::uniform_",   "aten::random_",     "aten::cauchy_",   "aten::exponential_",
      "aten::geometric_", "aten::log_normal_", "aten::bernoulli_"};
  return names->contains(base);
}

// Operators whose kernels in staticrt give torch's bits for any values: they round at most once, as torch's
// do. Others (exp, sums, products of matrices) may differ in the last place, so torch's own kernels run.
bool is_exact(const std::string& base) {
  static const auto* names = new std::unordered_set<std::string>{
      "abs",         "add",          "sub",         "rsub",        "mul",         "div",
      "neg",         "relu",         "maximum",     "minimum",     "clamp",       "clamp_max",
      "clamp_min",   "eq",           "ne",          "ge",          "gt",          "le",
      "lt",          "where",        "logical_and", "logical_or",  "logical_not", "logical_xor",
      "bitwise_and", "bitwise_or",   "bitwise_not", "bitwise_xor", "floor",       "ceil",
      "trunc",       "sqrt",         "reciprocal",  "sign",        "threshold",   "threshold_backward",
      "hardtanh",    "masked_fill",  "isnan",       "isinf",       "cat",         "stack",
      "gather",      "index_select", "amax",        "amin"};
  return base.starts_with("aten::") && names->contains(base.substr(6));
}

OpFacts read(const c10::OperatorHandle& op) {
  OpFacts facts;
  const c10::OperatorName& name = op.operator_name();
  facts.name = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
  const bool own_kernel = op.hasKernelForDispatchKey(c10::DispatchKey::CPU);
  const bool implicit = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  const auto& args = op.schema().arguments();
  for (uint32_t i = 0; i < args.size(); ++i)
    if (args[i].alias_info() && args[i].alias_info()->isWrite()) facts.writes.push_back(i);
  facts.decompose =
      forwards(facts.name) ||
      (!own_kernel && (implicit || (facts.writes.empty() && transparent().contains(name.name))));
  facts.allocates = facts.writes.empty() && allocates(name.name);
  facts.overwrites = facts.writes.size() == 1 && facts.writes[0] == 0 && overwrites(name.name);
  facts.random = op.hasTag(at::Tag::nondeterministic_seeded);
  facts.takes_masks = name.name == "aten::index";
  facts.reads_on_host = !facts.takes_masks && (op.hasTag(at::Tag::data_dependent_output) ||
                                               op.hasTag(at::Tag::dynamic_output_shape));
  facts.foreign = !name.name.starts_with("aten::");
  facts.metadata_only = op.hasTag(at::Tag::inplace_view);
  facts.updates_statistics = name.name == "aten::native_batch_norm" && facts.writes.empty();
  if (facts.decompose || facts.allocates || !facts.writes.empty() || facts.random) return facts;
  if (facts.updates_statistics || facts.reads_on_host || facts.foreign) return facts;
  facts.out = find_out_overload(op);
  // Without a kernel of its own it calls the functional form and copies: no gain.
  if (facts.out && !facts.out->hasKernelForDispatchKey(c10::DispatchKey::CPU)) facts.out.reset();
  facts.structured = facts.out && is_structured(facts.name);
  if (facts.out) facts.direct = direct_call(*facts.out);
  if (!is_exact(name.name)) return facts;
  facts.pointwise = is_pointwise(facts.name);
  facts.prepare = find_prepare(facts.name);
  facts.scales_second = name.name == "aten::add" || name.name == "aten::sub" || name.name == "aten::rsub";
  return facts;
}

}  // namespace

const OpFacts& facts_of(const c10::OperatorHandle& op) {
  static auto* mutex = new std::mutex;
  static auto* known = new std::unordered_map<c10::OperatorName, OpFacts>;
  const std::lock_guard lock(*mutex);
  const auto at = known->find(op.operator_name());
  if (at != known->end()) return at->second;
  return known->emplace(op.operator_name(), read(op)).first->second;
}

std::vector<uint32_t> written_args(const OpFacts& facts, const c10::IValue* args) {
  constexpr uint32_t kRunningMean = 3;
  constexpr uint32_t kRunningVar = 4;
  constexpr uint32_t kTraining = 5;
  if (facts.updates_statistics && args[kTraining].toBool()) return {kRunningMean, kRunningVar};
  return facts.writes;
}

}  // namespace staticrt::graphs
