// FastCall: the callable behind a compiled function. It serves calls whose arguments, Python state and
// environment match an entry: without Python if their signature is prepared; and if only their sizes are new,
// where the entry's guards of sizes, which are Python, take them. Every other call goes to the Python
// function it was made with.
#include <ATen/core/grad_mode.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <functional>
#include <span>

#include "bindings/argument_tree.h"
#include "bindings/bindings.h"
#include "bindings/eager_run.h"
#include "bindings/gil.h"
#include "bindings/guards/environment.h"
#include "bindings/guards/state_guard.h"
#include "bindings/result_tree.h"
#include "common/error.h"
#include "kernels/scalar/number.h"
#include "runtime/autograd/backward_node.h"
#include "runtime/call/decisions.h"
#include "runtime/call/executable.h"
#include "runtime/call/written_memory.h"

namespace py = pybind11;

namespace staticrt::bindings {
namespace {

struct Entry {
  size_t num_positional = 0;
  std::vector<py::object> keyword_names;  // interned strings
  std::vector<ArgumentTree> arguments;    // positional, then keywords
  size_t num_containers = 0;              // among the arguments
  ResultTree result;
  std::vector<std::pair<uint32_t, ResultTree>> writes;  // containers of the caller that change, new contents
  std::shared_ptr<Executable> executable;
  std::vector<at::Tensor> model_tensors;  // the first inputs of the program
  py::object guard;                       // the owner of the next
  StateGuard* state = nullptr;
  Environment environment;
  std::vector<uint32_t> written_inputs;
  // A program that differentiates by itself: what of each input autograd would do, which must not change.
  // Empty: the program serves no call that needs gradients.
  std::vector<uint8_t> grad_states;
  // The program is the forward of a region, which differentiates by itself: of grad_states, only whether an
  // input requires gradients must not change.
  std::shared_ptr<Region> region;
  std::vector<uint8_t> requires_grad;  // of each input after the model's tensors: a model may ask for it
  // Given the inputs after the model's tensors of a call that differs in sizes only from one it served,
  // whether the program serves that call too; None: only calls whose signature is prepared.
  py::object takes_sizes;
  std::optional<Signature> served;

  bool writes_any() const { return !written_inputs.empty() || !writes.empty(); }
  void visit(Referents& referents) const {
    for (const py::object& name : keyword_names) referents(name);
    for (const ArgumentTree& argument : arguments) argument.visit(referents);
    result.visit(referents);
    for (const auto& [number, tree] : writes) tree.visit(referents);
    referents(guard);
    referents(takes_sizes);
  }
};

// Whether no tensor is given twice: models ask `key is value`.
bool all_distinct(std::span<const InputView> inputs) {
  if (inputs.size() <= 8) {
    for (size_t i = 1; i < inputs.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (inputs[i].tensor && inputs[j].tensor && inputs[i].tensor->is_same(*inputs[j].tensor))
          return false;
      }
    }
    return true;
  }
  thread_local std::vector<const void*> seen;
  seen.clear();
  for (const InputView& input : inputs) {
    if (input.tensor) seen.push_back(input.tensor->unsafeGetTensorImpl());
  }
  std::sort(seen.begin(), seen.end(), std::less<>());
  return std::adjacent_find(seen.begin(), seen.end()) == seen.end();
}

// 0: no gradient; 1: a leaf that wants one; 2: something with a history or hooks, which only eager serves.
uint8_t grad_state(const at::Tensor& tensor) {
  if (!tensor.requires_grad()) return 0;
  if (tensor.grad_fn() || !torch::autograd::impl::hooks(tensor).empty() ||
      torch::autograd::impl::post_acc_grad_hooks(tensor))
    return 2;
  return 1;
}

class FastCall {
 public:
  explicit FastCall(py::object slow) : slow_(std::move(slow)) {}

