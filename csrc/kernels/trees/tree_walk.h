// Ensembles of decision trees (ONNX's ai.onnx.ml): packed tables, and rows that walk down several at once.
//
// A single walk waits for one load after the other. Eight independent ones (rows in the same tree, or trees
// of the same row) hide that latency, without branches that could be mispredicted: leaves lead to themselves.
// Trees are added to a row's totals in their order, so that results depend neither on the number of rows nor
// on threads.
#pragma once

#include <cstdint>

#include "kernels/registry/partition.h"

namespace staticrt {

enum class TreeMode : int8_t { kLeaf = -1, kLeq, kLt, kGte, kGt, kEq, kNeq, kMember };
enum class TreeAggregate : int64_t { kSum = 0, kMin = 1, kMax = 2 };

// Columns of the table of nodes, int32 [nodes, kTreeColumns]. `first` and `count`: what a leaf adds, among
// the targets and weights.
enum TreeColumn : int64_t { kFeature, kTrue, kFalse, kMode, kMissing, kFirst, kCount, kTreeColumns };

struct TreeSizes {
  int64_t nodes = 0;
  int64_t trees = 0;
  int64_t weights = 0;
  int64_t members = 0;   // per node: what a test for membership compares with, NaN where there are fewer
  int64_t features = 0;  // of a row
  int64_t targets = 0;   // of a row of totals
};

// The tables as they are given, any numbers in them. Floats are of the type that is computed in.
template <class T>
struct TreeTables {
  const int32_t* nodes;
  const T* thresholds;  // [nodes]
  const int32_t* roots;
  const int32_t* targets;  // [weights]
  const T* weights;
  const T* members;  // [nodes, members], or null
};

// Bytes of the packed form, 64-aligned.
template <class T>
int64_t packed_tree_bytes(const TreeSizes& sizes);

// Replaces or drops entries that are not valid indices of nodes, features, weights or targets: whatever the
// tables hold, walks stay within them and end.
template <class T>
void pack_trees(const TreeTables<T>& tables, const TreeSizes& sizes, char* packed);

// Rows are its cells.
Grid tree_grid(const TreeSizes& sizes, int64_t rows);

// totals [rows, targets] of x [rows, features], both contiguous. said [rows, targets], or null: whether some
// leaf had a weight for the target. Without one the smallest and the largest weight are 0.
template <class T>
void walk_trees(const char* packed, const TreeSizes& sizes, TreeAggregate aggregate, const T* x, int64_t rows,
                int num_threads, T* totals, bool* said);

}  // namespace staticrt
