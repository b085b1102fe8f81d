// What objects in C++ tell Python's garbage collector. It frees a cycle of references only if it sees all of
// them, so whatever holds Python objects for a compiled callable names each one, once.
#pragma once

#include <pybind11/pybind11.h>

namespace staticrt::bindings {

class Referents {
 public:
  Referents(visitproc visit, void* argument) : visit_(visit), argument_(argument) {}

  void operator()(const pybind11::handle& object) {
    if (object && stopped_ == 0) stopped_ = visit_(object.ptr(), argument_);
  }
  // What tp_traverse returns.
  int stopped() const { return stopped_; }

 private:
  visitproc visit_;
  void* argument_;
  int stopped_ = 0;
};

}  // namespace staticrt::bindings
