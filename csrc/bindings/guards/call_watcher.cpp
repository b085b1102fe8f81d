#include "bindings/guards/call_watcher.h"

#include <frameobject.h>

namespace py = pybind11;

namespace staticrt::bindings {
namespace {

constexpr const char* kCapsule = "staticrt.CallWatcher";

// Where a frame keeps the builtins that its code sees; null where this interpreter keeps them elsewhere.
//
// From Python 3.11 on the fields of a frame are private. They begin alike in all versions: a frame object
// points to the interpreter's frame, which holds globals and builtins side by side among its first words.
//
// The word before the globals is then the function.
PyObject** builtins_slot(PyFrameObject* frame) {
#if PY_VERSION_HEX < 0x030B0000
  return &frame->f_builtins;
#else
  struct FrameObject {
    PyObject base;
    PyFrameObject* f_back;
    PyObject** f_frame;
  };
  constexpr int kFirstWords = 8;
  static int found = -1;
  PyObject** words = reinterpret_cast<FrameObject*>(frame)->f_frame;
  const auto globals = py::reinterpret_steal<py::object>(PyFrame_GetGlobals(frame));
  const auto builtins = py::reinterpret_steal<py::object>(PyFrame_GetBuiltins(frame));
  const auto is_at = [&](int i) { return words[i] == globals.ptr() && words[i + 1] == builtins.ptr(); };
  for (int i = 0; found < 0 && i < kFirstWords; ++i) {
    if (is_at(i)) found = i;
  }
  return found >= 0 && is_at(found) ? &words[found + 1] : nullptr;
#endif
}

}  // namespace

py::object function_of(const py::handle& frame) {
#if PY_VERSION_HEX >= 0x030B0000
  PyObject** slot = builtins_slot(reinterpret_cast<PyFrameObject*>(frame.ptr()));
  constexpr uintptr_t kTags = 3;  // of Python 3.14
  if (slot != nullptr) {
    auto* found = reinterpret_cast<PyObject*>(reinterpret_cast<uintptr_t>(slot[-2]) & ~kTags);
    if (found != nullptr && PyFunction_Check(found)) return py::reinterpret_borrow<py::object>(found);
  }
#endif
  return py::none();
}

bool set_globals(const py::handle& frame, const py::dict& globals) {
  auto* object = reinterpret_cast<PyFrameObject*>(frame.ptr());
  PyObject** slot = builtins_slot(object);
  if (slot == nullptr) return false;
#if PY_VERSION_HEX < 0x030B0000
  Py_SETREF(object->f_globals, globals.inc_ref().ptr());
#else
  slot[-1] = globals.ptr();
#endif
  return true;
}

CallWatcher::CallWatcher(py::function classify, py::function judge, py::function begins, py::function calls,
                         py::function returned, py::function left, py::dict builtins)
    : classify_(std::move(classify)),
      judge_(std::move(judge)),
      begins_(std::move(begins)),
      calls_(std::move(calls)),
      returned_(std::move(returned)),
      left_(std::move(left)),
      builtins_(std::move(builtins)),
      self_(py::reinterpret_steal<py::object>(PyCapsule_New(this, kCapsule, nullptr))) {
  if (!self_) throw py::error_already_set();
}

CallWatcher::~CallWatcher() {
  if (started_) stop();
  for (const auto& [code, kind] : codes_) Py_DECREF(code);
}

void CallWatcher::start() {
  PyThreadState* thread = thread_ = PyThreadState_Get();
  previous_ = thread->c_profilefunc;
  previous_argument_ = py::reinterpret_borrow<py::object>(thread->c_profileobj);
  started_ = true;
  resume();
}

void CallWatcher::stop() {
  if (!started_) return;
  started_ = watches_ = false;
  silent_ = nullptr;
  PyEval_SetProfile(previous_, previous_argument_.ptr());
  previous_argument_ = py::object();
}

bool CallWatcher::pause() {
  if (PyThreadState_Get() != thread_) return false;
  const bool watched = watches_;
  watches_ = false;
#if PY_VERSION_HEX < 0x030C0000
  if (watched) PyEval_SetProfile(nullptr, nullptr);
#endif
  return watched;
}

void CallWatcher::resume() {
  if (!started_ || PyThreadState_Get() != thread_) return;
  // From Python 3.12 on a profiler is costly to set: it marks code.
  PyThreadState* thread = PyThreadState_Get();
  if (thread->c_profilefunc != on_event || thread->c_profileobj != self_.ptr()) {
    PyEval_SetProfile(on_event, self_.ptr());
  }
  watches_ = true;
}

int CallWatcher::on_event(PyObject* self, PyFrameObject* frame, int what, PyObject* argument) {
  auto* watcher = static_cast<CallWatcher*>(PyCapsule_GetPointer(self, kCapsule));
  if (!watcher->watches_) return 0;
  try {
    return watcher->event(frame, what, argument);
  } catch (py::error_already_set& error) {
    error.restore();
    return -1;
  }
}

int CallWatcher::event(PyFrameObject* frame, int what, PyObject* argument) {
  if (silent_ != nullptr) {
    if (what == PyTrace_RETURN && frame == silent_) silent_ = nullptr;
    return 0;
  }
  if (what == PyTrace_CALL) return begin(frame);
  if (what == PyTrace_RETURN && has_left_ && (kind_of(frame) & kLeft)) {
    left_(py::handle(reinterpret_cast<PyObject*>(frame)), py::handle(argument ? argument : Py_None));
  }
  if (what == PyTrace_C_CALL && PyCFunction_Check(argument)) return call(frame, argument);
  if (what == PyTrace_C_RETURN && PyCFunction_Check(argument) && (kind_of(argument) & kTold)) {
    returned_(py::handle(argument));
  }
  return 0;
}

int CallWatcher::kind_of(PyFrameObject* frame) {
  PyCodeObject* code = PyFrame_GetCode(frame);
  const auto found = codes_.find(reinterpret_cast<PyObject*>(code));
  if (found != codes_.end()) {
    Py_DECREF(code);
    return found->second;
  }
  const auto owned = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(code));
  const int kind = classify_(py::handle(reinterpret_cast<PyObject*>(frame))).cast<int>();
  codes_.emplace(owned.inc_ref().ptr(), kind);
  has_left_ = has_left_ || (kind & kLeft) != 0;
  return kind;
}

