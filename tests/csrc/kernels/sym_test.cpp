// sym:: arithmetic against CPython's own answers.
#include <cmath>

#include "common/error.h"
#include "kernels/registry/registry.h"
#include "test.h"

namespace {

using c10::IValue;

// Where Python raises, gives a complex number, or an int beyond 64 bits.
const IValue kThrows;

IValue i(int64_t value) {
  return value;
}

std::vector<IValue> run(const char* name, const std::vector<IValue>& args) {
  const staticrt::Kernel* kernel = staticrt::find_kernel(name);
  if (!kernel) throw std::logic_error(std::string("no kernel ") + name);
  std::vector<IValue> slots = args;
  slots.emplace_back();
  std::vector<staticrt::ValueId> ids;
  std::vector<staticrt::Arg> table;
  for (uint32_t k = 0; k < args.size(); ++k) {
    ids.push_back(k);
    table.push_back({k, 1, false});
  }
  const auto n = static_cast<uint32_t>(args.size());
  staticrt::Operands op(slots.data(), ids.data(), table.data(), n, n, 1);
  kernel->run(op);
  return {slots.back()};
}

bool same(const IValue& got, const IValue& want) {
  if (got.tagKind() != want.tagKind()) return false;
  if (!got.isDouble()) return got.equals(want).toBool();
  return got.toDouble() == want.toDouble() && std::signbit(got.toDouble()) == std::signbit(want.toDouble());
}

void expect(const char* name, const std::vector<IValue>& args, const IValue& want) {
  std::ostringstream text;
  text << name;
  for (const IValue& arg : args) text << " " << arg;
  try {
    const IValue got = run(name, args)[0];
    text << ": got " << got << " " << got.tagKind() << ", want " << want << " " << want.tagKind();
    if (want.isNone() || !same(got, want)) throw staticrt::test::Failure(text.str());
  } catch (const staticrt::InputError& error) {
    if (!want.isNone()) throw staticrt::test::Failure(text.str() + ": " + error.what());
  }
}

struct Row {
  const char* name;
  IValue a, b, want;
};

}  // namespace

