// All chosen or measured numbers of the C++ code: limits, thresholds, budgets. staticrt/tuning.py has those
// of Python. Numbers that follow from a format, an instruction set or the layout of a structure are defined
// in its code.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace staticrt::tuning {

// ---- work of a thread: less is not worth waking one ---------------------------------------------------

inline constexpr double kNsPerThread = 4096;           // what a part of a call takes at least
inline constexpr double kRowOperationsPerNs = 8;       // float operations of one core on rows,
inline constexpr int64_t kLongPrimOperations = 4;      // that an exponential or a logarithm counts for
inline constexpr double kProductOperationsPerNs = 64;  // and in matrix products
inline constexpr double kOtherSide = 1.04;     // factor on a tile's cost where a cut is on its other side
inline constexpr double kReadBytesPerNs = 40;  // that one core reads of weights
inline constexpr double kTreeStepsPerNs = 5;   // tests of nodes, several rows at a time
inline constexpr int64_t kTreeDepth = 8;       // as most trees have

inline constexpr int64_t kMinDirectionFlops = 1 << 19;  // of a recurrent layer's second direction
inline constexpr int64_t kMinRegionBytes = 256 * 1024;  // touched by calls that run beside others
inline constexpr size_t kMaxRegionUnits = 4096;         // larger segments run in order: pairs are kept

// ---- the simulated accelerator ------------------------------------------------------------------------

inline constexpr uint64_t kMostPendingKernels = 1024;  // of a stream; then the host waits, as on CUDA
inline constexpr size_t kMaxInferenceWords = 1 << 18;  // 2 MiB of keys of known results
inline constexpr size_t kMaxSimReports = 100;          // texts kept; all are counted
inline constexpr uint64_t kMaxSimRuns = 4096;          // of bytes of one view whose races are looked for
inline constexpr size_t kMaxPoisonBytes = 64 << 20;    // of one allocation; limits host memory

// ---- blocks that stay in a cache ----------------------------------------------------------------------

inline constexpr int64_t kHalfCacheBytes = 1 << 20;  // half of a common second-level cache
inline constexpr int64_t kBlasBandBytes = 1 << 19;   // output rows of one call of BLAS
inline constexpr int64_t kMinBlasRows = 384;         // fewer do not repay packing the weights anew
inline constexpr int64_t kPanelFloats = 1 << 18;     // panels of a convolution that reads its weight in place
inline constexpr int64_t kProductRowUnit = 12;       // rows between two cuts of a product
inline constexpr int64_t kEvictingFloats = 1 << 20;  // reading them empties a second-level cache
inline constexpr int64_t kMaxRepeated = 512;  // elements gathered once: a tile holds several times as many
inline constexpr int64_t kMinRepeats = 8192;  // elements, for which a gathered row has to serve
inline constexpr int64_t kMinBlocked = 4096;  // elements walked by blocks: fewer stay in the first cache
inline constexpr int64_t kMinSide = 8;        // of such a block, in elements
inline constexpr int64_t kMaxSide = 64;
inline constexpr int64_t kMinTransposed = 4;          // rows of elements that are gathered
inline constexpr int64_t kMinGatheredRow = 8;         // of one element: shorter ones are faster transposed
inline constexpr int64_t kRecurrentRowsOfThread = 4;  // fewer rows cost a product nearly as much
inline constexpr int64_t kFewTerms = 64;  // with at most so many, waiting for C takes as long as the sums
inline constexpr int64_t kMaxTurnedRows = 256;     // rows of a tall product that are packed at once
inline constexpr int64_t kTreeRowsPerBlock = 128;  // their features stay while all trees are walked
inline constexpr int64_t kAttentionBlockRows = 48;
inline constexpr int64_t kAttentionBlockKeys = 1024;
inline constexpr int64_t kAttentionFewRows = 4;
inline constexpr int64_t kRecurrentChunkFloats = 1 << 18;  // gates of the steps computed by one product
inline constexpr int64_t kRecurrentChunkRows = 64;
inline constexpr int64_t kDepthwisePartFloats = 8192;  // output lines computed before their epilogue
inline constexpr int64_t kMaxWinogradTiles = 112;      // of a block

