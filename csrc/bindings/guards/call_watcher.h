// Watches the calls of one thread while it runs model code for a trace.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <unordered_map>

namespace staticrt::bindings {

// What is done about the code that begins or calls; `impure_calls.py` decides it for each code object.
enum CodeKind : int {
  kIgnored = 0,
  kJudged = 1,    // its calls of C functions are judged
  kReported = 2,  // Python is told each time it begins
  kModel = 4,     // it sees the builtins that the watcher was given
  kSilent = 8,    // until it returns nothing is watched, as while a module is imported
  kLoud = 16,     // only C functions that write for all to see are judged
  kLeft = 32,     // Python is told each time it returns or raises
};

// What a C function does besides computing.
enum CallKind : int {
  kPure = 0,
  kEffect = 1,
  kLoudEffect = 2,
  kTold = 4,  // Python is told that it has returned, from any caller
};

// A profiler of the thread that starts it. An exception that one of its callables raises stops the call
// before it happens, and the watch goes on: a model that catches the exception is stopped at the next such
// call again.
//
// Thread safety: used by the thread that starts it, with the GIL.
class CallWatcher {
 public:
  // classify(frame) -> CodeKind, once per code object; judge(function) -> CallKind, once per C function;
  // begins(frame), calls(frame, function), returned(function) and left(frame, result) are told what the kinds
  // ask for; the result is None where the frame raises. `builtins` outlives every frame of model code: frames
  // do not own it.
  CallWatcher(pybind11::function classify, pybind11::function judge, pybind11::function begins,
              pybind11::function calls, pybind11::function returned, pybind11::function left,
              pybind11::dict builtins);
  CallWatcher(const CallWatcher&) = delete;
  CallWatcher& operator=(const CallWatcher&) = delete;
  ~CallWatcher();

  // Takes the place of the thread's profiler, which `stop` puts back.
  void start();
  void stop();
  // The thread has no profiler from `pause` to `resume`. Returns whether it was watched.
  bool pause();
  void resume();
  bool watches() const { return watches_; }

 private:
  static int on_event(PyObject* self, PyFrameObject* frame, int what, PyObject* argument);
  int event(PyFrameObject* frame, int what, PyObject* argument);
  int begin(PyFrameObject* frame);
  int call(PyFrameObject* frame, PyObject* function);
  int kind_of(PyObject* function);
  int kind_of(PyFrameObject* frame);
  void give_builtins(PyFrameObject* frame) const;

  const pybind11::function classify_, judge_, begins_, calls_, returned_, left_;
  const pybind11::dict builtins_;
  pybind11::object self_;                            // what the interpreter hands to on_event
  std::unordered_map<PyObject*, int> codes_;         // owns its keys
  std::unordered_map<PyMethodDef*, int> functions_;  // their definitions live as long as their modules
  PyFrameObject* silent_ = nullptr;                  // on the stack, not owned
  // The thread that started it: autograd's threads, which may trace too, are not watched.
  PyThreadState* thread_ = nullptr;
  bool started_ = false, watches_ = false, has_left_ = false;
  Py_tracefunc previous_ = nullptr;
  pybind11::object previous_argument_;
};

// The function that runs in a frame; None where this interpreter does not keep it.
pybind11::object function_of(const pybind11::handle& frame);

// Gives a frame other globals, which it does not own: they outlive it, or it gets its own back. False: this
// interpreter keeps them elsewhere.
bool set_globals(const pybind11::handle& frame, const pybind11::dict& globals);

}  // namespace staticrt::bindings
