// Letting go of Python's lock, and taking it back.
#pragma once

#include <cxxabi.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

namespace staticrt::bindings {

// Waits for the lock. Once the interpreter has begun to end, no thread but the main one gets it: up to Python
// 3.13 such a thread is unwound from inside this call, through frames that must not throw, which would end
// the process by std::terminate. It stays here instead, as Python 3.14 does by itself, until the process has
// ended.
inline void restore_thread(PyThreadState* thread) noexcept {
#ifdef __GLIBCXX__
  try {
    PyEval_RestoreThread(thread);
  } catch (abi::__forced_unwind&) {
    for (;;) pause();
  }
#else
  PyEval_RestoreThread(thread);
#endif
}

// While it lives, other Python threads run. Usable as a py::call_guard.
class GilRelease {
 public:
  GilRelease() : thread_(PyEval_SaveThread()) {}
  ~GilRelease() { restore_thread(thread_); }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* thread_;
};

}  // namespace staticrt::bindings
