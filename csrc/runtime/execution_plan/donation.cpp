#include "runtime/execution_plan/donation.h"

#include <string>

#include "common/error.h"
#include "device/device_memory.h"
#include "device/tensors.h"
#include "runtime/execution_plan/prepared.h"

namespace staticrt {
namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& reason, const char* fix) {
  throw InputError(detail::concat("cannot donate '", name, "': ", reason, "\n  fix: ", fix));
}

constexpr const char* kClone = "pass a clone(), or do not donate it";

bool share_storage(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() && a.has_storage() && b.has_storage() && a.is_alias_of(b);
}

// Whether Python holds the storage of a tensor that is its only owner in C++. The tensor keeps its bytes,
// in another storage if Python does not. REQUIRES: the storage is resizable: it owns its bytes.
bool is_kept_in_python(const at::Tensor& tensor, const DeviceMemory& memory) {
  // Its setter refuses tensors made by detach().
  auto& storage = const_cast<c10::Storage&>(tensor.unsafeGetTensorImpl()->unsafe_storage());
  if (!is_in_python(storage)) return false;
  const auto take_bytes_of = [](const c10::Storage& from) {
    return from.unsafeGetStorageImpl()->set_data_ptr(at::DataPtr(nullptr, from.device()));
  };
  const size_t size_bytes = storage.nbytes();
  c10::Storage other = storage_of(memory, take_bytes_of(storage), size_bytes);
  const bool is_kept = outlives(storage);
  if (is_kept) {
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(take_bytes_of(other));
  } else {
    storage = std::move(other);
  }
  return is_kept;
}

}  // namespace

void check_donatable(const std::string& name, const at::Tensor& tensor, size_t most_holders) {
  const DeviceMemory* memory = tensor.defined() ? find_memory(tensor.device()) : nullptr;
  if (!memory || !tensor.has_storage())
    refuse(name, "it is not a tensor in memory that staticrt plans", "leave it out of donate=");
  if (memory->capturing())
    refuse(name, "the call is captured, and replays read it again", "leave it out of donate=");
  if (tensor.requires_grad())
    refuse(name, "it requires a gradient, which may be computed from it", "detach() it, or do not donate it");
  const c10::Storage& storage = tensor.storage();
  if (num_owners(storage) > 1) refuse(name, "another tensor shares its storage", kClone);
  if (tensor.use_count() > most_holders)
    refuse(name, "another owner holds it (a backward pass, another library)", kClone);
  if (!storage.unsafeGetStorageImpl()->resizable())
    refuse(name, "its memory has another owner (numpy, a file, another library or process)", kClone);
  int64_t end = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) end += (tensor.size(d) - 1) * tensor.stride(d);
  const int64_t bytes = tensor.numel() == 0 ? 0 : (end + 1) * static_cast<int64_t>(tensor.element_size());
  if (tensor.storage_offset() != 0 || bytes != static_cast<int64_t>(storage.nbytes()))
    refuse(name, detail::concat("it is ", bytes, " bytes of a storage of ", storage.nbytes()), kClone);
  if (is_kept_in_python(tensor, *memory)) refuse(name, "Python code holds its untyped_storage()", kClone);
}

void take_bytes(const std::string& name, const at::Tensor& tensor) {
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  const at::DataPtr data = storage.set_data_ptr(at::DataPtr(nullptr, storage.device()));
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(
      detail::concat("'", name,
                     "' was donated to a compiled call, which used its bytes for its results"
                     "\n  fix: use the call's results, pass a clone(), or leave it out of donate="));
  if (const DeviceMemory* memory = find_memory(tensor.device()); memory && data) memory->record_use(data);
}

void check_donated_inputs(const Program& program, std::span<const DonatedInput> donated,
                          std::span<const InputView> inputs, size_t most_holders) {
  for (const auto& [id, name] : donated) {
    const at::Tensor* tensor = inputs[id].tensor;
    if (!tensor) refuse(name, "it is not a tensor", "leave it out of donate=");
    for (size_t other = 0; other < inputs.size(); ++other) {
      if (other != id && inputs[other].tensor && share_storage(*inputs[other].tensor, *tensor))
        refuse(name, "'" + program.values()[other].name + "' has the same storage", kClone);
    }
    check_donatable(name, *tensor, most_holders);
  }
}

void end_donation(std::span<const DonatedInput> donated, std::span<const InputView> inputs,
                  std::span<const c10::IValue> outputs) {
  std::exception_ptr error;  // of a device; all inputs are taken before it is thrown
  for (const auto& [id, name] : donated) {
    const at::Tensor* tensor = inputs[id].tensor;
    if (!tensor || !tensor->defined() || !tensor->has_storage()) continue;
    bool is_returned = false;
    for (const c10::IValue& output : outputs)
      is_returned |= output.isTensor() && share_storage(output.toTensor(), *tensor);
    if (is_returned) continue;
    try {
      take_bytes(name, *tensor);
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

// Outputs made in a donated input's bytes become their owners.
void PreparedFrame::give_donated() {
  for (const auto& [input, storage] : heirs_) {
    c10::StorageImpl& donor = *inputs_[input].tensor->storage().unsafeGetStorageImpl();
    prepared_->records_[input].memory->record_use(donor.data_ptr());
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(
        donor.set_data_ptr(at::DataPtr(nullptr, donor.device())));
  }
  heirs_.clear();
}

}  // namespace staticrt
