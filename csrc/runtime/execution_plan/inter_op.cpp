#include "runtime/execution_plan/inter_op.h"

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <queue>
#include <thread>

// Torch's OpenMP, where it has one: libraries below us (BLAS, oneDNN) ask it how many threads a call may
// take.
extern "C" {
__attribute__((weak)) void omp_set_num_threads(int count);
__attribute__((weak)) int omp_get_max_threads(void);
}

namespace staticrt {
namespace {

// Calls of a region take one thread each.
class OneThreadEach {
 public:
  OneThreadEach() {
    if (omp_get_max_threads != nullptr && omp_set_num_threads != nullptr) {
      before_ = omp_get_max_threads();
      if (before_ != 1) omp_set_num_threads(1);
    }
  }
  ~OneThreadEach() {
    if (before_ > 1) omp_set_num_threads(before_);
  }
  OneThreadEach(const OneThreadEach&) = delete;
  OneThreadEach& operator=(const OneThreadEach&) = delete;

 private:
  int before_ = 1;
};

// One run of a region. Everything but `work`'s arguments is under the mutex; a thread that comes late finds
// the job ended and touches nothing else.
class Job {
 public:
  Job(const ParallelRegion& region, const std::vector<Step>& steps, char* const* bases, char* arena)
      : region_(region), steps_(steps), bases_(bases), arena_(arena), missing_(region.num_before) {
    for (uint32_t k = 0; k < region.count; ++k) {
      if (missing_[k] == 0) ready_.push(k);
    }
    left_ = region.count;
  }

  // Until nothing is left to do, on any thread.
  void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return left_ == 0 || !ready_.empty(); });
      if (left_ == 0) return;
      const uint32_t k = ready_.top();
      ready_.pop();
      const bool skip = status_ != kRan || error_;
      lock.unlock();
      int status = kRan;
      std::exception_ptr error;
      if (!skip) {
        try {
          const Step& step = steps_[region_.first + k];
          char* workspace = step.workspace_offset >= 0 ? arena_ + step.workspace_offset : nullptr;
          status = step.run(step.params, bases_, workspace);
        } catch (...) {
          error = std::current_exception();
        }
      }
      lock.lock();
      if (status != kRan) status_ = status;
      if (error && !error_) error_ = error;
      for (const uint32_t next : region_.after[k]) {
        if (--missing_[next] == 0) ready_.push(next);
      }
      --left_;
      changed_.notify_all();
    }
  }

  // Of the thread that made the job: grad and inference mode, autocast.
  const at::ThreadLocalState& state() const { return state_; }

  // REQUIRES: work() returned on this thread.
  int status() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (error_) std::rethrow_exception(error_);
    return status_;
  }

 private:
  const at::ThreadLocalState state_;
  const ParallelRegion& region_;
  const std::vector<Step>& steps_;
  char* const* const bases_;
  char* const arena_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<uint32_t> missing_;
  // The earliest call in program order first.
  std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> ready_;
  uint32_t left_ = 0;
  int status_ = kRan;
  std::exception_ptr error_;
};

// Threads that help with jobs; they live as long as the process. A child of fork() has none of them and makes
// its own.
class Helpers {
 public:
  static Helpers& get() {
    static std::mutex mutex;
    static Helpers* helpers = nullptr;
    static pid_t owner = 0;
    const std::lock_guard<std::mutex> lock(mutex);
    if (!helpers || owner != getpid()) {
      helpers = new Helpers();  // never destroyed: its threads wait until the process ends
      owner = getpid();
    }
    return *helpers;
  }

  void help(const std::shared_ptr<Job>& job, int threads) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (; num_threads_ < threads; ++num_threads_) std::thread([this] { loop(); }).detach();
      for (int i = 0; i < threads; ++i) waiting_.push_back(job);
    }
    arrived_.notify_all();
  }

 private:
  void loop() {
    at::get_num_threads();  // a thread's first query sets its number again
    const OneThreadEach one;
    while (true) {
      std::shared_ptr<Job> job;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        arrived_.wait(lock, [&] { return !waiting_.empty(); });
        job = std::move(waiting_.front());
        waiting_.pop_front();
      }
      const at::ThreadLocalStateGuard same(job->state());
      job->work();
    }
  }

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::shared_ptr<Job>> waiting_;
  int num_threads_ = 0;
};

}  // namespace

int run_beside(const ParallelRegion& region, const std::vector<Step>& steps, char* const* bases, char* arena,
               int num_threads) {
  const OneThreadEach one;
  const auto job = std::make_shared<Job>(region, steps, bases, arena);
  Helpers::get().help(job, num_threads - 1);
  job->work();
  return job->status();
}

}  // namespace staticrt
