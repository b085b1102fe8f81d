#include "graphs/graph.h"

#include <ATen/ops/add.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <atomic>
#include <functional>
#include <thread>

#include "common/error.h"
#include "test.h"

using namespace staticrt;
using namespace staticrt::graphs;

namespace {

using TensorVector = std::vector<at::Tensor>;
using Function = std::function<at::Tensor(const TensorVector&)>;

at::Tensor recorded(CpuGraph& graph, const Function& function, const TensorVector& inputs) {
  graph.begin(inputs);
  at::Tensor result = function(inputs);
  EXPECT_EQ(graph.end(), std::string());
  return result;
}

void check(const Function& function, const std::function<TensorVector()>& make) {
  CpuGraph graph(CpuPool::make());
  const TensorVector first = make();
  const at::Tensor want = function(first);
  const at::Tensor got = recorded(graph, function, first);
  EXPECT(at::equal(got, want));
  for (int i = 0; i < 3; ++i) {
    const TensorVector inputs = make();
    graph.replay(&inputs, nullptr);
    EXPECT(at::allclose(got, function(inputs), 1e-5, 1e-6, true));
  }
}

}  // namespace

TEST(replays_compute_what_eager_computes) {
  check([](const TensorVector& in) { return at::matmul(in[0], in[1]).add(1).relu().softmax(-1).sum(0); },
        [] { return TensorVector{at::rand({4, 8}), at::rand({8, 3})}; });
  check(
      [](const TensorVector& in) {
        at::Tensor y = in[0].t().slice(0, 1).clone();
        y.select(0, 0).mul_(2);
        y.add_(at::scalar_tensor(3)).index_put_({at::arange(2)}, at::full({}, -1.0));
        return y;
      },
      [] { return TensorVector{at::rand({3, 4})}; });
}

TEST(replays_in_inference_mode_and_with_gradients) {
  const Function f = [](const TensorVector& in) {
    at::Tensor w = in[1].detach().requires_grad_();
    at::matmul(in[0], w).sin().sum().backward();
    return w.grad();
  };
  check(f, [] { return TensorVector{at::rand({4, 8}), at::rand({8, 3})}; });
  const c10::InferenceMode guard;
  check([](const TensorVector& in) { return in[0].mul(2).exp(); },
        [] { return TensorVector{at::rand({5})}; });
}

TEST(a_failed_capture_puts_inputs_back) {
  CpuGraph graph(CpuPool::make());
  at::Tensor x = at::full({4}, 2.0);
  graph.begin({x});
  x.add_(5);
  at::nonzero(x);
  EXPECT(graph.end().find("depend on values") != std::string::npos);
  EXPECT_EQ(x.sum().item<float>(), 8.0f);
  EXPECT(Recorder::current() == nullptr);
  EXPECT_THROW(graph.replay(nullptr, nullptr), InputError, "nothing is captured");
  graph.begin({x});
  x.zero_();
  graph.abort();
  EXPECT_EQ(x.sum().item<float>(), 8.0f);
  EXPECT_EQ(graph.pool().live().size(), 0u);
}

TEST(a_graph_replays_in_other_threads_one_at_a_time) {
  CpuGraph graph(CpuPool::make());
  const TensorVector inputs{at::rand({64})};
  at::Tensor counter = at::zeros({}, at::kLong);
  const at::Tensor y = recorded(
      graph,
      [&](const TensorVector& in) {
        counter.add_(1);
        return in[0].cos().mul(2);
      },
      inputs);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) graph.replay(&inputs, nullptr);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counter.item<int64_t>(), 201);
  EXPECT(at::equal(y, inputs[0].cos().mul(2)));
}

TEST(threads_record_their_own_graphs_at_once) {
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        CpuGraph graph(CpuPool::make());
        const TensorVector inputs{at::full({16}, t + 1.0)};
        graph.begin(inputs);
        const at::Tensor y = inputs[0].mul(2).add(inputs[0]).sum();
        if (!graph.end().empty()) ++wrong;
        graph.replay(&inputs, nullptr);
        if (y.item<float>() != 48.0f * static_cast<float>(t + 1)) ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST(outputs_may_be_placed_elsewhere) {
  CpuGraph graph(CpuPool::make());
  const TensorVector inputs{at::rand({8})};
  const at::Tensor y = recorded(graph, [](const TensorVector& in) { return in[0].exp(); }, inputs);
  graph.bind_outputs({y});
  const at::Tensor before = y.clone();
  const TensorVector other{at::rand({8})};
  const TensorVector outs{at::zeros({8})};
  graph.replay(&other, &outs);
  EXPECT(at::equal(outs[0], other[0].exp()));
  EXPECT(at::equal(y, before));
}
