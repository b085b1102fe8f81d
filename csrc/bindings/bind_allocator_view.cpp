// Statistics, snapshots and history of the allocator as Python values.
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "allocator/process/c_api.h"
#include "bindings/allocator.h"
#include "bindings/lists.h"

namespace py = pybind11;
using namespace py::literals;

namespace staticrt::bindings {

using namespace alloc;

namespace {

// A Python stack: code objects and lines, innermost first. Code objects are kept for ever, by reference:
// contexts die under the allocator's lock, where the GIL must not be taken.
struct Frame {
  PyCodeObject* code;
  int line;
};
using Stack = std::vector<Frame>;

void keep(PyCodeObject* code) {
  static auto* kept = new std::unordered_map<PyCodeObject*, py::object>;  // guarded by the GIL
  kept->try_emplace(code, py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(code)));
}

std::string text_of(PyObject* text) {
  return py::cast<std::string>(py::handle(text));
}

// Without the innermost frames that are in `skip_files`: our own.
Context python_stack(const std::vector<std::string>& skip_files) {
  if (in_torch_call() && !PyGILState_Check()) return nullptr;
  const py::gil_scoped_acquire gil;
  auto stack = std::make_shared<Stack>();
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const bool ours = stack->empty() && std::find(skip_files.begin(), skip_files.end(),
                                                  text_of(code->co_filename)) != skip_files.end();
    if (!ours) {
      keep(code);
      stack->push_back({code, PyFrame_GetLineNumber(frame)});
    }
    Py_DECREF(code);
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  return stack;
}

py::list frames_of(const Context& context) {
  py::list frames;
  if (!context) return frames;
  for (const Frame& frame : *static_cast<const Stack*>(context.get())) {
    frames.append(py::dict("filename"_a = py::reinterpret_borrow<py::object>(frame.code->co_filename),
                           "line"_a = frame.line,
                           "name"_a = py::reinterpret_borrow<py::object>(frame.code->co_name)));
  }
  return frames;
}

py::tuple id_of(PoolId pool) {
  return py::make_tuple(pool.first, pool.second);
}

const char* state_of(BlockState state) {
  switch (state) {
    case BlockState::live:
      return "active_allocated";
    case BlockState::pending_event:
    case BlockState::pending_capture:
      return "active_pending_free";
    default:
      return "inactive";
  }
}

py::dict block_dict(const BlockInfo& block) {
  return py::dict("address"_a = block.address, "size"_a = block.size, "requested_size"_a = block.requested,
                  "state"_a = state_of(block.state), "frames"_a = frames_of(block.context));
}

py::dict segment_dict(const SegmentInfo& segment, int device) {
  return py::dict("device"_a = device, "address"_a = segment.address, "total_size"_a = segment.total_size,
                  "allocated_size"_a = segment.allocated_size, "active_size"_a = segment.active_size,
                  "requested_size"_a = segment.requested_size, "stream"_a = raw(segment.stream),
                  "segment_type"_a = segment.size_class == SizeClass::small ? "small" : "large",
                  "segment_pool_id"_a = id_of(segment.pool),
                  "is_expandable"_a = segment.kind == SegmentKind::expandable, "frames"_a = py::list(),
                  "blocks"_a = list_of(segment.blocks, block_dict));
}

py::dict trace_dict(const TraceEntry& trace) {
  py::dict entry("action"_a = name_of(trace.action), "size"_a = trace.size, "stream"_a = raw(trace.stream),
                 "time_us"_a = trace.time_us, "pool_id"_a = id_of(trace.pool),
                 "user_metadata"_a = trace.metadata, "compile_context"_a = trace.compile_context,
                 "frames"_a = frames_of(trace.context));
  entry[trace.action == Action::oom ? "device_free" : "addr"] = trace.address;
  return entry;
}

py::dict snapshot(MemoryDevice& d, std::optional<PyPoolId> pool, bool include_traces) {
  const Snapshot got =
      asked([&] { return d.allocator->inspector().snapshot(pool_of(pool), include_traces); });
  const int device = got.device_index;
  py::list traces;  // one list per device number, as torch's loader counts them
  for (int index = 0; index < device; ++index) traces.append(py::list());
  traces.append(list_of(got.trace, trace_dict));
  return py::dict(
      "segments"_a = list_of(got.segments, [&](const SegmentInfo& s) { return segment_dict(s, device); }),
      "device_traces"_a = traces, "allocator_settings"_a = py::dict("PYTORCH_ALLOC_CONF"_a = got.settings),
      "external_annotations"_a = list_of(got.annotations, [&](const Annotation& a) {
        return py::dict("device"_a = device, "time_us"_a = a.time_us, "name"_a = a.text);
      }));
}

py::dict gauge_dict(const GaugeValue& value) {
  return py::dict("current"_a = value.current, "peak"_a = value.peak, "allocated"_a = value.allocated,
                  "freed"_a = value.freed);
}

// Nested as torch.cuda.memory_stats_as_nested_dict; Python flattens it.
py::dict stats(MemoryDevice& d, std::optional<PyPoolId> pool) {
  const StatsReport report = asked([&] { return d.allocator->inspector().stats(pool_of(pool)); });
  py::dict result;
  for (int gauge = 0; gauge < kGauges; ++gauge) {
    const auto& values = report.gauges[static_cast<size_t>(gauge)];
    result[name_of(static_cast<Gauge>(gauge))] =
        py::dict("all"_a = gauge_dict(values[0]), "small_pool"_a = gauge_dict(values[1]),
                 "large_pool"_a = gauge_dict(values[2]));
  }
  const Counters& counters = report.counters;
  result["num_alloc_retries"] = counters.alloc_retries;
  result["num_ooms"] = counters.ooms;
  result["num_oom_rejections"] = counters.oom_rejections;
  result["num_sync_all_streams"] = counters.sync_all_streams;
  result["num_device_alloc"] = counters.device_alloc;
  result["num_device_free"] = counters.device_free;
  result["oversize_allocations"] = gauge_dict(counters.oversize_allocations);
  result["oversize_segments"] = gauge_dict(counters.oversize_segments);
  return result;
}

// `level`: the actions that keep a stack: "never", "state", "alloc", "all".
void record_history(MemoryDevice& d, bool on, const std::string& level, size_t max_entries, bool clear,
                    const std::vector<std::string>& skip_actions,
                    const std::vector<std::string>& skip_files) {
  HistoryOptions options;
  options.on = on;
  options.max_entries = max_entries;
  options.clear = clear;
  options.level = level == "state"   ? ContextLevel::state
                  : level == "alloc" ? ContextLevel::alloc
                  : level == "all"   ? ContextLevel::all
                                     : ContextLevel::never;
  if (options.level != ContextLevel::never)
    options.context = [skip_files] { return python_stack(skip_files); };
  for (const std::string& name : skip_actions)
    for (int action = 0; action <= static_cast<int>(Action::oom); ++action)
      if (name == name_of(static_cast<Action>(action))) options.skip_actions |= 1u << action;
  called([&] { return d.allocator->inspector().record_history(options); });
}

}  // namespace