  void add(size_t num_positional, const py::list& keyword_names, const py::list& arguments,
           size_t num_containers, const py::object& result, const py::list& writes,
           std::shared_ptr<Executable> executable, std::vector<at::Tensor> model_tensors, py::object guard,
           const Environment& environment, std::vector<uint8_t> grad_states, std::shared_ptr<Region> region,
           std::vector<uint8_t> requires_grad, py::object takes_sizes, const py::list& served) {
    auto* const state = guard.cast<StateGuard*>();
    auto entry = std::make_shared<Entry>(Entry{num_positional,
                                               {},
                                               {},
                                               num_containers,
                                               ResultTree(result),
                                               {},
                                               std::move(executable),
                                               std::move(model_tensors),
                                               std::move(guard),
                                               state,
                                               environment,
                                               {},
                                               std::move(grad_states),
                                               std::move(region),
                                               std::move(requires_grad),
                                               std::move(takes_sizes),
                                               {}});
    for (const py::handle& name : keyword_names)
      entry->keyword_names.push_back(py::reinterpret_borrow<py::object>(name));
    for (const py::handle& argument : arguments) entry->arguments.emplace_back(argument);
    for (const py::handle& write : writes) {
      const auto pair = write.cast<py::tuple>();
      entry->writes.emplace_back(pair[0].cast<uint32_t>(), ResultTree(pair[1]));
    }
    entry->written_inputs = entry->executable->written_inputs();
    if (!entry->takes_sizes.is_none()) {
      std::vector<InputView> inputs(served.size());
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (THPVariable_Check(served[i].ptr()))
          inputs[i].tensor = &THPVariable_Unpack(served[i].ptr());
        else
          inputs[i].value = served[i].cast<int64_t>();
      }
      entry->served.emplace(inputs, entry->environment.num_threads);
    }
    entries_.insert(entries_.begin(), std::move(entry));
  }

  // The next calls like one that ran eagerly go to a function of their own.
  void leave_to_eager(std::shared_ptr<EagerRun> run) { eager_run_.swap(run); }

  void clear() {
    // Their ends may run Python.
    const std::vector<std::shared_ptr<Entry>> dropped = std::move(entries_);
    const std::shared_ptr<EagerRun> run = std::move(eager_run_);
    entries_.clear();
  }
  // For the garbage collector; afterwards it serves no call.
  void let_go() {
    const py::object dropped = std::move(slow_);
    clear();
  }
  void visit(Referents& referents) const {
    referents(slow_);
    for (const auto& entry : entries_) entry->visit(referents);
    if (eager_run_) eager_run_->visit(referents);
  }
  int64_t fast_calls() const { return fast_calls_; }

  PyObject* call(PyObject* const* args, size_t num_positional, PyObject* keywords) {
    if (!entries_.empty()) {
      PyObject* result = nullptr;
      if (serve(args, num_positional, keywords, &result)) return result;
    }
    if (eager_run_ && eager_run_->takes(args, num_positional, keywords)) {
      const py::object function = eager_run_->function();
      return PyObject_Vectorcall(function.ptr(), args, num_positional, keywords);
    }
    SRT_CHECK(slow_, "the garbage collector has freed this compiled callable");
    return PyObject_Vectorcall(slow_.ptr(), args, num_positional, keywords);
  }

 private:
  // Whether an entry served the call; *result is then its result, or null with a Python error set.
  bool serve(PyObject* const* args, size_t num_positional, PyObject* keywords, PyObject** result) {
    const std::optional<Environment> now = environment();
    if (!now) return false;
    thread_local CallMatch scratch;
    CallMatch found = std::move(scratch);  // matching may call Python, and us again
    scratch = {};
    const bool served = serve_by_entry(*now, args, num_positional, keywords, found, result);
    found.clear();
    scratch = std::move(found);
    return served;
  }

  bool serve_by_entry(const Environment& now, PyObject* const* args, size_t num_positional,
                      PyObject* keywords, CallMatch& found, PyObject** result) {
    // Entries tell calls apart by their structure, not by sizes: another one's program may be prepared for
    // these.
    for (const bool is_prepared : {true, false}) {
      for (size_t i = 0; i < entries_.size(); ++i) {
        // A copy: another thread may clear the list while this one runs without the GIL.
        const std::shared_ptr<Entry> entry = entries_[i];
        if (!is_prepared && entry->takes_sizes.is_none()) continue;
        if (!(entry->environment == now) || !match(*entry, args, num_positional, keywords, found)) continue;
        if (!run(*entry, found, is_prepared, result)) continue;
        if (i > 0 && i < entries_.size() && entries_[i] == entry) std::swap(entries_[0], entries_[i]);
        return true;
      }
    }
    return false;
  }

