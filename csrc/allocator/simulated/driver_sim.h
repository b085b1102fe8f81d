// A simulated device: real memory behaviour, streams that run only on request, and a race oracle.
//
//   SimDriver sim({.total_bytes = 100 * kMiB});
//   const StreamId side = sim.create_stream();
//   sim.enqueue(side);                  // side is busy until sim.advance(side)
//   sim.touch(side, address, 512);      // the oracle checks who may use these bytes when
//   sim.fail(SimCall::physical_create, 3, Status::Oom());
//   EXPECT_EQ(sim.report_text(), "");   // no race, no misuse
//
// The first half of the class is Driver, as an allocator sees a device. The second half is what only tests
// and `staticrt.memory.simulated` use: they stand for the program (work, touches, captures, launches) and its
// environment (faults, other processes). Call allocated() and freed() where the program allocates and frees.
//
// Misuse of a Driver call (unmap of what is not mapped, a call that breaks a capture) returns Code::error
// and is reported like a race.
//
// Thread safety: full, by one recursive mutex; work and hooks may call the driver again. In a child of
// fork(2) the calls of Driver are refused, and no other call hangs.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "allocator/core/device_api.h"
#include "allocator/simulated/sim_capture_errors.h"
#include "allocator/simulated/sim_faults.h"
#include "allocator/simulated/sim_graph.h"
#include "allocator/simulated/sim_guard.h"
#include "allocator/simulated/sim_machine.h"
#include "allocator/simulated/sim_memory.h"
#include "allocator/simulated/sim_oracle.h"
#include "allocator/simulated/sim_streams.h"

namespace staticrt::alloc {

struct SimConfig {
  Bytes total_bytes = kGiB;
  int index = 0;                      // the device is called "sim:<index>"
  Bytes other_bytes = 0;              // taken by other processes
  Bytes va_bytes = 0;                 // 0: 64 times total, at most 100 TiB (backed: 16 TiB)
  uint64_t max_handles = UINT64_MAX;  // physical handles alive at a time
  Bytes granule_bytes = 2 * kMiB;
  bool virtual_memory = true;    // false: fixed segments only
  bool backed = true;            // false: bookkeeping only, pointers must not be followed
  bool fresh_addresses = false;  // true: no address is given twice, so that older memory has lower ones
  bool oracle = true;            // false: no race checks, for speed
  bool eager = false;            // true: work runs when it is enqueued
  bool kernel_alias = false;     // true: device addresses cannot be followed, see kernel_address
  // Devices whose streams wait for each other, or which use each other's memory, share one.
  std::shared_ptr<SimMachine> machine = {};
};

// Native code of errors that are the caller's fault.
inline constexpr int32_t kSimMisuse = 1;

class SimDriver final : public Driver {
 public:
  explicit SimDriver(const SimConfig& config);  // throws InputError if the config makes no device
  ~SimDriver() override;

