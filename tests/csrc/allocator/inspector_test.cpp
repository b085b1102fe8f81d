// Rules I, N9, N10: snapshots, history, options; plan arenas and the front.
#include <cstdlib>

#include "allocator/device_fixture.h"
#include "allocator/pools/plan_arena.h"
#include "allocator/process/front.h"

namespace staticrt::test {

TEST(I3_snapshot_shows_contiguous_mapped_ranges) {
  Device device(400 * MiB, kCompatExpandable);
  const Addr a = device.alloc(20 * MiB);
  const Addr b = device.alloc(20 * MiB);
  const Addr c = device.alloc(15 * MiB);
  device.free(b);
  device.empty_cache();
  device.expect_ok(device.inspector().record_history({.on = true, .max_entries = 10}));
  const Snapshot snapshot = device.inspector().snapshot();
  EXPECT_EQ(snapshot.segments.size(), 2u);
  EXPECT_EQ(snapshot.segments[0].address, a);
  EXPECT_EQ(snapshot.segments[0].total_size, 20 * MiB);
  EXPECT_EQ(snapshot.segments[1].address, c);
  EXPECT_EQ(snapshot.segments[1].blocks.size(), 2u);
  EXPECT_EQ(snapshot.segments[1].allocated_size, 15 * MiB);
  EXPECT(snapshot.segments[1].blocks[1].state == BlockState::free);
  EXPECT(snapshot.trace.back().action == Action::snapshot);
  EXPECT(snapshot.settings.find("expandable_segments:True") != std::string::npos);
}

TEST(I4_history_is_a_ring_with_contexts_by_level) {
  for (const ContextLevel level :
       {ContextLevel::never, ContextLevel::state, ContextLevel::alloc, ContextLevel::all}) {
    Device device(400 * MiB, kCompat);
    int made = 0;
    device.expect_ok(
        device.inspector().record_history({.on = true,
                                           .context = [&]() -> Context {
                                             EXPECT(device.allocator().validate().ok());  // no lock held
                                             return std::make_shared<int>(++made);
                                           },
                                           .max_entries = 4,
                                           .level = level}));
    const Addr a = device.alloc(4096);
    device.free(device.alloc(4096));
    const Snapshot snapshot = device.inspector().snapshot();
    EXPECT_EQ(snapshot.trace.size(), 4u);  // alloc, free_requested, free_completed, snapshot
    EXPECT_EQ(snapshot.trace[0].action == Action::alloc, true);
    EXPECT_EQ(snapshot.trace[0].context != nullptr, level >= ContextLevel::alloc);
    EXPECT_EQ(snapshot.trace[1].context != nullptr, level == ContextLevel::all);
    BlockInfo block;
    EXPECT(device.inspector().find_block(a + 100, &block));
    EXPECT_EQ(block.context != nullptr, level >= ContextLevel::state);
    EXPECT_EQ(made, level == ContextLevel::never ? 0 : level == ContextLevel::all ? 3 : 2);
    device.expect_ok(device.inspector().record_history({}));
    EXPECT_EQ(device.inspector().snapshot().trace.size(), 0u);
    EXPECT(device.inspector().find_block(a, &block));
    EXPECT(block.context == nullptr);
  }
  Device device;
  const Status status = device.inspector().record_history({.on = true, .max_entries = 0});
  EXPECT_EQ(status.code(), Code::invalid_argument);
}

TEST(I5_actions_and_times) {
  Device device(100 * MiB, kCompatExpandable);
  device.expect_ok(device.inspector().record_history({.on = true, .max_entries = 100}));
  device.free(device.alloc(20 * MiB));
  device.empty_cache();
  device.try_alloc(200 * MiB);
  // Times keep the order of what happened, in every reading of them.
  for (int i = 0; i < 2000; ++i) {
    int64_t last = 0;
    for (const TraceEntry& entry : device.allocator().core().trace.entries()) {
      EXPECT(entry.time_us >= last);
      last = entry.time_us;
    }
  }
  std::vector<Action> actions;
  int64_t last = 0;
  for (const TraceEntry& entry : device.inspector().snapshot().trace) {
    actions.push_back(entry.action);
    EXPECT(entry.time_us >= last);
    last = entry.time_us;
  }
  const std::vector<Action> want = {Action::segment_map,    Action::alloc,         Action::free_requested,
                                    Action::free_completed, Action::segment_unmap, Action::oom,
                                    Action::snapshot};
  EXPECT(actions == want);
  EXPECT(last > 1600000000000000);
}

TEST(I6_trackers_see_all_in_order_without_history) {
  Device device(100 * MiB, kCompat);
  std::vector<TraceEntry> seen;
  device.inspector().attach_tracker([&](const TraceEntry& entry) {
    seen.push_back(entry);
    EXPECT(device.allocator().validate().ok());  // no lock is held
  });
  device.free(device.alloc(4096));
  EXPECT_EQ(seen.size(), 4u);
  EXPECT(seen[0].action == Action::segment_alloc && seen[1].action == Action::alloc &&
         seen[2].action == Action::free_requested && seen[3].action == Action::free_completed);
  EXPECT_EQ(device.inspector().snapshot().trace.size(), 0u);
}

TEST(I7_annotations_have_their_own_ring) {
  Device device(100 * MiB, kCompat);
  device.expect_ok(device.inspector().record_history({.on = true, .max_entries = 2}));
  for (const char* text : {"a", "b", "c"}) device.inspector().annotate(text);
  const Snapshot snapshot = device.inspector().snapshot();
  EXPECT_EQ(snapshot.annotations.size(), 2u);
  EXPECT_EQ(snapshot.annotations[1].text, std::string("c"));
}

TEST(I10_pointer_to_block_takes_no_lock) {
  Device device(100 * MiB, kCompat);
  const Addr a = device.alloc(4096);
  const Core::Lock held(device.allocator().core());
  EXPECT(device.allocator().core().pages.block_at(a) != 0);
  EXPECT_EQ(device.allocator().core().pages.block_at(a + 512), 0u);
  EXPECT(device.allocator().core().pages.segment_of(a + 100) != 0);
  EXPECT_EQ(device.allocator().core().pages.segment_of(a + 64 * MiB), 0u);
}

TEST(I11_mode_is_fixed_after_first_use) {
  Device device(100 * MiB, kCompat);
  EXPECT_EQ(device.allocator().configure(options("mode:native")).code(), Code::invalid_argument);
  Config config;
  EXPECT(parse_config("backend:native", "PYTORCH_ALLOC_CONF", Config(), &config).ok());
  const Status status = parse_config("backend:cudaMallocAsync", "PYTORCH_ALLOC_CONF", Config(), &config);
  EXPECT(status.text().find("PYTORCH_ALLOC_CONF: 'backend': cudaMallocAsync") != std::string::npos);
}

TEST(I12_N10_option_strings) {
  Config config;
  auto ok = [&](const char* text) { return parse_config(text, "X", Config(), &config).ok(); };
  EXPECT(ok(" expandable_segments : True , max_split_size_mb:20, "));
  EXPECT_EQ(*config.expandable_segments, true);
  EXPECT_EQ(config.max_split_bytes, 20 * MiB);
  EXPECT(ok(""));
  EXPECT(ok("large_segment_size_mb:11"));
  EXPECT(ok("max_non_split_rounding_mb:20"));
  EXPECT(ok("garbage_collection_threshold:0.8,release_lock_on_cudamalloc:True"));
  EXPECT(ok("expandable_va:0.5"));
  EXPECT(ok("expandable_va:40G"));
  EXPECT_EQ(config.va_bytes, 40 * kGiB);
  EXPECT(ok("pinned_use_cuda_host_register:True,pinned_num_register_threads:8"));
  EXPECT_EQ(config.warnings.size(), 1u);
  for (const char* wrong : {"foo:1",
                            "expandable_segments:true",
                            "expandable_segments:1",
                            "expandable_segments",
                            "expandable_segments:",
                            "max_split_size_mb:19",
                            "max_split_size_mb:-1",
                            "max_split_size_mb:2x",
                            "large_segment_size_mb:10",
                            "max_non_split_rounding_mb:19",
                            "large_segment_size_mb:40,max_non_split_rounding_mb:30",
                            "garbage_collection_threshold:0",
                            "garbage_collection_threshold:1",
                            "garbage_collection_threshold:nan",
                            "expandable_segments:True expandable_segments:True",
                            "[",
                            ":",
                            "backend:foo",
                            "mode:fast",
                            "expandable_va:0",
                            "expandable_va:G",
                            "thread_cache:yes"}) {
    config.max_split_bytes = 123;
    const Status status = parse_config(wrong, "X", Config(), &config);
    if (status.code() != Code::invalid_argument || !status.text().starts_with("X: ") ||
        config.max_split_bytes != 123)
      fail(__FILE__, __LINE__, std::string(wrong) + " -> " + status.describe());
  }
  const Status unknown = parse_config("foo:1", "PYTORCH_ALLOC_CONF", Config(), &config);
  EXPECT(unknown.text().starts_with(
      "PYTORCH_ALLOC_CONF: unknown key 'foo'; known: backend, caching, expandable_segments"));
}

TEST(N9_entries_carry_pool_metadata_and_compile_context) {
  Device device(400 * MiB, kCompat);
  device.expect_ok(device.inspector().record_history(
      {.on = true, .max_entries = 100, .skip_actions = 1u << static_cast<int>(Action::free_completed)}));
  set_thread_metadata("step 7");
  push_compile_context("graph 1");
  push_compile_context("graph 2");
  device.expect_ok(device.pools().begin_route({3, 4}));
  const Addr a = device.alloc(4096);
  pop_compile_context();
  device.free(a);
  pop_compile_context();
  set_thread_metadata("");
  device.expect_ok(device.pools().end_route({3, 4}));
  const std::vector<TraceEntry> trace = device.inspector().snapshot().trace;
  EXPECT_EQ(trace.size(), 4u);  // segment_alloc, alloc, free_requested, snapshot
  EXPECT_EQ(trace[1].pool, (PoolId{3, 4}));
  EXPECT_EQ(trace[1].metadata, std::string("step 7"));
  EXPECT_EQ(trace[1].compile_context, std::string("graph 2"));
  EXPECT_EQ(trace[2].compile_context, std::string("graph 1"));
  EXPECT_EQ(trace[3].metadata, std::string());
}

TEST(PlanArena_base_survives_growing_shrinking_and_hibernation) {
  Device device(100 * MiB);
  {
    PlanArena arena(device.allocator());
    device.expect_ok(arena.reserve(90 * MiB));
    EXPECT_EQ(arena.mapped(), 0u);
    device.expect_ok(arena.resize(30 * MiB));
    const Addr base = arena.base();
    EXPECT_EQ(arena.mapped(), 30 * MiB);
    device.expect_ok(arena.resize(50 * MiB));
    EXPECT_EQ(arena.base(), base);
    device.expect_ok(arena.resize(10 * MiB));
    EXPECT(arena.mapped() >= 10 * MiB && arena.mapped() <= 30 * MiB);
    device.expect_ok(arena.hibernate());
    EXPECT_EQ(device.sim().used_bytes(), 0u);
    EXPECT(arena.hibernated());
    const Addr a = device.alloc(95 * MiB);
    EXPECT(arena.wake().oom());
    device.free(a);
    device.expect_ok(arena.wake());  // takes the cached memory back
    EXPECT_EQ(arena.base(), base);
    EXPECT_EQ(arena.resize(91 * MiB).code(), Code::invalid_argument);
    EXPECT_EQ(device.try_alloc(95 * MiB), kNullAddr);
    EXPECT(device.last().text().find("in plan arenas") != std::string::npos);
  }
  device.check();
  device.empty_cache();
  EXPECT_EQ(device.sim().used_bytes(), 0u);
}

TEST(PlanArena_failed_growth_changes_nothing) {
  Device device(100 * MiB);
  PlanArena arena(device.allocator());
  device.expect_ok(arena.reserve(90 * MiB));
  device.expect_ok(arena.resize(20 * MiB));
  device.sim().fail(SimCall::physical_create, 2, Status::Oom("planned"), 100);
  EXPECT(arena.resize(80 * MiB).oom());
  EXPECT_EQ(arena.mapped(), 20 * MiB);
  device.check();
  device.sim().clear_faults();
  device.expect_ok(arena.resize(80 * MiB));
}

TEST(PlanArena_grows_after_a_growth_whose_pages_stayed_mapped) {
  Device device(400 * MiB);
  PlanArena arena(device.allocator());
  device.expect_ok(arena.reserve(200 * MiB));
  device.sim().fail(SimCall::set_access, 1, Status::Error("planned", 5));
  device.sim().fail(SimCall::unmap, 1, Status::Error("planned", 6), 100);
  EXPECT(!arena.resize(50 * MiB).ok());
  device.sim().clear_faults();
  device.expect_ok(arena.resize(50 * MiB));
  EXPECT_EQ(device.sim().used_bytes(), arena.mapped());
}

TEST(PlanArena_without_virtual_memory_has_its_largest_size) {
  SimConfig config;
  config.virtual_memory = false;
  Device device(100 * MiB, "thread_cache:False", config);
  PlanArena arena(device.allocator());
  device.expect_ok(arena.reserve(50 * MiB));
  device.expect_ok(arena.resize(10 * MiB));
  const Addr base = arena.base();
  device.expect_ok(arena.resize(50 * MiB));
  EXPECT_EQ(arena.base(), base);
  EXPECT_EQ(arena.hibernate().code(), Code::unsupported);
}

TEST(G7_front_owns_all_devices) {
  DeviceFront front;
  std::vector<std::shared_ptr<SimDriver>> sims;
  for (int i = 0; i < 2; ++i) {
    sims.push_back(std::make_shared<SimDriver>(SimConfig{.total_bytes = 100 * MiB, .index = i}));
    EXPECT(front.add(i, sims.back(), options("")).ok());
  }
  EXPECT_EQ(front.add(0, sims[0], Config()).code(), Code::invalid_argument);
  EXPECT_EQ(front.add(64, sims[0], Config()).code(), Code::invalid_argument);
  Addr a = kNullAddr;
  Addr b = kNullAddr;
  EXPECT(front.allocate(0, {.size = 30 * MiB}, &a).ok());
  EXPECT(front.allocate(1, {.size = 30 * MiB}, &b).ok());
  EXPECT_EQ(front.allocate(2, {.size = 1}, &b).code(), Code::invalid_argument);
  EXPECT(front.release(b).ok());
  EXPECT(front.release(a).ok());
  EXPECT_EQ(front.release(a).code(), Code::invalid_pointer);
  EXPECT_EQ(front.empty_cache() > 0, true);
  EXPECT_EQ(sims[0]->used_bytes() + sims[1]->used_bytes(), 0u);
}

TEST(N10_options_come_from_the_environment) {
  Config config;
  ::setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:40", 1);
  EXPECT(config_from_environment(&config).ok());
  EXPECT_EQ(config.max_split_bytes, 40 * MiB);
  ::setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:50", 1);
  EXPECT(config_from_environment(&config).ok());
  EXPECT_EQ(config.max_split_bytes, 50 * MiB);
  ::setenv("PYTORCH_ALLOC_CONF", "nonsense:1", 1);
  EXPECT(config_from_environment(&config).text().starts_with("PYTORCH_ALLOC_CONF: unknown key"));
  ::unsetenv("PYTORCH_ALLOC_CONF");
  ::unsetenv("PYTORCH_CUDA_ALLOC_CONF");
}

}  // namespace staticrt::test
