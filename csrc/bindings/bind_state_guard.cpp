// StateGuard, whose references the garbage collector sees; the order of entries in caches of
// functools.lru_cache.
#include <pybind11/stl.h>

#include <string_view>

#include "bindings/bindings.h"
#include "bindings/guards/state_guard.h"

namespace py = pybind11;

namespace staticrt::bindings {
namespace {

// Null while Python has only begun to make the object.
StateGuard* guard_of(PyObject* object) {
  const auto holder = reinterpret_cast<py::detail::instance*>(object)->get_value_and_holder();
  return holder.holder_constructed() ? holder.value_ptr<StateGuard>() : nullptr;
}

void let_collector_see_guards(PyHeapTypeObject* heap_type) {
  PyTypeObject& type = heap_type->ht_type;
  type.tp_flags |= Py_TPFLAGS_HAVE_GC;
  type.tp_traverse = [](PyObject* self, visitproc visit, void* arg) {
    Referents referents(visit, arg);
    referents(reinterpret_cast<PyObject*>(Py_TYPE(self)));
    if (const StateGuard* guard = guard_of(self)) guard->visit(referents);
    return referents.stopped();
  };
  type.tp_clear = [](PyObject* self) {
    if (StateGuard* guard = guard_of(self)) guard->clear();
    return 0;
  };
}

// As in CPython's Modules/_functoolsmodule.c: an entry, between those that were called for before and after
// it. A cache begins with the entry that closes the circle.
struct Link {
  PyObject_HEAD Link* previous;
  Link* next;
  Py_hash_t hash;
  PyObject* key;
  PyObject* result;
};

Link* link_of(const py::handle& object) {
  const PyTypeObject* type = Py_TYPE(object.ptr());
  if (std::string_view(type->tp_name) != "functools._lru_list_elem" || type->tp_basicsize != sizeof(Link)) {
    throw py::type_error("expected an entry of a functools.lru_cache");
  }
  return reinterpret_cast<Link*>(object.ptr());
}

py::object result_of_link(const py::handle& link) {
  return py::reinterpret_borrow<py::object>(link_of(link)->result);
}

// Takes an entry out of a bounded cache: of its dict and of its order of calls.
void take_out_of_cache(const py::handle& cache, const py::dict& table, const py::handle& key) {
  if (std::string_view(Py_TYPE(cache.ptr())->tp_name) != "functools._lru_cache_wrapper") {
    throw py::type_error("expected a function of functools.lru_cache");
  }
  if (!table.contains(key)) return;
  link_of(table[key]);  // raises while nothing is changed
  const py::object popped = table.attr("pop")(key, py::none());
  if (popped.is_none()) return;
  const Link* wanted = link_of(popped);
  // Keys may run Python when they are compared: another thread's call may have put the entry in again, for
  // another key. From here on nothing runs Python.
  PyObject *each_key = nullptr, *value = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(table.ptr(), &at, &each_key, &value);) {
    if (value == popped.ptr()) return;
  }
  auto* root = reinterpret_cast<Link*>(cache.ptr());
  for (Link* each = root->next; each != root; each = each->next) {
    if (each != wanted) continue;
    each->previous->next = each->next;
    each->next->previous = each->previous;
    each->previous = each->next = each;
    Py_DECREF(each);  // `popped` holds it
    return;
  }
}

}  // namespace

void bind_state_guard(py::module_& m) {
  py::class_<OperatorKernels, std::shared_ptr<OperatorKernels>>(m, "OperatorKernels")
      .def(py::init<const std::vector<std::string>&, const std::vector<std::string>&>(), py::arg("names"),
           py::arg("keys"))
      .def("hold", &OperatorKernels::hold)
      .def("in_python", &OperatorKernels::in_python)
      .def("__len__", &OperatorKernels::size);
  py::class_<StateGuard>(m, "StateGuard", py::custom_type_setup(&let_collector_see_guards))
      .def(py::init([](const py::list& dicts, const py::list& lists, const py::list& cells,
                       const py::list& scopes, const py::list& classes, const py::list& slots,
                       const py::list& objects, const py::list& functions, const py::list& tensors,
                       const py::list& answers, const py::frozenset& names, bool lists_attributes) {
             return std::make_unique<StateGuard>(StateGuard::Parts{dicts, lists, cells, scopes, classes,
                                                                   slots, objects, functions, tensors,
                                                                   answers, names, lists_attributes});
           }),
           py::kw_only(), py::arg("dicts") = py::list(), py::arg("lists") = py::list(),
           py::arg("cells") = py::list(), py::arg("scopes") = py::list(), py::arg("classes") = py::list(),
           py::arg("slots") = py::list(), py::arg("objects") = py::list(), py::arg("functions") = py::list(),
           py::arg("tensors") = py::list(), py::arg("answers") = py::list(),
           py::arg("names") = py::frozenset(py::set()), py::arg("lists_attributes") = true)
      .def("compare", [](StateGuard& guard,
                         std::shared_ptr<OperatorKernels> operators) { guard.compare(std::move(operators)); })
      .def("holds", &StateGuard::holds)
      .def("holds_all", &StateGuard::holds_all);
  m.attr("MISSING") = StateGuard::missing();
  m.def("result_of_link", &result_of_link);
  m.def("take_out_of_cache", &take_out_of_cache);
  m.def("attributes_of", [](const py::handle& object) {
    PyObject* found = attributes_of(object.ptr());
    return found ? py::reinterpret_borrow<py::object>(found) : py::object(py::none());
  });
}

}  // namespace staticrt::bindings
