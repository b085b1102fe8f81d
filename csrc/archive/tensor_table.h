// The tensors of an archive: which storage each lies in, and how.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "archive/blob.h"
#include "archive/bytes.h"
#include "archive/zip_index.h"

namespace staticrt {

// Gathers tensors while an archive is written. Tensors over one storage stay so: it is written once.
class TensorTable {
 public:
  // The tensor's number; the same tensor, or an equal view of the same storage, has the same.
  // Throws ArchiveError for what an archive cannot hold: other devices and layouts, lazy bits.
  uint32_t add(const at::Tensor& tensor);
  const at::Tensor& at(uint32_t number) const { return entries_[number].tensor; }
  // Each storage's bytes as uint8 [bytes], to be written as one record each.
  std::vector<at::Tensor> storages() const;
  // record_names: one per storage, where its bytes were written.
  void write(ByteWriter& out, const std::vector<std::string>& record_names) const;

 private:
  struct Entry {
    uint32_t storage;
    at::Tensor tensor;
  };
  std::vector<Entry> entries_;
  std::vector<at::Tensor> storages_;
  std::unordered_map<const void*, uint32_t> storage_numbers_;
};

// The tensors, in order; each lies in the archive's own bytes if they are aligned, else in a copy.
// check: compare every storage with its checksum.
std::vector<at::Tensor> read_tensors(ByteReader& in, const std::shared_ptr<Blob>& blob, const ZipIndex& zip,
                                     bool check);

at::ScalarType get_dtype(ByteReader& in);

}  // namespace staticrt
