// The partitioner: tiles, threads, and kernels that are cut among 1, 2, 3 and 8 of them.
#include "kernels/registry/partition.h"

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/div.h>
#include <ATen/ops/full.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <atomic>
#include <mutex>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>

#include "prepared_util.h"
#include "test.h"

using namespace staticrt;
using namespace staticrt::test;

namespace {

constexpr int kCounts[] = {1, 2, 3, 8};

std::set<std::thread::id> threads_of(const Grid& grid, int threads) {
  std::mutex mutex;
  std::set<std::thread::id> ids;
  run_tiles(grid, threads, [&](const Tile&) {
    const std::lock_guard<std::mutex> lock(mutex);
    ids.insert(std::this_thread::get_id());
  });
  return ids;
}

struct CutCase {
  std::string op;
  std::vector<c10::IValue> args;
  std::vector<size_t> constants = {};
};

// Equal to eager with every number of threads, bit for bit to one thread (`bitwise`), and cut between two.
void expect_cut(const CutCase& c, bool bitwise = true) {
  std::vector<at::Tensor> alone;
  for (const int threads : kCounts) {
    const Threads set(threads);
    RunOptions options;
    options.num_threads = threads;
    options.constants = c.constants;
    options.deterministic = true;
    expect_prepared(c.op, c.args, options);
    const PreparedRun run = run_prepared(c.op, c.args, run_eager(c.op, c.args), options);
    if (threads == 1) alone = run.outs;
    for (size_t i = 0; i < alone.size() && bitwise; ++i)
      expect_close(run.outs[i], alone[i], {0, 0}, c.op + " with " + std::to_string(threads) + " threads");
    double serial = 0;
    for (const Grid& grid : run.grids) serial = std::max(serial, largest_share(grid, 2));
    if (threads > 1 && (run.grids.empty() || serial > 0.67))
      fail(__FILE__, __LINE__, c.op + " (" + run.route + ") gives one thread " + std::to_string(serial));
  }
}

}  // namespace

TEST(tiles_cover_every_cell_once_and_the_largest_is_about_as_small_as_can_be) {
  std::mt19937 rng(1);
  const auto number = [&](int64_t most) { return std::uniform_int_distribution<int64_t>(1, most)(rng); };
  for (int i = 0; i < 400; ++i) {
    const Grid grid{.rows = number(40),
                    .columns = number(40),
                    .row_unit = number(5),
                    .column_unit = number(9),
                    .cell_ns = tuning::kNsPerThread,
                    .columns_first = number(2) == 1};
    const int threads = static_cast<int>(number(12));
    const Cut cut = cut_of(grid, threads);
    EXPECT(cut.parts() <= threads);
    std::vector<int> covered(static_cast<size_t>(grid.rows * grid.columns), 0);
    int64_t largest = 0;
    for (int64_t part = 0; part < cut.parts(); ++part) {
      const Tile tile = tile_of(grid, cut, part);
      EXPECT(tile.row_begin % grid.row_unit == 0 && tile.column_begin % grid.column_unit == 0);
      largest = std::max(largest, (tile.row_end - tile.row_begin) * (tile.column_end - tile.column_begin));
      for (int64_t r = tile.row_begin; r < tile.row_end; ++r) {
        for (int64_t c = tile.column_begin; c < tile.column_end; ++c)
          ++covered[static_cast<size_t>(r * grid.columns + c)];
      }
    }
    for (const int count : covered) EXPECT(count == 1);
    // By brute force over all cuts: no tile can be smaller than this.
    int64_t least = grid.rows * grid.columns;
    const auto part_of = [](int64_t cells, int64_t unit, int64_t parts) {
      const int64_t units = (cells + unit - 1) / unit;
      return std::min(cells, (units + parts - 1) / parts * unit);
    };
    for (int64_t rows = 1; rows <= threads; ++rows) {
      for (int64_t columns = 1; rows * columns <= threads; ++columns) {
        least = std::min(least, part_of(grid.rows, grid.row_unit, rows) *
                                    part_of(grid.columns, grid.column_unit, columns));
      }
    }
    const double share = largest_share(grid, threads) * static_cast<double>(grid.rows * grid.columns);
    EXPECT(static_cast<double>(largest) <= share + 1e-6);
    EXPECT(share <= static_cast<double>(least) * tuning::kOtherSide + 1e-6);
  }
}

