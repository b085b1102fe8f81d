// Binding: each node of a program gets its kernel once, before any run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "device/device_memory.h"
#include "kernels/registry/registry.h"
#include "program/liveness.h"
#include "program/program.h"
#include "runtime/general/argument_check.h"

namespace staticrt {

class Executable;

enum class BoundKind : uint8_t {
  kOut,       // one of our out variants
  kNative,    // a view or a number, by one of our kernels
  kBoxedOut,  // the dispatcher's out overload of a structured op
  kBoxed,     // the dispatcher's functional op
  kControl,   // cond, while_loop, scan, map over body programs
};

const char* to_string(BoundKind kind);

struct BoundNode {
  BoundKind kind = BoundKind::kBoxed;
  KernelFn kernel = nullptr;                        // kOut, kNative
  std::optional<c10::OperatorHandle> out_handle;    // kBoxedOut
  const DeviceMemory* memory = nullptr;             // kOut, kBoxedOut: of its outputs
  std::vector<std::shared_ptr<Executable>> bodies;  // kControl
  // Values that no later node reads and no output needs: reset after this node unless managed.
  std::vector<ValueId> last_uses;
  // Inputs that no later node and no output reads.
  std::vector<ValueId> input_ends;
  // Managed values of which no later node reads any byte.
  std::vector<ValueId> managed_ends;
  // Out-variant outputs that the planner gives bytes to; the others are made anew in each run.
  std::vector<bool> managed;
  // The op may return its argument although its schema says otherwise: checked after each run.
  bool check_overlap = false;
  std::shared_ptr<const ArgumentCheck> check;  // null: none
};

struct BindOptions {
  bool out_variants = true;      // off: nothing is managed
  bool check_arguments = false;  // the program is of an archive
};

struct BoundProgram {
  std::shared_ptr<const Program> program;
  std::vector<BoundNode> nodes;
  Liveness liveness;
  std::vector<ValueId> managed_values;               // in definition order
  std::vector<const DeviceMemory*> memories;         // the host, and registered devices that values lie on
  std::vector<const DeviceMemory*> memory_of_value;  // of managed values; null for others
  bool check_sizes = false;                          // of what nodes give

  // REQUIRES: the value is managed.
  const DeviceMemory& memory_of(ValueId id) const { return *memory_of_value[id]; }
};

// Throws InputError where a node names no operator and no kernel.
BoundProgram bind(std::shared_ptr<const Program> program, const BindOptions& options);

}  // namespace staticrt
