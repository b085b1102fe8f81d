#include "archive/tensor_table.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Backend.h>

#include <algorithm>

namespace staticrt {
namespace {

constexpr size_t kAlignment = 64;  // bytes; what torch's writer gives every record

at::Tensor bytes_of(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  const auto size = static_cast<int64_t>(storage.nbytes());
  if (!storage.device().is_cpu()) {
    return at::empty({0}, at::TensorOptions().dtype(at::kByte).device(storage.device()))
        .set_(storage, 0, {size}, {1})
        .to(at::kCPU);
  }
  return at::from_blob(
      const_cast<void*>(storage.data()), {size}, [keep = storage](void*) {},
      at::TensorOptions().dtype(at::kByte));
}

at::Tensor over(const at::Tensor& bytes, at::ScalarType dtype, const std::vector<int64_t>& sizes,
                const std::vector<int64_t>& strides, int64_t offset) {
  const c10::DispatchKeySet keys(c10::computeDispatchKey(dtype, at::kStrided, bytes.device()));
  at::Tensor tensor = at::detail::make_tensor<at::TensorImpl>(c10::Storage(bytes.storage()), keys,
                                                              at::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

// Bytes from a storage's first to a tensor's last, checked for overflow; sizes and strides not negative.
int64_t extent_bytes(ByteReader& in, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                     int64_t offset, int64_t element_bytes) {
  SRT_ARCHIVE(sizes.size() == strides.size() && sizes.size() <= 64 && offset >= 0, in.damaged(),
              "a tensor has ", sizes.size(), " sizes, ", strides.size(), " strides and offset ", offset);
  bool overflow = false;
  bool empty = false;
  int64_t last = offset;
  int64_t elements = 1;
  for (size_t d = 0; d < sizes.size(); ++d) {
    SRT_ARCHIVE(sizes[d] >= 0 && strides[d] >= 0, in.damaged(), "a tensor has size ", sizes[d],
                " and stride ", strides[d]);
    int64_t step = 0;
    empty |= sizes[d] == 0;
    overflow |= __builtin_mul_overflow(elements, sizes[d], &elements);
    overflow |= __builtin_mul_overflow(sizes[d] > 0 ? sizes[d] - 1 : 0, strides[d], &step);
    overflow |= __builtin_add_overflow(last, step, &last);
  }
  int64_t bytes = 0;
  overflow |= __builtin_add_overflow(last, 1, &last) || __builtin_mul_overflow(last, element_bytes, &bytes);
  SRT_ARCHIVE(!overflow, in.damaged(), "a tensor's sizes overflow");
  return empty ? 0 : bytes;
}

at::Tensor storage_bytes(const std::shared_ptr<Blob>& blob, const ZipRecord& record) {
  char* data = blob->data() + record.offset;
  const auto size = static_cast<int64_t>(record.size);
  if (reinterpret_cast<uintptr_t>(data) % kAlignment == 0) {
    return at::from_blob(data, {size}, [keep = blob](void*) {}, at::TensorOptions().dtype(at::kByte));
  }
  at::Tensor copy = at::detail::empty_cpu({size}, at::kByte, false, std::nullopt);
  if (size > 0) std::memcpy(copy.data_ptr(), data, record.size);
  return copy;
}

}  // namespace

uint32_t TensorTable::add(const at::Tensor& tensor) {
  SRT_ARCHIVE(tensor.defined() && !tensor.is_meta() && tensor.layout() == at::kStrided &&
                  !tensor.is_quantized() && !tensor.is_conj() && !tensor.is_neg() &&
                  !tensor._is_zerotensor() && tensor.has_storage(),
              "an archive holds dense tensors, not one of ", tensor.toString());
  for (size_t i = 0; i < entries_.size(); ++i) {
    const at::Tensor& other = entries_[i].tensor;
    if (other.storage().unsafeGetStorageImpl() == tensor.storage().unsafeGetStorageImpl() &&
        other.scalar_type() == tensor.scalar_type() && other.sizes() == tensor.sizes() &&
        other.strides() == tensor.strides() && other.storage_offset() == tensor.storage_offset()) {
      return static_cast<uint32_t>(i);
    }
  }
  const void* key = tensor.storage().unsafeGetStorageImpl();
  auto found = storage_numbers_.find(key);
  if (found == storage_numbers_.end()) {
    found = storage_numbers_.emplace(key, static_cast<uint32_t>(storages_.size())).first;
    storages_.push_back(bytes_of(tensor));
  }
  entries_.push_back({found->second, add_device(tensor.device()), tensor});
  return static_cast<uint32_t>(entries_.size() - 1);
}

uint8_t TensorTable::add_device(at::Device device) {
  if (device.is_cpu()) return 0;
  const std::string name = device.str();
  auto found = std::ranges::find(devices_, name);
  if (found == devices_.end()) {
    SRT_ARCHIVE(device.has_index() && devices_.size() < kNoDevice - 1, "an archive cannot hold values on ",
                name, ": it has no index, or there are ", devices_.size(), " devices already");
    found = devices_.insert(devices_.end(), name);
  }
  return static_cast<uint8_t>(found - devices_.begin() + 1);
}

std::vector<at::Tensor> TensorTable::storages() const {
  return storages_;
}

std::vector<std::pair<std::string, uintptr_t>> TensorTable::sources() const {
  std::vector<std::pair<std::string, uintptr_t>> found(storages_.size());
  for (const Entry& entry : entries_) {
    const c10::Storage& storage = entry.tensor.storage();
    found[entry.storage] = {storage.device().str(), reinterpret_cast<uintptr_t>(storage.data())};
  }
  return found;
}

void TensorTable::write(ByteWriter& out, const std::vector<std::string>& record_names) const {
  SRT_ARCHIVE(record_names.size() == storages_.size(), "an archive of ", storages_.size(), " storages got ",
              record_names.size(), " record names");
  out.put_size(storages_.size());
  for (size_t i = 0; i < storages_.size(); ++i) {
    const auto size = static_cast<size_t>(storages_[i].numel());
    out.put_string(record_names[i]);
    out.put_size(size);
    out.put(checksum(storages_[i].const_data_ptr(), size));
  }
  out.put_size(entries_.size());
  for (const Entry& entry : entries_) {
    out.put(entry.storage);
    out.put(entry.device);
    out.put(static_cast<uint8_t>(entry.tensor.scalar_type()));
    out.put_ints(entry.tensor.sizes());
    out.put_ints(entry.tensor.strides());
    out.put(entry.tensor.storage_offset());
  }
}

at::ScalarType get_dtype(ByteReader& in) {
  const auto value = in.get<uint8_t>();
  const auto dtype = static_cast<at::ScalarType>(value);
  SRT_ARCHIVE(value < static_cast<uint8_t>(at::ScalarType::NumOptions) &&
                  dtype != at::ScalarType::Undefined && !c10::isQIntType(dtype) && !c10::isBitsType(dtype),
              in.damaged(), "dtype ", static_cast<int>(value));
  return dtype;
}

LoadedTensors::LoadedTensors(ByteReader& in, const std::shared_ptr<Blob>& blob, const ZipIndex& zip,
                             bool check, Placement placement, uint32_t format)
    : placement_(std::move(placement)), format_(format), storages_(in.get_count(24)) {
  for (at::Tensor& storage : storages_) {
    const std::string name = in.get_string();
    const auto size = in.get<uint64_t>();
    const auto sum = in.get<uint64_t>();
    const ZipRecord* record = zip.find(name);
    SRT_ARCHIVE(record, "archive record ", name, ", which holds weights, is missing");
    SRT_ARCHIVE(record->size == size, "archive record ", name, " has ", record->size, " bytes, expected ",
                size);
    if (check) {
      SRT_ARCHIVE(checksum(blob->data() + record->offset, record->size) == sum, "archive record ", name,
                  ", which holds weights, is damaged: its checksum differs");
      // Of weights that were packed before, only the packed form is read from here on.
      blob->let_go(record->offset, record->size);
    }
    storage = storage_bytes(blob, *record);
  }
  copies_.resize(storages_.size());
  entries_.resize(in.get_count(29));
  for (Entry& entry : entries_) {
    entry.storage = in.get_index(storages_.size(), "storage");
    entry.device = read_device(in, *this);
    entry.dtype = get_dtype(in);
    entry.sizes = in.get_ints();
    entry.strides = in.get_ints();
    entry.offset = in.get<int64_t>();
    const int64_t extent = extent_bytes(in, entry.sizes, entry.strides, entry.offset,
                                        static_cast<int64_t>(c10::elementSize(entry.dtype)));
    const int64_t held = storages_[entry.storage].numel();
    SRT_ARCHIVE(extent <= held, in.damaged(), "a tensor ends at byte ", extent, " of a storage of ", held);
  }
}

at::Tensor LoadedTensors::saved(uint32_t number) const {
  const Entry& entry = entries_[number];
  return over(storages_[entry.storage], entry.dtype, entry.sizes, entry.strides, entry.offset);
}

const at::Tensor& LoadedTensors::at(uint32_t number) {
  Entry& entry = entries_[number];
  if (entry.tensor.defined()) return entry.tensor;
  if (entry.device.is_cpu()) return entry.tensor = saved(number);
  std::vector<at::Tensor>& copies = copies_[entry.storage];
  auto copy = std::ranges::find(copies, entry.device, [](const at::Tensor& t) { return t.device(); });
  if (copy == copies.end()) copy = copies.insert(copies.end(), storages_[entry.storage].to(entry.device));
  return entry.tensor = over(*copy, entry.dtype, entry.sizes, entry.strides, entry.offset);
}

at::Device read_device(ByteReader& in, const LoadedTensors& tensors) {
  if (tensors.format() < 5) return tensors.placement().cpu();
  const auto number = in.get<uint8_t>();
  SRT_ARCHIVE(number < tensors.placement().size(), in.damaged(), "device ", static_cast<int>(number), " of ",
              tensors.placement().size());
  return tensors.placement()[number];
}

}  // namespace staticrt
