#include <ATen/core/Tensor.h>

#include <array>
#include <cmath>

#include "kernels/driver.h"
#include "kernels/prepared_util.h"
#include "test.h"

namespace {

using namespace staticrt;
using namespace staticrt::test;

// Small: cells with large weights are chaotic, and every rounding grows.
struct NetworkSizes {
  int64_t steps, batch, features, hidden, layers;
  bool bidirectional, batch_first;
  int64_t projected = 0;
};

const std::vector<NetworkSizes> kNetworks = {
    {1, 1, 1, 1, 1, false, false},    {5, 1, 7, 16, 1, true, false},    {4, 3, 33, 31, 2, true, true},
    {70, 2, 5, 40, 3, false, false},  {7, 70, 12, 260, 1, true, true},  {3, 0, 4, 5, 1, false, false},
    {6, 3, 7, 19, 2, true, false, 5}, {2, 20, 64, 128, 2, true, false},
};

std::vector<c10::IValue> arguments(std::mt19937& rng, const std::string& op, const NetworkSizes& s,
                                   bool biases) {
  const bool lstm = op == "aten::lstm.input";
  const int64_t gates = (lstm ? 4 : op == "aten::gru.input" ? 3 : 1) * s.hidden;
  const int64_t state = s.projected ? s.projected : s.hidden;
  const int64_t directions = s.bidirectional ? 2 : 1;
  const double scale = 0.5 / std::sqrt(static_cast<double>(s.hidden));
  std::vector<at::Tensor> weights;
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    for (int64_t d = 0; d < directions; ++d) {
      weights.push_back(unit(rng, {gates, layer == 0 ? s.features : directions * state}, at::kFloat, scale));
      weights.push_back(unit(rng, {gates, state}, at::kFloat, scale));
      if (biases) {
        weights.push_back(unit(rng, {gates}, at::kFloat, 0.25));
        weights.push_back(unit(rng, {gates}, at::kFloat, 0.25));
      }
      if (s.projected) weights.push_back(unit(rng, {s.projected, s.hidden}, at::kFloat, 0.25));
    }
  }
  const int64_t cells = s.layers * directions;
  const at::Tensor h0 = unit(rng, {cells, s.batch, state}, at::kFloat, 0.25);
  const at::Tensor x = s.batch_first ? unit(rng, {s.batch, s.steps, s.features}, at::kFloat, 0.25)
                                     : unit(rng, {s.steps, s.batch, s.features}, at::kFloat, 0.25);
  c10::IValue hidden = h0;
  if (lstm) hidden = std::vector<at::Tensor>{h0, unit(rng, {cells, s.batch, s.hidden}, at::kFloat, 0.25)};
  return {x, hidden, weights, biases, s.layers, 0.0, false, s.bidirectional, s.batch_first};
}

}  // namespace

TEST(recurrent_layers_equal_eager) {
  std::mt19937 rng(1);
  for (const std::string op :
       {"aten::lstm.input", "aten::gru.input", "aten::rnn_tanh.input", "aten::rnn_relu.input"}) {
    for (const NetworkSizes& s : kNetworks) {
      if (s.projected && op != "aten::lstm.input") continue;
      for (const bool biases : {false, true}) {
        for (const int threads : {1, 2}) {
          RunOptions options;
          options.constants = {2};
          options.num_threads = threads;
          expect_prepared(op, arguments(rng, op, s, biases), options);
        }
      }
    }
  }
}

TEST(recurrent_layers_with_changing_weights_or_dropout_decline) {
  std::mt19937 rng(2);
  const std::string op = "aten::lstm.input";
  auto args = arguments(rng, op, kNetworks[2], true);
  const auto want = run_eager(op, args);
  EXPECT(!run_prepared(op, args, want).prepared);
  RunOptions options;
  options.constants = {2};
  EXPECT(run_prepared(op, args, want, options).prepared);
  args[5] = 0.5;
  args[6] = true;
  EXPECT(!run_prepared(op, args, want, options).prepared);
}