  bool match(Entry& entry, PyObject* const* args, size_t num_positional, PyObject* keywords,
             CallMatch& found) {
    const size_t num_keywords = keywords ? static_cast<size_t>(PyTuple_GET_SIZE(keywords)) : 0;
    if (entry.num_positional != num_positional || entry.keyword_names.size() != num_keywords) return false;
    found.begin(entry.executable->program().num_inputs(), entry.num_containers);
    for (size_t i = 0; i < num_positional; ++i) {
      if (!entry.arguments[i].match(args[i], found)) return false;
    }
    for (size_t i = 0; i < num_keywords; ++i) {
      PyObject* name = PyTuple_GET_ITEM(keywords, static_cast<Py_ssize_t>(i));
      if (name != entry.keyword_names[i].ptr() && PyUnicode_Compare(name, entry.keyword_names[i].ptr()) != 0)
        return false;
      if (!entry.arguments[num_positional + i].match(args[num_positional + i], found)) return false;
    }
    const size_t num_own = entry.model_tensors.size();
    for (size_t i = 0; i < num_own; ++i) found.inputs[i].tensor = &entry.model_tensors[i];
    const std::span<const InputView> given = std::span<const InputView>(found.inputs).subspan(num_own);
    for (size_t i = 0; i < given.size(); ++i) {
      if (given[i].tensor && given[i].tensor->requires_grad() != (entry.requires_grad[i] != 0)) return false;
    }
    for (const py::object& attributes : found.attributes) {
      if (!entry.state->ignores(attributes.ptr())) return false;
    }
    return all_distinct(given) && found.containers_are_distinct() && entry.state->holds();
  }

  static bool needs_gradients(const std::vector<InputView>& inputs) {
    if (!at::GradMode::is_enabled()) return false;
    for (const InputView& input : inputs) {
      if (input.tensor && input.tensor->requires_grad()) return true;
    }
    return false;
  }

