// Runs one registered kernel by hand and compares it with the dispatcher's functional op.
//
// A case is one line: the op, then its arguments in schema order (trailing defaults may be left out).
//
//   "aten::add.Tensor f(2,3) f(3) 2"
//
// Tensors: dtype letter (f float, d double, l int64, i int32, h half, g bfloat16, c complex64, u uint8,
// b bool), sizes, then flags: p positive, xN integers in [0, N), t transposed last two dimensions,
// s every other column, e stride 0 in the first dimension, n channels last, v with NaN, inf and -0.
// Others: 3, 1.5, True, None, [1,2], str, float64 (a dtype), channels_last (a memory format),
// {f(2);f(2)} or {None;l(2)x3} (lists of tensors).
#pragma once

#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

namespace staticrt::test {

struct OpCall {
  std::string op;
  std::vector<c10::IValue> args;  // all of the schema's
};

// layout: a flag added to every tensor that can take it, or 0.
OpCall parse_case(const std::string& line, char layout);

// Throws Failure unless the kernel gives the op's sizes, strides, dtype and bytes: with fresh outputs,
// emptied ones, ones that held more, and ones of final size; with list arguments whole and as operand
// spans; and unless arguments stay as they were. If the op throws, so must the kernel.
// relative: 0 for bitwise equality, else the tolerance, relative and absolute.
// compared_outputs: only the first so many outputs are compared, if the op leaves others unset.
// Returns false if the op refuses the arguments.
bool check_case(const OpCall& test_case, double relative = 0, size_t compared_outputs = 99);

// Every line with every layout; the plain layout must be accepted. Prefix "=": the plain layout only;
// prefix "?": the op may refuse every layout; "=?": both.
void check_cases(const std::vector<std::string>& lines, double relative = 0);

// "op" followed by each of `arguments`, for each of `ops`.
std::vector<std::string> cross(const std::vector<std::string>& ops,
                               const std::vector<std::string>& arguments);

// Lines that a test of their own checks, and that registry_test.cpp counts.
struct CaseGroup {
  CaseGroup(const char* test_name, std::vector<std::string> lines, double relative = 0);
};
const std::vector<std::string>& grouped_lines();

}  // namespace staticrt::test

#define CASES(name, ...) static const ::staticrt::test::CaseGroup name##_group(#name, __VA_ARGS__)
