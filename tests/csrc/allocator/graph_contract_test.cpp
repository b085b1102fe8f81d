// What device_api.h promises about captures and graphs, checked on the simulated device and on the CUDA
// driver, whose libcuda a simulated device plays.
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "fake_cuda.h"
#include "test.h"

using namespace staticrt::alloc;

namespace {

constexpr Bytes kPage = 2 * kMiB;

// A driver, and the device below it, on which the program enqueues its work.
struct Device {
  Driver& driver;
  SimDriver& program;
  StreamId a = program.create_stream();
  StreamId b = program.create_stream();
  EventId fork = event();
  EventId join = event();
  std::string order = {};

  EventId event() {
    EventId made = kNoEvent;
    EXPECT(driver.event_create(&made).ok());
    return made;
  }
  void work(StreamId stream, char letter) {
    program.enqueue(stream, [this, letter] { order += letter; });
  }
  void go(StreamId from, StreamId to, EventId by) {
    EXPECT(driver.event_record(by, from).ok());
    EXPECT(driver.stream_wait(to, by).ok());
  }
  void begin(CaptureMode mode = CaptureMode::thread_local_) { EXPECT(driver.capture_begin(a, mode).ok()); }
  ExecId instantiated() {
    GraphId graph = kNoGraph;
    ExecId exec = kNoExec;
    EXPECT_EQ(driver.capture_end(a, &graph).describe(), "ok");
    EXPECT(graph != kNoGraph);
    EXPECT(driver.graph_instantiate(graph, &exec).ok());
    EXPECT(driver.graph_destroy(graph).ok());
    return exec;
  }
  CaptureStatus status(StreamId stream) {
    CaptureState state;
    EXPECT(driver.capture_state(stream, &state).ok());
    return state.status;
  }
  // The call is refused by the name of CUDA's error, and the capture it broke gives no graph.
  void refused(const Status& status, CaptureError error) {
    EXPECT_EQ(status.native(), static_cast<int32_t>(error));
    if (status.describe().find(name_of(error)) == std::string::npos)
      staticrt::test::fail(__FILE__, __LINE__,
                           "want " + std::string(name_of(error)) + ", got: " + status.describe());
  }
  void broken() {
    EXPECT(status(a) == CaptureStatus::invalidated);
    GraphId graph = kNoGraph;
    refused(driver.capture_end(a, &graph), CaptureError::invalidated);
    EXPECT_EQ(graph, kNoGraph);
    EXPECT(status(a) == CaptureStatus::none);
    program.clear_reports();
  }
};

void each_device(const std::function<void(Device&)>& check) {
  SimDriver sim({.total_bytes = 64 * kMiB});
  FakeCuda fake({.total_bytes = 64 * kMiB});
  std::unique_ptr<Driver> cuda;
  EXPECT_EQ(open_cuda_driver(fake.options(), &cuda).describe(), "ok");
  Device devices[] = {{sim, sim}, {*cuda, fake.sim}};
  for (Device& device : devices) {
    try {
      check(device);
      EXPECT_EQ(device.program.graph_count(), 0u);
      EXPECT_EQ(device.program.report_text(), "");
    } catch (const std::exception& error) {
      throw staticrt::test::Failure(device.driver.info().name + ": " + error.what());
    }
  }
}

}  // namespace

TEST(graph_contract_a_launch_runs_what_was_recorded) {
  each_device([](Device& d) {
    d.begin();
    d.work(d.a, '0');
    d.go(d.a, d.b, d.fork);
    d.work(d.b, '1');
    EXPECT(d.status(d.b) == CaptureStatus::active);
    d.go(d.b, d.a, d.join);
    d.work(d.a, '2');
    const ExecId exec = d.instantiated();
    EXPECT(d.driver.device_sync().ok());
    EXPECT_EQ(d.order, "");
    EXPECT(d.driver.graph_launch(exec, d.a).ok());
    EXPECT(d.driver.graph_launch(exec, d.b).ok());
    EXPECT_EQ(d.order, "");  // launches are work of their stream
    EXPECT(d.driver.exec_destroy(exec).ok());
    EXPECT(d.driver.device_sync().ok());
    EXPECT_EQ(d.order, "012012");
  });
}

TEST(graph_contract_one_graph_makes_several_execs) {
  each_device([](Device& d) {
    d.begin();
    d.work(d.a, 'x');
    GraphId graph = kNoGraph;
    ExecId first = kNoExec, second = kNoExec;
    EXPECT(d.driver.capture_end(d.a, &graph).ok());
    EXPECT(d.driver.graph_instantiate(graph, &first).ok());
    EXPECT(d.driver.graph_instantiate(graph, &second).ok());
    EXPECT(first != second);
    EXPECT(d.driver.exec_destroy(first).ok());
    EXPECT(d.driver.graph_destroy(graph).ok());
    EXPECT(d.driver.graph_launch(second, d.a).ok());
    EXPECT(d.driver.stream_sync(d.a).ok());
    EXPECT_EQ(d.order, "x");
    EXPECT(!d.driver.graph_launch(first, d.a).ok());
    EXPECT(!d.driver.exec_destroy(first).ok());
    EXPECT(!d.driver.graph_destroy(graph).ok());
    EXPECT(!d.driver.graph_instantiate(graph, &first).ok());
    EXPECT(d.driver.exec_destroy(second).ok());
    d.program.clear_reports();
  });
}