TEST(of_cuts_about_as_good_the_grid_chooses_the_side) {
  // Columns are halved exactly, rows are not.
  Grid grid{.rows = 3136, .columns = 256, .row_unit = 12, .column_unit = 32, .cell_ns = 1};
  EXPECT(cut_of(grid, 2).rows == 2);
  grid.columns_first = true;
  EXPECT(cut_of(grid, 2).columns == 2);
  grid.columns = 96;  // three units: two threads would have two and one
  EXPECT(cut_of(grid, 2).rows == 2);
}

TEST(little_work_is_not_cut) {
  const Grid little{.rows = 1000, .cell_ns = tuning::kNsPerThread / 300};
  EXPECT(cut_of(little, 8).parts() == 1);
  EXPECT(largest_share(little, 64) == 1);
  const Grid more{.rows = 1000, .cell_ns = tuning::kNsPerThread / 200};
  EXPECT(cut_of(more, 64).parts() == 5);
}

TEST(tiles_run_on_as_many_threads_as_torch_says) {
  const Grid grid{.rows = 100, .cell_ns = tuning::kNsPerThread};
  {
    const Threads three(3);
    EXPECT(threads_of(grid, 3).size() == 3);
    EXPECT(threads_of(grid, 2).size() == 2);
  }
  const Threads one(1);
  EXPECT(threads_of(grid, 3) == std::set<std::thread::id>{std::this_thread::get_id()});
}

TEST(tiles_of_a_tile_run_on_its_thread) {
  const Threads two(2);
  const Grid grid{.rows = 100, .cell_ns = tuning::kNsPerThread};
  std::atomic<int> strangers{0};
  run_tiles(grid, 2, [&](const Tile&) {
    strangers += threads_of(grid, 2) != std::set<std::thread::id>{std::this_thread::get_id()};
  });
  EXPECT(strangers == 0);
}

// Of many callers at once, all but the first keep to their own thread where the cores are taken.
TEST(callers_at_once_do_not_start_more_threads_than_cores) {
  const int many = static_cast<int>(std::thread::hardware_concurrency()) + 1;
  const Threads set(many);
  const Grid grid{.rows = 100, .cell_ns = tuning::kNsPerThread};
  std::set<std::thread::id> inner;
  std::atomic<bool> asked{false};
  run_tiles(grid, many, [&](const Tile& tile) {
    if (tile.part != 0) return;
    std::thread other([&] {
      at::set_num_threads(many);
      inner = threads_of(grid, many);
      asked = true;
    });
    other.join();
  });
  EXPECT(asked && inner.size() == 1);
}

TEST(an_exception_of_a_tile_reaches_the_caller) {
  const Threads two(2);
  const Grid grid{.rows = 100, .cell_ns = tuning::kNsPerThread};
  bool caught = false;
  try {
    run_tiles(grid, 2, [](const Tile& tile) {
      if (tile.part == 1) throw std::runtime_error("part 1");
    });
  } catch (const std::runtime_error& error) {
    caught = std::string(error.what()) == "part 1";
  }
  EXPECT(caught);
  EXPECT(threads_of(grid, 2).size() == 2);  // and the next call is cut again
}

