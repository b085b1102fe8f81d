#include "device/toy_device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>

#include "device/tensors.h"

namespace staticrt::test {
namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;

struct State {  // of a thread
  int current = 0;
  std::array<int64_t, kToyDevices> streams{};
};
State& state(c10::DeviceType type) {
  thread_local State of_cuda, of_others;
  return type == c10::kCUDA ? of_cuda : of_others;
}
at::Device current_of(c10::DeviceType type) {
  return {type, static_cast<c10::DeviceIndex>(state(type).current)};
}

bool is_full = false;
std::mutex calls_mutex;
std::vector<std::string> calls;
std::atomic<int64_t> num_allocated_on_cuda = 0;
std::function<void()> on_empty_cache;

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  explicit Guard(c10::DeviceType type) : type_(type) {}
  c10::DeviceType type() const override { return type_; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return current_of(type_); }
  void setDevice(c10::Device device) const override { state(type_).current = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { setDevice(device); }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device,
                       state(type_).streams[static_cast<size_t>(device.index())]);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    state(type_).streams[static_cast<size_t>(stream.device_index())] = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(toy_handle(stream.id()));
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return type_ == c10::kCUDA ? kToyCudaDevices : kToyDevices;
  }

 private:
  const c10::DeviceType type_;
};

c10::DataPtr allocate_toy(c10::DeviceType type, size_t bytes) {
  void* data = bytes == 0 ? nullptr : std::aligned_alloc(512, (bytes + 511) / 512 * 512);
  return {data, data, &std::free, current_of(type)};
}

class TensorAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override { return allocate_toy(kType, bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }
};

// A caching allocator, as torch's of CUDA is one.
class CudaTensorAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    ++num_allocated_on_cuda;
    return allocate_toy(c10::kCUDA, bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    if (on_empty_cache) on_empty_cache();
  }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
};

// A block's size and stream are known by its address.
struct Block {
  std::pair<int, int64_t> place;
  size_t bytes;
};
std::map<void*, Block> arena_blocks;

class ArenaAllocator final : public TensorAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const int current = state(kType).current;
    TORCH_CHECK_WITH(OutOfMemoryError, !is_full, "toy:", current, " is full");
    c10::DataPtr data = TensorAllocator::allocate(bytes);
    arena_blocks[data.get()] = {{current, state(kType).streams[static_cast<size_t>(current)]}, bytes};
    return {data.get(), data.release_context(), &give_back, toy(current)};
  }

 private:
  static void give_back(void* data) {
    arena_blocks.erase(data);
    std::free(data);
  }
};

TensorAllocator tensor_allocator;
ArenaAllocator arena_allocator;

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype,
                         at::Device device) {
  const c10::DeviceGuard guard(device);
  return at::detail::empty_strided_generic(sizes, strides, c10::GetAllocator(device.type()),
                                           c10::DispatchKeySet(c10::computeDispatchKey(dtype, {}, device)),
                                           dtype);
}

at::Device place_of(const std::optional<at::Device>& device) {
  return device && device->has_index() ? *device : current_of(device ? device->type() : kType);
}

at::Tensor op_empty(c10::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                    std::optional<at::Device> device, std::optional<bool>,
                    std::optional<at::MemoryFormat> format) {
  const at::Tensor like =
      at::empty(sizes, at::TensorOptions().device(at::kMeta).dtype(dtype).memory_format(format));
  return empty_strided(sizes, like.strides(), like.scalar_type(), place_of(device));
}

at::Tensor op_empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                            std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                            std::optional<at::Device> device, std::optional<bool>) {
  return empty_strided(sizes, strides, dtype.value_or(at::kFloat), place_of(device));
}

// The same bytes as a tensor of the CPU.
at::Tensor on_host(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cpu()) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                       tensor.options().device(at::kCPU));
}

at::Tensor op_copy_from(const at::Tensor& self, const at::Tensor& to, bool) {
  on_host(to).copy_(on_host(self));
  return to;
}

// torch's copy_ asks devices other than CUDA for _copy_from.
at::Tensor& op_copy_(at::Tensor& self, const at::Tensor& from, bool) {
  on_host(self).copy_(on_host(from));
  return self;
}

