#include "simulated/call.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "simulated/generator.h"

namespace staticrt::simulated {
namespace {

at::Tensor over(c10::Storage storage, c10::DispatchKey key, const TensorPlace& place) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key),
                                                               c10::scalarTypeToTypeMeta(place.dtype));
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_offset(place.offset);
  impl->set_sizes_and_strides(place.sizes, place.strides);
  if (place.conjugate) tensor._set_conj(true);
  if (place.negative) tensor._set_neg(true);
  return tensor;
}

at::Tensor copy_of(const at::Tensor& tensor) {
  at::Tensor copy = tensor.clone();
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  return copy;
}

bool is_optional_list(const c10::Argument& argument) {
  const auto list = argument.type()->cast<c10::ListType>();
  return list && list->getElementType()->kind() == c10::TypeKind::OptionalType;
}

// Fills the places of tensor arguments, which are None in `values`, with tensors.
template <class Make>
torch::jit::Stack stack_of(const std::vector<c10::IValue>& values, const std::vector<TensorArgument>& tensors,
                           const c10::FunctionSchema& schema, Make make) {
  torch::jit::Stack stack(values);
  for (size_t first = 0; first < tensors.size();) {
    const size_t argument = tensors[first].argument;
    if (!tensors[first].in_list) {
      stack[argument] = make(tensors[first++]);
      continue;
    }
    const size_t size = stack[argument].toInt();
    std::vector<at::Tensor> list(size);
    for (; first < tensors.size() && tensors[first].argument == argument; ++first)
      list[*tensors[first].in_list] = make(tensors[first]);
    if (!is_optional_list(schema.arguments()[argument])) {
      stack[argument] = c10::List<at::Tensor>(list);
      continue;
    }
    c10::List<std::optional<at::Tensor>> optionals;
    for (const at::Tensor& tensor : list)
      optionals.push_back(tensor.defined() ? std::optional(tensor) : std::nullopt);
    stack[argument] = std::move(optionals);
  }
  return stack;
}

// Operators that exist for other backends alone, and what computes the same on the CPU.
const std::optional<c10::OperatorHandle>& replacement(const c10::OperatorHandle& op) {
  static const auto find = [](const char* name) {
    return c10::Dispatcher::singleton().findSchema({name, ""});
  };
  static const auto convolution = find("aten::convolution");
  static const auto convolution_backward = find("aten::convolution_backward");
  static const std::optional<c10::OperatorHandle> none;
  const std::string& name = op.operator_name().name;
  if (name == "aten::convolution_overrideable") return convolution;
  if (name == "aten::convolution_backward_overrideable") return convolution_backward;
  return none;
}

const c10::OperatorName kDropout("aten::native_dropout", "");

// native_dropout(input, p, train) as the CPU computes it, with a generator.
void dropout(torch::jit::Stack& stack, at::Generator generator) {
  const at::Tensor input = stack[0].toTensor();
  const double kept = 1 - stack[1].toDouble();
  at::Tensor mask = at::empty_like(input, input.options().dtype(at::kBool));
  at::Tensor output;
  if (stack[2].isNone() || stack[2].toBool()) {
    mask.bernoulli_(kept, std::move(generator));
    output = input.mul(mask).mul_(kept == 0 ? 0 : 1 / kept);
  } else {
    mask.fill_(true);
    output = input.clone();
  }
  stack = {output, mask};
}

// Whether a call of an operator that may draw does: attention does only if it drops.
bool draws_numbers(const c10::FunctionSchema& schema, const torch::jit::Stack& stack) {
  for (size_t i = 0; i < schema.arguments().size(); ++i)
    if (schema.arguments()[i].name() == "dropout_p") return stack[i].toDouble() > 0;
  return schema.name() != "aten::_fused_sdp_choice";
}

// Whether all tensors that numbers could be drawn for are empty. Then generators do not advance, as on other
// devices: torch's dropout makes no such calls, but a trace of it does.
bool draws_for_nothing(const std::vector<TensorArgument>& tensors) {
  return !tensors.empty() && std::all_of(tensors.begin(), tensors.end(), [](const TensorArgument& tensor) {
    return tensor.place && !tensor.out &&
           std::find(tensor.place->sizes.begin(), tensor.place->sizes.end(), 0) != tensor.place->sizes.end();
  });
}

}  // namespace

