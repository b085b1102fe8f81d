// Chains of pointwise nodes as one loop over L1-sized tiles: results needed only inside the chain never
// touch memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/registry/prepare.h"

namespace staticrt {

struct ChainArg {
  enum class Kind : uint8_t {
    kResult,  // what an earlier node of this chain made
    kTensor,  // a tensor operand, broadcast to the chain's sizes
    kValue,   // a number, None, dtype, memory format, ...
  };
  Kind kind = Kind::kValue;
  uint32_t result = 0;  // kResult: index of the node, less than this node's
  TensorOperand tensor;
  c10::IValue value;
};

struct ChainNode {
  std::string_view op;
  std::vector<ChainArg> args;  // in schema order
  // The result's dtype, sizes (those of the chain) and, where stored, strides.
  TensorMeta out;
  // Where the result is written; nullopt if only later nodes of the chain read it.
  std::optional<Operand> store;
};

// An output may share bytes with an operand only where both have equal offsets, strides and element sizes.
struct ChainRequest {
  std::vector<ChainNode> nodes;  // in order; at least the last one is stored
  Ints sizes;                    // of every result
  int num_threads = 1;
};

// Whether nodes of this operator may be part of a chain. Dtypes and layouts decide in prepare_chain.
bool is_pointwise(std::string_view op);

// nullopt: some node, dtype or layout is not covered; its nodes then run one by one. The result equals that
// of the nodes run one by one, bitwise or within prepared_tolerance() of each. Needs no workspace.
std::optional<PreparedCall> prepare_chain(const ChainRequest& request);

// The same as something to be done part by part to the last node's result, which is dense. nullopt also if
// results that are stored have different strides.
std::optional<Epilogue> prepare_chain_epilogue(const ChainRequest& request);

// The chain as what kernels do before they write an element; nullopt if a Finish cannot express it.
std::optional<Finish> finish_of(const ChainRequest& request);

}  // namespace staticrt
