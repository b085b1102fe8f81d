#include "program/program.h"

#include "common/error.h"
#include "programs.h"
#include "test.h"

using namespace staticrt;
using namespace staticrt::test;

TEST(values_are_numbered_inputs_then_constants_then_outputs) {
  const auto program = relu_chain(2);
  EXPECT_EQ(program->num_inputs(), 1U);
  EXPECT_EQ(program->num_values(), 5U);
  EXPECT(program->is_input(0));
  EXPECT(program->is_constant(1));
  EXPECT_EQ(program->nodes()[0].first_output, 2U);
  EXPECT_EQ(program->outputs()[0], 4U);
  EXPECT_EQ(
      program->to_string(),
      std::string(
          "%2 = aten::add.Tensor(%0, %0, %1)\n%3 = aten::relu(%2)\n%4 = aten::relu(%3)\nreturn (%4)\n"));
}

TEST(a_node_is_described_with_its_model_line) {
  const auto program = relu_chain(1);
  EXPECT_EQ(program->describe(program->nodes()[1]), std::string("relu = aten::relu   (model.py:7)"));
}

TEST(an_operand_must_be_defined_before_its_use) {
  ProgramBuilder builder;
  EXPECT_THROW(add_op(builder, "aten::relu", "", {one(3)}), InputError, "operand 3 is not defined yet");
}

TEST(a_node_has_as_many_arguments_as_its_schema) {
  ProgramBuilder builder;
  const ValueId x = builder.add_input(tensor_info("x"));
  EXPECT_THROW(add_op(builder, "aten::relu", "", {one(x), one(x)}), InputError, "takes 1 arguments, got 2");
}
