// What a record may not hold for: sizes that values decide, bytes that no operator made, values that are
// read.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include "graphs/digest.h"
#include "graphs/graph.h"
#include "graphs/replay_error.h"
#include "test.h"

using namespace staticrt;
using namespace staticrt::graphs;

namespace {

at::Tensor positive(const at::Tensor& x) {
  return x.index({x.gt(0)});
}

const auto* library = [] {
  auto* made = new torch::Library(torch::Library::DEF, "staticrt_doubts", std::nullopt, __FILE__, __LINE__);
  made->def("positive(Tensor x) -> Tensor");
  made->impl("positive", torch::dispatch(c10::DispatchKey::CPU, &positive));
  return made;
}();

at::Tensor call_positive(const at::Tensor& x) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("staticrt_doubts::positive", "")
                             .typed<at::Tensor(const at::Tensor&)>();
  return op.call(x);
}

// A tensor whose bytes no operator wrote.
at::Tensor computed_unseen(const at::Tensor& x) {
  at::Tensor y = at::empty({x.numel()});
  std::memcpy(y.mutable_data_ptr(), x.const_data_ptr(), x.nbytes());
  return y;
}

void record(CpuGraph& graph, const at::Tensor& x, const std::function<at::Tensor(at::Tensor)>& function,
            const std::vector<at::Tensor>& fixed = {}) {
  graph.begin({x}, fixed);
  const at::Tensor result = function(x);
  EXPECT_EQ(graph.end(), std::string());
}

}  // namespace

TEST(digests_tell_bytes_apart) {
  const std::string bytes = "0123456789abcdefg";
  for (size_t nbytes = 0; nbytes <= bytes.size(); ++nbytes) {
    const uint64_t whole = digest(bytes.data(), nbytes);
    EXPECT(whole != 0);
    EXPECT_EQ(whole, digest(std::string(bytes).data(), nbytes));
    for (size_t i = 0; i < nbytes; ++i) {
      std::string other = bytes;
      other[i] ^= 1;
      EXPECT(digest(other.data(), nbytes) != whole);
    }
    if (nbytes > 0) EXPECT(digest(bytes.data(), nbytes - 1) != whole);
  }
  const at::Tensor x = at::arange(6.0).view({2, 3});
  EXPECT_EQ(digest({x.t()}), digest({x.t().contiguous()}));
  EXPECT(digest({x}) != digest({x.t()}));
  EXPECT(digest({x, x}) != digest({x}));
  EXPECT_EQ(digest(std::vector<at::Tensor>{}), digest(std::vector<at::Tensor>{}));
}

TEST(a_replay_of_another_size_leaves_everything_as_it_was) {
  CpuGraph graph(CpuPool::make());
  at::Tensor total = at::zeros({});
  at::Tensor x = at::ones({3});
  record(graph, x, [&](at::Tensor in) {
    in.add_(1);
    total.add_(in.sum());
    return call_positive(in) + at::rand({3});
  });
  EXPECT(graph.record().may_vary());
  const at::Tensor before = total.clone();
  const at::Tensor drawn = at::detail::getDefaultCPUGenerator().get_state();
  at::Tensor other = at::full({3}, -5.0);
  const std::vector<at::Tensor> inputs{other};
  EXPECT_THROW(graph.replay(&inputs, nullptr), ReplayError, "it depends on values");
  EXPECT(at::equal(other, at::full({3}, -5.0)));
  EXPECT(at::equal(total, before));
  EXPECT(at::equal(at::detail::getDefaultCPUGenerator().get_state(), drawn));
  const std::vector<at::Tensor> good{at::ones({3})};
  graph.replay(&good, nullptr);
  EXPECT_EQ(total.item<float>(), 12.0f);
}

TEST(torchs_own_operators_need_nothing_kept) {
  CpuGraph graph(CpuPool::make());
  record(graph, at::ones({3}), [](at::Tensor in) { return in.add_(1).cumsum(0); });
  EXPECT(!graph.record().may_vary());
}

TEST(records_agree_on_what_no_operator_made) {
  const auto pool = CpuPool::make();
  CpuGraph first(pool), same(pool), other(pool), none(pool);
  const auto unseen = [](at::Tensor in) { return computed_unseen(in) * 2; };
  record(first, at::arange(4.0), unseen);
  record(same, at::arange(4.0), unseen);
  record(other, at::arange(4.0) + 1, unseen);
  record(none, at::arange(4.0), [](at::Tensor in) { return in * 2 + at::arange(4) + at::zeros({4}); });
  EXPECT_EQ(first.record().num_unexplained(), size_t{1});
  EXPECT_EQ(none.record().num_unexplained(), size_t{0});
  EXPECT(first.record().agrees_with(same.record()));
  EXPECT(!first.record().agrees_with(other.record()));
  EXPECT(!first.record().agrees_with(none.record()));
  EXPECT(none.record().agrees_with(none.record()));
}

TEST(tensors_found_elsewhere_are_known_by_their_place) {
  const auto pool = CpuPool::make();
  const at::Tensor a = at::ones({3}), b = at::ones({3});
  CpuGraph first(pool), same(pool), other(pool), given(pool);
  record(first, at::ones({3}), [&](at::Tensor in) { return in * a; });
  record(same, at::ones({3}), [&](at::Tensor in) { return in * a; });
  record(other, at::ones({3}), [&](at::Tensor in) { return in * b; });
  record(given, at::ones({3}), [&](at::Tensor in) { return in * a; }, {a});
  EXPECT(first.record().agrees_with(same.record()));
  EXPECT(!first.record().agrees_with(other.record()));
  EXPECT_EQ(given.record().num_unexplained(), size_t{0});
}

TEST(memory_that_is_written_in_part_is_explained) {
  CpuGraph graph(CpuPool::make());
  record(graph, at::ones({2}), [](at::Tensor in) {
    at::Tensor y = at::empty({4});
    y.slice(0, 0, 2).copy_(in);
    y.slice(0, 2, 4).copy_(in);
    return y;
  });
  EXPECT_EQ(graph.record().num_unexplained(), size_t{0});
}

TEST(a_read_fails_the_capture_of_its_thread_alone) {
  CpuGraph graph(CpuPool::make());
  const at::Tensor x = at::ones({2});
  graph.begin({x});
  std::thread([] { Recorder::note_read("there"); }).join();
  const at::Tensor y = x + 1;
  Recorder::note_read("here()");
  EXPECT_EQ(graph.end(), std::string("here() reads values"));
  Recorder::note_read("nowhere");
}
