#include "kernels/pointwise/tile_builder.h"

#include <c10/core/ScalarType.h>

#include <limits>

#include "common/error.h"

namespace staticrt {

using at::ScalarType;

TileClass tile_class_of(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Float:
    case ScalarType::Half:
    case ScalarType::BFloat16:
      return TileClass::kF32;
    case ScalarType::Double:
      return TileClass::kF64;
    case ScalarType::Bool:
      return TileClass::kBool;
    default:
      return TileClass::kI64;
  }
}

std::optional<RawFormat> raw_format_of(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::BFloat16:
      return RawFormat::kBFloat16;
    case ScalarType::Half:
      return RawFormat::kHalf;
    case ScalarType::Int:
      return RawFormat::kInt32;
    case ScalarType::Short:
      return RawFormat::kInt16;
    case ScalarType::Char:
      return RawFormat::kInt8;
    case ScalarType::Byte:
      return RawFormat::kUInt8;
    default:
      return std::nullopt;
  }
}

bool tile_supports(ScalarType dtype) {
  return raw_format_of(dtype) || dtype == ScalarType::Float || dtype == ScalarType::Double ||
         dtype == ScalarType::Long || dtype == ScalarType::Bool;
}

namespace {

int64_t class_bytes(TileClass cls) {
  switch (cls) {
    case TileClass::kF32:
      return 4;
    case TileClass::kBool:
      return 1;
    default:
      return 8;
  }
}

int index_of(TileClass cls) {
  return static_cast<int>(cls);
}

int64_t truncated(double x) {
  return x >= -0x1p63 && x < 0x1p63 ? static_cast<int64_t>(x) : std::numeric_limits<int64_t>::min();
}

Imm imm_of(const c10::Scalar& value, TileClass cls) {
  Imm imm{};
  // Scalar::to would throw where a number does not fit; here it becomes infinite, as eager's cast does.
  if (cls == TileClass::kF32) imm.f32 = static_cast<float>(value.toDouble());
  if (cls == TileClass::kF64) imm.f64 = value.toDouble();
  if (cls == TileClass::kI64)
    imm.i64 = value.isFloatingPoint() ? truncated(value.toDouble()) : value.toLong();
  if (cls == TileClass::kBool) imm.i64 = value.toDouble() != 0;  // little endian: its first byte is the value
  return imm;
}

}  // namespace

TileBuilder::TileBuilder(const Ints& sizes, int num_threads)
    : sizes_(sizes), num_threads_(num_threads), program_(std::make_shared<TileProgram>()) {}

int TileBuilder::declare(const TensorMeta& meta, const Operand& where, bool is_output) {
  for (size_t i = 0; i < operands_.size(); ++i) {
    const Declared& o = operands_[i];
    if (o.is_output == is_output && o.where.base == where.base &&
        o.where.offset_bytes == where.offset_bytes && o.meta.dtype == meta.dtype &&
        o.meta.sizes == meta.sizes && o.meta.strides == meta.strides) {
      return static_cast<int>(i);
    }
  }
  operands_.push_back({meta, where, is_output, {}, {}, {}});
  return static_cast<int>(operands_.size() - 1);
}

int TileBuilder::temporary(int64_t bytes) {
  values_.push_back({Virtual::Kind::kTemporary, -1, -1, bytes, -1});
  return static_cast<int>(values_.size() - 1);
}

int TileBuilder::operand_value(int operand) {
  const auto bytes = static_cast<int64_t>(c10::elementSize(operands_[operand].meta.dtype));
  values_.push_back({Virtual::Kind::kOperand, operand, -1, bytes, -1});
  return static_cast<int>(values_.size() - 1);
}

Reg TileBuilder::load(int operand) {
  Declared& o = operands_[operand];
  if (o.loaded.valid()) return o.loaded;
  const auto raw = raw_format_of(o.meta.dtype);
  Reg reg{operand_value(operand), o.meta.dtype, o.layout == Layout::kSingle, true};
  if (o.layout == Layout::kStrided || (o.layout == Layout::kSingle && raw)) {
    const int buffer = temporary(static_cast<int64_t>(c10::elementSize(o.meta.dtype)));
    gathers_.push_back({reg.id, buffer});
    reg.id = buffer;
    reg.single = false;
  }
  if (raw) reg = emit(tile_prims().load[static_cast<int>(*raw)], {reg, {}, {}}, o.meta.dtype, {}, true);
  operands_[operand].loaded = reg;
  return reg;
}

Reg TileBuilder::number(const c10::Scalar& value, ScalarType dtype) {
  program_->constants.push_back(imm_of(value, tile_class_of(dtype)));
  values_.push_back({Virtual::Kind::kConstant, -1, static_cast<int>(program_->constants.size() - 1), 8, -1});
  return {static_cast<int>(values_.size() - 1), dtype, true, true};
}

Reg TileBuilder::vector_of(Reg x) {
  if (!x.single) return x;
  const auto found = filled_.find(x.id);
  if (found != filled_.end()) return found->second;
  Reg reg{temporary(class_bytes(x.cls())), x.dtype, false, x.exact};
  steps_.push_back(
      {tile_prims().op[static_cast<int>(Prim::kFill)][index_of(x.cls())][0], reg.id, {x.id, -1, -1}, {}});
  filled_[x.id] = reg;
  return reg;
}