  static bool same_grad_states(const Entry& entry, const std::vector<InputView>& inputs) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].tensor) continue;
      const at::Tensor& tensor = *inputs[i].tensor;
      const bool same = entry.region ? tensor.requires_grad() == (entry.grad_states[i] != 0)
                                     : grad_state(tensor) == entry.grad_states[i];
      if (!same) return false;
    }
    return true;
  }

  // As call_if_prepared, with a history for the results.
  static bool run_region(Region& region, const std::vector<InputView>& inputs,
                         std::vector<c10::IValue>& outputs) {
    std::vector<c10::IValue> values;
    values.reserve(inputs.size());
    for (const InputView& input : inputs)
      values.push_back(input.tensor ? c10::IValue(*input.tensor) : input.value);
    return region.run_if_prepared(std::move(values), outputs);
  }

  static bool takes(const Entry& entry, const std::vector<InputView>& inputs) {
    const size_t num_own = entry.model_tensors.size();
    if (!entry.served->matches_but_sizes(inputs, num_own)) return false;
    py::list given;
    for (size_t i = num_own; i < inputs.size(); ++i)
      given.append(inputs[i].tensor ? py::cast(*inputs[i].tensor) : py::cast(inputs[i].value.toInt()));
    return entry.takes_sizes(given).cast<bool>();
  }

  // The caller's references keep the arguments alive; model tensors are the entry's.
  static bool run_unlocked(Entry& entry, const std::vector<InputView>& inputs, bool is_prepared,
                           std::vector<c10::IValue>& outputs) {
    PyThreadState* released = PyEval_SaveThread();
    try {
      const bool ran = entry.region  ? run_region(*entry.region, inputs, outputs)
                       : is_prepared ? entry.executable->call_if_prepared(inputs, outputs)
                                     : entry.executable->call_new_sizes(inputs, outputs);
      restore_thread(released);
      return ran;
    } catch (...) {
      restore_thread(released);
      throw;
    }
  }

  // Eager writes up to an error, so such a call is made again, slowly.
  static bool is_left_to_slow(const Entry& entry) {
    return entry.writes_any() && entry.executable->failed_before_effects();
  }

  // Whether a result has other strides than in the trace, so that it cannot be viewed in the same way.
  static bool lacks_view(const c10::Error& error) {
    return std::string_view(error.what_without_backtrace()).find("view size is not compatible") !=
           std::string_view::npos;
  }

  bool run(Entry& entry, const CallMatch& found, bool is_prepared, PyObject** result) {
    const std::vector<InputView>& inputs = found.inputs;
    if ((entry.grad_states.empty() ? needs_gradients(inputs) : !same_grad_states(entry, inputs)) ||
        shared_memory(entry.written_inputs, inputs))
      return false;
    // Outside of the block below: what a signal's handler raises meanwhile is the caller's.
    if (!is_prepared && !takes(entry, inputs)) return false;
    thread_local std::vector<c10::IValue> scratch;
    std::vector<c10::IValue> outputs = std::move(scratch);  // a result's making may call Python, and us again
    try {
      if (!run_unlocked(entry, inputs, is_prepared, outputs)) return false;
    } catch (const NumberError&) {
      if (!is_prepared || entry.executable->failed_before_effects()) return false;  // eager may answer
      throw;
    } catch (const c10::Error& error) {
      if (decided_otherwise(error)) return false;  // another entry may serve the call, or a new trace
      if (is_prepared && !is_left_to_slow(entry) && (entry.writes_any() || !lacks_view(error))) throw;
      return false;
    } catch (...) {
      // A program that takes new sizes has no effects: the executor makes the call again, and raises.
      if (is_prepared && !is_left_to_slow(entry)) throw;
      return false;
    }
    ++fast_calls_;
    *result = finish(entry, found, outputs);
    outputs.clear();
    scratch = std::move(outputs);
    return true;
  }

  // The result; then, as in eager, the caller's containers hold what the model put there.
  static PyObject* finish(const Entry& entry, const CallMatch& found, std::span<c10::IValue> outputs) {
    std::vector<PyObject*> containers;
    containers.reserve(found.containers.size() + entry.writes.size());
    for (const py::object& container : found.containers) containers.push_back(container.ptr());
    auto result = py::reinterpret_steal<py::object>(entry.result.build(outputs, containers));
    if (!result || entry.writes.empty()) return result.release().ptr();
    std::vector<py::object> contents;
    for (const auto& [number, tree] : entry.writes) {
      contents.push_back(py::reinterpret_steal<py::object>(tree.build(outputs, containers)));
      if (!contents.back()) return nullptr;
    }
    for (size_t i = 0; i < contents.size(); ++i) {
      if (!replace_contents(containers[entry.writes[i].first], contents[i].ptr())) return nullptr;
    }
    return result.release().ptr();
  }

  py::object slow_;
  std::vector<std::shared_ptr<Entry>> entries_;
  std::shared_ptr<EagerRun> eager_run_;
  int64_t fast_calls_ = 0;
};

// A Python object around FastCall that is called by the vectorcall protocol: pybind11's own call costs more
// than a small model.
struct FastCallObject {
  PyObject_HEAD vectorcallfunc vectorcall;
  FastCall* fast;
};

PyObject* vectorcall(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* keywords) {
  HANDLE_TH_ERRORS
  try {
    PyObject* result = reinterpret_cast<FastCallObject*>(self)->fast->call(
        args, static_cast<size_t>(PyVectorcall_NARGS(nargsf)), keywords);
    if (result != nullptr) return result;
    python_error raised;  // thrown, so that torch gives out the call's warnings beside it
    raised.persist();
    throw raised;
  } catch (const std::exception&) {
    raise_own_error(std::current_exception());  // throws what is not ours: torch knows those
    return nullptr;
  }
  END_HANDLE_TH_ERRORS
}

