// Which operators an archive may call without its caller's consent.
#pragma once

#include <ATen/core/function_schema.h>

#include <string>
#include <vector>

#include "program/program.h"

namespace staticrt {

// An archive names operators, which its author chose. Operators that compute tensors from their arguments are
// allowed: public operators of torch, the private ones that traces contain, and those of staticrt. Refused
// are operators that take names of files, objects or streams, that belong to other libraries, and torch's
// internal ones, whose kernels trust their arguments.
//
// Why an archive may not call this operator ("of the library 'mylib', not of torch"), or "".
// allowed: what the caller consents to: names of operators with or without overload, "mylib::op", or of whole
// libraries, "mylib::*".
std::string operator_refusal(const c10::FunctionSchema& schema, const std::vector<std::string>& allowed);

// Throws ArchiveError that names all operators of the program that are refused.
void check_operators(const Program& program, const std::vector<std::string>& allowed);

}  // namespace staticrt
