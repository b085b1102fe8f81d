// Many threads and one executable: frames, prepared programs, what is made of weights, regions, donation.
// Right answers here are half of it; .ci/sanitize thread test_runtime watches the rest.
#include <ATen/Parallel.h>
#include <ATen/ops/add.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tensor.h>

#include <atomic>
#include <barrier>
#include <string>
#include <thread>

#include "programs.h"
#include "runtime/call/executable.h"
#include "runtime/trace/trace.h"
#include "test.h"

using namespace staticrt;
using namespace staticrt::test;

namespace {

// Runs body(thread) on threads that begin together; fails with the first message that one returns.
template <class F>
void together(int num_threads, F body) {
  std::vector<std::string> wrong(static_cast<size_t>(num_threads));
  std::barrier start(num_threads);
  std::vector<std::thread> threads;
  for (int t = 0; t < num_threads; ++t) {
    threads.emplace_back([&, t] {
      at::set_num_threads(1);
      start.arrive_and_wait();
      try {
        wrong[static_cast<size_t>(t)] = body(t);
      } catch (const std::exception& error) {
        wrong[static_cast<size_t>(t)] = std::string("thrown: ") + error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& each : wrong) EXPECT_EQ(each, std::string());
}

bool close(const c10::IValue& got, const at::Tensor& want) {
  return at::allclose(got.toTensor(), want, 1e-4, 1e-4);
}

at::Tensor small_random(int64_t size) {
  return at::mul(at::randn({size, size}), 0.1);
}

constexpr int kLayers = 6;
constexpr int64_t kWide = 48;

// x, w0 ... w5: relu(linear(x, 2 * w)) six times. `2 * w` depends on a weight alone, and what kernels pack of
// it depends on the number of rows of x: other signatures add to the state of the same weights.
std::shared_ptr<const Program> layers(std::vector<ValueId>* weights) {
  ProgramBuilder builder;
  const ValueId x = builder.add_input(tensor_info("x"));
  for (int i = 0; i < kLayers; ++i)
    weights->push_back(builder.add_input(tensor_info("w" + std::to_string(i))));
  const ValueId two = builder.add_constant(at::tensor(2.0F));
  const ValueId no_bias = builder.add_constant(c10::IValue());
  ValueId y = x;
  for (const ValueId w : *weights) {
    const ValueId doubled = add_op(builder, "aten::mul", "Tensor", {one(w), one(two)});
    y = add_op(builder, "aten::linear", "", {one(y), one(doubled), one(no_bias)});
    y = add_op(builder, "aten::relu", "", {one(y)});
  }
  builder.set_outputs({y});
  return builder.build();
}

std::vector<c10::IValue> some_weights() {
  std::vector<c10::IValue> weights;
  for (int i = 0; i < kLayers; ++i) weights.emplace_back(small_random(kWide));
  return weights;
}

at::Tensor through_layers(at::Tensor y, const std::vector<c10::IValue>& weights) {
  for (const c10::IValue& w : weights) y = at::relu(at::linear(y, at::mul(w.toTensor(), 2)));
  return y;
}

std::vector<c10::IValue> with_weights(const at::Tensor& x, const std::vector<c10::IValue>& weights) {
  std::vector<c10::IValue> inputs{x};
  inputs.insert(inputs.end(), weights.begin(), weights.end());
  return inputs;
}

ExecutableOptions keeping(const std::vector<ValueId>& weights) {
  ExecutableOptions options;
  options.weights = weights;
  return options;
}

// Rows of x picked by `index`, and `count` times relu(x @ x) @ x, added up.
std::shared_ptr<const Program> branches(int count) {
  ProgramBuilder builder;
  const ValueId x = builder.add_input(tensor_info("x"));
  const ValueId index = builder.add_input(tensor_info("index", at::kLong));
  const ValueId one_ = builder.add_constant(1);
  const ValueId zero = builder.add_constant(0);
  std::vector<ValueId> parts{add_op(builder, "aten::index_select", "", {one(x), one(zero), one(index)})};
  for (int i = 0; i < count; ++i) {
    const ValueId product = add_op(builder, "aten::mm", "", {one(x), one(x)});
    const ValueId positive = add_op(builder, "aten::relu", "", {one(product)});
    parts.push_back(add_op(builder, "aten::mm", "", {one(positive), one(x)}));
  }
  ValueId sum = parts[0];
  for (size_t i = 1; i < parts.size(); ++i)
    sum = add_op(builder, "aten::add", "Tensor", {one(sum), one(parts[i]), one(one_)});
  builder.set_outputs({sum});
  return builder.build();
}

at::Tensor added_up(const at::Tensor& x, const at::Tensor& index, int count) {
  at::Tensor sum = at::index_select(x, 0, index);
  for (int i = 0; i < count; ++i) sum = at::add(sum, at::mm(at::relu(at::mm(x, x)), x));
  return sum;
}

}  // namespace

TEST(Threads_prepare_other_sizes_over_the_same_weights) {
  std::vector<ValueId> ids;
  const auto program = layers(&ids);
  for (int round = 0; round < 10; ++round) {
    Executable executable(program, keeping(ids));
    const std::vector<c10::IValue> weights = some_weights();
    together(4, [&](int t) -> std::string {
      for (int i = 0; i < 6; ++i) {
        const at::Tensor x = at::randn({(t + i) % 4 * 17 + 1, kWide});
        if (!close(executable.run(with_weights(x, weights))[0], through_layers(x, weights))) return "wrong";
      }
      return "";
    });
// A sanitizer slows our kernels down but not MKL's, so the chosen routes derive nothing.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    int64_t derived = 0;
    for (const auto& each : executable.prepared_programs()) derived += each->stats().derived_bytes;
    EXPECT(derived > 0);
#endif
  }
}

// What one signature derives is read while others add theirs to the same state of the weights.
TEST(Threads_read_derived_bytes_while_others_are_made) {
  std::vector<ValueId> ids;
  const BoundProgram bound = bind(layers(&ids), {});
  FixedValues fixed(bound, ids, /*checks=*/true);
  const std::vector<c10::IValue> given = with_weights(at::randn({2, kWide}), some_weights());
  std::vector<InputView> inputs(given.size());
  for (size_t i = 0; i < given.size(); ++i) inputs[i].tensor = &given[i].toTensor();
  together(4, [&](int t) -> std::string {
    for (int i = 0; i < 300; ++i) {
      DerivedBytes bytes;
      bytes.key = std::to_string(i) + "/" + std::to_string(t);
      bytes.owners = {ids[0]};
      bytes.derivation.sources.emplace_back();
      bytes.derivation.size_bytes = 1;
      bytes.derivation.make = [t](const char* const*, char* out) { *out = static_cast<char>(t); };
      const auto state = fixed.acquire(inputs, {}, std::span(&bytes, 1));
      for (int k = 0; k < 20; ++k)
        if (*fixed.data_of(*state, bytes) != t) return "another's bytes";
    }
    return "";
  });
}

TEST(Threads_bring_their_own_weights) {
  std::vector<ValueId> ids;
  Executable executable(layers(&ids), keeping(ids));
  together(4, [&](int t) -> std::string {
    const std::vector<c10::IValue> weights = some_weights();
    for (int i = 0; i < 10; ++i) {
      const at::Tensor x = at::randn({t % 2 * 20 + 2, kWide});
      if (!close(executable.run(with_weights(x, weights))[0], through_layers(x, weights))) return "wrong";
      weights[0].toTensor().add_(0.01);  // this thread's own
    }
    return "";
  });
}

TEST(Threads_evict_trim_trace_and_count_meanwhile) {
  ExecutableOptions options;
  options.max_prepared = 2;
  const auto executable = std::make_shared<Executable>(relu_chain(5), options);
  together(8, [&](int t) -> std::string {
    if (t == 7) install_trace();
    for (int i = 0; i < 60; ++i) {
      const at::Tensor x = at::randn({1 + (i + t) % 5, 7});
      if (!close(executable->run({x})[0], at::relu(at::add(x, x)))) return "wrong";
      if (t == 0 && i % 10 == 9) executable->trim();
      if (t == 1) {
        (void)executable->cache_counters();
        (void)executable->memory_counters();
        (void)executable->rare_times();
        (void)executable->prepared_programs().size();
      }
    }
    if (t == 7 && take_trace()->runs.size() != 60) return "runs are missing in the trace";
    return "";
  });
  EXPECT(executable->num_frames() <= 8);
  executable->trim();
  EXPECT_EQ(executable->num_frames(), 0);
}

TEST(Threads_run_regions_at_once) {
  constexpr int kBranches = 5;
  constexpr int64_t kRows = 160;
  ExecutableOptions options;
  options.preparation.inter_op_threads = 3;
  options.preparation.poison = true;
  Executable executable(branches(kBranches), options);
  together(3, [&](int t) -> std::string {
    const at::Tensor x = small_random(kRows);
    const at::Tensor good = at::full({kRows}, t, at::kLong);
    const at::Tensor bad = at::full({kRows}, kRows, at::kLong);
    const at::Tensor want = added_up(x, good, kBranches);
    for (int i = 0; i < 12; ++i) {
      if (!close(executable.run({x, good})[0], want)) return "wrong";
      if (i % 4 != t) continue;
      try {
        executable.run({x, bad});
        return "a bad index passed";
      } catch (const std::exception&) {
      }
    }
    return "";
  });
  int64_t parallel = 0;
  for (const auto& each : executable.prepared_programs()) parallel += each->stats().parallel_calls;
  EXPECT(parallel > kBranches);
}

TEST(Threads_donate_their_inputs) {
  ExecutableOptions options;
  options.preparation.donated = {{0, "x"}};
  Executable executable(relu_chain(4), options);
  together(4, [&](int t) -> std::string {
    for (int i = 0; i < 30; ++i) {
      at::Tensor x = at::randn({16 + t % 2, 40});
      const at::Tensor want = at::relu(at::add(x, x));
      if (!close(executable.run({x})[0], want)) return "wrong";
      try {
        (void)x.sum();
        return "a donated tensor can be read";
      } catch (const std::exception&) {
      }
    }
    return "";
  });
}

// What a thread made is freed by another, and by one that outlives its maker.
TEST(Threads_pass_outputs_on) {
  Executable executable(relu_chain(2), {});
  std::array<std::atomic<c10::TensorImpl*>, 16> mailbox{};
  together(4, [&](int t) -> std::string {
    for (int i = 0; i < 100; ++i) {
      at::Tensor x = at::randn({4, 4});
      at::Tensor y = executable.run({x})[0].toTensor();
      auto& slot = mailbox[static_cast<size_t>(i * 7 + t) % mailbox.size()];
      if (c10::TensorImpl* other = slot.exchange(y.unsafeReleaseTensorImpl())) {
        const auto held = c10::intrusive_ptr<c10::TensorImpl, at::UndefinedTensorImpl>::reclaim(other);
        if (at::Tensor(held).numel() != 16) return "wrong";
      }
    }
    return "";
  });
  for (auto& slot : mailbox)
    if (c10::TensorImpl* last = slot.exchange(nullptr))
      (void)c10::intrusive_ptr<c10::TensorImpl, at::UndefinedTensorImpl>::reclaim(last);
}

// A frame waits for the thread that ran it last, but others get it before they make one.
TEST(Threads_that_take_turns_share_one_frame) {
  const auto executable = std::make_shared<Executable>(relu_chain(5), ExecutableOptions{});
  const at::Tensor x = at::randn({4, 7});
  for (int i = 0; i < 40; ++i) {
    std::thread([&] { executable->run({x}); }).join();
    executable->run({x});
  }
  EXPECT_EQ(executable->num_frames(), 1);
  const CacheCounters counters = executable->cache_counters();
  EXPECT_EQ(counters.hits + counters.misses, 80);
}
