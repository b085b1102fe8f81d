"""All chosen or measured numbers: limits, thresholds, costs. `csrc/common/tuning.h` has those of C++.

After a change of costs run `staticrt bench --train`, after one of the other numbers `staticrt bench` and `bench --micro`.
"""

# --- Calls
# Entries of one function's fast path; further kinds of calls go through Python.
FAST_CALL_ENTRIES = 64
# First calls of a program after which a warning says that most sizes were new.
VARYING_CALLS = 64
# Of the time that is left, what one trace or one function in Dynamo may take: the parts that follow get as much.
SHARE_OF_TRACE_SECONDS = 0.5
# Branches that data decides in one trace.
MAX_DECISIONS = 200
# Traces of one kind of call that differ in what data decided; beyond, graph breaks split the model at its branches.
MAX_BRANCHES = 4
# Calls of one kind, told apart by sizes, that are remembered because eager raised for them.
MAX_REFUSED_SIZES = 64
# Written arguments and buffers of so many bytes are copied before a run whose errors the model may catch.
MAX_BYTES_TAKEN_BACK = 1 << 20
# Objects between what model code keeps of a trace and who keeps it: each may cost a walk over all objects there are.
MAX_HOLDERS = 200
# Containers in containers: arguments and results nested deeper run eagerly.
MAX_ARGUMENT_DEPTH = 64
# Python containers that one trace guards; a model that reaches more is not traced.
MAX_GUARDED_CONTAINERS = 200_000
# Traces that may fail as the model changes its own attributes: many do so in their first call only.
MAX_CHANGES = 2
# Results that may change, of one cache, that a trace guards: those called for last.
MAX_CACHED_RESULTS = 256
# Changes between calls for which a split model is compiled anew: of any state, then of classes, functions and globals.
MAX_INTERVENTIONS = (4, 8)
# Functions of a split model whose names are watched, and how far they may be from what it reaches without running.
MAX_WATCHED_FUNCTIONS, MAX_WATCHED_DEPTH = 500, 3
# Sets of weights that keep what was made of them: the layers of a deep model. Calls with further ones keep nothing.
MAX_WEIGHT_SETS = 64
# Calls after which splits that raise are the caller's error.
UNPROVED_SPLIT_CALLS = 8

# --- Cost trials: is a model that graph breaks split faster than eager?
# Split calls before the first that counts: Dynamo, traces, preparation.
TRIAL_WARM_CALLS = 3
# Calls that count, of which the fastest is compared.
TRIAL_SPLIT_CALLS = 5
TRIAL_EAGER_CALLS = 5
# How much faster eager has to be: more than the clock's scatter.
TRIAL_MARGIN = 1.05
# Calls in a row in which Dynamo compiled nothing.
TRIAL_IDLE_CALLS = 3
# Signatures measured at most; others run split.
TRIAL_MAX_SIZES = 16
# Calls in a row that ran eagerly for one lasting reason, after which only the one after twice as many is looked at anew,
# and at least each so many: it costs as much as a small model's step.
EAGER_RUN_CALLS, EAGER_LOOK_CALLS = 32, 512

# --- Accelerators
# Compiled forms of one subgraph; further shapes run operator by operator.
ACCELERATOR_MAX_SHAPES = 16
# Compilations because weights changed; from then on weights are inputs.
ACCELERATOR_MAX_NEW_WEIGHTS = 3

# --- Graphs
# Calls that run uncaptured because an output outlives inputs that it died with at the capture; the next is captured.
MAX_OUTLIVED_RECORDINGS = 2

# --- Sizes
# Characters of an expression of sizes: remainders of products of remainders grow without bound.
MAX_SIZE_TEXT = 10_000
# Steps of a long division of symbolic sizes.
MAX_DIVISION_STEPS = 16

# --- Passes
# Factors of a product that is compared with the forms of gelu.
MAX_GELU_FACTORS = 6
# How far up a chain a view is compared with what it comes from.
MAX_VIEW_CHAIN = 8
# Views of one memory of at most so many elements are compared element by element.
MAX_COMPARED_ELEMENTS = 1 << 16
# Bodies nested deeper than this (`cond` in `cond` in ...) count as impure.
MAX_BODY_DEPTH = 64
# An input with so few channels costs next to nothing to convert to channels last.
FEW_CHANNELS = 4
# A temporary on the way to a constant may be larger than the constant: a mask of bools from floats.
FOLDED_TEMPORARY_FACTOR = 16
# All new constants together, in units of the largest one allowed.
FOLDED_TOTAL_FACTOR = 64
# How many nodes above an attention mask are examined.
MAX_MASK_DEPTH = 24

# --- Training
# How often a step that cannot be recorded is tried again: state may be missing only at first.
STEP_ATTEMPTS = 3
# The longest chain of nodes that is recomputed for one storage.
RECOMPUTED_NODES = 8
# The same limit, including nodes that eager also computes in its backward.
RECOMPUTED_CHAIN = 32
# Values saved for one dropped storage may make another one cheap: how often all are looked at again.
RECOMPUTE_ROUNDS = 4
# New objects after which Python's collector runs during a first call.
COLLECTED_OBJECTS = 20_000
# Smaller storages stay saved: the nodes would cost more than the memory is worth.
RECOMPUTED_MIN_BYTES = 256
# One core of a server CPU, per nanosecond: multiply-adds, bytes moved, functions such as tanh; and a call's cost.
FLOPS_PER_NS = 50.0
BYTES_PER_NS = 8.0
TRANSCENDENTALS_PER_NS = 0.7
CALL_NS = 200.0