// A copy's addresses change for later launches of one instantiated graph; what is enqueued stays as it was.
TEST(graph_contract_copies_take_other_addresses) {
  each_device([](Device& d) {
    Addr at = 0;
    EXPECT(d.driver.segment_alloc(kPage, &at).ok());
    const auto place = [&](int k) { return at + static_cast<Addr>(k) * 512; };
    for (int k = 0; k < 6; ++k) d.program.allocated(place(k), 512, kDefaultStream);
    for (int k = 0; k < 2; ++k) d.program.write(kDefaultStream, place(k), 512, static_cast<uint64_t>(k) + 1);
    EXPECT(d.driver.device_sync().ok());
    d.begin();
    NodeId in = kNoNode, out = kNoNode;
    EXPECT_EQ(d.driver.capture_copy(d.a, place(2), place(0), 512, &in).describe(), "ok");
    d.work(d.a, 'x');
    EXPECT(d.driver.capture_copy(d.a, place(3), place(2), 512, &out).ok());
    EXPECT(in != out);
    GraphId graph = kNoGraph;
    ExecId exec = kNoExec, other = kNoExec;
    EXPECT(d.driver.capture_end(d.a, &graph).ok());
    EXPECT(d.driver.graph_instantiate(graph, &exec).ok());
    EXPECT(d.driver.graph_instantiate(graph, &other).ok());
    const auto expect = [&](int k, uint64_t value) { d.program.verify(d.a, place(k), 512, value); };
    EXPECT(d.driver.graph_launch(exec, d.a).ok());
    EXPECT(d.driver.exec_set_copy(exec, in, place(2), place(1), 512).ok());
    EXPECT(d.driver.exec_set_copy(exec, out, place(4), place(2), 512).ok());
    expect(3, 1);
    EXPECT(d.driver.graph_launch(exec, d.a).ok());
    expect(3, 1);
    expect(4, 2);
    EXPECT(d.driver.graph_launch(other, d.a).ok());  // has addresses of its own
    expect(3, 1);
    EXPECT(d.driver.exec_set_copy(exec, out, place(5), place(2), 512).ok());
    EXPECT(d.driver.graph_launch(exec, d.a).ok());
    expect(5, 2);
    EXPECT(d.driver.exec_destroy(other).ok());
    EXPECT(d.driver.exec_destroy(exec).ok());
    EXPECT(d.driver.graph_destroy(graph).ok());
    EXPECT(d.driver.device_sync().ok());
    EXPECT_EQ(d.order, "xxxx");
    EXPECT_EQ(d.program.report_text(), "");
    EXPECT(!d.driver.exec_set_copy(exec, in, place(2), place(1), 512).ok());
    EXPECT(!d.driver.capture_copy(d.a, place(2), place(0), 512, &in).ok());  // not captured
    d.program.clear_reports();
  });
}

// An operator that reads what a copy of the launch writes is ordered by the graph, a use elsewhere by
// nothing.
TEST(graph_contract_copies_are_checked_as_work_is) {
  each_device([](Device& d) {
    Addr at = 0;
    EXPECT(d.driver.segment_alloc(kPage, &at).ok());
    for (int k = 0; k < 3; ++k) d.program.allocated(at + static_cast<Addr>(k) * 512, 512, kDefaultStream);
    d.begin();
    NodeId copy = kNoNode;
    EXPECT(d.driver.capture_copy(d.a, at + 512, at, 512, &copy).ok());
    GraphId graph = kNoGraph;
    ExecId exec = kNoExec;
    EXPECT(d.driver.capture_end(d.a, &graph).ok());
    EXPECT(d.driver.graph_instantiate(graph, &exec).ok());
    EXPECT(d.driver.exec_set_copy(exec, copy, at + 1024, at, 512).ok());
    d.program.launch(d.b, [] {}, {{.address = at + 512, .size_bytes = 512}}, "other");
    EXPECT(d.driver.graph_launch(exec, d.a).ok());
    EXPECT_EQ(d.program.report_text(), "");  // the address of the capture is used no more
    d.program.launch(d.b, [] {}, {{.address = at + 1024, .size_bytes = 512}}, "other");
    EXPECT(d.program.report_text().starts_with("race: "));
    EXPECT(d.driver.exec_destroy(exec).ok());
    EXPECT(d.driver.graph_destroy(graph).ok());
    d.program.clear_reports();
  });
}

