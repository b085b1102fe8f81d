// A run of shapes alone: what the general path would record for a signature, without computing anything.
//
// Every tensor is on torch's meta device, which has sizes, strides and storages but no bytes, and every node
// runs as torch's own operator there. So a program is planned before its first run: its peak is known, and
// the first call is a prepared one.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "runtime/record/recorder.h"
#include "runtime/record/signature.h"

namespace staticrt {

struct ShapeRun {
  std::optional<Recorder> recorder;  // none: only a real run shows what the program makes
  std::string reason;                // then: what decides it, and where
};

// inputs: as of a call; only their metadata is read. REQUIRES: can_be_prepared(inputs); a RunState is in
// force.
ShapeRun run_shapes(const BoundProgram& bound, std::span<const InputView> inputs);

}  // namespace staticrt