alloc::Addr address_of(const at::Tensor& tensor, bool written) {
  return reinterpret_cast<alloc::Addr>(written ? tensor.storage().mutable_data() : tensor.storage().data());
}

TensorPlace::TensorPlace(const at::Tensor& tensor, bool written)
    : storage(address_of(tensor, written)),
      storage_bytes(tensor.storage().nbytes()),
      offset(tensor.storage_offset()),
      sizes(tensor.sizes()),
      strides(tensor.strides()),
      dtype(tensor.scalar_type()),
      conjugate(tensor.is_conj()),
      negative(tensor.is_neg()),
      contiguous(tensor.is_contiguous()) {}

at::Tensor CpuTensors::at(const TensorPlace& place) {
  for (const auto& [address, storage] : storages_)
    if (address == place.storage && address != 0 && storage.nbytes() >= place.storage_bytes)
      return over(storage, c10::DispatchKey::CPU, place);
  void* bytes = place.storage == 0 ? nullptr : reinterpret_cast<void*>(driver_.kernel_address(place.storage));
  c10::Storage storage(c10::Storage::use_byte_size_t(), place.storage_bytes,
                       c10::DataPtr(bytes, c10::Device(at::kCPU)), /*allocator=*/nullptr,
                       /*resizable=*/false);
  storages_.emplace_back(place.storage, storage);
  return over(std::move(storage), c10::DispatchKey::CPU, place);
}

void CpuTensors::copy_storage(const TensorPlace& place) {
  const auto known =
      std::ranges::find(storages_, place.storage, &std::pair<alloc::Addr, c10::Storage>::first);
  if (known != storages_.end() && place.storage != 0) return;
  c10::Storage copy(c10::Storage::use_byte_size_t(), place.storage_bytes, c10::GetAllocator(c10::kCPU),
                    /*resizable=*/true);
  if (place.storage != 0)
    std::memcpy(copy.mutable_data(), reinterpret_cast<void*>(driver_.kernel_address(place.storage)),
                place.storage_bytes);
  storages_.emplace_back(place.storage, std::move(copy));
}

Call::Call(const c10::OperatorHandle& op, const torch::jit::Stack& stack) : op_(op) {
  const auto& arguments = op.schema().arguments();
  const size_t first = stack.size() - arguments.size();
  values_.reserve(arguments.size());
  tensors_.reserve(
      static_cast<size_t>(std::count_if(stack.begin() + static_cast<std::ptrdiff_t>(first), stack.end(),
                                        [](const c10::IValue& value) { return value.isTensor(); })));
  static const c10::TypePtr generator_or_none = c10::OptionalType::create(c10::GeneratorType::get());
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = stack[first + i];
    const auto* alias = arguments[i].alias_info();
    TensorArgument argument;
    argument.argument = i;
    argument.written = alias && alias->isWrite();
    argument.out = argument.written && arguments[i].is_out();
    if (value.isTensor()) {
      values_.emplace_back(at::Tensor());
      if (value.toTensor().defined()) add(value.toTensor(), argument);
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      const auto list = value.toListRef();
      values_.emplace_back(static_cast<int64_t>(list.size()));
      if (list.empty()) {
        values_.back() = value;
        continue;
      }
      for (size_t at = 0; at < list.size(); ++at) {
        argument.in_list = at;
        const bool defined = list[at].isTensor() && list[at].toTensor().defined();
        TensorArgument entry = argument;
        if (defined)
          add(list[at].toTensor(), entry);
        else
          tensors_.push_back(entry);
      }
    } else if (value.isGenerator()) {
      generator_ = i;
      values_.push_back(value);
    } else if (value.isDevice()) {
      devices_.push_back(i);
      if (value.toDevice().type() == kDeviceType && device_ < 0)
        device_ = device_at(value.toDevice().index()).index();
      values_.push_back(value);
    } else {
      values_.push_back(value.isList() ? value.deepcopy() : value);
    }
    if (value.isNone() && *arguments[i].type() == *generator_or_none) generator_ = i;
  }
  if (device_ < 0) device_ = current_device();
  take_seed();
}

