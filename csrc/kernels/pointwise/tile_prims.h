// Vector primitives of the tile interpreter: each computes n elements of one operation on one class of
// values. They are compiled once per instruction set; tile_prims() gives the set this machine runs.
#pragma once

#include <cstdint>

namespace staticrt {

// What a tile holds per element. Narrower dtypes are computed in the class that contains them and rounded
// (or truncated) to their dtype after each operation, as eager does.
enum class TileClass : uint8_t { kF32, kF64, kI64, kBool };
inline constexpr int kNumTileClasses = 4;

enum class Prim : uint8_t {
  // unary
  kAbs,
  kNeg,
  kSqrt,
  kRsqrt,
  kReciprocal,
  kExp,
  kExpm1,
  kLog,
  kLog1p,
  kLog2,
  kLog10,
  kErf,
  kErfc,
  kSin,
  kCos,
  kTan,
  kTanh,
  kSigmoid,
  kSilu,
  kGelu,
  kGeluTanh,
  kSiluSlope,
  kGeluSlope,
  kGeluTanhSlope,
  kHardswish,
  kHardsigmoid,
  kMish,
  kFloor,
  kCeil,
  kRound,
  kTrunc,
  kFrac,
  kSign,
  kLogSigmoid,
  kSquare,
  kCube,
  kLogicalNot,
  kBitwiseNot,
  // unary with numbers (imm)
  kClamp,
  kClampMin,
  kClampMax,
  kLeakyRelu,
  kElu,
  kSoftplus,
  kThreshold,
  kPowNumber,
  // unary, result bool
  kIsNan,
  kIsInf,
  kNonzero,
  // binary
  kAdd,
  kSub,
  kAddScaled,
  kMul,
  kDiv,
  kMaximum,
  kMinimum,
  kPow,
  kFmod,
  kRemainder,
  kDivTrunc,
  kDivFloor,
  kAnd,
  kOr,
  kXor,
  kSigmoidBackward,
  kTanhBackward,
  kThresholdBackward,
  // binary, result bool
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  // ternary
  kWhere,
  kClampTensor,
  kAddcmul,
  kAddcdiv,
  // moves: a single element to n, and n elements
  kFill,
  kCopy,
  kCount,
};
inline constexpr int kNumPrims = static_cast<int>(Prim::kCount);

// Which operand of a binary primitive is a single element.
enum class PrimForm : uint8_t { kVectors, kScalarB, kScalarA };

// Storage formats that differ from their class's layout.
enum class RawFormat : uint8_t { kBFloat16, kHalf, kInt32, kInt16, kInt8, kUInt8 };
inline constexpr int kNumRawFormats = 6;

union Imm {
  float f32;
  double f64;
  int64_t i64;
};

// dst[i] = f(a[i], b[i], c[i]) for i < n; unused operands are null; dst may be an operand of the same element
// size. Not 0 if eager would raise (an integer divided by zero).
using PrimFn = int (*)(void* dst, const void* a, const void* b, const void* c, int64_t n, const Imm* imm);

struct RowStrides {
  int64_t element, row;  // bytes
};

struct PrimTable {
  PrimFn op[kNumPrims][kNumTileClasses][3];          // null where the class has no such operation
  PrimFn convert[kNumTileClasses][kNumTileClasses];  // [from][to]
  PrimFn load[kNumRawFormats];                       // raw -> class
  PrimFn store[kNumRawFormats];                      // class -> raw, rounding
  PrimFn round[kNumRawFormats];                      // class -> class: values the raw format holds
  PrimFn float_to_int[2][kNumRawFormats];            // [from double][to]: as static_cast to that type
  // Copies rows of n elements of 1, 2, 4 or 8 bytes (index log2).
  void (*copy_rows[4])(char* dst, RowStrides dst_strides, const char* src, RowStrides src_strides, int64_t n,
                       int64_t rows);
};

const PrimTable& tile_prims();

// One of each instruction set; only the first where the processor is not x86-64.
const PrimTable* tile_prims_default();
const PrimTable* tile_prims_avx2();
const PrimTable* tile_prims_avx512();

}  // namespace staticrt