// ---- routes of products and convolutions --------------------------------------------------------------

inline constexpr int64_t kMinPackedRows = 4;        // fewer read a weight once: any layout is as fast
inline constexpr int64_t kMinPackedWork = 1 << 11;  // multiply-adds
inline constexpr int64_t kMinPackedWorkOfRows = 1 << 15;
inline constexpr int64_t kMaxPackedCachedFloats = 1 << 15;
inline constexpr int64_t kMaxDotRows = 16;              // more, and packing costs less than dot products
inline constexpr int64_t kSmallWeightFloats = 1 << 14;  // of which a second copy does not matter
inline constexpr int64_t kLargeWeightFloats = 1 << 16;
inline constexpr int64_t kManyColumns = 192;           // fewer do not pay for packing A
inline constexpr int64_t kMinInPlaceFloats = 1 << 19;  // convolution weights of 2 MiB are read in place,
inline constexpr int64_t kMaxInPlacePixels = 64;       // unless a copy saves more time than it takes to read
inline constexpr int64_t kMaxInPlacePixelsOfOneTap = 1024;  // nothing is gathered more than once
inline constexpr int64_t kMaxOwnDilatedWork = 2'000'000;    // more, and oneDNN's call costs little
inline constexpr double kMinLiveShare = 0.5;                // of the taps of a dilated convolution
inline constexpr int64_t kMinWinogradChannels = 16;
inline constexpr double kMinWinogradGain = 1.15;        // its weights take 16/9 or 4 times the memory
inline constexpr int64_t kMinTileRow = 64;              // shorter rows are gathered into tiles
inline constexpr size_t kMaxChainNodes = 32;            // of a pointwise chain
inline constexpr int64_t kMinRowsPackedEachCall = 160;  // of a product with AVX2
inline constexpr int64_t kMaxPlaneWork = 250'000;       // multiply-adds of a depthwise convolution by planes
inline constexpr float kMaxWinogradRange = 256;  // of the largest pixels of a tile and of an output's window
inline constexpr int64_t kMaxPooledElements = 24'000;  // windows of planes times their taps, then eager
inline constexpr int64_t kFewChannels = 4;             // images of so few are transposed pixel by pixel

// ---- autotuning: what measuring may cost --------------------------------------------------------------

inline constexpr int64_t kMaxMeasuredFlops = 50'000'000;  // of one run of a product: half a millisecond
inline constexpr int64_t kMaxMeasuredMultiplyAdds = 60'000'000;  // of one run of a convolution: a millisecond
inline constexpr int64_t kMinMeasuredLines = 8;                  // of a convolution's output
inline constexpr int64_t kMaxRouteNs = 1'000'000;                // for one route of one shape
inline constexpr int64_t kProductBudgetNs = 30'000'000;   // for all products of a process; then rules choose
inline constexpr int64_t kWinogradBudgetNs = 80'000'000;  // as much for its convolutions

// ---- planner ------------------------------------------------------------------------------------------