// Rows of the batch do not meet: the same bits with any number of threads.
TEST(recurrent_layers_are_cut_by_the_batch) {
  std::mt19937 rng(3);
  for (const std::string op :
       {"aten::lstm.input", "aten::gru.input", "aten::rnn_tanh.input", "aten::rnn_relu.input"}) {
    for (const NetworkSizes& s : std::vector<NetworkSizes>{{33, 9, 24, 40, 2, false, true},
                                                           {17, 16, 40, 48, 1, false, false},
                                                           {40, 37, 12, 19, 2, true, false, 5},
                                                           {5, 20, 64, 130, 2, true, true}}) {
      if (s.projected && op != "aten::lstm.input") continue;
      const auto args = arguments(rng, op, s, true);
      const auto want = run_eager(op, args);
      std::vector<at::Tensor> alone;
      for (const int threads : {1, 2, 3, 8}) {
        const Threads set(threads);
        RunOptions options;
        options.constants = {2};
        options.num_threads = threads;
        expect_prepared(op, args, options);
        const PreparedRun run = run_prepared(op, args, want, options);
        if (threads == 1) alone = run.outs;
        for (size_t i = 0; i < alone.size(); ++i)
          expect_close(run.outs[i], alone[i], {0, 0}, op + " with " + std::to_string(threads) + " threads");
        if (threads == 2) {
          EXPECT_EQ(run.route, "recurrent: parts of the batch");
          EXPECT(run.grids.size() == 1 && largest_share(run.grids[0], 2) < 0.7);
        }
      }
    }
  }
}

CASES(
    steps_of_a_layer_are_the_operators,
    {"staticrt::recurrent_steps f(5,3,8) f(3,2) f(3,2) f(8,2) f(8) 0 False",
     "staticrt::recurrent_steps f(5,3,6) f(3,2) None f(6,2) f(6) 1 True",
     "staticrt::recurrent_steps f(5,3,2) f(3,2) None f(2,2) None 2 False",
     "staticrt::recurrent_steps f(1,3,2) f(3,2) None f(2,2) None 3 True",
     "=?staticrt::recurrent_steps f(5,3,8) f(3,2) None f(8,2) f(8) 0 False",
     "=?staticrt::recurrent_steps f(5,3,7) f(3,2) f(3,2) f(8,2) f(8) 0 False",
     "=?staticrt::recurrent_steps f(5,3,2) f(3,2) None f(2,2) None 4 False",
     "=?staticrt::recurrent_steps d(5,3,2) f(3,2) None f(2,2) None 2 False",
     "staticrt::recurrent_steps_backward f(5,3,2) f(3,2) f(3,2) f(3,2) f(3,2) f(8,2) f(5,3,2) f(5,3,2) "
     "f(5,3,8) 0 False",
     "staticrt::recurrent_steps_backward f(5,3,2) f(3,2) f(0) f(3,2) None f(6,2) f(5,3,2) f(5,3,2) "
     "f(5,3,6) 1 True",
     "staticrt::recurrent_steps_backward f(5,3,2) f(3,2) f(0) f(3,2) None f(2,2) f(5,3,2) f(0) f(0) 2 False",
     "=?staticrt::recurrent_steps_backward f(4,3,2) f(3,2) f(0) f(3,2) None f(2,2) f(5,3,2) f(0) f(0) 2 "
     "False"});

// One layer in one direction, as training runs it.
TEST(steps_of_a_layer_and_their_gradients_equal_tensors_of_any_strides) {
  std::mt19937 rng(4);
  for (const int64_t kind : {0, 1, 2, 3}) {
    for (const bool reverse : {false, true}) {
      for (const auto& [steps, batch, hidden] :
           std::vector<std::array<int64_t, 3>>{{1, 1, 1}, {5, 3, 19}, {9, 17, 32}, {4, 40, 33}}) {
        const int64_t width = (kind == 0 ? 4 : kind == 1 ? 3 : 1) * hidden;
        const auto make = [&](at::IntArrayRef sizes) { return unit(rng, sizes, at::kFloat, 0.3); };
        const at::Tensor gates = make({steps, batch, width}), h0 = make({batch, hidden});
        const c10::IValue c0 = kind == 0 ? c10::IValue(make({batch, hidden})) : c10::IValue();
        const at::Tensor w = make({width, hidden});
        const c10::IValue bias = kind == 1 ? c10::IValue(make({width})) : c10::IValue();
        const std::string op = "staticrt::recurrent_steps";
        const std::vector<c10::IValue> args{gates, h0, c0, w, bias, kind, reverse};
        const auto made = run_eager(op, args);
        const at::Tensor d_out = make({batch, steps, 2 * hidden}).transpose(0, 1).narrow(2, hidden, hidden);
        const std::vector<c10::IValue> of_backward{
            d_out,  make({batch, hidden}), make({batch, hidden}), h0, c0, w, made[0], made[3], made[4], kind,
            reverse};
        for (const int threads : {1, 2, 3}) {
          const Threads set(threads);
          RunOptions options;
          options.num_threads = threads;
          expect_prepared(op, args, options, true);
          expect_prepared("staticrt::recurrent_steps_backward", of_backward, options, true);
        }
      }
    }
  }
}
