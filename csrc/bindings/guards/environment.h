// What a prepared call compares of the process and the thread.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>

#include "bindings/guards/python_flags.h"
#include "program/process_state.h"

namespace staticrt::bindings {

// All of it 16-bit numbers, so that there is no padding and two compare as bytes: every call does.
struct Environment {
  ProcessState process;
  PythonFlags python;
  // Dispatch keys of the thread but those of autograd, which no_grad and inference_mode change.
  std::array<uint16_t, 8> dispatch_keys;
  uint16_t num_threads = 0;  // a model may read it

  bool operator==(const Environment& other) const { return std::memcmp(this, &other, sizeof(*this)) == 0; }
};
static_assert(std::has_unique_object_representations_v<Environment>);

// Nullopt where only eager may run: modes that see every operator, functorch transforms.
std::optional<Environment> environment();

pybind11::bytes to_bytes(const Environment& environment);
Environment to_environment(const std::string& bytes);

}  // namespace staticrt::bindings
