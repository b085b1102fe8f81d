// Runs that let their inputs go after the last use.
#include <ATen/Parallel.h>
#include <ATen/ops/add.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>

#include <memory>
#include <string>
#include <thread>

#include "programs.h"
#include "runtime/call/executable.h"
#include "test.h"

using namespace staticrt;
using namespace staticrt::test;

namespace {

// relu(x @ w) * x, and the rows of y that `index` picks, plus w.
std::shared_ptr<const Program> program() {
  ProgramBuilder builder;
  const ValueId x = builder.add_input(tensor_info("x"));
  const ValueId w = builder.add_input(tensor_info("w"));
  const ValueId y = builder.add_input(tensor_info("y"));
  const ValueId index = builder.add_input(tensor_info("index", at::kLong));
  const ValueId one_ = builder.add_constant(1);
  const ValueId zero = builder.add_constant(0);
  const ValueId product = add_op(builder, "aten::mm", "", {one(x), one(w)});
  const ValueId positive = add_op(builder, "aten::relu", "", {one(product)});
  const ValueId first = add_op(builder, "aten::mul", "Tensor", {one(positive), one(x)});
  const ValueId rows = add_op(builder, "aten::index_select", "", {one(y), one(zero), one(index)});
  const ValueId second = add_op(builder, "aten::add", "Tensor", {one(rows), one(w), one(one_)});
  builder.set_outputs({first, second});
  return builder.build();
}

struct Given {
  at::Tensor x, w, y, index;

  explicit Given(int64_t size)
      : x(at::randn({size, size})),
        w(at::randn({size, size})),
        y(at::randn({size, size})),
        index(at::randint(size, {size}, at::kLong)) {}

  std::string wrong(const std::vector<c10::IValue>& got) const {
    const at::Tensor first = at::mul(at::relu(at::mm(x, w)), x);
    const at::Tensor second = at::add(at::index_select(y, 0, index), w);
    if (!at::allclose(got[0].toTensor(), first, 1e-4, 1e-4)) return "the first result";
    if (!at::allclose(got[1].toTensor(), second, 1e-4, 1e-4)) return "the second result";
    return "";
  }
  std::vector<c10::IValue> copies() const { return {x.clone(), w.clone(), y.clone(), index.clone()}; }
};

}  // namespace

TEST(Owned_inputs_are_gone_after_the_run) {
  Executable executable(program(), {});
  for (int i = 0; i < 6; ++i) {
    const Given given(4 + i / 3);
    std::vector<c10::IValue> inputs = given.copies();
    std::vector<c10::weak_intrusive_ptr<at::TensorImpl>> weak;
    for (const c10::IValue& input : inputs) weak.emplace_back(input.toTensor().getIntrusivePtr());
    EXPECT_EQ(given.wrong(executable.run_and_let_go(std::move(inputs))), std::string());
    for (const auto& each : weak) EXPECT(each.expired());
  }
}

TEST(Owned_inputs_that_are_one_tensor_or_views_or_held_stay_right) {
  Executable executable(program(), {});
  for (int i = 0; i < 6; ++i) {
    Given given(5);
    given.w = given.x;
    given.y = given.x.t();
    const at::Tensor before = given.x.clone();
    const at::Tensor held = given.x.clone();
    EXPECT_EQ(given.wrong(executable.run_and_let_go({held, held, held.t(), given.index})), std::string());
    EXPECT(at::allclose(held, before));
    EXPECT_EQ(given.wrong(executable.run_and_let_go({given.x, given.x, given.y, given.index})),
              std::string());
  }
}

TEST(Owned_inputs_are_gone_after_a_run_that_raises) {
  Executable executable(program(), {});
  for (int i = 0; i < 8; ++i) {
    const Given given(4);
    std::vector<c10::IValue> inputs = given.copies();
    if (i % 2 == 0) inputs[3].toTensor().fill_(99);
    std::vector<c10::weak_intrusive_ptr<at::TensorImpl>> weak;
    for (const c10::IValue& input : inputs) weak.emplace_back(input.toTensor().getIntrusivePtr());
    bool raised = false;
    try {
      EXPECT_EQ(given.wrong(executable.run_and_let_go(std::move(inputs))), std::string());
    } catch (const std::exception&) {
      raised = true;
    }
    EXPECT_EQ(raised, i % 2 == 0);
    inputs.clear();
    for (const auto& each : weak) EXPECT(each.expired());
  }
}

TEST(Threads_let_their_inputs_go) {
  const auto first = std::make_shared<Executable>(program(), ExecutableOptions{});
  const auto second = std::make_shared<Executable>(program(), ExecutableOptions{});
  const at::Tensor shared = at::randn({8, 8});
  std::vector<std::string> wrong(6);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      at::set_num_threads(1);
      for (int i = 0; i < 40 && wrong[t].empty(); ++i) {
        Given given(8 + 8 * ((i / 5) % 2));
        if (given.x.size(0) == 8) given.w = shared;
        Executable& executable = (static_cast<size_t>(i) + t) % 2 ? *first : *second;
        std::vector<c10::IValue> inputs = given.copies();
        if (given.x.size(0) == 8) inputs[1] = shared;
        wrong[t] = given.wrong(executable.run_and_let_go(std::move(inputs)));
        if (t == 0 && i % 10 == 9) first->trim();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& each : wrong) EXPECT_EQ(each, std::string());
}