Reg TileBuilder::emit(PrimFn fn, std::array<Reg, 3> operands, ScalarType dtype, std::array<Imm, 3> imm,
                      bool exact) {
  if (fn == nullptr) return {};
  Reg reg{temporary(class_bytes(tile_class_of(dtype))), dtype, false, exact};
  steps_.push_back({fn, reg.id, {operands[0].id, operands[1].id, operands[2].id}, imm});
  return reg;
}

Reg TileBuilder::exact(Reg x) {
  if (x.exact) return x;
  const auto raw = raw_format_of(x.dtype);
  if (!raw) return {x.id, x.dtype, x.single, true};
  const std::pair key{x.id, x.dtype};  // one value may be rounded to several dtypes
  const auto found = rounded_.find(key);
  if (found != rounded_.end()) return found->second;
  const Reg reg = emit(tile_prims().round[static_cast<int>(*raw)], {vector_of(x), {}, {}}, x.dtype, {}, true);
  rounded_[key] = reg;
  return reg;
}

Reg TileBuilder::convert(Reg x, ScalarType dtype) {
  x = exact(x);
  if (x.dtype == dtype) return x;
  const TileClass from = x.cls();
  const TileClass to = tile_class_of(dtype);
  const auto raw = raw_format_of(dtype);
  // Values of a narrower dtype of the same class are kept as they are where the target holds them all.
  const bool widens = from == to && (!raw || c10::promoteTypes(x.dtype, dtype) == dtype);
  if (widens) return {x.id, dtype, x.single, true};
  if (from == to) return {x.id, dtype, x.single, false};
  x = vector_of(x);
  const auto& table = tile_prims();
  if (from <= TileClass::kF64 && to == TileClass::kI64 && raw) {
    return emit(table.float_to_int[from == TileClass::kF64][static_cast<int>(*raw)], {x, {}, {}}, dtype, {},
                true);
  }
  const bool rounds = raw && !(from == TileClass::kBool);
  return emit(table.convert[index_of(from)][index_of(to)], {x, {}, {}}, dtype, {}, !rounds);
}

Reg TileBuilder::unary(Prim prim, Reg a, ScalarType dtype, std::array<double, 3> imm) {
  std::array<Imm, 3> imms{};
  for (int k = 0; k < 3; ++k) imms[k] = imm_of(imm[k], a.cls());
  return emit(tile_prims().op[static_cast<int>(prim)][index_of(a.cls())][0], {vector_of(exact(a)), {}, {}},
              dtype, imms, tile_class_of(dtype) == TileClass::kBool);
}

Reg TileBuilder::int_unary(Prim prim, Reg a, ScalarType dtype, std::array<int64_t, 3> imm) {
  std::array<Imm, 3> imms{};
  for (int k = 0; k < 3; ++k) imms[k].i64 = imm[k];
  return emit(tile_prims().op[static_cast<int>(prim)][index_of(a.cls())][0], {vector_of(exact(a)), {}, {}},
              dtype, imms, false);
}

Reg TileBuilder::binary(Prim prim, Reg a, Reg b, ScalarType dtype, const c10::Scalar& imm) {
  SRT_INTERNAL(a.cls() == b.cls(), "operands of one tile step have two classes");
  a = exact(a);
  b = exact(b);
  if (a.single && b.single) a = vector_of(a);
  const int form = b.single ? 1 : a.single ? 2 : 0;
  const bool divides =
      prim == Prim::kDivTrunc || prim == Prim::kDivFloor || prim == Prim::kFmod || prim == Prim::kRemainder;
  may_redo_ |= divides && a.cls() == TileClass::kI64;
  return emit(tile_prims().op[static_cast<int>(prim)][index_of(a.cls())][form], {a, b, {}}, dtype,
              {imm_of(imm, a.cls()), Imm{}, Imm{}}, tile_class_of(dtype) == TileClass::kBool);
}

Reg TileBuilder::ternary(Prim prim, Reg a, Reg b, Reg c, ScalarType dtype, const c10::Scalar& imm) {
  SRT_INTERNAL(b.cls() == c.cls(), "operands of one tile step have two classes");
  const TileClass cls = b.cls();
  return emit(tile_prims().op[static_cast<int>(prim)][index_of(cls)][0],
              {vector_of(exact(a)), vector_of(exact(b)), vector_of(exact(c))}, dtype,
              {imm_of(imm, cls), Imm{}, Imm{}}, prim == Prim::kWhere);
}

void TileBuilder::store(int operand, Reg x) {
  const Declared& o = operands_[operand];
  const auto raw = raw_format_of(o.meta.dtype);
  const int target = operand_value(operand);
  const bool strided = o.layout != Layout::kDirect;
  // Storing rounds, so an inexact value need not be rounded first.
  if (strided && !raw) {
    scatters_.push_back({target, vector_of(x).id});
    return;
  }
  const int dst = strided ? temporary(values_[target].bytes) : target;
  if (strided) scatters_.push_back({target, dst});
  if (raw) {
    stores_.push_back({tile_prims().store[static_cast<int>(*raw)], dst, {vector_of(x).id, -1, -1}, {}});
  } else {
    const Prim prim = x.single ? Prim::kFill : Prim::kCopy;
    stores_.push_back(
        {tile_prims().op[static_cast<int>(prim)][index_of(x.cls())][0], dst, {x.id, -1, -1}, {}, !x.single});
  }
}

}  // namespace staticrt