  const DeviceInfo& info() const override { return info_; }
  Status memory_info(Bytes* free_bytes, Bytes* total_bytes) override;
  Status pending_error() override;
  Status segment_alloc(Bytes size_bytes, Addr* address) override;
  Status segment_free(Addr address, Bytes size_bytes) override;
  Status va_reserve(Bytes size_bytes, Addr hint, Addr* address) override;
  Status va_release(Addr address, Bytes size_bytes) override;
  Status physical_create(Bytes size_bytes, PhysicalId* physical) override;
  Status physical_release(PhysicalId physical) override;
  Status map(Addr address, Bytes size_bytes, PhysicalId physical) override;
  Status unmap(Addr address, Bytes size_bytes) override;
  Status set_access(Addr address, Bytes size_bytes, int device_index) override;
  Status reached_by(const Driver& peer, bool* reached) override;
  Status enable_peer(const Driver& peer) override;
  Status revoke_access(Addr address, Bytes size_bytes, int device_index) override;
  Status event_create(EventId* event) override;
  Status event_destroy(EventId event) override;
  Status event_record(EventId event, StreamId stream) override;
  Status event_query(EventId event) override;
  Status event_sync(EventId event) override;
  Status stream_wait(StreamId stream, EventId event) override;
  Status stream_sync(StreamId stream) override;
  Status device_sync() override;
  Status capture_state(StreamId stream, CaptureState* state) override;
  Status exchange_capture_mode(CaptureMode* mode) override;
  Status capture_marker(StreamId stream, NodeId* node) override;
  Status capture_settled(StreamId stream, std::vector<NodeId>* nodes) override;
  Status capture_begin(StreamId stream, CaptureMode mode = CaptureMode::global) override;
  Status capture_end(StreamId stream, GraphId* graph) override;
  Status graph_instantiate(GraphId graph, ExecId* exec) override;
  Status graph_launch(ExecId exec, StreamId stream) override;
  Status exec_destroy(ExecId exec) override;
  Status graph_destroy(GraphId graph) override;
  Status stream_create(StreamId* stream) override;
  Status capture_copy(StreamId stream, Addr to, Addr from, Bytes size_bytes, NodeId* node) override;
  Status exec_set_copy(ExecId exec, NodeId node, Addr to, Addr from, Bytes size_bytes) override;
  Status physical_export(PhysicalId physical, int* fd) override;
  Status physical_import(int fd, Bytes size_bytes, PhysicalId* physical) override;
  Status processes(std::vector<ProcessUse>* uses) override;

  // --- The program. A stream number is valid without create_stream too.
  StreamId create_stream();
  // Whether the calling thread runs work of a simulated stream. Such work may call this driver, but not the
  // allocator: it may hold its locks while it waits for the work.
  static bool in_work() { return SimStreams::in_work(); }
  // Work that keeps the stream busy until it is advanced past it; under capture, a node.
  void enqueue(StreamId stream, std::function<void()> work = {});
  void touch(StreamId stream, Addr address, Bytes size_bytes);
  // Work of the operator `name` that uses these ranges and no others. It is reported, and does not run, if
  // one is not mapped by then. If the stream has more than `most_pending` pieces of work after it, the oldest
  // run before the call returns. `each_launch`: what a graph's launches run instead, if it is captured.
  // `status`: ok, or why the work will not run: a planned fault, or memory of another device to which this
  // one has no access.
  void launch(StreamId stream, std::function<void()> work, std::vector<SimRange> ranges,
              const std::string& name = "work", uint64_t most_pending = UINT64_MAX,
              SimGraph::EachLaunch each_launch = {}, Status* status = nullptr);
  // Lets a stream wait for an event of another device, as recorded now; one of a capture takes the stream
  // into it. REQUIRES: both devices are in one machine.
  Status wait_for(StreamId stream, SimDriver& other, EventId event);
  // ok once the stream has nothing left to do, else not_ready.
  Status stream_query(StreamId stream);
  // Poisons a new allocation and guards the bytes behind it: sim_guard.h. Not under capture. REQUIRES:
  // allocated(address, size_bytes, stream) was called, and `redzone_bytes` behind it belong to its block.
  void guard(Addr address, Bytes size_bytes, Bytes redzone_bytes, StreamId stream);
  // Checks that an operator `name`, which the host ran at once, left the guards of these ranges intact.
  void check_guards(const std::vector<SimRange>& ranges, const std::string& name, StreamId stream);
  // A touch that also writes `value` into the bytes when it runs; one that reports if they hold another
  // value then. REQUIRES: backed.
  void write(StreamId stream, Addr address, Bytes size_bytes, uint64_t value);
  void verify(StreamId stream, Addr address, Bytes size_bytes, uint64_t value);
  uint64_t advance(StreamId stream, uint64_t count = 1);  // work done; less if it must wait
  // One piece of the stream's work, and what it waits for.
  void step(StreamId stream);
  // How streams advance during a wait.
  void set_order(SimOrder order, uint64_t seed);
  uint64_t pending(StreamId stream) const;  // pieces of work not done yet
  // `reusable`: a buffer of a pool of graphs, which is written again after it was freed: see sim_oracle.h.
  void allocated(Addr address, Bytes size_bytes, StreamId stream, bool reusable = false);
  void freed(Addr address);
  // A pool was restored from a checkpoint: `gone` are no longer allocations, `there` are.
  void restored(const std::vector<SimPlace>& gone, const std::vector<SimPlace>& there, StreamId stream);
  bool is_live(Addr address) const;  // allocated() and not yet freed(); false if there is no oracle
  // What lies at the address, for a signal handler: it allocates nothing and does not wait. False if another
  // thread holds the device.
  bool describe(Addr address, char* text, size_t size) const;

