// Reductions, scans, sorting and softmax against the dispatcher's functional ops.
#include "driver.h"
#include "test.h"

using staticrt::test::cross;

CASES(whole_reductions_are_eagers,
      cross({"sum", "mean", "max", "min", "any", "all", "std", "var"},
            {"f(3,4)v", "d(2,3,4,5)", "?l(3,4)", "?b(3,4)", "?h(3,4)p", "=f()", "?f(0,3)", "=f(40,50,60)"}));
CASES(sums_with_dtype_are_eagers,
      {"aten::sum f(3,4) float64", "aten::sum b(3,4) None", "aten::sum i(3,4)", "aten::mean f(3,4) float64",
       "aten::var f(3,4) False", "aten::std f(3,4) False", "aten::sum.dim_IntList f(3,4) [0] True float64",
       "aten::mean.dim h(3,4) [1] False float32", "aten::cumsum f(3,4) 0 float64",
       "aten::cumprod l(3,4) 1 float32"});
CASES(reductions_over_dims_are_eagers,
      cross({"sum.dim_IntList", "mean.dim", "amax", "amin", "nansum"},
            {"f(3,4,5) [1]", "f(3,4,5) [0,-1] True", "d(2,3,4,5) [2,3]", "?f(3,4,5) []", "?l(3,4) [1]",
             "?b(3,4) [0]", "?h(3,4,5)p [1]", "?f(3,4) None", "=f(30,40,50) [1] True", "?f(0,3) [1]",
             "?f(0,3) [0,1] True", "=f() [0]"}));
CASES(reductions_over_one_dim_are_eagers,
      cross({"max.dim", "min.dim", "median.dim", "nanmedian.dim", "mode", "cummax", "cummin", "cumsum",
             "cumprod", "logcumsumexp", "_logcumsumexp", "prod.dim_int", "all.dim", "any.dim"},
            {"f(3,4,5) 1", "d(2,3,4,5) -1", "f(3,4) 0", "?l(3,4)x5 0", "?b(3,4) 1", "=?f() 0", "?f(3,0) 0"}));
CASES(other_reductions_are_eagers, {"aten::argmax f(3,4)",
                                    "aten::argmax f(3,4,5) 1 True",
                                    "aten::argmin l(3,4) 0",
                                    "aten::argmin f(3,4)",
                                    "aten::all.dims b(3,4,5) [0,2]",
                                    "aten::any.dims f(3,4,5) [1] True",
                                    "aten::any.dims f(3,4,5) None",
                                    "aten::prod.dim_int f(3,4) 0 True",
                                    "aten::prod.dim_int l(3,4) 1 False float64",
                                    "aten::aminmax f(3,4)",
                                    "aten::aminmax f(3,4) 1 True",
                                    "aten::std.correction f(3,4,5) [1] 1 True",
                                    "aten::std.correction f(3,4,5) None 0",
                                    "aten::var.correction f(3,4,5) [0,2] 2",
                                    "aten::var.correction d(3,4) [1] 0.5",
                                    "aten::std.dim f(3,4) [1] False",
                                    "aten::var.dim f(3,4) [0] True True",
                                    "aten::norm.ScalarOpt_dim f(3,4) 2 [1]",
                                    "aten::norm.ScalarOpt_dim f(3,4) 1 [0,1] True",
                                    "aten::norm.ScalarOpt_dim_dtype f(3,4) 3 [1] False float64",
                                    "aten::linalg_vector_norm f(3,4) 2 [1] True",
                                    "aten::linalg_vector_norm f(3,4) inf None",
                                    "aten::linalg_vector_norm d(3,4) 0",
                                    "aten::renorm f(3,4) 2 0 1.5",
                                    "aten::histc f(3,4)p 5 0 1",
                                    "aten::max.dim f(3,4)v 1",
                                    "aten::cummax f(3,4)v 1",
                                    "aten::max.other f(3,4) f(4)"});
CASES(softmaxes_are_eagers,
      cross({"softmax.int", "log_softmax.int", "special_softmax", "special_log_softmax"},
            {"f(3,4,5) 1", "f(3,40) -1", "d(2,3,4,5) 0", "f(3,4) 1 float64", "?l(3,4) 1 float32",
             "?h(3,40) 1", "h(3,4) 1 float32", "=f() 0", "f(0,3) 1", "f(3,4)v 0"}));
CASES(inner_softmaxes_are_eagers,
      cross({"_softmax", "_log_softmax"},
            {"f(3,4,5) 1 False", "f(3,40) -1 False", "d(2,3,4,5) 0 False", "f(0,3) 1 False"}));
CASES(sorting_is_eagers,
      {"aten::sort f(3,7)", "aten::sort f(3,7,2) 1 True", "aten::sort l(3,7)x3 0", "aten::sort f(7)v",
       "=aten::sort f()", "aten::sort.stable l(3,7)x3 True 1 False", "aten::sort.stable f(3,7) None 0 True",
       "aten::topk f(3,7) 3", "aten::topk f(7,3) 2 0 False True", "aten::topk l(3,7)x5 1 1",
       "aten::kthvalue f(3,7) 3", "aten::kthvalue f(3,7) 2 0 True", "=aten::bucketize.Tensor f(3,4)p f(3)p",
       "=aten::bucketize.Tensor f(3,4) f(3) True True", "=aten::searchsorted.Tensor f(2,5) f(2,3)",
       "=aten::searchsorted.Tensor f(5) f(2,3) True", "=aten::searchsorted.Scalar f(5) 0.5",
       "=aten::searchsorted.Scalar f(5) 0.5 False True"});
