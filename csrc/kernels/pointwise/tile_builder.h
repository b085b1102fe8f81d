// Builds a TileProgram: operands are declared, their layouts coalesced, then operations emitted.
#pragma once

#include <c10/core/Scalar.h>

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/pointwise/tile_program.h"
#include "kernels/registry/prepare.h"

namespace staticrt {

TileClass tile_class_of(at::ScalarType dtype);
// The storage format, where it differs from the class's own layout.
std::optional<RawFormat> raw_format_of(at::ScalarType dtype);
bool tile_supports(at::ScalarType dtype);

// A value of the program while it is built.
struct Reg {
  int id = -1;
  at::ScalarType dtype = at::ScalarType::Undefined;
  bool single = false;  // one element that stands for all
  bool exact = true;    // false: not yet rounded to its dtype (narrower than its class)
  bool valid() const { return id >= 0; }
  TileClass cls() const { return tile_class_of(dtype); }
};

// Where an operand gives the same `period` elements of the iteration space again and again, for `elements` of
// them; 0 if it does not.
struct Repetition {
  int64_t period = 0;
  int64_t elements = 0;
};

class TileBuilder {
 public:
  TileBuilder(const Ints& sizes, int num_threads);

  // Operands by index. Declare all, then call layout() once; false: too many dimensions or a dtype that
  // tiles do not hold. keeps_order: elements are numbered in the order of the first output's memory.
  int declare(const TensorMeta& meta, const Operand& where, bool is_output);
  bool layout(bool keeps_order);

  Reg load(int operand);
  // A number in the class of dtype, not rounded to dtype.
  Reg number(const c10::Scalar& value, at::ScalarType dtype);
  Reg convert(Reg x, at::ScalarType dtype);
  Reg exact(Reg x);  // rounded to its dtype
  // Results have the given dtype and are not yet rounded. Operands must be of one class (kWhere: a is bool).
  // An invalid Reg if the class has no such operation.
  Reg unary(Prim prim, Reg a, at::ScalarType dtype, std::array<double, 3> imm = {});
  Reg int_unary(Prim prim, Reg a, at::ScalarType dtype, std::array<int64_t, 3> imm);
  Reg binary(Prim prim, Reg a, Reg b, at::ScalarType dtype, const c10::Scalar& imm = 0);
  Reg ternary(Prim prim, Reg a, Reg b, Reg c, at::ScalarType dtype, const c10::Scalar& imm = 0);
  void store(int operand, Reg x);

  // nullptr: more values than a program may hold.
  std::shared_ptr<TileProgram> finish();

 private:
  enum class Layout : uint8_t { kDirect, kSingle, kStrided };
  struct Declared {
    TensorMeta meta;
    Operand where;
    bool is_output;
    Layout layout = Layout::kDirect;
    std::array<int64_t, kMaxTileDims> byte_strides{};
    Reg loaded;
  };
  struct Virtual {
    enum class Kind : uint8_t { kOperand, kConstant, kTemporary } kind;
    int operand = -1;   // kOperand
    int constant = -1;  // kConstant
    int64_t bytes = 0;  // of an element
    int slot = -1;      // kTemporary, when assigned
  };
  struct Step {
    PrimFn fn;
    int dst;
    std::array<int, 3> operands;  // -1: unused
    std::array<Imm, 3> imm;
    bool is_copy = false;
  };
  struct Move {
    int value;
    int buffer;
  };

  struct Space;
  bool block(Space& space) const;
  int temporary(int64_t bytes);
  int operand_value(int operand);
  Reg vector_of(Reg x);
  Reg emit(PrimFn fn, std::array<Reg, 3> operands, at::ScalarType dtype, std::array<Imm, 3> imm, bool exact);
  bool overlaps(int output, int operand) const;
  void forward_stores();
  void find_reuses();
  bool may_take_bytes(int output, int operand) const;
  struct Slots {
    int64_t bytes = 4;  // of an element
    int count = 0;
  };
  Slots assign_slots();
  Repetition repetition(const Move& gather) const;

  Ints sizes_;
  int num_threads_;
  std::vector<Declared> operands_;
  std::vector<Virtual> values_;
  std::vector<Step> steps_;
  std::vector<Step> stores_;
  std::vector<Move> gathers_;
  std::vector<Move> scatters_;
  std::map<std::pair<int, at::ScalarType>, Reg> rounded_;
  std::map<int, Reg> filled_;
  bool may_redo_ = false;
  std::shared_ptr<TileProgram> program_;
};

}  // namespace staticrt
