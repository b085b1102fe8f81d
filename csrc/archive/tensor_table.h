// The tensors of an archive: which storage each lies in, and how.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "archive/blob.h"
#include "archive/bytes.h"
#include "archive/placement.h"
#include "archive/zip_index.h"

namespace staticrt {

// Number of a value that has no device.
inline constexpr uint8_t kNoDevice = 255;

// Gathers tensors while an archive is written. Tensors over one storage stay so: it is written once.
class TensorTable {
 public:
  // The tensor's number; the same tensor, or an equal view of the same storage, has the same.
  // Throws ArchiveError for what an archive cannot hold: other layouts, lazy bits.
  uint32_t add(const at::Tensor& tensor);
  // The device's number: 0 is the CPU, others are numbered as they come. REQUIRES: it has an index, unless it
  // is the CPU.
  uint8_t add_device(at::Device device);
  // Names of the devices besides the CPU, by number.
  const std::vector<std::string>& devices() const { return devices_; }
  const at::Tensor& at(uint32_t number) const { return entries_[number].tensor; }
  // Each storage's bytes on the CPU, as uint8 [bytes], to be written as one record each.
  std::vector<at::Tensor> storages() const;
  // Where each storage's bytes were when it was added: the device, and the address there.
  std::vector<std::pair<std::string, uintptr_t>> sources() const;
  // record_names: one per storage, where its bytes were written.
  void write(ByteWriter& out, const std::vector<std::string>& record_names) const;

 private:
  struct Entry {
    uint32_t storage;
    uint8_t device;
    at::Tensor tensor;
  };
  std::vector<Entry> entries_;
  std::vector<std::string> devices_;
  std::vector<at::Tensor> storages_;
  std::unordered_map<const void*, uint32_t> storage_numbers_;
};

// The tensors of an archive that is read, each on its device. On the CPU a tensor lies in the archive's own
// bytes if they are aligned, else in a copy; to another device each storage is copied once, when its first
// tensor is asked for.
class LoadedTensors {
 public:
  LoadedTensors() = default;
  // check: compare every storage with its checksum. format: of the archive. Throws ArchiveError.
  LoadedTensors(ByteReader& in, const std::shared_ptr<Blob>& blob, const ZipIndex& zip, bool check,
                Placement placement, uint32_t format);

  const Placement& placement() const { return placement_; }
  uint32_t format() const { return format_; }
  size_t size() const { return entries_.size(); }
  // REQUIRES, here and below: number < size().
  const at::Tensor& at(uint32_t number);
  at::Device device_of(uint32_t number) const { return entries_[number].device; }
  // On the CPU, as saved.
  at::Tensor saved(uint32_t number) const;
  // After the last at(): forgets the archive's bytes but those that tensors lie in.
  void finish() { storages_.clear(); }
  // REQUIRES: at(number) was asked for.
  const at::Tensor& operator[](uint32_t number) const { return entries_[number].tensor; }

 private:
  struct Entry {
    uint32_t storage = 0;
    at::Device device{at::kCPU};
    at::ScalarType dtype = at::kFloat;
    std::vector<int64_t> sizes, strides;
    int64_t offset = 0;
    at::Tensor tensor;  // undefined: not asked for yet
  };
  Placement placement_;
  uint32_t format_ = 0;
  std::vector<at::Tensor> storages_;             // uint8 [bytes] on the CPU
  std::vector<std::vector<at::Tensor>> copies_;  // of each storage, on other devices
  std::vector<Entry> entries_;
};

at::ScalarType get_dtype(ByteReader& in);
// A device written by its number. Before format 5 nothing was written.
at::Device read_device(ByteReader& in, const LoadedTensors& tensors);

}  // namespace staticrt
