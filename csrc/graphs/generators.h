// GeneratorWatch: notices when a function sets the state of a random number generator.
//
// A replay draws from the generator's present state. No operator shows that the function set the state itself
// (manual_seed, checkpoint's recomputation), so states are compared around every draw.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace staticrt::graphs {

class GeneratorWatch {
 public:
  // Begins with the default generator of the CPU.
  GeneratorWatch();
  // Of a call's arguments, or the default one.
  static at::Generator generator_of(const std::vector<c10::IValue>& args);
  // Whether the generator is in the state in which it was last seen; true if it was not seen before.
  bool is_as_left(const at::Generator& generator);
  void saw(const at::Generator& generator);
  // The same of every generator seen.
  bool all_as_left();

 private:
  struct Seen {
    at::Generator generator;
    std::vector<uint8_t> state;
  };
  std::unordered_map<const c10::GeneratorImpl*, Seen> seen_;
};

}  // namespace staticrt::graphs
