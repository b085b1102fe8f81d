#include "kernels/tile_builder.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

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

// Rows shorter than this are gathered into tiles instead of run one by one.
constexpr int64_t kMinRow = 64;

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

bool TileBuilder::layout() {
  const size_t rank = sizes_.size();
  std::vector<std::vector<int64_t>> strides(operands_.size(), std::vector<int64_t>(rank, 0));  // bytes
  for (size_t i = 0; i < operands_.size(); ++i) {
    const Declared& o = operands_[i];
    if (!tile_supports(o.meta.dtype) || o.meta.sizes.size() > rank) return false;
    const auto bytes = static_cast<int64_t>(c10::elementSize(o.meta.dtype));
    const size_t lead = rank - o.meta.sizes.size();
    for (size_t d = lead; d < rank; ++d) {
      if (o.meta.sizes[d - lead] == sizes_[d]) {
        strides[i][d] = sizes_[d] == 1 ? 0 : o.meta.strides[d - lead] * bytes;
      } else if (o.meta.sizes[d - lead] != 1) {
        return false;
      }
    }
  }
  // Innermost first; dims of one element vanish; order by the first output's strides.
  std::vector<size_t> dims;
  for (size_t d = rank; d-- > 0;) {
    if (sizes_[d] != 1) dims.push_back(d);
  }
  const auto output =
      std::find_if(operands_.begin(), operands_.end(), [](const Declared& o) { return o.is_output; });
  if (output != operands_.end()) {
    const auto& key = strides[static_cast<size_t>(output - operands_.begin())];
    std::stable_sort(dims.begin(), dims.end(), [&](size_t x, size_t y) { return key[x] < key[y]; });
  }
  TileProgram& p = *program_;
  p.numel = std::accumulate(sizes_.begin(), sizes_.end(), int64_t{1}, std::multiplies<>());
  std::vector<std::vector<int64_t>> merged(operands_.size());
  std::vector<int64_t> sizes;
  for (const size_t d : dims) {
    bool joins = !sizes.empty();
    for (size_t i = 0; joins && i < operands_.size(); ++i) {
      joins = strides[i][d] == merged[i].back() * sizes.back();
    }
    if (joins) {
      sizes.back() *= sizes_[d];
      continue;
    }
    sizes.push_back(sizes_[d]);
    for (size_t i = 0; i < operands_.size(); ++i) merged[i].push_back(strides[i][d]);
  }
  const bool one_element = sizes.empty();
  if (one_element) sizes.push_back(1);
  if (sizes.size() > kMaxTileDims) return false;
  p.num_dims = static_cast<int>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), p.sizes);
  p.row_mode = p.num_dims > 1 && p.sizes[0] >= kMinRow;
  p.num_threads = num_threads_;
  for (size_t i = 0; i < operands_.size(); ++i) {
    Declared& o = operands_[i];
    const auto bytes = static_cast<int64_t>(c10::elementSize(o.meta.dtype));
    std::copy(merged[i].begin(), merged[i].end(), o.byte_strides.begin());
    if (one_element) {
      o.byte_strides[0] = bytes;
      continue;  // kDirect
    }
    bool dense = o.byte_strides[0] == bytes;
    bool single = o.byte_strides[0] == 0;
    for (int d = 1; d < p.num_dims && !p.row_mode; ++d) {
      dense &= o.byte_strides[d] == o.byte_strides[d - 1] * p.sizes[d - 1];
      single &= o.byte_strides[d] == 0;
    }
    o.layout = dense ? Layout::kDirect : single ? Layout::kSingle : Layout::kStrided;
  }
  return true;
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
  const auto found = rounded_.find(x.id);
  if (found != rounded_.end()) return found->second;
  const Reg reg = emit(tile_prims().round[static_cast<int>(*raw)], {vector_of(x), {}, {}}, x.dtype, {}, true);
  rounded_[x.id] = reg;
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