  // --- Graphs.
  void capture_break(StreamId stream);  // as a forbidden call of the program would
  // Launches a graph that was not instantiated.
  Status graph_launch(GraphId graph, StreamId stream);
  // Per node, the nodes it comes after. Empty if there is no such graph.
  std::vector<std::vector<uint32_t>> graph_edges(GraphId graph) const;
  // Operators and other work of one launch. 0 if there is no such graph.
  uint64_t graph_work(GraphId graph) const;
  uint64_t graph_count() const;  // graphs and what was made of them to be launched
  // The capture that the stream is in; 0: none. No fault can hide it.
  uint64_t capture_id(StreamId stream);
  // Whether the stream is in a capture that began on another device: what this device allocates does not
  // belong to the graph.
  bool captured_from_elsewhere(StreamId stream);
  // The program gives the graph that the stream is captured into whatever lies at this address at each
  // launch: an argument that may be replaced by another one there.
  void capture_fixed(StreamId stream, Addr address);
  // What breaks the capture of this stream is no misuse of the device, as in CaptureMode::trial.
  void capture_is_trial(StreamId stream);
  // What the next node of a captured stream comes after.
  std::vector<uint32_t> capture_frontier(StreamId stream);

  // --- The environment. Counting from now, calls number `nth` to `nth + times - 1` of `call` return
  // `status`.
  void fail(SimCall call, uint64_t nth, Status status, uint64_t times = 1);
  void clear_faults();
  // Called without locks before each driver call; a status that is not ok is returned instead.
  void set_hook(std::function<Status(SimCall)> hook);
  void set_other_bytes(Bytes bytes);
  void set_pending_error(Status status);  // ok mends the device
  void set_processes_known(bool known);   // false: as without NVML

  // --- What was seen.
  void report(std::string text);             // adds one, as the program's own check
  std::vector<std::string> reports() const;  // the first 100
  std::string report_text() const;           // the same, one a line; "" if there are none
  void clear_reports();
  uint64_t calls(SimCall call) const;
  uint64_t device_calls() const;  // all that make or unmake memory or mappings
  Bytes used_bytes() const;       // physical, by this process
  Bytes reserved_va_bytes() const;
  uint64_t handle_count() const;
  uint64_t event_count() const;
  // Addresses from base() to end(), that of kernels included, belong to this device alone.
  Addr base() const { return memory_.base(); }
  Addr end() const { return memory_.end(); }
  // The device of the machine that has the address: this one, if none does.
  SimDriver& owner_of(Addr address);
  // Whether it is an address of this device, mapped or not.
  bool owns(Addr address) const { return memory_.owns(address); }
  // Whether this process is a child of fork(2) of the one that made the device.
  bool inherited() const;
  // Where the byte of a device address is for kernels: elsewhere with `kernel_alias`, else there.
  Addr kernel_address(Addr address) const { return memory_.kernel_address(address); }

 private:
  struct Event {
    SimStreams::RecordPtr record;
  };
  using Lock = std::lock_guard<SimMutex>;

