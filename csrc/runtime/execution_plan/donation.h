// Donated inputs: tensors whose bytes the caller gives up with the call.
//
// A prepared program may write values of the run, and one result, into the bytes of a donated input after its
// last use. Then the tensor has no bytes: every use of it raises. This holds however the call ran, unless a
// result is a view of the tensor. On a device the call's stream writes the bytes; callers must wait for what
// other streams do with the tensor before.
#pragma once

#include <ATen/core/ivalue.h>

#include <span>
#include <string>
#include <vector>

#include "program/program.h"
#include "runtime/record/signature.h"

namespace staticrt {

struct DonatedInput {
  ValueId id = 0;    // of the program
  std::string name;  // the caller's, for messages
};

// Throws InputError unless the tensor is the only owner of a whole storage: other owners would lose their
// bytes. most_holders: references to the tensor itself, the caller's included; others are a backward pass
// that saved it, or a consumer of DLPack.
void check_donatable(const std::string& name, const at::Tensor& tensor, size_t most_holders);
// Takes the tensor's bytes away: every later use of it raises.
void take_bytes(const std::string& name, const at::Tensor& tensor);

// The same for the inputs of a call, which may also share storages with each other.
void check_donated_inputs(const Program& program, std::span<const DonatedInput> donated,
                          std::span<const InputView> inputs, size_t most_holders);

// Takes away what is left of the donated tensors' bytes. `outputs`: of the call; their storages stay.
void end_donation(std::span<const DonatedInput> donated, std::span<const InputView> inputs,
                  std::span<const c10::IValue> outputs);

}  // namespace staticrt