int CallWatcher::begin(PyFrameObject* frame) {
  const int kind = kind_of(frame);
  if (kind & kModel) give_builtins(frame);
  if (kind & kSilent) silent_ = frame;
  if (kind & kReported) begins_(py::handle(reinterpret_cast<PyObject*>(frame)));
  return 0;
}

int CallWatcher::call(PyFrameObject* frame, PyObject* function) {
  const int code = kind_of(frame);
  if ((code & (kJudged | kLoud)) == 0) return 0;
  if (kind_of(function) & (code & kJudged ? kEffect | kLoudEffect : kLoudEffect)) {
    calls_(py::handle(reinterpret_cast<PyObject*>(frame)), py::handle(function));
  }
  return 0;
}

int CallWatcher::kind_of(PyObject* function) {
  PyMethodDef* definition = reinterpret_cast<PyCFunctionObject*>(function)->m_ml;
  auto found = functions_.find(definition);
  if (found == functions_.end()) {
    found = functions_.emplace(definition, judge_(py::handle(function)).cast<int>()).first;
  }
  return found->second;
}

void CallWatcher::give_builtins(PyFrameObject* frame) const {
  PyObject** slot = builtins_slot(frame);
  if (slot == nullptr || *slot == builtins_.ptr()) return;
#if PY_VERSION_HEX < 0x030B0000
  PyObject* before = *slot;
  *slot = builtins_.inc_ref().ptr();
  Py_DECREF(before);
#else
  *slot = builtins_.ptr();  // borrowed from the function
#endif
}

}  // namespace staticrt::bindings
