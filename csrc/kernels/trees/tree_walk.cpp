#include "kernels/trees/tree_walk.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/tuning.h"

namespace staticrt {
namespace {

constexpr int kLanes = 8;

template <class T>
struct Node {
  T threshold;  // of a leaf of an ensemble with one weight for each: the weight
  int32_t feature;
  int32_t next[2];  // where a failed and a passed test lead
};

struct Header {
  int32_t mode;        // of all tests; -1: several
  int32_t missing;     // NaN passes at some nodes
  int32_t one_weight;  // one target, and each leaf has exactly one weight
};

struct Leaf {
  int32_t first, end;
};

int64_t rounded(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

// The packed form: where its parts lie.
template <class T, class Byte>
struct Packed {
  Packed(Byte* bytes, const TreeSizes& s) {
    const auto take = [&](int64_t size) {
      Byte* part = bytes + end;
      end += rounded(size);
      return part;
    };
    header = take(sizeof(Header));
    nodes = take(s.nodes * static_cast<int64_t>(sizeof(Node<T>)));
    flags = take(2 * s.nodes);
    leaves = take(s.nodes * static_cast<int64_t>(sizeof(Leaf)));
    roots = take(s.trees * 4);
    targets = take(s.weights * 4);
    weights = take(s.weights * static_cast<int64_t>(sizeof(T)));
    members = take(s.nodes * s.members * static_cast<int64_t>(sizeof(T)));
  }
  Byte *header, *nodes, *flags, *leaves, *roots, *targets, *weights, *members;
  int64_t end = 0;
};

template <class To>
const To* as(const char* bytes) {
  return reinterpret_cast<const To*>(bytes);
}
template <class To>
To* as(char* bytes) {
  return reinterpret_cast<To*>(bytes);
}

// One ensemble and the rows of one task.
template <class T>
class Walk {
 public:
  Walk(const char* packed, const TreeSizes& sizes, TreeAggregate aggregate)
      : sizes_(sizes), aggregate_(aggregate) {
    const Packed<T, const char> parts(packed, sizes);
    header_ = *as<Header>(parts.header);
    nodes_ = as<Node<T>>(parts.nodes);
    modes_ = as<int8_t>(parts.flags);
    missing_ = modes_ + sizes.nodes;
    leaves_ = as<Leaf>(parts.leaves);
    roots_ = as<int32_t>(parts.roots);
    targets_ = as<int32_t>(parts.targets);
    weights_ = as<T>(parts.weights);
    members_ = as<T>(parts.members);
  }

  void run(const T* x, int64_t rows, T* totals, bool* said) const {
    switch (header_.missing ? -1 : header_.mode) {
      case 0:
        return run_as([](T value, T limit, int32_t) { return value <= limit; }, x, rows, totals, said);
      case 1:
        return run_as([](T value, T limit, int32_t) { return value < limit; }, x, rows, totals, said);
      case 2:
        return run_as([](T value, T limit, int32_t) { return value >= limit; }, x, rows, totals, said);
      case 3:
        return run_as([](T value, T limit, int32_t) { return value > limit; }, x, rows, totals, said);
      default:
        return run_as([this](T value, T limit, int32_t node) { return passes(value, limit, node); }, x, rows,
                      totals, said);
    }
  }

 private:
  bool passes(T value, T limit, int32_t node) const {
    if (missing_[node] && std::isnan(value)) return true;
    switch (static_cast<TreeMode>(modes_[node])) {
      case TreeMode::kLeq:
        return value <= limit;
      case TreeMode::kLt:
        return value < limit;
      case TreeMode::kGte:
        return value >= limit;
      case TreeMode::kGt:
        return value > limit;
      case TreeMode::kEq:
        return value == limit;
      case TreeMode::kNeq:
        return value != limit;
      case TreeMode::kMember: {
        const T* set = members_ + node * sizes_.members;
        return std::find(set, set + sizes_.members, value) != set + sizes_.members;
      }
      case TreeMode::kLeaf:
        break;
    }
    return false;
  }

  template <class Test>
  void run_as(const Test& test, const T* x, int64_t rows, T* totals, bool* said) const {
    for (int64_t begin = 0; begin < rows; begin += tuning::kTreeRowsPerBlock) {
      const int64_t count = std::min(tuning::kTreeRowsPerBlock, rows - begin);
      run_block(test, x + begin * sizes_.features, count, totals + begin * sizes_.targets,
                said ? said + begin * sizes_.targets : nullptr);
    }
  }

  template <class Test>
  void run_block(const Test& test, const T* x, int64_t rows, T* totals, bool* said) const {
    const int64_t cells = rows * sizes_.targets;
    std::fill(totals, totals + cells, start());
    if (said) std::fill(said, said + cells, false);
    const int64_t together = rows / kLanes * kLanes;
    int32_t at[kLanes];
    const T* lanes[kLanes];
    for (int64_t tree = 0; tree < sizes_.trees; ++tree) {
      for (int64_t row = 0; row < together; row += kLanes) {
        for (int k = 0; k < kLanes; ++k) {
          at[k] = roots_[tree];
          lanes[k] = x + (row + k) * sizes_.features;
        }
        descend(test, lanes, at);
        for (int k = 0; k < kLanes; ++k) add(at[k], row + k, totals, said);
      }
    }
    for (int64_t row = together; row < rows; ++row) {
      for (int64_t tree = 0; tree < sizes_.trees; tree += kLanes) {
        const auto count = static_cast<int>(std::min<int64_t>(kLanes, sizes_.trees - tree));
        for (int k = 0; k < kLanes; ++k) {
          at[k] = roots_[tree + std::min(k, count - 1)];
          lanes[k] = x + row * sizes_.features;
        }
        descend(test, lanes, at);
        for (int k = 0; k < count; ++k) add(at[k], row, totals, said);
      }
    }
    if (said && aggregate_ != TreeAggregate::kSum) {
      for (int64_t i = 0; i < cells; ++i) totals[i] = said[i] ? totals[i] : 0;
    }
  }

  // From the roots in `at` to leaves, in at most as many steps as there are nodes: tables may contain cycles.
  template <class Test>
  void descend(const Test& test, const T* const* lanes, int32_t* at) const {
    if (sizes_.features == 0) return;  // nothing to test
    for (int64_t step = 0; step < sizes_.nodes; ++step) {
      int32_t moved = 0;
      for (int k = 0; k < kLanes; ++k) {
        const Node<T>& node = nodes_[at[k]];
        const int32_t next = node.next[test(lanes[k][node.feature], node.threshold, at[k])];
        moved |= next ^ at[k];
        at[k] = next;
      }
      if (moved == 0) return;
    }
  }

  T start() const {
    constexpr T kInfinity = std::numeric_limits<T>::infinity();
    return aggregate_ == TreeAggregate::kSum ? 0 : aggregate_ == TreeAggregate::kMin ? kInfinity : -kInfinity;
  }

  void add(int32_t leaf, int64_t row, T* totals, bool* said) const {
    if (header_.one_weight) {
      combine(totals[row], nodes_[leaf].threshold);
      if (said) said[row] = true;
      return;
    }
    for (int32_t i = leaves_[leaf].first; i < leaves_[leaf].end; ++i) {
      const int64_t cell = row * sizes_.targets + targets_[i];
      combine(totals[cell], weights_[i]);
      if (said) said[cell] = true;
    }
  }

  void combine(T& total, T weight) const {
    switch (aggregate_) {
      case TreeAggregate::kSum:
        total += weight;
        break;
      case TreeAggregate::kMin:
        total = weight < total ? weight : total;
        break;
      case TreeAggregate::kMax:
        total = weight > total ? weight : total;
        break;
    }
  }

  const TreeSizes sizes_;
  const TreeAggregate aggregate_;
  Header header_;
  const Node<T>* nodes_;
  const int8_t* modes_;
  const int8_t* missing_;
  const Leaf* leaves_;
  const int32_t* roots_;
  const int32_t* targets_;
  const T* weights_;
  const T* members_;
};

}  // namespace

template <class T>
int64_t packed_tree_bytes(const TreeSizes& sizes) {
  return Packed<T, char>(nullptr, sizes).end;
}

template <class T>
void pack_trees(const TreeTables<T>& tables, const TreeSizes& sizes, char* packed) {
  const Packed<T, char> parts(packed, sizes);
  auto* nodes = as<Node<T>>(parts.nodes);
  auto* modes = as<int8_t>(parts.flags);
  auto* missing = modes + sizes.nodes;
  auto* leaves = as<Leaf>(parts.leaves);
  const auto within = [](int32_t number, int64_t limit) { return number >= 0 && number < limit; };
  int32_t mode = -2;
  Header header{0, 0, sizes.targets == 1};
  for (int64_t n = 0; n < sizes.nodes; ++n) {
    const int32_t* row = tables.nodes + n * kTreeColumns;
    const auto self = static_cast<int32_t>(n);
    const bool is_test = within(row[kMode], static_cast<int64_t>(TreeMode::kMember) + 1) &&
                         within(row[kFeature], sizes.features) && within(row[kTrue], sizes.nodes) &&
                         within(row[kFalse], sizes.nodes) &&
                         (row[kMode] != static_cast<int32_t>(TreeMode::kMember) || sizes.members > 0);
    Node<T>& node = nodes[n];
    node = {tables.thresholds[n], is_test ? row[kFeature] : 0, {self, self}};
    modes[n] = static_cast<int8_t>(is_test ? row[kMode] : static_cast<int32_t>(TreeMode::kLeaf));
    missing[n] = static_cast<int8_t>(is_test && row[kMissing] != 0);
    leaves[n] = {0, 0};
    if (is_test) {
      node.next[0] = row[kFalse];
      node.next[1] = row[kTrue];
      mode = mode == -2 || mode == row[kMode] ? row[kMode] : -1;
      header.missing |= missing[n];
      continue;
    }
    bool fits =
        row[kCount] >= 0 && within(row[kFirst], sizes.weights) && row[kCount] <= sizes.weights - row[kFirst];
    for (int32_t i = 0; fits && i < row[kCount]; ++i)
      fits = within(tables.targets[row[kFirst] + i], sizes.targets);
    if (fits) leaves[n] = {row[kFirst], row[kFirst] + row[kCount]};
    if (leaves[n].end - leaves[n].first == 1) {
      node.threshold = tables.weights[leaves[n].first];
    } else {
      header.one_weight = 0;
    }
  }
  header.mode = mode;
  *as<Header>(parts.header) = header;
  for (int64_t i = 0; i < sizes.trees; ++i)
    as<int32_t>(parts.roots)[i] = within(tables.roots[i], sizes.nodes) ? tables.roots[i] : 0;
  std::copy(tables.targets, tables.targets + sizes.weights, as<int32_t>(parts.targets));
  std::copy(tables.weights, tables.weights + sizes.weights, as<T>(parts.weights));
  if (tables.members) {
    std::copy(tables.members, tables.members + sizes.nodes * sizes.members, as<T>(parts.members));
  }
}

Grid tree_grid(const TreeSizes& sizes, int64_t rows) {
  return {.rows = rows,
          .row_unit = kLanes,
          .cell_ns = static_cast<double>(sizes.trees * tuning::kTreeDepth) / tuning::kTreeStepsPerNs};
}

template <class T>
void walk_trees(const char* packed, const TreeSizes& sizes, TreeAggregate aggregate, const T* x, int64_t rows,
                int num_threads, T* totals, bool* said) {
  const Walk<T> walk(packed, sizes, aggregate);
  run_tiles(tree_grid(sizes, rows), num_threads, [&](const Tile& tile) {
    const int64_t begin = tile.row_begin;
    walk.run(x + begin * sizes.features, tile.row_end - begin, totals + begin * sizes.targets,
             said ? said + begin * sizes.targets : nullptr);
  });
}

#define SRT_TREES(T)                                                                                    \
  template int64_t packed_tree_bytes<T>(const TreeSizes&);                                              \
  template void pack_trees<T>(const TreeTables<T>&, const TreeSizes&, char*);                           \
  template void walk_trees<T>(const char*, const TreeSizes&, TreeAggregate, const T*, int64_t, int, T*, \
                              bool*);
SRT_TREES(float)
SRT_TREES(double)
#undef SRT_TREES

}  // namespace staticrt