// Made by evaluating the `operator` functions in CPython 3.11 on ints, floats and bools at their edges.
TEST(binary_number_ops_are_pythons) {
  const std::vector<Row> rows = {
      {"sym::add", i(-4611686018427387904), i(0), i(-4611686018427387904)},
      {"sym::add", i(1), -0x1.4000000000000p+1, -0x1.8000000000000p+0},
      {"sym::add", -0x0.0p+0, i(-1), -0x1.0000000000000p+0},
      {"sym::add", 0x1.7e43c8800759cp+996, 0x1.7e43c8800759cp+996, 0x1.7e43c8800759cp+997},
      {"sym::add", 0x1.4000000000000p+1, -0x1.4000000000000p+1, 0x0.0p+0},
      {"sym::add", -0x0.0p+0, i(3), 0x1.8000000000000p+1},
      {"sym::add", i(-1), 0x1.c000000000000p+2, 0x1.8000000000000p+2},
      {"sym::add", true, i(3), i(4)},
      {"sym::add", i(9007199254740993), 0x0.0p+0, 0x1.0000000000000p+53},
      {"sym::sub", false, true, i(-1)},
      {"sym::sub", i(3), 0x1.c000000000000p+2, -0x1.0000000000000p+2},
      {"sym::sub", 0x0.0p+0, 0x1.0000000000000p-1, -0x1.0000000000000p-1},
      {"sym::sub", 0x1.4000000000000p+1, 0x1.0000000000000p-1, 0x1.0000000000000p+1},
      {"sym::sub", 0x1.4000000000000p+1, i(0), 0x1.4000000000000p+1},
      {"sym::sub", 0x1.4000000000000p+1, i(7), -0x1.2000000000000p+2},
      {"sym::sub", i(1), 0x1.4000000000000p+1, -0x1.8000000000000p+0},
      {"sym::sub", 0x1.4000000000000p+1, -0x1.4000000000000p+1, 0x1.4000000000000p+2},
      {"sym::sub", true, -0x0.0p+0, 0x1.0000000000000p+0},
      {"sym::sub", i(-7), i(9223372036854775807), kThrows},
      {"sym::mul", -0x0.0p+0, 0x0.0p+0, -0x0.0p+0},
      {"sym::mul", i(-4611686018427387904), false, i(0)},
      {"sym::mul", 0x1.0000000000000p-1, false, 0x0.0p+0},
      {"sym::mul", i(1), i(3), i(3)},
      {"sym::mul", i(-1), i(7), i(-7)},
      {"sym::mul", true, 0x1.0000000000000p-1, 0x1.0000000000000p-1},
      {"sym::mul", 0x1.4000000000000p+1, true, 0x1.4000000000000p+1},
      {"sym::mul", i(0), 0x0.0p+0, 0x0.0p+0},
      {"sym::mul", i(-4611686018427387904), i(-4611686018427387904), kThrows},
      {"sym::mul", i(-4611686018427387904), i(3), kThrows},
      {"sym::floordiv", i(9223372036854775807), true, i(9223372036854775807)},
      {"sym::floordiv", 0x1.0000000000000p-1, i(7), 0x0.0p+0},
      {"sym::floordiv", -0x0.0p+0, i(3), -0x0.0p+0},
      {"sym::floordiv", false, i(-4611686018427387904), i(0)},
      {"sym::floordiv", 0x1.4000000000000p+1, -0x1.4000000000000p+1, -0x1.0000000000000p+0},
      {"sym::floordiv", i(-1), i(-7), i(0)},
      {"sym::floordiv", i(9007199254740993), 0x1.4000000000000p+1, 0x1.9999999999998p+51},
      {"sym::floordiv", i(9007199254740993), true, i(9007199254740993)},
      {"sym::floordiv", i(-4611686018427387904), i(-4611686018427387904), i(1)},
      {"sym::floordiv", 0x1.4000000000000p+1, false, kThrows},
      {"sym::floordiv", i(7), 0x0.0p+0, kThrows},
      {"sym::floordiv", -0x0.0p+0, false, kThrows},
      {"sym::truediv", i(9007199254740993), i(-4611686018427387904), -0x1.0000000000000p-9},
      {"sym::truediv", i(-1), i(9223372036854775807), -0x1.0000000000000p-63},
      {"sym::truediv", true, 0x1.c000000000000p+2, 0x1.2492492492492p-3},
      {"sym::truediv", i(9223372036854775807), i(9223372036854775807), 0x1.0000000000000p+0},
      {"sym::truediv", i(-4611686018427387904), 0x1.7e43c8800759cp+996, -0x1.56e1fc2f8f359p-935},
      {"sym::truediv", i(7), i(3), 0x1.2aaaaaaaaaaabp+1},
      {"sym::truediv", -0x0.0p+0, i(9223372036854775807), -0x0.0p+0},
      {"sym::truediv", false, i(9007199254740993), 0x0.0p+0},
      {"sym::truediv", -0x1.4000000000000p+1, i(-1), 0x1.4000000000000p+1},
      {"sym::truediv", false, false, kThrows},
      {"sym::truediv", i(-7), i(0), kThrows},
      {"sym::truediv", 0x1.0000000000000p-1, false, kThrows},
      {"sym::mod", i(3), 0x1.4000000000000p+1, 0x1.0000000000000p-1},
      {"sym::mod", i(3), i(-1), i(0)},
      {"sym::mod", i(9223372036854775807), i(3), i(1)},
      {"sym::mod", -0x1.4000000000000p+1, i(9223372036854775807), 0x1.0000000000000p+63},
      {"sym::mod", i(-7), 0x1.c000000000000p+2, 0x0.0p+0},
      {"sym::mod", i(9007199254740993), i(-7), i(-2)},
      {"sym::mod", i(-1), i(9007199254740993), i(9007199254740992)},
      {"sym::mod", i(9223372036854775807), true, i(0)},
      {"sym::mod", i(0), i(3), i(0)},
      {"sym::mod", i(0), -0x0.0p+0, kThrows},
      {"sym::mod", i(9223372036854775807), 0x0.0p+0, kThrows},
      {"sym::pow", true, i(0), i(1)},
      {"sym::pow", i(9223372036854775807), i(-7), 0x1.0000000000000p-441},
      {"sym::pow", i(3), true, i(3)},
      {"sym::pow", 0x0.0p+0, i(7), 0x0.0p+0},
      {"sym::pow", 0x0.0p+0, 0x1.0000000000000p-1, 0x0.0p+0},
      {"sym::pow", 0x1.4000000000000p+1, i(7), 0x1.312d000000000p+9},
      {"sym::pow", false, 0x0.0p+0, 0x1.0000000000000p+0},
      {"sym::pow", i(1), i(-7), 0x1.0000000000000p+0},
      {"sym::pow", i(7), 0x0.0p+0, 0x1.0000000000000p+0},
      {"sym::pow", i(0), i(-7), kThrows},
      {"sym::pow", i(9007199254740993), i(3), kThrows},
      {"sym::pow", i(3), 0x1.7e43c8800759cp+996, kThrows},
      {"sym::eq", 0x1.4000000000000p+1, false, false},
      {"sym::eq", false, i(0), true},
      {"sym::eq", 0x0.0p+0, 0x0.0p+0, true},
      {"sym::eq", i(0), i(9223372036854775807), false},
      {"sym::eq", i(-1), -0x1.4000000000000p+1, false},
      {"sym::eq", i(-1), i(1), false},
      {"sym::eq", i(-7), 0x1.7e43c8800759cp+996, false},
      {"sym::eq", i(9223372036854775807), i(1), false},
      {"sym::eq", i(9223372036854775807), i(-4611686018427387904), false},
      {"sym::lt", i(0), i(-1), false},
      {"sym::lt", 0x0.0p+0, i(-1), false},
      {"sym::lt", 0x1.c000000000000p+2, i(1), false},
      {"sym::lt", -0x1.4000000000000p+1, i(-4611686018427387904), false},
      {"sym::lt", true, -0x1.4000000000000p+1, false},
      {"sym::lt", i(9007199254740993), i(3), false},
      {"sym::lt", 0x0.0p+0, i(-7), false},
      {"sym::lt", i(-7), i(1), true},
      {"sym::lt", 0x1.7e43c8800759cp+996, i(7), false},
      {"sym::le", 0x1.c000000000000p+2, -0x1.4000000000000p+1, false},
      {"sym::le", i(-4611686018427387904), 0x0.0p+0, true},
      {"sym::le", i(-1), true, true},
      {"sym::le", -0x1.4000000000000p+1, i(9007199254740993), true},
      {"sym::le", 0x0.0p+0, 0x1.4000000000000p+1, true},
      {"sym::le", i(-1), i(-4611686018427387904), false},
      {"sym::le", -0x0.0p+0, i(7), true},
      {"sym::le", 0x1.c000000000000p+2, true, false},
      {"sym::le", i(9223372036854775807), -0x1.4000000000000p+1, false},
      {"sym::min", i(1), i(-1), i(-1)},
      {"sym::min", 0x1.0000000000000p-1, i(0), i(0)},
      {"sym::min", i(9007199254740993), i(9223372036854775807), i(9007199254740993)},
      {"sym::min", 0x0.0p+0, i(9007199254740993), 0x0.0p+0},
      {"sym::min", 0x1.7e43c8800759cp+996, i(-4611686018427387904), i(-4611686018427387904)},
      {"sym::min", i(-1), 0x1.4000000000000p+1, i(-1)},
      {"sym::min", -0x1.4000000000000p+1, 0x1.4000000000000p+1, -0x1.4000000000000p+1},
      {"sym::min", i(9007199254740993), false, false},
      {"sym::min", i(-1), i(0), i(-1)},
      {"sym::max", i(3), i(9007199254740993), i(9007199254740993)},
      {"sym::max", -0x0.0p+0, i(1), i(1)},
      {"sym::max", true, i(7), i(7)},
      {"sym::max", -0x1.4000000000000p+1, i(7), i(7)},
      {"sym::max", i(-7), i(9007199254740993), i(9007199254740993)},
      {"sym::max", true, 0x0.0p+0, true},
      {"sym::max", i(9223372036854775807), 0x1.7e43c8800759cp+996, 0x1.7e43c8800759cp+996},
      {"sym::max", i(-7), i(0), i(0)},
      {"sym::max", i(9223372036854775807), -0x0.0p+0, i(9223372036854775807)},
      {"sym::lshift", i(3), true, i(6)},
      {"sym::lshift", i(0), true, i(0)},
      {"sym::lshift", -0x1.4000000000000p+1, i(-4611686018427387904), kThrows},
      {"sym::lshift", 0x1.0000000000000p-1, i(-7), kThrows},
      {"sym::lshift", 0x1.4000000000000p+1, 0x1.0000000000000p-1, kThrows},
      {"sym::rshift", i(3), true, i(1)},
      {"sym::rshift", i(9007199254740993), i(9007199254740993), i(0)},
      {"sym::rshift", i(-7), i(7), i(-1)},
      {"sym::rshift", i(7), i(9007199254740993), i(0)},
      {"sym::rshift", i(9223372036854775807), true, i(4611686018427387903)},
      {"sym::rshift", false, false, i(0)},
      {"sym::rshift", 0x1.0000000000000p-1, 0x1.4000000000000p+1, kThrows},
      {"sym::rshift", -0x1.4000000000000p+1, 0x1.0000000000000p-1, kThrows},
      {"sym::rshift", 0x1.4000000000000p+1, i(0), kThrows},
  };
  for (const Row& row : rows) expect(row.name, {row.a, row.b}, row.want);
}

