// What recording needs to know about an operator, read once from its schema, tags and registrations.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "graphs/direct_call.h"
#include "kernels/registry/prepare.h"

namespace staticrt::graphs {

struct OpFacts {
  std::string name;              // "aten::add.Tensor"
  bool decompose = false;        // computes by calling other operators: those are recorded instead
  bool allocates = false;        // its result has undefined bytes (empty)
  bool overwrites = false;       // writes its first argument without reading it (fill_, copy_)
  bool random = false;           // draws from a generator
  bool reads_on_host = false;    // its result depends on values, not on metadata (item, nonzero)
  bool takes_masks = false;      // reads_on_host only if an index is a mask
  bool metadata_only = false;    // an in-place op that moves no bytes (squeeze_, set_)
  bool foreign = false;          // not torch's own: tags may not say that values decide its results' sizes
  std::vector<uint32_t> writes;  // arguments written in place, by the schema
  // native_batch_norm writes its running statistics while training, which its schema denies.
  bool updates_statistics = false;
  // An overload that computes the same into given outputs, with a kernel of its own.
  std::optional<c10::OperatorHandle> out;
  bool structured = false;  // one kernel computes both forms: `out` gives the same bits, whatever they are
  DirectCall direct;        // `out` without boxing, if its signature is known
  // One of our kernels that gives the same bits for any values.
  PrepareFn prepare = nullptr;
  bool pointwise = false;
  bool scales_second = false;  // argument 2, alpha, scales argument 1: with other than 1 bits may differ
};

// Valid for the life of the process. Thread-safe.
const OpFacts& facts_of(const c10::OperatorHandle& op);

// The arguments a call writes, `args` being its boxed arguments.
std::vector<uint32_t> written_args(const OpFacts& facts, const c10::IValue* args);

}  // namespace staticrt::graphs