void bind_allocator_view(py::module_& m, MemoryDeviceClass& device) {
  device.def("stats", &stats, py::arg("pool") = py::none())
      .def("snapshot", &snapshot, py::arg("pool") = py::none(), py::arg("include_traces") = true)
      .def("record_history", &record_history, py::arg("on"), py::arg("level"), py::arg("max_entries"),
           py::arg("clear"), py::arg("skip_actions"), py::arg("skip_files"))
      .def("reset_peak", [](MemoryDevice& d) { asked([&] { d.allocator->inspector().reset_peak(); }); })
      .def("reset_accumulated",
           [](MemoryDevice& d) { asked([&] { d.allocator->inspector().reset_accumulated(); }); })
      .def("annotate",
           [](MemoryDevice& d, const std::string& text) {
             asked([&] { d.allocator->inspector().annotate(text); });
           })
      .def("largest_free",
           [](MemoryDevice& d) { return asked([&] { return d.allocator->inspector().largest_free(); }); })
      .def("pools",
           [](MemoryDevice& d) {
             const std::vector<PoolId> pools = asked([&] { return d.allocator->inspector().pools(); });
             py::list ids;
             for (const PoolId pool : pools) ids.append(id_of(pool));
             return ids;
           })
      .def("find_block", [](MemoryDevice& d, Addr address) -> py::object {
        BlockInfo block;
        const bool found = asked([&] { return d.allocator->inspector().find_block(address, &block); });
        if (!found) return py::none();
        return block_dict(block);
      });
}

}  // namespace staticrt::bindings
