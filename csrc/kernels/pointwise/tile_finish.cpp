// The end of building a tile program: values stored where they are made, inputs whose bytes a result may
// take, slots for temporaries, and the finished tables.
#include <algorithm>
#include <bit>

#include "common/tuning.h"
#include "kernels/pointwise/tile_builder.h"

namespace staticrt {

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
  const auto is_input = [&](int value) {
    const Virtual& v = values_[value];
    return v.kind == Virtual::Kind::kOperand && !operands_[v.operand].is_output;
  };
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
        if (v >= 0 && is_input(v)) safe &= !overlaps(output, values_[v].operand);
      }
    };
    for (auto later = producer + 1; later != steps_.end(); ++later) check(*later);
    for (const Step& other : stores_) check(other);
    for (const Move& move : scatters_) {  // last of all
      if (is_input(move.buffer)) safe &= !overlaps(output, values_[move.buffer].operand);
    }
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

// Both have the same elements at the same offsets, and nothing reads the operand after the output was
// written: no step, nor a scattered store, which takes an operand that is stored as it is from where it lies.
bool TileBuilder::may_take_bytes(int output, int operand) const {
  const Declared& out = operands_[output];
  const Declared& in = operands_[operand];
  const auto bytes = [](const Declared& o) { return c10::elementSize(o.meta.dtype); };
  if (out.where.offset_bytes != in.where.offset_bytes || bytes(out) != bytes(in) || in.layout != out.layout)
    return false;
  for (int d = 0; d < program_->num_dims; ++d) {
    if (out.byte_strides[d] != in.byte_strides[d] || out.byte_strides[d] == 0) return false;
  }
  const auto is_operand = [&](int value, int wanted) {
    return values_[value].kind == Virtual::Kind::kOperand && values_[value].operand == wanted;
  };
  bool is_written = false;
  for (const Step& step : steps_) {
    for (const int v : step.operands) {
      if (is_written && v >= 0 && is_operand(v, operand)) return false;
    }
    is_written |= is_operand(step.dst, output);
  }
  for (const Move& move : scatters_) {
    if (is_written && is_operand(move.buffer, operand)) return false;
    is_written |= is_operand(move.value, output);
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
// scattered ones to the end, as are those that later tiles read.
TileBuilder::Slots TileBuilder::assign_slots() {
  const int end = static_cast<int>(steps_.size());
  std::vector<int> last(values_.size(), -2);
  for (int s = 0; s < end; ++s) {
    for (const int v : steps_[s].operands) {
      if (v >= 0) last[v] = s;
    }
    last[steps_[s].dst] = std::max(last[steps_[s].dst], s);
  }
  for (const Move& move : scatters_) last[move.buffer] = end;
  for (const Move& move : gathers_) {
    if (repetition(move).elements > 0) last[move.buffer] = end;
  }
  std::vector<int> free;
  Slots slots;
  const auto take = [&](int v) {
    Virtual& value = values_[v];
    if (value.kind != Virtual::Kind::kTemporary || value.slot >= 0) return;
    slots.bytes = std::max(slots.bytes, value.bytes);
    if (free.empty()) free.push_back(slots.count++);
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
  return slots;
}

// Exponentials, logarithms and what is made of them.
static bool is_long(PrimFn fn) {
  const auto& table = tile_prims().op;
  for (int prim = static_cast<int>(Prim::kExp); prim <= static_cast<int>(Prim::kMish); ++prim) {
    for (const auto& forms : table[prim]) {
      if (fn == forms[0]) return true;
    }
  }
  return false;
}

std::shared_ptr<TileProgram> TileBuilder::finish() {
  constexpr int64_t kRows = 16;  // that are transposed together
  forward_stores();
  find_reuses();
  const Slots slots = assign_slots();
  TileProgram& p = *program_;
  p.tile = 2048;
  if (slots.count > 0) p.tile = std::min(p.tile, kTileBufferBytes / (slots.count * slots.bytes) / 64 * 64);
  if (p.tile == 0 || values_.size() > kMaxTileValues) return nullptr;
  const int64_t slot_bytes = p.tile * slots.bytes;
  // A tile that is a multiple of each period leaves what repeats where it was gathered.
  const bool is_tiled = p.numel > 0 && !p.row_mode && p.num_dims > 1 && !gathers_.empty();
  int64_t unit = p.sizes[0];
  if (is_tiled && gathers_.size() <= kMaxRepeatedMoves) {
    for (const Move& m : gathers_) unit = std::max(unit, repetition(m).period);
  }
  if (unit > p.tile) unit = p.sizes[0];
  if (is_tiled && unit <= p.tile) {
    const int64_t units = p.tile / unit;
    p.tile = unit * (units > kRows ? units / kRows * kRows : units);
  }
  const auto repeats = [&](const Move& m) {
    const Repetition found = repetition(m);
    const bool holds = is_tiled && gathers_.size() <= kMaxRepeatedMoves && found.period > 0;
    return holds && p.tile % found.period == 0 ? found.elements : 0;
  };
  for (const Virtual& value : values_) {
    TileValue at;
    std::array<int64_t, kMaxTileDims> strides{};
    if (value.kind == Virtual::Kind::kTemporary) {
      at.offset = std::max(value.slot, 0) * slot_bytes;
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
    p.operations += is_long(step.fn) ? tuning::kLongPrimOperations : 1;
  }
  const auto move = [&](const Move& m) {
    return TileMove{static_cast<uint16_t>(m.value), static_cast<uint16_t>(m.buffer),
                    static_cast<uint8_t>(std::countr_zero(static_cast<uint64_t>(values_[m.value].bytes)))};
  };
  for (const Move& m : gathers_) {
    p.gathers.push_back(move(m));
    p.gathers.back().repeats = repeats(m);
  }
  for (const Move& m : scatters_) p.scatters.push_back(move(m));
  return program_;
}

}  // namespace staticrt