// Gives `out` the sizes and values of `result`; its storage grows if it must.
void write(const at::Tensor& out, const at::Tensor& result) {
  if (out.sizes() != result.sizes()) {
    TORCH_CHECK(out.numel() == 0, "an output with another size than the operator gives");
    c10::TensorImpl& impl = *out.unsafeGetTensorImpl();
    impl.set_sizes_contiguous(result.sizes());
    if (out.storage().nbytes() < result.nbytes()) {
      const c10::DeviceGuard guard(out.device());
      out.storage().set_data_ptr_noswap(c10::GetAllocator(out.device().type())->allocate(result.nbytes()));
      out.storage().set_nbytes(result.nbytes());
    }
  }
  on_host(out).copy_(result);
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string name = toString(op.operator_name());
  {
    const std::lock_guard lock(calls_mutex);
    calls.push_back(name);
  }
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  const torch::jit::Stack given(stack->end() - static_cast<ptrdiff_t>(count), stack->end());
  torch::jit::Stack mine;
  std::optional<at::Device> device;
  const auto look_at = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.is_cpu()) return;
    TORCH_CHECK(!device || *device == tensor.device(), name, " got tensors of two devices");
    device = tensor.device();
  };
  for (size_t i = 0; i < count; ++i) {
    c10::IValue value = given[i];
    if (value.isTensor()) {
      look_at(value.toTensor());
      value = schema.arguments()[i].is_out() ? at::empty({0}, value.toTensor().options().device(at::kCPU))
                                             : on_host(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        look_at(tensor);
        list.push_back(on_host(tensor));
      }
      value = list;
    }
    mine.push_back(std::move(value));
  }
  const torch::jit::Stack arguments = mine;
  op.callBoxed(&mine);
  torch::jit::drop(*stack, count);
  for (size_t i = 0; i < count; ++i) {
    if (schema.arguments()[i].is_out()) write(given[i].toTensor(), arguments[i].toTensor());
  }
  for (size_t r = 0; r < schema.returns().size(); ++r) {
    const auto* alias = schema.returns()[r].alias_info();
    size_t source = count;
    for (size_t i = 0; alias && i < count; ++i) {
      const auto* of_argument = schema.arguments()[i].alias_info();
      if (of_argument && of_argument->isWrite() && *of_argument == *alias) source = i;
    }
    if (source < count) {
      stack->push_back(given[source]);
    } else if (mine[r].isTensor()) {
      const at::Tensor made = mine[r].toTensor();
      at::Tensor copy = empty_strided(made.sizes(), made.strides(), made.scalar_type(), *device);
      on_host(copy).copy_(made);
      stack->push_back(copy);
    } else {
      stack->push_back(mine[r]);
    }
  }
}

}  // namespace

at::Device toy(int index) {
  return {kType, static_cast<c10::DeviceIndex>(index)};
}

namespace {

void register_toy_device(const Guard& guard, c10::Allocator& allocator, c10::DispatchKey key) {
  static std::vector<torch::Library> libraries;
  (void)c10::impl::DeviceGuardImplRegistrar(guard.type(), &guard);
  c10::SetAllocator(guard.type(), &allocator);
  libraries.emplace_back(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
  libraries.back().fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
  torch::Library& aten = libraries.emplace_back(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
  aten.impl("empty.memory_format", TORCH_FN(op_empty));
  aten.impl("empty_strided", TORCH_FN(op_empty_strided));
  aten.impl("view", TORCH_FN(at::native::view));
  aten.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  if (key == c10::DispatchKey::CUDA) {
    aten.impl("copy_", TORCH_FN(op_copy_));
  } else {
    aten.impl("_copy_from", TORCH_FN(op_copy_from));
  }
}

}  // namespace

void use_toy_devices() {
  static const bool once = [] {
    static const Guard guard(kType);
    register_toy_device(guard, tensor_allocator, c10::DispatchKey::PrivateUse1);
    for (int index = 0; index < 2; ++index) register_memory(cached_memory(toy(index), arena_allocator));
    return true;
  }();
  static_cast<void>(once);
}

void use_toy_cuda() {
  static const bool once = [] {
    static const Guard guard(c10::kCUDA);
    static CudaTensorAllocator allocator;
    register_toy_device(guard, allocator, c10::DispatchKey::CUDA);
    return true;
  }();
  static_cast<void>(once);
}

int64_t toy_handle(int64_t stream) {
  return stream == 0 ? 0 : stream + 100;
}

int64_t toy_cuda_allocations() {
  return num_allocated_on_cuda;
}

void on_toy_empty_cache(std::function<void()> call) {
  on_empty_cache = std::move(call);
}

at::Tensor on_toy(const at::Tensor& tensor, at::Device device) {
  at::Tensor copy = empty_strided(tensor.sizes(), tensor.strides(), tensor.scalar_type(), device);
  on_host(copy).copy_(tensor);
  return copy;
}

ToyStream::ToyStream(at::Device device, int64_t stream)
    : device_(device),
      before_(std::exchange(state(device.type()).streams[static_cast<size_t>(device.index())], stream)) {}

ToyStream::~ToyStream() {
  state(device_.type()).streams[static_cast<size_t>(device_.index())] = before_;
}

std::multimap<std::pair<int, int64_t>, size_t> toy_arenas() {
  std::multimap<std::pair<int, int64_t>, size_t> arenas;
  for (const auto& [address, block] : arena_blocks) arenas.emplace(block.place, block.bytes);
  return arenas;
}

void fill_toy_devices(bool full) {
  is_full = full;
}

std::vector<std::string> take_toy_calls() {
  const std::lock_guard lock(calls_mutex);
  return std::exchange(calls, {});
}

}  // namespace staticrt::test
