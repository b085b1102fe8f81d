#include <pybind11/stl.h>

#include <tuple>

#include "bindings/bindings.h"
#include "bindings/gil.h"
#include "planner/conflict_plan.h"
#include "planner/dynamic_plan.h"
#include "planner/planner.h"
#include "planner/storage_groups.h"
#include "planner/validate.h"

namespace py = pybind11;

namespace staticrt::bindings {
namespace {

using planner::Plan;
using planner::Spec;
using SpecTuples = std::vector<std::tuple<int64_t, int64_t, int64_t>>;

std::vector<Spec> to_specs(const SpecTuples& tuples) {
  std::vector<Spec> specs;
  specs.reserve(tuples.size());
  for (const auto& [begin, end, size_bytes] : tuples) specs.push_back({begin, end, size_bytes});
  return specs;
}

planner::Effort to_effort(int level) {
  SRT_INTERNAL(level >= 0 && level <= 3, "planner effort ", level, " is not 0, 1, 2 or 3");
  return static_cast<planner::Effort>(level);
}

py::tuple plan_tuple(const Plan& plan) {
  return py::make_tuple(plan.offsets, plan.arena_bytes, plan.lower_bound, plan.proved_optimal);
}

py::tuple plan(const SpecTuples& tuples, int64_t alignment, int effort) {
  const std::vector<Spec> specs = to_specs(tuples);
  Plan result;
  {
    GilRelease unlocked;
    result = planner::plan(specs, alignment, to_effort(effort));
  }
  return plan_tuple(result);
}

void validate(const SpecTuples& tuples, std::vector<int64_t> offsets, int64_t arena_bytes,
              int64_t lower_bound, bool proved_optimal, int64_t alignment) {
  planner::validate(to_specs(tuples), Plan{std::move(offsets), arena_bytes, lower_bound, proved_optimal},
                    alignment);
}

py::tuple plan_conflicts(const std::vector<int64_t>& sizes_bytes,
                         const std::vector<std::pair<int32_t, int32_t>>& pairs, int64_t alignment) {
  const Plan result = planner::plan_conflicts(sizes_bytes, pairs, alignment);
  planner::validate_conflicts(sizes_bytes, pairs, result, alignment);
  return plan_tuple(result);
}

void translate(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const planner::PlanError& error) {
    const py::object cls = py::module_::import("staticrt.errors").attr("PlanError");
    const py::object made = cls(error.message(), py::arg("at") = error.at(), py::arg("fix") = error.fix());
    PyErr_SetObject(cls.ptr(), made.ptr());
  }
}

}  // namespace

void bind_planner(py::module_& m) {
  // Registered after bind_errors: translators run last registered first, and PlanError is an InputError.
  py::register_exception_translator(translate);
  m.def("plan", &plan, py::arg("specs"), py::arg("alignment"), py::arg("effort"));
  m.def(
      "plan_groups",
      [](const SpecTuples& specs, int64_t alignment) {
        return plan_tuple(planner::plan_groups(to_specs(specs), alignment));
      },
      py::arg("specs"), py::arg("alignment"));
  m.def("plan_conflicts", &plan_conflicts, py::arg("sizes_bytes"), py::arg("pairs"), py::arg("alignment"));
  py::class_<planner::DynamicPlan>(m, "DynamicPlan")
      .def(py::init([](const SpecTuples& specs, std::vector<int64_t> offsets, int64_t alignment) {
             return std::make_unique<planner::DynamicPlan>(to_specs(specs),
                                                           Plan{std::move(offsets), 0, 0, false}, alignment);
           }),
           py::arg("specs"), py::arg("offsets"), py::arg("alignment"))
      .def(
          "place",
          [](const planner::DynamicPlan& self, const std::vector<int64_t>& sizes_bytes) {
            return plan_tuple(self.place(sizes_bytes));
          },
          py::arg("sizes_bytes"));
  m.def("validate_plan", &validate, py::arg("specs"), py::arg("offsets"), py::arg("arena_bytes"),
        py::arg("lower_bound"), py::arg("proved_optimal"), py::arg("alignment"));
}

}  // namespace staticrt::bindings