bool TileBuilder::overlaps(int output, int operand) const {
  const Declared& x = operands_[output];
  const Declared& y = operands_[operand];
  if (x.where.base != y.where.base) return false;
  const auto end = [](const Declared& o) {
    int64_t last = 0;
    for (size_t d = 0; d < o.meta.sizes.size(); ++d) last += (o.meta.sizes[d] - 1) * o.meta.strides[d];
    return o.where.offset_bytes + (last + 1) * static_cast<int64_t>(c10::elementSize(o.meta.dtype));
  };
  return x.where.offset_bytes < end(y) && y.where.offset_bytes < end(x);
}

// Lets the step that makes a stored value write it straight to its output, unless a later step still reads
// an operand whose bytes the output takes.
void TileBuilder::forward_stores() {
  for (Step& store : stores_) {
    if (!store.is_copy || values_[store.operands[0]].kind != Virtual::Kind::kTemporary) continue;
    const int value = store.operands[0];
    const auto producer =
        std::find_if(steps_.begin(), steps_.end(), [&](const Step& s) { return s.dst == value; });
    if (producer == steps_.end()) continue;  // gathered
    const int output = values_[store.dst].operand;
    bool safe = true;
    const auto check = [&](const Step& step) {
      for (const int v : step.operands) {
        if (v >= 0 && values_[v].kind == Virtual::Kind::kOperand &&
            !operands_[values_[v].operand].is_output) {
          safe &= !overlaps(output, values_[v].operand);
        }
      }
    };
    for (auto later = producer + 1; later != steps_.end(); ++later) check(*later);
    for (const Step& other : stores_) check(other);
    if (!safe) continue;
    const int target = store.dst;
    const auto replace = [&](Step& step) {
      if (step.dst == value) step.dst = target;
      for (int& v : step.operands) {
        if (v == value) v = target;
      }
    };
    for (Step& step : steps_) replace(step);
    for (Step& other : stores_) {
      if (&other != &store) replace(other);
    }
    for (Move& move : scatters_) {
      if (move.buffer == value) move.buffer = target;
    }
    store.fn = nullptr;
  }
  for (Step& store : stores_) {
    if (store.fn != nullptr) steps_.push_back(store);
  }
}

// Both have the same elements at the same offsets, and no step reads the operand after one wrote the output.
bool TileBuilder::may_take_bytes(int output, int operand) const {
  const Declared& out = operands_[output];
  const Declared& in = operands_[operand];
  const auto bytes = [](const Declared& o) { return c10::elementSize(o.meta.dtype); };
  if (out.where.offset_bytes != in.where.offset_bytes || bytes(out) != bytes(in) || in.layout != out.layout)
    return false;
  for (int d = 0; d < program_->num_dims; ++d) {
    if (out.byte_strides[d] != in.byte_strides[d] || out.byte_strides[d] == 0) return false;
  }
  bool is_written = false;
  for (const Step& step : steps_) {
    for (const int v : step.operands) {
      if (is_written && v >= 0 && values_[v].kind == Virtual::Kind::kOperand && values_[v].operand == operand)
        return false;
    }
    is_written |= values_[step.dst].kind == Virtual::Kind::kOperand && values_[step.dst].operand == output;
  }
  return true;
}

void TileBuilder::find_reuses() {
  if (may_redo_) return;
  for (size_t in = 0; in < operands_.size(); ++in) {
    if (operands_[in].is_output) continue;
    for (size_t out = 0; out < operands_.size(); ++out) {
      if (!operands_[out].is_output) continue;
      bool all = true;  // that are read of these bytes
      for (size_t other = 0; other < operands_.size(); ++other) {
        if (!operands_[other].is_output && operands_[other].where.base == operands_[in].where.base)
          all &= may_take_bytes(static_cast<int>(out), static_cast<int>(other));
      }
      const Reuse reuse{operands_[in].where.base, operands_[out].where.base};
      const auto same = [&](const Reuse& r) { return r.input == reuse.input && r.output == reuse.output; };
      auto& found = program_->reuses;
      if (all && std::none_of(found.begin(), found.end(), same)) found.push_back(reuse);
    }
  }
}