// By effort: steps of search (5 ms, seconds, a minute of one core) and neighbours looked at by the greedy
// passes.
inline constexpr std::array<int64_t, 4> kPlannerSteps = {0, 30'000, 30'000'000, 300'000'000};
inline constexpr std::array<int64_t, 4> kPlannerVisits = {20'000'000, 20'000'000, 500'000'000, 2'000'000'000};
inline constexpr int64_t kStepsAtBound = 3;  // share 1/3 asks at the lower bound, the rest narrows
inline constexpr int64_t kNarrowingTries = 5;
inline constexpr int64_t kMaxListedPairs = 64'000'000;  // conflicts of 8 bytes; beyond, groups and time order
inline constexpr int64_t kMaxSearchedPairs = 4'000'000;
inline constexpr int64_t kMaxIncidences = 8'000'000;   // of a searched component: items times sections
inline constexpr int64_t kFirstBudget = 2000;          // steps of the first round of a search
inline constexpr int64_t kOrderedShare = 4;            // budget of ordered search, in shares of others
inline constexpr int32_t kMaxSearchDepth = 4000;       // recursive calls under way: about 3 MiB of stack
inline constexpr size_t kMemoWords = size_t{1} << 23;  // 64 MiB of failed states
inline constexpr size_t kMaxGroupMembers = 128;        // larger groups take no more members by copies
inline constexpr int64_t kSlackShare = 50;             // above 1 + 1/50 of the bound, more is tried
inline constexpr int32_t kCliqueSeeds = 256;           // items that a clique is grown from
inline constexpr int kCapacityTries = 6;               // between the bound and the best layout

// ---- caches and limits of the runtime -----------------------------------------------------------------

inline constexpr int64_t kPreparedPatience = 16;    // latest misses; a signature among them is prepared
inline constexpr size_t kPreparedNodes = 64 * 512;  // of all prepared programs that are kept
inline constexpr size_t kRememberedMisses = 1024;
inline constexpr size_t kMaxKeptBlocks = 16;        // small blocks of a size and thread
inline constexpr size_t kFewPairs = 256;            // of memory compared one by one; more are sorted
inline constexpr int64_t kMaxFixedBytes = 1 << 20;  // of a fixed output, or twice what it is made of
inline constexpr int64_t kWholeStampBytes = 4096;   // weights compared as a whole; others by blocks
inline constexpr int64_t kStampBlockBytes = 1024;
inline constexpr int64_t kMaxStampBlocks = 64;         // each may be a miss of every cache
inline constexpr int64_t kSmallMatrixBytes = 65536;    // smaller weights do not count as matrices
inline constexpr int64_t kTimesMemoryIsReturned = 4;   // weights that change in each call are packed in each
inline constexpr int64_t kMinReturnedBytes = 4 << 20;  // less is not worth the time of malloc_trim
inline constexpr int64_t kMaxRunShapeElements = 1 << 24;  // larger results follow torch's rules
inline constexpr size_t kMaxConstantBytes = 1 << 16;      // recorded bytes that no tensor decides
inline constexpr double kErrorGrowth = 100;               // of a program over its single operators
inline constexpr size_t kLabelNames = 6;                  // operators named in a step's label
inline constexpr size_t kMostStreams = 4;                 // of one frame and device: arenas, graphs
inline constexpr size_t kMostProgramGraphs = 16;  // of one frame and stream; the one used least lately goes
inline constexpr int kGraphCredit = 32;           // of a program; one that has used it up has no more graphs
inline constexpr int kCaptureCost = 2;            // a launch gives 1 back
inline constexpr int kFailedCaptureCost = 11;
inline constexpr int kRunsOfRest = 256;    // without graphs, of a program that has used up its credit
inline constexpr int kCreditOfRested = 3;  // with which it tries again
// Runs on other streams after which a new one takes the place of a stream; doubled where that was in vain.
inline constexpr uint64_t kMinRunsElsewhere = 16;
inline constexpr uint64_t kMaxRunsElsewhere = 1024;
inline constexpr int64_t kMinLentBytes = 32 << 10;    // of an input or output in which other values may lie
inline constexpr int64_t kFewLentBytes = 64;          // the same, where that lowers a run's peak
inline constexpr int64_t kSmallArenaBytes = 4 << 20;  // of which so few bytes are a share
inline constexpr size_t kMaxSmallLoans = 4096;        // values that are looked at for that
inline constexpr int64_t kMinApartBytes = 32 << 10;   // of values that may have an allocation of their own

// ---- allocator ----------------------------------------------------------------------------------------

inline constexpr int kBinLook = 24;                     // free blocks looked at in a bin
inline constexpr size_t kIdleStacks = size_t{1} << 20;  // stack texts kept although no event names them
inline constexpr size_t kIdleStackBytes = size_t{64} << 20;

}  // namespace staticrt::tuning
