// CpuGraph: one captured function.
//
//   CpuGraph graph(pool);
//   graph.begin(inputs);  ...run the function...  graph.end();
//   graph.replay(&other_inputs, nullptr);
//
// Thread safety: begin(), end() and abort() in one thread; replays wait for each other.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "graphs/pool.h"
#include "graphs/record.h"
#include "graphs/recorder.h"

namespace staticrt::graphs {

class CpuGraph {
 public:
  // Without own_kernels a replay runs torch's kernels only.
  explicit CpuGraph(std::shared_ptr<CpuPool> pool, bool own_kernels = true);

  // Records this thread until end() or abort(). `fixed`: further arguments, whose addresses stay the same.
  void begin(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& fixed = {});
  // Empty, or why no replay could repeat what ran; the graph is then empty and overwritten bytes are
  // restored. With `put_back` they are restored in any case, as if nothing had run yet.
  std::string end(bool put_back = false);
  // The function threw: as after a failure.
  void abort();

  void bind_outputs(const std::vector<at::Tensor>& outputs);
  void replay(const std::vector<at::Tensor>* inputs, const std::vector<at::Tensor>* outputs);
  std::vector<at::Tensor> replay_new(const std::vector<at::Tensor>* inputs);
  void reset();
  const Record& record() const;
  CpuPool& pool() const { return hold_.pool(); }

 private:
  CpuPool::GraphHold hold_;
  const bool own_kernels_;
  std::unique_ptr<Recorder> recorder_;
  std::unique_ptr<Record> record_;
  std::vector<std::pair<const void*, SlotId>> made_;  // identities: only bind_outputs() compares them
  mutable std::mutex mutex_;
};

}  // namespace staticrt::graphs