void deallocate(PyObject* self) {
  PyObject_GC_UnTrack(self);
  delete reinterpret_cast<FastCallObject*>(self)->fast;
  Py_TYPE(self)->tp_free(self);
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Referents referents(visit, arg);
  reinterpret_cast<FastCallObject*>(self)->fast->visit(referents);
  return referents.stopped();
}

int clear(PyObject* self) {
  reinterpret_cast<FastCallObject*>(self)->fast->let_go();
  return 0;
}

PyTypeObject* fast_call_type() {
  static PyTypeObject type = [] {
    PyTypeObject t{};
    t.tp_name = "staticrt._C.FastCall";
    t.tp_basicsize = sizeof(FastCallObject);
    t.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC;
    t.tp_vectorcall_offset = offsetof(FastCallObject, vectorcall);
    t.tp_call = PyVectorcall_Call;
    t.tp_dealloc = deallocate;
    t.tp_traverse = traverse;
    t.tp_clear = clear;
    t.tp_doc = "Serves prepared calls; hands every other call to the function it was made with.";
    return t;
  }();
  return &type;
}

FastCall& unpack(const py::handle& object) {
  SRT_CHECK(Py_TYPE(object.ptr()) == fast_call_type(), "expected a FastCall");
  return *reinterpret_cast<FastCallObject*>(object.ptr())->fast;
}

py::object make_fast_call(const py::object& slow) {
  auto* object = PyObject_GC_New(FastCallObject, fast_call_type());
  if (!object) throw py::error_already_set();
  object->vectorcall = &vectorcall;
  object->fast = new FastCall(slow);
  PyObject_GC_Track(reinterpret_cast<PyObject*>(object));
  return py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(object));
}

}  // namespace

void bind_fast_call(py::module_& m) {
  if (PyType_Ready(fast_call_type()) < 0) throw py::error_already_set();
  m.attr("FastCall") = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(fast_call_type()));
  m.def("environment", []() -> std::optional<py::bytes> {
    const std::optional<Environment> now = environment();
    if (!now) return std::nullopt;
    return to_bytes(*now);
  });
  m.def("make_fast_call", &make_fast_call);
  m.def(
      "add_fast_entry",
      [](const py::object& fast, size_t num_positional, const py::list& keyword_names,
         const py::list& arguments, size_t num_containers, const py::object& result, const py::list& writes,
         std::shared_ptr<Executable> executable, std::vector<at::Tensor> model_tensors, py::object guard,
         const std::string& env, std::vector<uint8_t> grad_states, std::shared_ptr<Region> region,
         std::vector<uint8_t> requires_grad, py::object takes_sizes, const py::list& served) {
        unpack(fast).add(num_positional, keyword_names, arguments, num_containers, result, writes,
                         std::move(executable), std::move(model_tensors), std::move(guard),
                         to_environment(env), std::move(grad_states), std::move(region),
                         std::move(requires_grad), std::move(takes_sizes), served);
      },
      py::kw_only(), py::arg("fast"), py::arg("num_positional"), py::arg("keyword_names"),
      py::arg("arguments"), py::arg("num_containers"), py::arg("result"), py::arg("writes"),
      py::arg("executable"), py::arg("model_tensors"), py::arg("guard"), py::arg("environment"),
      py::arg("grad_states") = std::vector<uint8_t>{}, py::arg("region") = py::none(),
      py::arg("requires_grad"), py::arg("takes_sizes") = py::none(), py::arg("served") = py::list());
  m.def("leave_to_eager", [](const py::object& fast, py::object function, const py::tuple& args,
                             const py::dict& kwargs, int64_t num_calls) {
    unpack(fast).leave_to_eager(std::make_shared<EagerRun>(std::move(function), args, kwargs, num_calls));
  });
  m.def("grad_state", &grad_state);
  m.def("clear_fast_entries", [](const py::object& fast) { unpack(fast).clear(); });
  m.def("fast_calls", [](const py::object& fast) { return unpack(fast).fast_calls(); });
}

}  // namespace staticrt::bindings
