// The storages a recorder knows: their slots, constants, places in the pool, and what in-place operators
// destroy.
#include <ATen/Context.h>

#include <algorithm>
#include <cstring>

#include "graphs/digest.h"
#include "graphs/recorder.h"

namespace staticrt::graphs {

Recorder::Known& Recorder::learn(const c10::intrusive_ptr<c10::StorageImpl>& storage, Contents contents) {
  void* ptr = address_of(*storage);
  const bool in_pool = ptr == nullptr || pool_->serial_of(ptr) != 0;
  StorageSlot slot{StorageSlot::Kind::kPool, storage, ptr, storage->nbytes()};
  if (in_pool) {
    // Not the storage itself: its owners decide what is live in the pool.
    TensorSpec bytes;
    bytes.storage_ptr = ptr;
    bytes.nbytes = storage->nbytes();
    bytes.dtype = at::kByte;
    bytes.sizes = {static_cast<int64_t>(bytes.nbytes)};
    bytes.strides = {1};
    slot.storage = tensor_at(bytes).storage().getWeakStorageImpl().lock();
  } else {
    slot.kind = StorageSlot::Kind::kExternal;
  }
  const bool unexplained = !in_pool && !fixed_.contains(storage.get());
  Known entry{c10::weak_intrusive_ptr<c10::StorageImpl>(storage), ptr, record_->add_slot(std::move(slot))};
  if (unexplained) record_->add_unexplained(entry.slot);
  entry.contents = contents;
  return known_.insert_or_assign(storage.get(), std::move(entry)).first->second;
}

Recorder::Known& Recorder::known(const at::Tensor& tensor) {
  auto* impl = tensor.storage().unsafeGetStorageImpl();
  const auto at = known_.find(impl);
  // A storage that moved is another one to the record.
  if (at != known_.end() && at->second.ptr == address_of(*impl)) return at->second;
  const uint64_t serial = pool_->serial_of(address_of(*impl));
  const bool appeared = serial > first_serial_;
  return learn(c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(impl),
               appeared ? Contents::kPending : Contents::kMade);
}

SlotId Recorder::keep_constant(Known& entry) {
  const size_t nbytes = record_->slot(entry.slot).nbytes;
  if (entry.constant != kNoShell &&
      std::memcmp(record_->slot(entry.constant).captured, entry.ptr, nbytes) == 0)
    return entry.constant;
  at::DataPtr bytes = unrouted_allocator()->allocate(nbytes);
  std::memcpy(bytes.get(), entry.ptr, nbytes);
  void* ptr = bytes.get();
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), nbytes,
                                                       std::move(bytes), unrouted_allocator(), false);
  entry.constant = record_->add_slot({StorageSlot::Kind::kConstant, std::move(storage), ptr, nbytes});
  if (digest(ptr, nbytes) != entry.made) record_->add_unexplained(entry.constant);
  return entry.constant;
}

void Recorder::fill(Known& entry) {
  const SlotId constant = keep_constant(entry);
  const auto storage = record_->slot(constant).storage;
  Step step;
  step.kind = Step::Kind::kFill;
  step.target = entry.slot;
  step.params = std::shared_ptr<const void>(record_->slot(constant).captured, [storage](const void*) {});
  step.route = "bytes that no operator made";
  record_->add_step(std::move(step), {});
  entry.contents = Contents::kMade;
}

SlotId Recorder::shell_to_read(const at::Tensor& tensor) {
  Known& entry = known(tensor);
  if (entry.contents == Contents::kMade || entry.ptr == nullptr) return entry.slot;
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number())  // a number of the Python code
    entry.made = digest(entry.ptr, record_->slot(entry.slot).nbytes);
  return keep_constant(entry);
}

void Recorder::scribble_new(const at::Tensor& tensor) {
  Known& entry = known(tensor);
  if (entry.ptr == nullptr || entry.contents != Contents::kPending) return;
  const size_t nbytes = record_->slot(entry.slot).nbytes;
  const at::Context& context = at::globalContext();  // which may want NaNs there
  if (!context.deterministicAlgorithms() || !context.deterministicFillUninitializedMemory())
    std::memset(entry.ptr, 0xA5, nbytes);
  entry.made = digest(entry.ptr, nbytes);
}

void Recorder::about_to_write(const at::Tensor& tensor, bool overwrites) {
  Known& entry = known(tensor);
  if (entry.ptr == nullptr) return;
  const StorageSlot& slot = record_->slot(entry.slot);
  if (entry.contents == Contents::kPending) {
    const bool whole = overwrites && tensor.is_non_overlapping_and_dense() &&
                       static_cast<size_t>(tensor.numel()) * tensor.itemsize() == slot.nbytes;
    if (!whole) return fill(entry);
    entry.contents = Contents::kMade;
    return;
  }
  if (slot.kind == StorageSlot::Kind::kPool && pool_->serial_of(entry.ptr) > first_serial_) return;
  auto storage = entry.weak.lock();
  record_->declare_written(entry.slot, tensor.unsafeGetTensorImpl()->version_counter());
  const bool saved =
      std::any_of(saved_.begin(), saved_.end(), [&](const Saved& s) { return s.storage == storage; });
  if (saved) return;
  at::DataPtr bytes = unrouted_allocator()->allocate(slot.nbytes);
  std::memcpy(bytes.get(), entry.ptr, slot.nbytes);
  saved_.push_back({std::move(storage), entry.ptr, std::move(bytes), slot.nbytes});
}

void Recorder::undo() {
  for (const Saved& saved : saved_)
    if (address_of(*saved.storage) == saved.ptr) std::memcpy(saved.ptr, saved.bytes.get(), saved.nbytes);
  saved_.clear();
}

// An operator gave the tensor other memory (out= of another size): that memory becomes the pool's.
void Recorder::wrote(const at::Tensor& tensor) {
  auto* impl = tensor.storage().unsafeGetStorageImpl();
  const auto at = known_.find(impl);
  if (at != known_.end() && at->second.ptr == address_of(*impl)) return;
  if (at != known_.end() && record_->slot(at->second.slot).kind != StorageSlot::Kind::kPool)
    return fail("an out= argument that the function did not make was resized");
  place(tensor);
}

at::DataPtr Recorder::move_to_pool(const at::Tensor& tensor) {
  auto* impl = tensor.storage().unsafeGetStorageImpl();
  const size_t nbytes = impl->nbytes();
  void* ptr = address_of(*impl);
  at::DataPtr left;
  if (nbytes != 0 && ptr != nullptr && pool_->serial_of(ptr) == 0) {
    (void)impl->mutable_data();  // a copy-on-write storage gets its own bytes here
    left = impl->set_data_ptr(pool_->take(nbytes));
  }
  learn(c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(impl), Contents::kMade);
  return left;
}

void Recorder::place(const at::Tensor& tensor) {
  const at::DataPtr left = move_to_pool(tensor);
  auto* impl = tensor.storage().unsafeGetStorageImpl();
  if (left) std::memcpy(address_of(*impl), left.get(), impl->nbytes());
}

}  // namespace staticrt::graphs