// Linear scan: a buffer is free again after its value's last use. Gathered values are live from the start,
// scattered ones to the end.
bool TileBuilder::assign_slots(int64_t* slot_bytes, int* num_slots) {
  const int end = static_cast<int>(steps_.size());
  std::vector<int> last(values_.size(), -2);
  for (int s = 0; s < end; ++s) {
    for (const int v : steps_[s].operands) {
      if (v >= 0) last[v] = s;
    }
    last[steps_[s].dst] = std::max(last[steps_[s].dst], s);
  }
  for (const Move& move : scatters_) last[move.buffer] = end;
  std::vector<int> free;
  *num_slots = 0;
  *slot_bytes = 4;
  const auto take = [&](int v) {
    Virtual& value = values_[v];
    if (value.kind != Virtual::Kind::kTemporary || value.slot >= 0) return;
    *slot_bytes = std::max(*slot_bytes, value.bytes);
    if (free.empty()) free.push_back((*num_slots)++);
    value.slot = free.back();
    free.pop_back();
  };
  for (const Move& move : gathers_) take(move.buffer);
  for (int s = 0; s < end; ++s) {
    take(steps_[s].dst);
    std::vector<int> ends(steps_[s].operands.begin(), steps_[s].operands.end());
    ends.push_back(steps_[s].dst);
    std::sort(ends.begin(), ends.end());
    ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
    for (const int v : ends) {
      if (v >= 0 && last[v] == s && values_[v].kind == Virtual::Kind::kTemporary)
        free.push_back(values_[v].slot);
    }
  }
  return true;
}

std::shared_ptr<TileProgram> TileBuilder::finish() {
  forward_stores();
  find_reuses();
  int64_t slot_bytes = 0;
  int num_slots = 0;
  assign_slots(&slot_bytes, &num_slots);
  TileProgram& p = *program_;
  p.tile = 2048;
  if (num_slots > 0) p.tile = std::min(p.tile, kTileBufferBytes / (num_slots * slot_bytes) / 64 * 64);
  if (p.tile == 0 || values_.size() > kMaxTileValues) return nullptr;
  for (const Virtual& value : values_) {
    TileValue at;
    std::array<int64_t, kMaxTileDims> strides{};
    if (value.kind == Virtual::Kind::kTemporary) {
      at.offset = std::max(value.slot, 0) * p.tile * slot_bytes;
    } else if (value.kind == Virtual::Kind::kConstant) {
      at.root = TileValue::kConstant;
      at.offset = value.constant * static_cast<int64_t>(sizeof(Imm));
    } else {
      const Declared& o = operands_[value.operand];
      at.root = o.where.base;
      at.offset = o.where.offset_bytes;
      at.step = o.layout == Layout::kDirect ? static_cast<int32_t>(value.bytes) : 0;
      strides = o.byte_strides;
      if (p.row_mode) p.moving.push_back(static_cast<uint16_t>(p.values.size()));
    }
    p.values.push_back(at);
    p.byte_strides.push_back(strides);
  }
  for (const Step& step : steps_) {
    TileStep out;
    out.fn = step.fn;
    out.dst = static_cast<uint16_t>(step.dst);
    uint16_t* const at[3] = {&out.a, &out.b, &out.c};
    for (int k = 0; k < 3; ++k)
      *at[k] = step.operands[k] < 0 ? out.dst : static_cast<uint16_t>(step.operands[k]);
    std::copy(step.imm.begin(), step.imm.end(), out.imm);
    p.steps.push_back(out);
  }
  const auto move = [&](const Move& m) {
    return TileMove{static_cast<uint16_t>(m.value), static_cast<uint16_t>(m.buffer),
                    static_cast<uint8_t>(std::countr_zero(static_cast<uint64_t>(values_[m.value].bytes)))};
  };
  for (const Move& m : gathers_) p.gathers.push_back(move(m));
  for (const Move& m : scatters_) p.scatters.push_back(move(m));
  return program_;
}

}  // namespace staticrt
