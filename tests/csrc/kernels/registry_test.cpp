#include "kernels/registry/registry.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <vector>

#include "driver.h"
#include "kernels/registry/autotuning.h"
#include "kernels/registry/evicted_floats.h"
#include "kernels/registry/structured_ops.h"
#include "test.h"

// A kernel under a name that no op has would never be found.
TEST(every_kernel_names_an_operator) {
  std::string unknown;
  auto kernels = staticrt::all_kernels();
  for (const staticrt::Kernel& kernel : staticrt::all_dispatched()) kernels.push_back(kernel);
  for (const staticrt::Kernel& kernel : kernels) {
    if (kernel.op.starts_with("sym::") || kernel.op.starts_with("srt::")) continue;
    const size_t dot = kernel.op.find('.');
    const std::string name(kernel.op.substr(0, dot));
    const std::string overload(dot == std::string_view::npos ? "" : kernel.op.substr(dot + 1));
    if (!c10::Dispatcher::singleton().findSchema({name, overload})) unknown.append(kernel.op).append(" ");
  }
  EXPECT_EQ(unknown, "");
}

TEST(every_structured_operator_has_an_out_overload_with_a_kernel) {
  auto& dispatcher = c10::Dispatcher::singleton();
  std::string without;
  size_t count = 0;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const std::string op = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    if (!staticrt::is_structured(op)) continue;
    ++count;
    const auto out = staticrt::find_out_overload(*dispatcher.findSchema(name));
    if (!out || !out->hasKernelForDispatchKey(c10::DispatchKey::CPU)) without.append(op).append(" ");
  }
  EXPECT_EQ(without, "");
  EXPECT(count > 250);
}

TEST(a_second_kernel_of_a_name_is_refused) {
  EXPECT_THROW(staticrt::register_kernel({"aten::view", staticrt::KernelKind::kNative, nullptr, "again"}),
               std::logic_error, "aten::view has one already: aten::view");
}

// An alias counts as checked with the name it stands for: they share one function.
TEST(every_kernel_is_compared_with_its_operator) {
  std::set<std::string, std::less<>> checked;
  for (const std::string& line : staticrt::test::grouped_lines()) {
    const size_t start = line.find_first_not_of("=?");
    checked.insert(line.substr(start, line.find(' ', start) - start));
  }
  std::set<staticrt::KernelFn> checked_functions;
  const auto kernels = staticrt::all_kernels();
  for (const staticrt::Kernel& kernel : kernels) {
    if (checked.count(kernel.op)) checked_functions.insert(kernel.run);
  }
  std::string unchecked;
  for (const staticrt::Kernel& kernel : kernels) {
    if (kernel.op.starts_with("sym::") || kernel.op.starts_with("srt::") || kernel.op == "aten::copy_")
      continue;
    if (!checked_functions.count(kernel.run)) unchecked.append(kernel.op).append(" ");
  }
  EXPECT_EQ(unchecked, "");
}

TEST(ways_are_measured_in_turns_and_the_faster_one_is_found) {
  std::vector<int> order;
  volatile double sum = 0;
  const auto way = [&](int which, int work) {
    return [&order, &sum, which, work] {
      order.push_back(which);
      for (int i = 0; i < work; ++i) sum = sum + i;
    };
  };
  const std::vector<double> least = staticrt::least_ns({way(0, 40'000), way(1, 28'000)}, 1, 1'000'000);
  EXPECT(least[0] > least[1]);
  // After the warm runs, no way has all of its runs before the other's.
  const auto first = std::find(order.begin() + 4, order.end(), 1);
  const auto last = std::find(order.rbegin(), order.rend() - 4, 0);
  EXPECT(first != order.end() && last != order.rend() - 4);
  EXPECT(first < last.base());
  // A way that is far slower runs until that is known: to warm up, once, and for one turn.
  order.clear();
  const std::vector<double> far = staticrt::least_ns({way(0, 400'000), way(1, 4'000)}, 1, 100'000'000);
  EXPECT(far[0] > 10 * far[1]);
  EXPECT(std::count(order.begin(), order.end(), 0) <= 4);
}

TEST(runs_of_a_measurement_take_buffers_that_others_have_evicted) {
  for (const int64_t floats : {int64_t{100}, int64_t{5000}, 2 * staticrt::tuning::kEvictingFloats}) {
    staticrt::EvictedFloats memory({floats, 60});
    std::set<const char*> weights;
    for (int run = 0; run < 3; ++run) {
      memory.advance();
      const char* weight = memory.buffer(0);
      const char* output = memory.buffer(1);
      weights.insert(weight);
      EXPECT(std::abs(weight - output) >= floats * 4);
    }
    EXPECT(weights.size() == (floats > staticrt::tuning::kEvictingFloats ? 1 : 3));
  }
  staticrt::EvictedFloats input({100, 60}, false);
  const char* first = input.buffer();
  input.advance();
  EXPECT(input.buffer() == first);
}
