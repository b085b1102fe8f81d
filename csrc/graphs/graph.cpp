#include "graphs/graph.h"

#include "common/error.h"

namespace staticrt::graphs {

CpuGraph::CpuGraph(std::shared_ptr<CpuPool> pool, bool own_kernels)
    : hold_(std::move(pool)), own_kernels_(own_kernels) {}

void CpuGraph::begin(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& fixed) {
  SRT_CHECK(!recorder_ && !record_, "this graph is captured already, or being captured; make a new one");
  recorder_ = std::make_unique<Recorder>(hold_.shared(), inputs, fixed, own_kernels_);
}

std::string CpuGraph::end(bool put_back) {
  SRT_CHECK(recorder_, "end of a capture that did not begin");
  SRT_CHECK(Recorder::current() == recorder_.get(), "a capture must end in the thread that began it");
  const std::unique_ptr<Recorder> recorder = std::move(recorder_);
  if (recorder->failure().empty()) recorder->settle();
  if (!recorder->failure().empty()) {
    recorder->undo();
    return recorder->failure();
  }
  record_ = recorder->finish(&made_);
  if (put_back) recorder->undo();
  return {};
}

void CpuGraph::abort() {
  SRT_CHECK(recorder_, "abort of a capture that did not begin");
  SRT_CHECK(Recorder::current() == recorder_.get(), "a capture must end in the thread that began it");
  const std::unique_ptr<Recorder> recorder = std::move(recorder_);
  recorder->undo();
}

void CpuGraph::bind_outputs(const std::vector<at::Tensor>& outputs) {
  const std::lock_guard lock(mutex_);
  SRT_CHECK(record_, "bind_outputs: nothing is captured");
  record_->bind_outputs(outputs, made_);
}

void CpuGraph::replay(const std::vector<at::Tensor>* inputs, const std::vector<at::Tensor>* outputs) {
  const std::lock_guard lock(mutex_);
  SRT_CHECK(record_, "replay: nothing is captured, or the graph was reset");
  record_->replay(inputs, outputs);
}

std::vector<at::Tensor> CpuGraph::replay_new(const std::vector<at::Tensor>* inputs) {
  const std::lock_guard lock(mutex_);
  SRT_CHECK(record_, "replay: nothing is captured, or the graph was reset");
  return record_->replay_new(inputs);
}

void CpuGraph::reset() {
  const std::lock_guard lock(mutex_);
  record_.reset();
  made_.clear();
}

const Record& CpuGraph::record() const {
  SRT_CHECK(record_, "nothing is captured, or the graph was reset");
  return *record_;
}

}  // namespace staticrt::graphs