void Call::add(const at::Tensor& tensor, TensorArgument argument) {
  if (tensor.device().type() == kDeviceType) {
    TORCH_CHECK(device_ < 0 || device_ == tensor.device().index(),
                "Expected all tensors to be on the same device, but found at least two devices, sim:",
                device_, " and ", tensor.device(), "! (", name(), ")");
    device_ = tensor.device().index();
    argument.place.emplace(tensor, argument.written);
  } else {
    // CPU scalars, which a real device passes to its kernel by value, and indices, which torch moves.
    const bool index = schema().name().find("index") != std::string::npos && argument.in_list;
    TORCH_CHECK(tensor.device().is_cpu() && (tensor.dim() == 0 || index) && !argument.written,
                "Expected all tensors to be on the same device, but found at least two devices, sim:",
                device_ < 0 ? current_device() : device_, " and ", tensor.device(), "! (", name(), ")");
    argument.host = copy_of(tensor);
  }
  tensors_.push_back(std::move(argument));
}

void Call::take_seed() {
  if (!op_.hasTag(at::Tag::nondeterministic_seeded) || !draws_numbers(schema(), values_) ||
      draws_for_nothing(tensors_))
    return;
  at::Generator generator = device().generator();
  if (generator_ && values_[*generator_].isGenerator()) generator = values_[*generator_].toGenerator();
  TORCH_CHECK(generator.device().type() == kDeviceType,
              "Expected a 'sim' device type for generator but found '", generator.device().type(), "' (",
              name(), ")");
  auto* mine = generator.get<SimGenerator>();
  drawn_from_ = generator;
  alloc::CaptureState capture;
  check(device().driver().capture_state(current_stream(device_), &capture));
  const std::lock_guard lock(mine->mutex_);
  if (capture.status == alloc::CaptureStatus::none) {
    seed_ = mine->take();
    return;
  }
  TORCH_CHECK(mine == device().generator().get<SimGenerator>() || mine->is_of_graph(device_, capture.id),
              name(),
              " draws from a generator that is not registered with the graph that is captured, so that "
              "each replay would draw the same numbers; call graph.register_generator(generator) first");
  seed_ = 0;  // each replay takes its own
}

Call Call::drawn_again() const {
  Call again(*this);
  auto* mine = again.drawn_from_.get<SimGenerator>();
  const std::lock_guard lock(mine->mutex_);
  again.seed_ = mine->take();
  return again;
}

Storages Call::storages() const {
  Storages storages;
  for (const TensorArgument& argument : tensors_)
    if (argument.place) storages.push_back(argument.place->storage);
  return storages;
}

Call Call::moved_to(const Storages& storages) const {
  Call moved(*this);
  size_t next = 0;
  for (TensorArgument& argument : moved.tensors_)
    if (argument.place) argument.place->storage = storages[next++];
  return moved;
}

bool Call::runs_on_cpu() const {
  return replacement(op_) || op_.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU);
}

bool Call::only_updates() const {
  return std::none_of(tensors_.begin(), tensors_.end(),
                      [](const TensorArgument& tensor) { return tensor.out; });
}

at::Tensor Call::given(const torch::jit::Stack& stack, size_t first, const TensorArgument& argument) {
  const c10::IValue& value = stack[first + argument.argument];
  return argument.in_list ? value.toListRef()[*argument.in_list].toTensor() : value.toTensor();
}

