// Calls of out variants without boxing, for the C++ signatures that most of them have.
//
// A boxed call copies its arguments into a stack, which changes every tensor's reference count, and unpacks
// them again: for few elements that costs as much as the operator.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <functional>

namespace staticrt::graphs {

// Runs the CPU kernel on boxed arguments, outputs last, which stay as they are.
using DirectCall = std::function<void(const c10::IValue* args)>;

// Empty if the operator has another signature than the known ones.
DirectCall direct_call(const c10::OperatorHandle& op);

}  // namespace staticrt::graphs
