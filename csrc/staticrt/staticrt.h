// staticrt for C++: load a model that Python saved, and run it. No Python is needed.
//
//   staticrt::Module model = staticrt::load("model.pt2");
//   std::vector<at::Tensor> outputs = model.run({input});
//
// Save with `staticrt.save(compiled, "model.pt2")`; build with `find_package(staticrt)` and link
// `staticrt::staticrt` (docs/cpp.md).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace staticrt {

// An archive is damaged, was made by another version, or needs what this machine or process lacks. The
// message says what, where, and what to do.
class ArchiveError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A call fits none of the traces in the archive: number of inputs, dtypes, dimensions, sizes. The message
// names the input and the condition.
class CallError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct LoadOptions {
  // Compare every weight with its checksum, which reads all of them. Off: weights are mapped and read from
  // the file as they are used; the program itself is always checked.
  bool check_weights = true;
  // Operators that the archive may call besides those of torch that compute tensors from their arguments:
  // "mylib::op", or a whole library, "mylib::*".
  std::vector<std::string> allow_operators;
  // Prepare a program for each input signature; off: every call takes the general path.
  bool prepared = true;
  // Prepared programs kept for one trace; none: 64, and up to 256 small ones.
  std::optional<int64_t> max_prepared;
  // The device that weights are copied to and programs run on, with or without an index; none: where the
  // archive was saved. Inputs must be on it. An archive with tensors on several devices besides the CPU can
  // only be loaded as it was saved.
  std::optional<at::Device> device;
  // Choose kernels by rule instead of by measuring.
  bool deterministic = false;
  // Bytes that packed copies of weights may take, as a share of the weights' bytes: 0 to 1, which bounds
  // nothing; none: large weights are read where they lie.
  std::optional<double> weight_memory;
};

// One input of a trace.
struct InputSpec {
  std::string name;       // "x", "kwargs['mask']"
  bool is_tensor = true;  // else an int
  at::ScalarType dtype = at::kFloat;
  int64_t dim = 0;
};

// A loaded model. Copies share everything. Thread-safe: any number of threads may run it at once, each call
// with its own outputs. A call that throws leaves nothing behind.
class Module {
 public:
  // The model's flat tensor outputs for its flat tensor inputs, in the order of its arguments; nested tuples,
  // lists and dicts are taken apart in order. The outputs belong to the caller.
  // Throws CallError if the inputs fit no trace; c10::Error if an operator fails.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) const;
  // The same with ints among the inputs, and with numbers and None among the outputs.
  std::vector<c10::IValue> run_values(const std::vector<c10::IValue>& inputs) const;

  // Does ahead what the first call on inputs of these dtypes, sizes and layouts would do first: plans memory,
  // chooses kernels, packs weights. Nothing runs, and values are not read. "", or why it is left to that
  // call. Throws CallError if the inputs fit no trace.
  std::string prepare(const std::vector<c10::IValue>& inputs) const;

  size_t num_traces() const;
  // What a trace takes. REQUIRES: trace < num_traces().
  std::vector<InputSpec> inputs(size_t trace = 0) const;
  // Parameters and buffers by name: the live tensors. Copying into one changes what later calls compute.
  std::vector<std::pair<std::string, at::Tensor>> weights() const;
  // Versions that saved the archive.
  const std::string& torch_version() const;
  const std::string& staticrt_version() const;

 private:
  friend Module load(const std::string& path, const LoadOptions& options);
  friend Module load(const void* data, size_t size_bytes, const LoadOptions& options);
  struct State;
  explicit Module(std::shared_ptr<const State> state);
  std::shared_ptr<const State> state_;
};

// Throws ArchiveError. The file is mapped: it must not be changed or cut short while the module lives.
Module load(const std::string& path, const LoadOptions& options = {});
// The same from memory; the bytes are copied.
Module load(const void* data, size_t size_bytes, const LoadOptions& options = {});

}  // namespace staticrt
