// A saved model: weights by name and traces. The file is a .pt2 archive (a zip of stored records, as torch
// writes it) with one record more, kProgramRecord:
//
//   magic "STATICRT", u32 format version, u32 0, u64 bytes of the body, u64 checksum of the body
//   body: versions, required CPU features, storages and tensors, weight names, traces
//
// Reading unpickles nothing and runs nothing: it copies numbers out of checked bounds.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "archive/saved_trace.h"
#include "archive/tensor_table.h"

namespace staticrt {

inline constexpr char kProgramRecord[] = "staticrt/program.bin";
// Older versions are read, too. Version 1 has no packed weights and choices; version 2 no `same` and
// `empty_dims` of leaves and no traces that depend on data; version 3 no memory plans; version 4 knows the
// CPU only; version 5 does not say whether the model's code asks for strides.
inline constexpr uint32_t kFormatVersion = 6;

enum class WeightKind : uint8_t { kParameter = 0, kBuffer = 1, kTemporaryBuffer = 2, kConstant = 3 };

struct Weight {
  std::string name;
  WeightKind kind = WeightKind::kParameter;
  uint32_t tensor = 0;
};

struct ArchiveFacts {
  std::string staticrt_version;
  std::string torch_version;
  std::string cpu_capability;             // of the machine that saved it
  std::string machine;                    // the same and its processor; empty in version 1
  std::vector<std::string> cpu_features;  // a machine must have to load it
  std::string name;                       // of the model
  std::string calling;                    // Python's: parameters of forward, as JSON
};

struct ArchiveOptions {
  bool check_weights = true;
  std::optional<at::Device> device;  // see Placement
  ExecutableOptions executable;
  std::vector<std::string> allow_operators;  // see operator_refusal
};

// Immutable, except the bytes of its tensors; shared by threads.
class Archive {
 public:
  // where: the path, for messages. Throws ArchiveError.
  Archive(std::shared_ptr<Blob> blob, const std::string& where, const ArchiveOptions& options);

  const ArchiveFacts& facts() const { return facts_; }
  // Where the weights and programs are.
  const Placement& placement() const { return tensors_.placement(); }
  const at::Tensor& value_of(const Weight& weight) const { return tensors_[weight.tensor]; }
  const std::vector<Weight>& weights() const { return weights_; }
  const std::vector<std::shared_ptr<SavedTrace>>& traces() const { return traces_; }

 private:
  void read(const std::shared_ptr<Blob>& blob, const ArchiveOptions& options);
  ArchiveFacts facts_;
  LoadedTensors tensors_;
  std::vector<Weight> weights_;
  std::vector<std::shared_ptr<SavedTrace>> traces_;
};

// Gathers what an archive holds. The caller writes the storages and names their records.
class ArchiveBuilder {
 public:
  uint32_t add_tensor(const at::Tensor& tensor) { return tensors_.add(tensor); }
  void add_weight(Weight weight) { weights_.push_back(std::move(weight)); }
  // work: plans and packed weights of the trace, stored with it.
  void add_trace(TraceSpec spec, const PriorWork& work = {});
  std::vector<at::Tensor> storages() const { return tensors_.storages(); }
  std::vector<std::pair<std::string, uintptr_t>> sources() const { return tensors_.sources(); }
  // The bytes of kProgramRecord.
  std::string finish(const ArchiveFacts& facts, const std::vector<std::string>& record_names) const;

 private:
  uint32_t add_packed(const PackedBytes& packed);
  TensorTable tensors_;
  std::map<std::pair<uint64_t, int64_t>, uint32_t> packed_;  // by checksum and size
  std::vector<Weight> weights_;
  ByteWriter traces_;
  uint64_t num_traces_ = 0;
};

}  // namespace staticrt