  Status known_peer(int device_index) const;
  Status enter(SimCall call);  // hook, fault plan, count
  Status seen(Status status);  // reports it if it is misuse
  Status misuse(std::string text) { return seen(Status::Error("sim: " + std::move(text), kSimMisuse)); }
  // Breaks the captures that forbid this thread an unsafe call; ok if none does. `in_others`: off: threads
  // that capture nothing themselves may make the call.
  Status unsafe(const char* what, bool in_others = true);
  Status break_capture(SimGraph& graph, const std::string& what,
                       CaptureError error = CaptureError::unsupported);
  // Breaks the capture that uses bytes of the range; ok if none does.
  Status keep_captured(Addr address, Bytes size_bytes, const char* what);
  Status launch_graph(const std::shared_ptr<const SimGraph>& graph, StreamId stream);
  // Runs the work of an operator, unless its ranges are not mapped by then. Shared: copies of work are made.
  struct Checked {
    void run(const std::function<void()>& work) const;
    SimDriver& driver;
    StreamId stream;
    std::vector<SimRange> ranges;
    const std::string* name;
    std::vector<SimGuardPtr> guards;
  };
  std::shared_ptr<const Checked> checked(StreamId stream, std::vector<SimRange> ranges,
                                         const std::string* name);
  SimGraph::Copy copy_of(StreamId stream, Addr to, Addr from, Bytes size_bytes);
  Status find_graph(GraphId graph, const char* what, std::shared_ptr<SimGraph>* found);
  SimGraph* graph_of(StreamId stream);
  // Captures that are open and have streams of this device.
  std::map<uint64_t, std::shared_ptr<SimGraph>> open_graphs() const;
  // A wait for a record if that was made in a capture, or the stream is in one.
  Status wait_in_capture(StreamId stream, const SimStreams::Record& record);
  DeviceStream here(StreamId stream) const { return {config_.index, stream}; }
  Status capturing(StreamId stream, const char* what, SimGraph** graph);
  Status find_event(EventId event, const char* what, Event** found);
  Status finish_event(EventId event, const char* what, bool wait);
  void sync_all();
  void run_if_eager();
  std::vector<SimGuardPtr> guards_of(const std::vector<SimRange>& ranges);
  // Reports work that uses bytes of another device to which this one has no access. ok: it has access.
  Status refused(Addr address, Bytes size_bytes, const std::string& name, StreamId stream);
  // Whether work that runs now can use the bytes; reports if not.
  bool usable_now(Addr address, Bytes size_bytes, const std::string& name, StreamId stream);
  SimOracle::User user(StreamId stream) { return {streams_, stream}; }
  // Reports a redzone that is no longer as it was. `stream`: as in messages, "stream 3".
  void check_guard(SimGuard& guard, const std::string& name, const std::string& stream, bool before);
  // The same by the device that has the bytes. `stream`: of this one.
  void check_guard_of(SimGuard& guard, const std::string& name, StreamId stream, bool before);
  void stamp(StreamId stream, Addr address, Bytes size_bytes, uint64_t value, bool verify);

  const SimConfig config_;
  const int forks_;                    // of the process that made it
  std::shared_ptr<const void> alive_;  // ends with the device, under the mutex
  DeviceInfo info_;
  const std::shared_ptr<SimMachine> machine_;
  SimMutex& mutex_;
  SimMemory memory_;
  SimStreams streams_;
  SimOracle oracle_;
  SimFaults faults_;
  std::shared_ptr<const std::function<Status(SimCall)>> hook_;
  Status pending_error_;
  bool processes_known_ = true;
  std::unordered_map<uint64_t, Event> events_;
  std::map<uint64_t, std::shared_ptr<SimGraph>> graphs_;     // open and ended, begun on this device
  std::map<uint64_t, std::shared_ptr<SimGraph>> execs_;      // instantiated
  std::map<uint64_t, std::shared_ptr<SimGraph>> capturing_;  // by stream; open, of any device of the machine
  std::map<std::thread::id, CaptureMode> modes_;
  std::map<Addr, SimGuardPtr> guards_;
  uint64_t next_stream_ = 1;
  uint64_t next_event_ = 1;
  uint64_t next_exec_ = 1;
};

}  // namespace staticrt::alloc
