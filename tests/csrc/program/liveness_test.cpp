#include "program/liveness.h"

#include "programs.h"
#include "test.h"

using namespace staticrt;
using namespace staticrt::test;

TEST(a_value_lives_until_after_the_last_use_of_its_views) {
  // node   0     1        2      3
  // a    = x+x   v=a.t()  b=a^+  c=v^+      a lives as long as its view v
  ProgramBuilder builder;
  const ValueId x = builder.add_input(tensor_info("x"));
  const ValueId alpha = builder.add_constant(1);
  const ValueId a = add_op(builder, "aten::add", "Tensor", {one(x), one(x), one(alpha)});
  const ValueId v = add_op(builder, "aten::t", "", {one(a)}, {{0, 0, false}});
  add_op(builder, "aten::relu", "", {one(a)});
  const ValueId c = add_op(builder, "aten::relu", "", {one(v)});
  builder.set_outputs({c});
  const auto program = builder.build();
  const Liveness live = compute_liveness(*program);
  const ValueId first = program->nodes()[0].first_output;
  EXPECT_EQ(live.ranges[first].begin, 0U);
  EXPECT_EQ(live.ranges[first].end, 4U);
  EXPECT_EQ(live.alias_class[first], live.alias_class[first + 1]);
  EXPECT_EQ(live.ranges[first + 2].end, 3U);
  EXPECT(!live.touches_output[first]);
  EXPECT(live.touches_output[first + 3]);
  EXPECT(live.touches_input[0]);
}

TEST(a_view_of_an_input_that_is_returned_touches_both) {
  ProgramBuilder builder;
  const ValueId x = builder.add_input(tensor_info("x"));
  const ValueId v = add_op(builder, "aten::t", "", {one(x)}, {{0, 0, false}});
  builder.set_outputs({v});
  const Liveness live = compute_liveness(*builder.build());
  EXPECT(live.touches_input[1]);
  EXPECT(live.touches_output[0]);
  EXPECT_EQ(live.ranges[0].end, 2U);
}