torch::jit::Stack Call::on_meta() const {
  std::vector<std::pair<alloc::Addr, c10::Storage>> storages;
  const auto make = [&](const TensorArgument& argument) -> at::Tensor {
    // Rules in Python would give the copy itself a Python object, which only a thread with the GIL can drop,
    // but work runs and is dropped under the driver's lock.
    if (argument.host.defined()) return copy_of(argument.host);
    if (!argument.place) return {};
    for (const auto& [address, storage] : storages)
      if (address == argument.place->storage && address != 0)
        return over(storage, c10::DispatchKey::Meta, *argument.place);
    const at::Tensor bytes =
        at::detail::empty_meta({static_cast<int64_t>(argument.place->storage_bytes)}, at::kByte);
    storages.emplace_back(argument.place->storage, bytes.storage());
    return over(bytes.storage(), c10::DispatchKey::Meta, *argument.place);
  };
  torch::jit::Stack stack = stack_of(values_, tensors_, schema(), make);
  for (const size_t argument : devices_) stack[argument] = c10::Device(at::kMeta);
  if (generator_) stack[*generator_] = c10::IValue();
  return stack;
}

torch::jit::Stack Call::on_cpu(Outs outs) const {
  CpuTensors tensors(device().driver());
  for (const TensorArgument& argument : tensors_)
    if (argument.out && argument.place && outs == Outs::kCopied) tensors.copy_storage(*argument.place);
  const auto make = [&](const TensorArgument& argument) -> at::Tensor {
    if (argument.host.defined()) return argument.host;
    if (!argument.place) return {};
    if (argument.out && (outs == Outs::kEmpty || argument.place->storage == 0))
      return at::detail::empty_cpu({0}, argument.place->dtype);
    return tensors.at(*argument.place);
  };
  torch::jit::Stack stack = stack_of(values_, tensors_, schema(), make);
  for (const size_t argument : devices_) stack[argument] = c10::Device(at::kCPU);
  if (generator_)
    stack[*generator_] = seed_ ? c10::IValue(at::detail::createCPUGenerator(*seed_)) : c10::IValue();
  return stack;
}

torch::jit::Stack Call::on_zeros() const {
  const auto make = [](const TensorArgument& argument) -> at::Tensor {
    if (argument.host.defined()) return argument.host;
    if (!argument.place) return {};
    const TensorPlace& place = *argument.place;
    at::Tensor zeros = at::detail::empty_strided_cpu(place.sizes, place.strides, place.dtype);
    return zeros.zero_();
  };
  torch::jit::Stack stack = stack_of(values_, tensors_, schema(), make);
  for (const size_t argument : devices_) stack[argument] = c10::Device(at::kCPU);
  if (generator_) stack[*generator_] = c10::IValue();
  return stack;
}

void Call::call(torch::jit::Stack& stack) const {
  const auto& other = replacement(op_);
  if (!other) {
    op_.callBoxed(stack);
    return;
  }
  // They take the arguments of the replacement and, fourth in the backward, the sizes of a bias.
  if (other->schema().arguments().size() > schema().arguments().size()) {
    const auto& mask = stack.back().toBoolList();
    const at::Tensor gradient = stack[0].toTensor();
    c10::IValue bias;
    if (mask.get(2)) bias = std::vector<int64_t>{gradient.size(1)};
    stack.insert(stack.begin() + 3, bias);
  }
  other->callBoxed(stack);
}

void Call::call_on_cpu(torch::jit::Stack& stack) const {
  const torch::jit::Stack arguments = stack;
  call_seeded(stack);
  // Some kernels conjugate an out lazily, which only the bit of their own tensor shows.
  for (const TensorArgument& argument : tensors_) {
    if (!argument.written || !argument.place) continue;
    at::Tensor tensor = given(arguments, 0, argument);
    if (tensor.is_conj() == argument.place->conjugate) continue;
    tensor._set_conj(false);
    tensor.conj_physical_();
    tensor._set_conj(argument.place->conjugate);
  }
}

void Call::call_seeded(torch::jit::Stack& stack) const {
  if (!seed_ || generator_) {
    call(stack);
    return;
  }
  // The CPU's kernel would draw from the default generator, which belongs to all threads of the process.
  if (op_.operator_name() == kDropout) {
    dropout(stack, at::detail::createCPUGenerator(*seed_));
    return;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(false, name(),
                              " draws random numbers from the CPU's default generator, which other threads "
                              "use; call it with dropout_p=0");
}

}  // namespace staticrt::simulated