TEST(rows_and_columns_are_cut) {
  at::manual_seed(1);
  const auto none = c10::IValue();
  const std::vector<int64_t> dim1{1};
  const std::vector<CutCase> cases = {
      {"aten::exp", {at::randn({100'003})}},
      {"aten::add.Tensor", {at::randn({301, 517}), at::randn({517})}},
      {"aten::softmax.int", {at::randn({257, 1031}), -1}},
      {"aten::softmax.int", {at::randn({3, 65, 1009}), 1}},
      {"aten::log_softmax.int", {at::randn({1, 65, 2001}), 1}},
      {"aten::sum", {at::randn({300'007})}},
      {"aten::sum.dim_IntList", {at::randn({3, 100'003}), dim1}},
      {"aten::mean.dim", {at::randn({5, 131, 1003}), dim1}},
      {"aten::var.dim", {at::randn({301, 515}), dim1}},
      {"aten::amax", {at::randn({1, 131, 3001}), dim1}},
      {"aten::layer_norm",
       {at::randn({301, 515}), std::vector<int64_t>{515}, at::randn({515}), at::randn({515}), 1e-5, false}},
      {"aten::group_norm", {at::randn({3, 35, 41, 43}), 5, at::randn({35}), at::randn({35}), 1e-5, false}},
      {"aten::batch_norm",
       {at::randn({3, 35, 41, 43}), at::randn({35}), at::randn({35}), at::randn({35}), at::full({35}, 0.7),
        false, 0.1, 1e-5, false}},
      {"aten::max_pool2d",
       {at::randn({3, 11, 41, 43}), std::vector<int64_t>{3, 3}, std::vector<int64_t>{2, 2},
        std::vector<int64_t>{1, 1}}},
      {"aten::avg_pool2d", {at::randn({3, 51, 41, 143}), std::vector<int64_t>{1, 32}}},
      {"aten::avg_pool2d",
       {at::randn({3, 11, 41, 43}), std::vector<int64_t>{3, 3}, std::vector<int64_t>{2, 2},
        std::vector<int64_t>{1, 1}}},
  };
  for (const CutCase& c : cases) expect_cut(c);
}

TEST(copies_and_indexing_are_cut) {
  at::manual_seed(2);
  const std::vector<CutCase> cases = {
      {"aten::cat",
       {std::vector<at::Tensor>{at::randn({301, 517}), at::randn({301, 33}), at::randn({301, 512})}, 1}},
      {"aten::cat", {std::vector<at::Tensor>{at::randn({300'001}), at::randn({200'003})}, 0}},
      {"aten::stack", {std::vector<at::Tensor>{at::randn({301, 517}), at::randn({301, 517})}, 1}},
      {"aten::flip", {at::randn({301, 1517}), std::vector<int64_t>{1}}},
      {"aten::flip", {at::randn({300'001}), std::vector<int64_t>{0}}},
      {"aten::flip", {at::randn({7, 301, 117}).to(at::kDouble), std::vector<int64_t>{0, 1}}},
      {"aten::roll", {at::randn({600, 1000}), std::vector<int64_t>{299, -501}, std::vector<int64_t>{0, 1}}},
      {"aten::embedding", {at::randn({999, 67}), at::randint(999, {2003}, at::kLong)}},
      {"aten::index_select", {at::randn({7, 999, 3}), 1, at::randint(999, {2003}, at::kInt)}},
      {"aten::index_select", {at::randn({1, 9999, 1}), 1, at::randint(9999, {40'003}, at::kLong)}},
      {"aten::gather", {at::randn({7, 999, 13}), 1, at::randint(999, {7, 403, 13}, at::kLong)}},
      {"aten::index_add",
       {at::randn({5, 99, 203}), 1, at::randint(99, {131}, at::kLong), at::randn({5, 131, 203})}},
      {"aten::scatter_add",
       {at::randn({501, 99}), 1, at::randint(99, {501, 131}, at::kLong), at::randn({501, 131})}},
      {"aten::scatter_add",
       {at::randn({5, 99, 203}), 1, at::randint(99, {5, 131, 203}, at::kLong), at::randn({5, 131, 203})}},
  };
  for (const CutCase& c : cases) expect_cut(c);
}

TEST(an_index_out_of_range_is_eagers_in_every_tile) {
  for (const int threads : kCounts) {
    const Threads set(threads);
    RunOptions options;
    options.num_threads = threads;
    for (const int64_t place : {int64_t{0}, int64_t{20'000}, int64_t{40'002}}) {
      at::Tensor index = at::zeros({40'003}, at::kLong);
      index[place] = 10;
      const at::Tensor like = at::zeros({40'003});
      const at::Tensor pairs = index.unsqueeze(1).expand({-1, 2}).contiguous();
      const at::Tensor two = at::zeros({40'003, 2});
      EXPECT(run_prepared("aten::gather", {at::randn({10, 2}), 0, pairs}, {two}, options).status == kRedo);
      EXPECT(run_prepared("aten::index_select", {at::randn({10}), 0, index}, {like}, options).status ==
             kRedo);
    }
  }
}

TEST(convolutions_of_planes_and_lines_are_cut) {
  at::manual_seed(3);
  const std::vector<int64_t> one{1, 1};
  const std::vector<int64_t> two{2, 2};
  const std::vector<CutCase> cases = {
      {"aten::conv2d",
       {at::randn({1, 22, 31, 33}), at::randn({22, 1, 3, 3}), at::randn({22}), one, one, one, 22}},
      {"aten::conv2d",
       {at::randn({2, 22, 31, 33}), at::randn({44, 1, 3, 3}), at::randn({44}), two, one, one, 22}},
      {"aten::conv1d",
       {at::randn({3, 22, 1301}), at::randn({44, 1, 5}), at::randn({44}), std::vector<int64_t>{1},
        std::vector<int64_t>{2}, std::vector<int64_t>{1}, 22}},
  };
  for (const CutCase& c : cases) expect_cut(c);
}

TEST(attention_is_cut_by_heads_and_blocks) {
  at::manual_seed(4);
  const char* op = "aten::scaled_dot_product_attention";
  const auto none = c10::IValue();
  const auto heads = [](int64_t b, int64_t h, int64_t n, int64_t d) { return at::randn({b, h, n, d}); };
  const at::Tensor keys = heads(1, 1, 301, 64);
  expect_cut({op, {heads(1, 1, 301, 64), keys, keys, none, 0.0, false}});
  expect_cut({op, {heads(1, 1, 301, 64), keys, keys, none, 0.0, true}});
  expect_cut({op,
              {heads(2, 3, 131, 40), heads(2, 3, 157, 40), heads(2, 3, 157, 72), at::randn({131, 157}), 0.0,
               false}});
  expect_cut(
      {op, {heads(2, 6, 131, 40), heads(2, 3, 157, 40), heads(2, 3, 157, 72), none, 0.0, false, none, true}});
  expect_cut({op, {heads(2, 5, 2, 64), heads(2, 5, 1201, 64), heads(2, 5, 1201, 64), none, 0.0, false}},
             false);
}

// Decoding: fewer heads than threads. Parts may see nothing, or all that a row sees.
TEST(attention_of_few_queries_is_cut_by_keys) {
  at::manual_seed(7);
  const std::string op = "aten::scaled_dot_product_attention";
  const auto none = c10::IValue();
  const int64_t n = 6011;
  const at::Tensor q = at::randn({1, 1, 3, 32});
  const at::Tensor k = at::randn({1, 1, n, 32}).mul(at::arange(1, n + 1).view({n, 1}).to(at::kFloat)).div(n);
  const at::Tensor v = at::randn({1, 1, n, 40});
  at::Tensor mask = at::rand({3, n}).lt(0.3);
  mask.slice(0, 0, 1).slice(1, 0, n / 2).fill_(false);
  mask.slice(0, 1, 2).slice(1, n / 2).fill_(false);
  at::Tensor blind = mask.clone();
  blind.slice(0, 2, 3).fill_(false);
  at::Tensor spoiled = q.clone();
  spoiled.slice(2, 1, 2).fill_(std::numeric_limits<float>::quiet_NaN());
  at::Tensor hole = v.clone();
  hole.slice(2, 7, 8).fill_(std::numeric_limits<float>::quiet_NaN());
  const std::vector<CutCase> cases = {
      {op, {q.slice(2, 0, 1), k, v, none, 0.0, false}},
      {op, {q, k, v, none, 0.0, false}},
      {op, {q, k.flip({2}), v.flip({2}), none, 0.0, false}},
      {op, {q, k, v, mask, 0.0, false}},
      {op, {q, k, v, blind, 0.0, false}},
      {op, {q, k, v, at::randn({1, n}), 0.0, false}},
      {op, {q, k, v, none, 0.0, true}},
      {op, {spoiled, k, v, none, 0.0, false}},
      {op, {q, k, hole, mask, 0.0, false}},
      {op, {q.squeeze(0), k.squeeze(0), v.squeeze(0), none, 0.0, false, 0.3}},
      {op, {at::randn({1, 2, 1, 32}), k, v, none, 0.0, false, none, true}},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", {q, k, v.slice(3, 0, 32), 0.0, false}},
  };
  for (const CutCase& c : cases) {
    expect_cut(c, false);
    const Threads eight(8);
    RunOptions options;
    options.num_threads = 8;
    EXPECT_EQ(run_prepared(c.op, c.args, run_eager(c.op, c.args), options).route, "parts of keys");
  }
}

// Longer than one block: a running maximum, which moves, and rows that see nothing in some blocks, or at all.
TEST(attention_over_blocks_of_keys_equals_eager) {
  at::manual_seed(5);
  const char* op = "aten::scaled_dot_product_attention";
  const auto none = c10::IValue();
  const int64_t n = 2 * tuning::kAttentionBlockKeys + 77;
  const at::Tensor q = at::randn({1, 2, 101, 32});
  const at::Tensor k = at::randn({1, 2, n, 32}).mul(at::arange(1, n + 1).view({n, 1}).to(at::kFloat)).div(n);
  const at::Tensor v = at::randn({1, 2, n, 40});
  expect_cut({op, {q, k, v, none, 0.0, false}});
  expect_cut({op, {q, k.flip({2}), v, none, 0.0, false}});
  at::Tensor mask = at::rand({1, 1, 101, n}).lt(0.3);
  mask.slice(2, 10, 20).slice(3, 0, n / 2).fill_(false);
  mask.slice(2, 20, 30).slice(3, n / 2).fill_(false);
  mask.slice(2, 30, 31).fill_(false);
  expect_cut({op, {q, k, v, mask, 0.0, false}});
  expect_cut({op, {q, k, v, at::randn({101, n}), 0.0, false}});
  const at::Tensor own = at::randn({1, 1, n, 32});
  expect_cut({op, {own, own, own, none, 0.0, true}});
  const char* flash = "aten::_scaled_dot_product_flash_attention_for_cpu";
  expect_cut({flash, {own, own, own, 0.0, true}});
  for (const int64_t rows : {n, int64_t{60}}) {  // rows that may see no key: several blocks of keys, and one
    const at::Tensor some = own.slice(2, 0, rows);
    at::Tensor added = at::zeros({rows, rows});
    added.slice(0, 3, 5).fill_(-std::numeric_limits<float>::infinity());
    expect_cut({flash, {some, some, some, 0.0, false, added}});
  }
  at::Tensor spoiled = q.clone();
  spoiled.slice(2, 50, 51).fill_(std::numeric_limits<float>::quiet_NaN());
  expect_cut({op, {spoiled, k, v, none, 0.0, false}});
}

// Products and convolutions: every part of an output is computed once, whatever route a rule takes.
TEST(products_and_convolutions_are_cut) {
  std::mt19937 rng(6);
  const auto unit = [&](std::vector<int64_t> sizes) {
    return random_tensor(rng, sizes, at::kFloat).clamp(-1, 1);
  };
  const std::vector<int64_t> one{1, 1};
  const std::vector<int64_t> two{2, 2};
  const auto pixels = [&](std::vector<int64_t> sizes) {
    return unit(sizes).contiguous(at::MemoryFormat::ChannelsLast);
  };
  const std::vector<CutCase> cases = {
      {"aten::linear", {unit({131, 300}), unit({517, 300}), unit({517})}, {1, 2}},
      {"aten::linear", {unit({3, 700}), unit({1001, 700}), unit({1001})}, {1, 2}},
      {"aten::linear", {unit({131, 300}), unit({33, 300})}, {}},
      {"aten::mm", {unit({133, 257}), unit({257, 131})}},
      {"aten::bmm", {unit({13, 65, 70}), unit({13, 70, 67})}},
      {"aten::baddbmm", {unit({5, 65, 67}), unit({5, 65, 170}), unit({5, 170, 67})}},
      {"aten::addmm", {unit({131, 1}), unit({131, 257}), unit({257, 133})}},
      {"aten::conv2d", {unit({2, 3, 61, 63}), unit({17, 3, 3, 3}), unit({17}), one, one, one, 1}, {1, 2}},
      {"aten::conv2d", {unit({2, 24, 31, 33}), unit({45, 24, 1, 1}), unit({45})}, {1, 2}},
      {"aten::conv2d",
       {pixels({2, 24, 31, 33}), pixels({45, 24, 3, 3}), unit({45}), one, one, one, 1},
       {1, 2}},
      {"aten::conv2d",
       {pixels({1, 64, 29, 31}), pixels({70, 64, 3, 3}), unit({70}), two, one, one, 1},
       {1, 2}},
      {"aten::conv2d",
       {pixels({2, 24, 31, 33}), pixels({24, 1, 3, 3}), unit({24}), one, one, one, 24},
       {1, 2}},
      {"aten::conv2d",
       {pixels({1, 512, 5, 7}), pixels({256, 512, 3, 3}).contiguous(), unit({256}), one, one, one, 1},
       {1, 2}},
      {"aten::conv_transpose2d.input",
       {pixels({2, 33, 17, 19}), unit({33, 67, 4, 4}), unit({67}), two, one},
       {1, 2}},
  };
  for (const CutCase& c : cases) expect_cut(c, false);
}
