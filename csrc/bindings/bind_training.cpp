// Region: a differentiable region as two Programs behind one autograd node.
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "bindings/bindings.h"
#include "bindings/gil.h"
#include "runtime/autograd/backward_node.h"
#include "runtime/call/written_memory.h"

namespace py = pybind11;

namespace staticrt::bindings {
namespace {

py::object to_object(const c10::IValue& value) {
  return torch::jit::toPyObject(value);
}

// A Python function held by C++ code that may drop it without the GIL.
std::shared_ptr<py::function> hold(py::function function) {
  return {new py::function(std::move(function)), [](py::function* held) {
            const py::gil_scoped_acquire gil;
            delete held;
          }};
}

std::function<std::vector<c10::IValue>(const std::vector<c10::IValue>&)> by_operators(py::function run) {
  return [run = hold(std::move(run))](const std::vector<c10::IValue>& inputs) {
    const py::gil_scoped_acquire gil;
    py::list flat;
    for (const c10::IValue& input : inputs) flat.append(to_object(input));
    std::vector<c10::IValue> results;
    for (const py::handle& item : (*run)(flat).cast<py::sequence>()) results.push_back(to_ivalue(item));
    return results;
  };
}

RegionCallbacks callbacks(py::function make_plan, py::function differentiate, py::function differs) {
  RegionCallbacks result;
  result.make_plan = [make = hold(std::move(make_plan))](size_t segment, const std::vector<bool>& undefined,
                                                         const std::vector<bool>& unneeded) {
    const py::gil_scoped_acquire gil;
    const py::tuple made = (*make)(segment, undefined, unneeded);
    auto plan = std::make_shared<BackwardPlan>();
    if (py::isinstance<Executable>(made[0])) {
      plan->executable = made[0].cast<std::shared_ptr<Executable>>();
    } else {
      plan->by_operators = by_operators(made[0].cast<py::function>());
    }
    plan->gradients = made[1].cast<std::vector<int32_t>>();
    plan->eager_nodes = made[2].cast<std::vector<uint32_t>>();
    for (const int read : made[3].cast<std::vector<int>>()) plan->reads.push_back(static_cast<Read>(read));
    return std::shared_ptr<const BackwardPlan>(std::move(plan));
  };
  result.differentiate = [run = hold(std::move(differentiate))](
                             const std::vector<c10::IValue>& inputs, const std::vector<bool>& needed,
                             const std::vector<at::Tensor>& gradients, const std::vector<uint32_t>& ends,
                             const at::Tensor& random_state) {
    const py::gil_scoped_acquire gil;
    py::list flat;
    for (const c10::IValue& input : inputs) flat.append(to_object(input));
    py::list given;
    for (const at::Tensor& gradient : gradients) {
      if (gradient.defined()) {
        given.append(gradient);
      } else {
        given.append(py::none());
      }
    }
    const py::object state = random_state.defined() ? py::cast(random_state) : py::none();
    std::vector<at::Tensor> found;
    for (const py::handle& item : (*run)(flat, needed, given, ends, state).cast<py::sequence>())
      found.push_back(item.is_none() ? at::Tensor() : item.cast<at::Tensor>());
    return found;
  };
  result.differs = [ask = hold(std::move(differs))](const std::vector<bool>& undefined) {
    const py::gil_scoped_acquire gil;
    return (*ask)(undefined).cast<bool>();
  };
  result.rethrow = [](const std::exception_ptr& error) {
    const py::gil_scoped_acquire gil;
    try {
      raise_own_error(error);
    } catch (...) {
      return;  // not ours
    }
    python_error raised;
    raised.persist();
    throw raised;
  };
  return result;
}

// ("item", number of a list, index), or (name, overload, [(given, argument)]). `given` is the number of the
// value that is the argument, or a list of pairs, a place in the argument and the number of a value; else
// None.
ViewStep view_step_of(const py::tuple& facts) {
  ViewStep step;
  if (facts[0].cast<std::string>() == "item") {
    step.given.push_back({0, std::nullopt, facts[1].cast<uint32_t>()});
    step.item = facts[2].cast<uint32_t>();
    return step;
  }
  step.op = c10::Dispatcher::singleton().findSchemaOrThrow(facts[0].cast<std::string>().c_str(),
                                                           facts[1].cast<std::string>().c_str());
  const std::vector<c10::Argument>& schema = step.op->schema().arguments();
  const auto arguments = facts[2].cast<py::list>();
  for (uint32_t i = 0; i < arguments.size(); ++i) {
    const auto [given, value] = arguments[i].cast<std::pair<py::object, py::object>>();
    if (py::isinstance<py::list>(given)) {
      for (const auto& [place, number] : given.cast<std::vector<std::pair<uint32_t, uint32_t>>>())
        step.given.push_back({i, place, number});
    } else if (!given.is_none()) {
      step.given.push_back({i, std::nullopt, given.cast<uint32_t>()});
      step.arguments.emplace_back();
      continue;
    }
    step.arguments.push_back(torch::jit::toIValue(value, schema[i].type()));
  }
  return step;
}

SegmentPlan segment_of(const py::dict& facts) {
  SegmentPlan plan;
  for (const auto& [from, index, views_input, views_output] :
       facts["saved"].cast<std::vector<std::tuple<std::string, uint32_t, int32_t, int32_t>>>()) {
    SavedValue value;
    value.from = from == "input"    ? SavedValue::From::kInput
                 : from == "output" ? SavedValue::From::kOutput
                                    : SavedValue::From::kResult;
    value.index = index;
    value.views_input = views_input;
    value.views_output = views_output;
    plan.saved.push_back(value);
  }
  plan.num_eager_nodes = facts["eager_nodes"].cast<uint32_t>();
  plan.readers = facts["readers"].cast<std::vector<std::vector<uint32_t>>>();
  plan.backward_inputs = facts["backward_inputs"].cast<std::vector<int32_t>>();
  plan.tangents = facts["tangents"].cast<std::vector<uint32_t>>();
  plan.num_incoming = facts["num_incoming"].cast<uint32_t>();
  plan.leads = facts["leads"].cast<std::vector<std::vector<uint32_t>>>();
  plan.inputs = facts["inputs"].cast<std::vector<uint32_t>>();
  return plan;
}

RegionPlan plan_of(const py::dict& facts) {
  RegionPlan plan;
  plan.name = facts["name"].cast<std::string>();
  plan.forward = facts["forward"].cast<std::shared_ptr<Executable>>();
  plan.num_inputs = facts["num_inputs"].cast<uint32_t>();
  for (const auto& [index, differentiable] : facts["outputs"].cast<std::vector<std::pair<uint32_t, bool>>>())
    plan.outputs.push_back({index, differentiable});
  const auto [steps, views] = facts["views"].cast<std::pair<py::list, std::vector<uint32_t>>>();
  for (const py::handle& step : steps) plan.views.steps.push_back(view_step_of(step.cast<py::tuple>()));
  plan.views.results = views;
  for (const py::handle& segment : facts["segments"])
    plan.segments.push_back(segment_of(segment.cast<py::dict>()));
  plan.gradient_outputs = facts["gradient_outputs"].cast<std::vector<uint32_t>>();
  plan.gradient_orders = facts["gradient_orders"].cast<std::vector<std::vector<int64_t>>>();
  plan.detached_inputs = facts["detached_inputs"].cast<std::vector<uint32_t>>();
  plan.unread_inputs = facts["unread_inputs"].cast<std::vector<bool>>();
  plan.keeps_inputs = facts["keeps_inputs"].cast<bool>();
  plan.draws_random = facts["draws_random"].cast<bool>();
  plan.may_differ = facts["may_differ"].cast<bool>();
  plan.max_plans = facts["max_plans"].cast<size_t>();
  return plan;
}

py::tuple run_region(Region& region, const py::args& args) {
  std::vector<c10::IValue> inputs;
  inputs.reserve(args.size());
  for (const py::handle& item : args) inputs.push_back(to_ivalue(item));
  std::vector<c10::IValue> outputs;
  {
    const GilRelease no_gil;
    outputs = region.run(std::move(inputs));
  }
  py::tuple result(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) result[i] = to_object(outputs[i]);
  return result;
}

// Of each tensor that the autograd node running on this thread was applied to, whether the backward in
// progress wants its gradient; empty outside of one. `needs_input_grad` of Python functions only says whether
// it could.
std::vector<bool> wanted_gradients() {
  const auto node = torch::autograd::get_current_node();
  std::vector<bool> wanted;
  if (!node) return wanted;
  wanted.resize(node->num_outputs());
  for (size_t i = 0; i < wanted.size(); ++i)
    wanted[i] = node->next_edge(i).is_valid() && node->task_should_compute_output(i);
  return wanted;
}

// Where the storage of a tensor lies; what has no bytes of its own gets an address of its own.
std::pair<uintptr_t, uintptr_t> storage_place(const at::Tensor& tensor) {
  const auto alone = [](const void* object) {
    const auto address = reinterpret_cast<uintptr_t>(object);
    return std::pair{address, address + 1};
  };
  if (!tensor.has_storage()) return alone(tensor.unsafeGetTensorImpl());
  const c10::Storage& storage = tensor.storage();
  if (storage.device().is_meta()) return alone(storage.unsafeGetStorageImpl());
  const auto begin = reinterpret_cast<uintptr_t>(storage.data());
  return {begin, begin + storage.nbytes()};
}

// Whether an input's elements share memory, or a written input's storage and another's do. Dynamo guards only
// inputs that are one tensor.
bool overlapping(const py::tuple& inputs, const std::set<size_t>& written) {
  std::vector<std::tuple<uintptr_t, uintptr_t, bool>> places;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!THPVariable_Check(inputs[i].ptr())) continue;
    const at::Tensor& tensor = THPVariable_Unpack(inputs[i].ptr());
    if (tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) continue;  // it has no bytes
    const bool strided = tensor.layout() == at::kStrided && !tensor.is_nested();
    if (strided && !has_elements_apart(tensor)) return true;
    const auto [begin, end] = storage_place(tensor);
    if (tensor.numel() != 0) places.emplace_back(begin, end, written.contains(i));
  }
  if (written.empty()) return false;
  std::ranges::sort(places);
  uintptr_t reach = 0;
  uintptr_t written_reach = 0;
  for (const auto& [begin, end, is_written] : places) {
    if (begin < written_reach || (is_written && begin < reach)) return true;
    reach = std::max(reach, end);
    if (is_written) written_reach = std::max(written_reach, end);
  }
  return false;
}

