// staticrt::tree_ensemble as a kernel and as a prepared call against the operator itself, which
// tests/interop/onnx/test_tree_operator.py compares with a walk in Python. Tables of random numbers will do:
// whatever they hold, a walk has one answer.

#include "driver.h"
#include "prepared_util.h"
#include "test.h"

namespace staticrt::test {

CASES(tree_ensembles_are_the_operators,
      {"=staticrt::tree_ensemble f(9,5)v i(31,7)x7 f(31) None i(4)x31 i(6)x3 f(6) 3 0 True",
       "=staticrt::tree_ensemble f(9,5)v i(31,7)x31 f(31) None i(4)x31 i(60)x3 f(60) 3 1 True",
       "=staticrt::tree_ensemble d(1,5) i(31,7)x7 d(31) d(31,3)x3 i(9)x31 i(6)x1 d(6) 1 2 False",
       "=staticrt::tree_ensemble f(0,5) i(31,7)x7 f(31) None i(4)x31 i(6)x3 f(6) 3 0 True",
       "=?staticrt::tree_ensemble f(9,5) i(31,6)x7 f(31) None i(4)x31 i(6)x3 f(6) 3 0 True",
       "=?staticrt::tree_ensemble f(9,5) i(31,7)x7 d(31) None i(4)x31 i(6)x3 f(6) 3 0 True",
       "=?staticrt::tree_ensemble f(9,5) i(31,7)x7 f(31) None i(4)x31 i(6)x3 f(6) 3 9 True"});

TEST(prepared_tree_ensembles_are_the_operators) {
  RunOptions options;
  options.constants = {1, 2, 3, 4, 5, 6};
  for (const char* line :
       {"staticrt::tree_ensemble f(300,5)v i(63,7)x7 f(63) None i(20)x63 i(6)x3 f(6) 3 0 True",
        "staticrt::tree_ensemble f(1,5)v i(63,7)x7 f(63) None i(20)x63 i(6)x1 f(6) 1 0 False",
        "staticrt::tree_ensemble d(17,5) i(63,7)x7 d(63) d(63,3)x3 i(20)x63 i(6)x3 d(6) 3 1 True"}) {
    const OpCall call = parse_case(line, 0);
    for (const int threads : {1, 2}) {
      options.num_threads = threads;
      expect_prepared(call.op, call.args, options, /*exact=*/true);
    }
  }
}

}  // namespace staticrt::test