TEST(rounding_is_pythons) {
  expect("sym::round", {2.5}, i(2));
  expect("sym::round", {-3.5}, i(-4));
  expect("sym::round", {0.49999999999999994}, i(0));
  expect("sym::round", {2.675, i(2)}, 2.67);
  expect("sym::round", {2.5, i(0)}, 2.0);
  expect("sym::round", {1234.5, i(-2)}, 1200.0);
  expect("sym::round", {i(25), i(-1)}, i(20));
  expect("sym::round", {i(-35), i(-1)}, i(-40));
  expect("sym::round", {i(7), IValue()}, i(7));
  expect("sym::floor", {-2.5}, i(-3));
  expect("sym::ceil", {-2.5}, i(-2));
  expect("sym::trunc", {-2.5}, i(-2));
  expect("sym::int", {true}, i(1));
  expect("sym::int", {1e19}, kThrows);
  expect("sym::int", {std::nan("")}, kThrows);
  expect("sym::float", {i(3)}, 3.0);
  expect("sym::bool", {0.0}, false);
  expect("sym::is_integer", {2.0}, true);
  expect("sym::is_integer", {2.5}, false);
}

TEST(comparing_int_with_float_is_exact) {
  const int64_t big = (int64_t{1} << 53) + 1;
  expect("sym::eq", {i(big), 0x1p53}, false);
  expect("sym::gt", {i(big), 0x1p53}, true);
  expect("sym::lt", {0x1p53, i(big)}, true);
  expect("sym::lt", {i(INT64_MAX), 0x1p63}, true);
  expect("sym::ge", {i(-3), -3.5}, true);
  expect("sym::ge", {std::nan(""), i(1)}, false);
  expect("sym::ne", {std::nan(""), std::nan("")}, true);
}