// Calls shared_memory(); values that are no tensors share none.
bool shares_memory(const std::vector<uint32_t>& written, const py::list& values) {
  std::vector<InputView> inputs;
  for (const py::handle& value : values) {
    const bool is_tensor = THPVariable_Check(value.ptr());
    inputs.push_back({is_tensor ? &THPVariable_Unpack(value.ptr()) : nullptr, {}});
  }
  return shared_memory(written, inputs).has_value();
}

// What `.grad` of leaves was. No Python object is made of a gradient: those would come and go while a
// backward of another thread adds to it without the GIL, which torch does not survive.
class HeldGradients {
 public:
  explicit HeldGradients(std::vector<at::Tensor> leaves) : leaves_(std::move(leaves)) {
    for (const at::Tensor& leaf : leaves_) gradients_.push_back(leaf.grad());
  }

  void restore() const {
    for (size_t i = 0; i < leaves_.size(); ++i)
      if (!leaves_[i].grad().is_same(gradients_[i])) leaves_[i].mutable_grad() = gradients_[i];
  }

 private:
  std::vector<at::Tensor> leaves_;
  std::vector<at::Tensor> gradients_;
};

}  // namespace

void bind_training(py::module_& m) {
  py::class_<Region, std::shared_ptr<Region>>(m, "Region")
      .def(py::init([](const py::dict& facts, py::function make_plan, py::function differentiate,
                       py::function differs) {
             return std::make_shared<Region>(
                 plan_of(facts),
                 callbacks(std::move(make_plan), std::move(differentiate), std::move(differs)));
           }),
           py::arg("facts"), py::arg("make_plan"), py::arg("differentiate"), py::arg("differs"))
      .def("run", &run_region)
      .def_property_readonly("num_plans", &Region::num_plans);
  py::class_<HeldGradients>(m, "HeldGradients")
      .def(py::init<std::vector<at::Tensor>>(), py::arg("leaves"))
      .def("restore", &HeldGradients::restore);
  m.def("overlapping", &overlapping);
  m.def("shares_memory", &shares_memory);
  m.def("wanted_gradients", &wanted_gradients);
}

}  // namespace staticrt::bindings
