// Prepared programs as driver graphs: one launch is a whole run.
//
// Note [Prepared programs as driver graphs]
//   A frame captures a program once per signature and stream, after one run as any other. Its graph reads
//   inputs and writes results at fixed addresses, so it begins by copies of the inputs to buffers of its own
//   and ends by copies of the results to new tensors of the caller's; each launch gets the addresses of its
//   call. Weights and inputs that the program writes are used where they are; once one lies elsewhere, the
//   program is captured again. Values lie in the frame's arena of the stream, which all its graphs share:
//   Note [Captured arenas stay].
//
//   A launch must do what the steps do; GraphNotes say what prevents that. A run that cannot be a launch, or
//   whose launch the driver refuses, runs the steps.
//
//   A capture costs what several launches save. A program that is captured in most of its runs therefore runs
//   its steps for a while before it is captured again. Where more streams are used in turn than a frame keeps
//   graphs of, the others run the steps: one takes the place of a stream only once that is no longer used.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "common/tuning.h"
#include "device/driver_graphs.h"
#include "runtime/execution_plan/prepared.h"

namespace staticrt {

// Whether it, or a body of it, draws random numbers; operators with effects that may do so count as well.
bool draws_random(const Node& node);

// The graphs of one frame: of the programs and streams that it ran lately.
class ProgramGraphs {
 public:
  // stay: inputs that are used where they are. written: those that the program writes, which are among them.
  ProgramGraphs(std::vector<ValueId> stay, std::vector<ValueId> written);
  ~ProgramGraphs();

  // As PreparedFrame::run(). False, and nothing has happened: the steps must run.
  bool run(const std::shared_ptr<const PreparedProgram>& prepared, std::span<const InputView> inputs,
           Arenas& arenas, std::vector<c10::IValue>& outputs);

  // Drops the graphs of programs that are not kept.
  void drop_unless(const std::function<bool(const PreparedProgram&)>& is_kept);

 private:
  class Graph;
  struct OnStream {
    const DeviceMemory* memory;
    c10::StreamId stream;
    uint64_t last_use = 0, launches = 0;
    std::unique_ptr<GraphPlace> place;           // goes after them
    std::vector<std::unique_ptr<Graph>> graphs;  // the one used last comes first
  };
  // The graph for these inputs, captured now if need be.
  Graph& graph_for(OnStream& here, const std::shared_ptr<const PreparedProgram>& prepared,
                   std::span<const InputView> inputs, Arenas& arenas);
  // Null where other streams have all places.
  OnStream* on_current_stream(const DeviceMemory& memory);
  bool shares_written_memory(std::span<const InputView> inputs) const;

  const std::vector<ValueId> stay_, written_;            // ascending
  std::vector<OnStream> streams_;                        // the one used last comes first
  uint64_t uses_ = 0;                                    // runs so far
  uint64_t runs_elsewhere_ = tuning::kMinRunsElsewhere;  // after which a stream counts as no longer used
};

}  // namespace staticrt
