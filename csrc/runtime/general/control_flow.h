// Control-flow nodes: srt::cond, srt::while_loop, srt::scan, srt::map over body programs.
#pragma once

#include "program/program.h"
#include "runtime/general/bind.h"

namespace staticrt {

// Argument layouts (each list is one Arg):
//   srt::cond(pred, operands[])                      bodies: true, false
//   srt::while_loop(carried[], additional[])         bodies: condition, body
//   srt::scan(init[], xs[], additional[])            bodies: combine -> (carry..., y...)
//   srt::map(xs[], additional[])                     bodies: f
void run_control(const Program& program, const Node& node, const BoundNode& bound, c10::IValue* slots);

}  // namespace staticrt