TEST(graph_contract_made_streams_are_others) {
  each_device([](Device& d) {
    StreamId first = kDefaultStream, second = kDefaultStream;
    EXPECT(d.driver.stream_create(&first).ok());
    EXPECT(d.driver.stream_create(&second).ok());
    EXPECT(first != second && first != kDefaultStream && second != kDefaultStream && first != d.a);
  });
}

TEST(graph_contract_an_empty_capture_is_a_graph) {
  each_device([](Device& d) {
    d.begin();
    const ExecId exec = d.instantiated();
    EXPECT(d.driver.graph_launch(exec, d.a).ok());
    EXPECT(d.driver.stream_sync(d.a).ok());
    EXPECT(d.driver.exec_destroy(exec).ok());
  });
}

TEST(graph_contract_synchronising_is_refused) {
  each_device([](Device& d) {
    const EventId before = d.event();
    EXPECT(d.driver.event_record(before, d.b).ok());
    const std::function<Status()> calls[] = {
        [&] { return d.driver.stream_sync(d.a); },    [&] { return d.driver.device_sync(); },
        [&] { return d.driver.event_query(before); }, [&] { return d.driver.event_sync(before); },
        [&] { return d.driver.stream_sync(d.b); },
    };
    for (const auto& call : calls) {
      d.begin();
      d.refused(call(), CaptureError::unsupported);
      d.broken();
    }
    EXPECT(d.driver.device_sync().ok());  // works again
  });
}

TEST(graph_contract_the_default_stream_is_refused) {
  each_device([](Device& d) {
    d.refused(d.driver.capture_begin(kDefaultStream, CaptureMode::thread_local_), CaptureError::unsupported);
    d.begin();
    EXPECT(d.driver.event_record(d.fork, d.a).ok());
    d.refused(d.driver.stream_wait(kDefaultStream, d.fork), CaptureError::implicit);
    EXPECT(d.status(kDefaultStream) == CaptureStatus::none);
    d.broken();
  });
}

TEST(graph_contract_a_fork_must_join) {
  each_device([](Device& d) {
    d.begin();
    d.go(d.a, d.b, d.fork);
    d.work(d.b, 'x');
    GraphId graph = kNoGraph;
    d.refused(d.driver.capture_end(d.a, &graph), CaptureError::unjoined);
    EXPECT_EQ(graph, kNoGraph);
    EXPECT(d.status(d.b) == CaptureStatus::none);
    d.work(d.b, 'y');
    EXPECT(d.driver.stream_sync(d.b).ok());
    EXPECT_EQ(d.order, "y");
  });
}

TEST(graph_contract_events_do_not_cross_captures) {
  each_device([](Device& d) {
    const EventId outside = d.event();
    EXPECT(d.driver.event_record(outside, d.b).ok());
    d.begin();
    d.refused(d.driver.stream_wait(d.a, outside), CaptureError::isolation);
    d.broken();

    d.begin(CaptureMode::relaxed);
    EXPECT(d.driver.capture_begin(d.b, CaptureMode::relaxed).ok());
    EXPECT(d.driver.event_record(d.fork, d.b).ok());
    d.refused(d.driver.stream_wait(d.a, d.fork), CaptureError::merge);
    d.refused(d.driver.event_query(d.fork), CaptureError::captured_event);
    d.broken();
    GraphId other = kNoGraph;
    EXPECT(d.driver.capture_end(d.b, &other).ok());  // the other one is whole
    d.refused(d.driver.stream_wait(d.a, d.fork), CaptureError::captured_event);
    EXPECT(d.driver.graph_destroy(other).ok());
    d.program.clear_reports();
  });
}

TEST(graph_contract_memory_of_the_capture_is_not_freed) {
  each_device([](Device& d) {
    Addr at = 0, unused = 0;
    EXPECT(d.driver.segment_alloc(kPage, &at).ok());
    EXPECT(d.driver.segment_alloc(kPage, &unused).ok());
    d.begin();
    d.program.launch(d.a, [] {}, {{.address = at, .size_bytes = 512}});
    {
      const RelaxedCapture relaxed(
          d.driver);  // allows growth, and memory that the capture does not use to go
      EXPECT(d.driver.segment_free(unused, kPage).ok());
      d.refused(d.driver.segment_free(at, kPage), CaptureError::unsupported);
    }
    d.broken();
    EXPECT(d.driver.segment_free(at, kPage).ok());
  });
}

TEST(graph_contract_begin_and_end_belong_together) {
  each_device([](Device& d) {
    GraphId graph = kNoGraph;
    d.refused(d.driver.capture_end(d.a, &graph), CaptureError::unmatched);
    d.begin();
    d.refused(d.driver.capture_begin(d.a, CaptureMode::thread_local_), CaptureError::illegal_state);
    d.go(d.a, d.b, d.fork);
    d.refused(d.driver.capture_end(d.b, &graph), CaptureError::unmatched);
    d.broken();
    d.begin();
    Status status;
    std::thread([&] { status = d.driver.capture_end(d.a, &graph); }).join();
    d.refused(status, CaptureError::wrong_thread);
    d.broken();
  });
}