TEST(other_number_ops_are_pythons) {
  expect("sym::neg", {i(INT64_MIN)}, kThrows);
  expect("sym::abs", {-0.0}, 0.0);
  expect("sym::abs", {true}, i(1));
  expect("sym::pos", {true}, i(1));
  expect("sym::invert", {i(5)}, i(-6));
  expect("sym::not", {i(0)}, true);
  expect("sym::and", {true, false}, false);
  expect("sym::and", {i(6), true}, i(0));
  expect("sym::or", {i(6), i(1)}, i(7));
  expect("sym::xor", {true, true}, false);
  expect("sym::xor", {i(6), 1.0}, kThrows);
  expect("sym::ite", {false, i(1), 2.5}, 2.5);
  expect("sym::sum", {c10::List<int64_t>({1, 2, 3})}, i(6));
  expect("sym::sum", {c10::List<double>({0.5, 2})}, 2.5);
  expect("sym::min", {i(3), 3.0, i(2)}, i(2));
  expect("sym::max", {i(3), 3.0}, i(3));
  expect("sym::sqrt", {i(16)}, 4.0);
  expect("sym::sqrt", {-1.0}, kThrows);
  expect("sym::log2", {i(8)}, 3.0);
  expect("sym::ceildiv", {i(7), i(2)}, i(4));
  expect("sym::ceildiv", {i(-7), i(2)}, i(-3));
}

TEST(getitem_takes_negative_indices_and_refuses_others) {
  const c10::List<int64_t> list({4, 5, 6});
  expect("srt::getitem", {list, i(-1)}, i(6));
  expect("srt::getitem", {list, i(0)}, i(4));
  expect("srt::getitem", {list, i(3)}, kThrows);
  expect("srt::getitem", {list, i(-4)}, kThrows);
  expect("srt::getitem", {c10::ivalue::Tuple::create({1.5, int64_t{2}}), i(0)}, 1.5);
  expect("srt::identity", {list}, list);
}
