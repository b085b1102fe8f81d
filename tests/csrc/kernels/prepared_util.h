// Runs one operator both ways: by the dispatcher, as eager does, and as a prepared call; and compares.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <random>
#include <string>
#include <vector>

#include "kernels/registry/prepare.h"
#include "kernels/registry/prepared_tolerance.h"

namespace staticrt::test {

// Outputs of the operator as eager makes them. Tensor lists among the results are flattened.
std::vector<at::Tensor> run_eager(const std::string& op, std::vector<c10::IValue> args);

// The number of intra-op threads, while it lives.
class Threads {
 public:
  explicit Threads(int count) : before_(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before_); }

 private:
  int before_;
};

struct PreparedRun {
  bool prepared = false;  // false: prepare declined
  int status = kRan;
  std::string route;
  std::vector<Grid> grids;
  std::vector<at::Tensor> outs;
};

struct RunOptions {
  std::vector<size_t> constants;  // arguments whose bytes are constant
  int num_threads = 1;
  bool deterministic = false;
  PrepareFn prepare = nullptr;  // instead of the one that is registered
  int64_t misalign = 0;         // bytes (a multiple of the element size) that every output's base is off 64
};

// The outputs have the dtype, sizes and strides of `like`, start poisoned and lie between guard bytes, which
// are checked.
PreparedRun run_prepared(const std::string& op, const std::vector<c10::IValue>& args,
                         const std::vector<at::Tensor>& like, const RunOptions& options = {});

TensorMeta meta_of(const at::Tensor& t);

// Throws Failure, naming what and where, unless got equals want within the tolerance.
void expect_close(const at::Tensor& got, const at::Tensor& want, const Tolerance& tolerance,
                  const std::string& what);

// Eager and prepared agree within prepared_tolerance(op) (bitwise where `exact`), inputs stay unmodified, and
// the call was prepared.
void expect_prepared(const std::string& op, const std::vector<c10::IValue>& args,
                     const RunOptions& options = {}, bool exact = false);

// A tensor with values fit for tests of dtype: small integers, or floats of several magnitudes with some
// special values (NaN, infinities, zeros of both signs, denormals) if `special`.
at::Tensor random_tensor(std::mt19937& rng, at::IntArrayRef sizes, at::ScalarType dtype,
                         bool special = false);

c10::IValue ints(std::vector<int64_t> values);

// Random values in [-1, 1], or in [-2 scale, 2 scale].
at::Tensor unit(std::mt19937& rng, at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat,
                double scale = 0.5);

// The same values in another layout: permuted, sliced with a step, expanded or offset.
at::Tensor with_random_layout(std::mt19937& rng, const at::Tensor& t);

}  // namespace staticrt::test
