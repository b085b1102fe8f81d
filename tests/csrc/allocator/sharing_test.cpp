// Exports and Imports: blocks of one allocator in the hands of another one, as of another process.
#include <dirent.h>

#include <thread>

#include "allocator/sharing/exports.h"
#include "allocator/sharing/imports.h"
#include "device_fixture.h"

using namespace staticrt::test;

namespace {

SharedBlock share(Device& device, Addr inside) {
  SharedBlock block;
  device.expect_ok(device.allocator().exports().share(inside, &block));
  return block;
}

Addr open(Device& device, const SharedBlock& block, StreamId stream = kDefaultStream) {
  Addr address = kNullAddr;
  device.expect_ok(device.allocator().imports().open(block, stream, &address));
  return address;
}

std::string why_not(Device& device, Addr inside) {
  SharedBlock block;
  return device.allocator().exports().share(inside, &block).describe();
}

uint64_t& word(Addr address) {
  return *reinterpret_cast<uint64_t*>(address);
}

int open_files() {
  DIR* files = opendir("/proc/self/fd");
  int count = 0;
  while (readdir(files)) ++count;
  closedir(files);
  return count;
}

// As Device::free, but what the oracle knows ends only when the memory really goes.
void free_late(Device& device, Addr address) {
  device.expect_ok(device.allocator().release(address));
}

}  // namespace

TEST(I9_a_block_is_mapped_once_and_unmapped_with_its_last_user) {
  Device ours, theirs;
  const Addr a = ours.alloc(3 * MiB), b = ours.alloc(512);
  word(a) = 1;
  word(a + 3 * MiB - 8) = 2;
  word(b) = 3;
  const SharedBlock first = share(ours, a + MiB), second = share(ours, a);
  EXPECT(first.key == second.key);
  EXPECT(first.address == a && first.size == 3 * MiB);
  const Addr here = open(theirs, first);
  EXPECT_EQ(open(theirs, second), here);
  EXPECT(here != a);
  EXPECT_EQ(word(here), 1u);
  EXPECT_EQ(word(here + 3 * MiB - 8), 2u);
  const Addr other = open(theirs, share(ours, b));
  EXPECT_EQ(word(other), 3u);
  word(other) = 4;
  EXPECT_EQ(word(b), 4u);
  EXPECT_EQ(theirs.reserved(), 0u);  // it is charged to its own process
  EXPECT_EQ(theirs.allocator().imports().count(), 2u);
  theirs.expect_ok(theirs.allocator().imports().close(here));
  EXPECT_EQ(word(here), 1u);
  theirs.expect_ok(theirs.allocator().imports().close(here));
  EXPECT_EQ(theirs.allocator().imports().close(here).code(), Code::invalid_pointer);
  theirs.expect_ok(theirs.allocator().imports().close(other));
  EXPECT_EQ(theirs.allocator().imports().count(), 0u);
  ours.free(a);
  ours.free(b);
}

TEST(N15_a_block_that_others_have_is_not_given_away) {
  Device ours, theirs;
  const Addr a = ours.alloc(60 * MiB);
  word(a) = 5;
  Addr here = kNullAddr;
  {
    const SharedBlock block = share(ours, a);
    here = open(theirs, block);
  }
  free_late(ours, a);
  EXPECT_EQ(ours.allocator().release(a).code(), Code::invalid_pointer);  // twice
  EXPECT_EQ(ours.empty_cache(), 0u);
  EXPECT_EQ(ours.try_alloc(60 * MiB), kNullAddr);
  EXPECT_EQ(word(here), 5u);
  EXPECT(ours.allocator().exports().count() == 1);
  EXPECT(why_not(ours, a).starts_with("invalid_pointer"));  // its owner gave it up
  theirs.expect_ok(theirs.allocator().imports().close(here));
  ours.sim().freed(a);
  EXPECT_EQ(ours.alloc(60 * MiB), a);  // the reclaim steps have looked who let go
  ours.free(a);
}

TEST(N15_a_token_keeps_the_block_in_whatever_hands) {
  Device ours;
  const Addr a = ours.alloc(MiB);
  FileDescriptor copy;
  {
    SharedBlock block = share(ours, a);
    copy = block.token.copy();
  }
  ours.sim().freed(a);
  free_late(ours, a);
  EXPECT_EQ(ours.allocated(), MiB);
  EXPECT_EQ(ours.allocator().exports().collect(), 0u);
  copy = FileDescriptor();
  EXPECT_EQ(ours.allocator().exports().collect(), MiB);
  EXPECT_EQ(ours.allocated(), 0u);
}

TEST(N15_an_owner_that_goes_first_leaves_the_bytes) {
  Device theirs;
  auto sim = std::make_shared<SimDriver>(SimConfig{});
  auto ours = std::make_unique<DeviceAllocator>(sim, options(""));
  Addr a = kNullAddr;
  EXPECT(ours->allocate({.size = MiB}, &a).ok());
  word(a) = 7;
  Addr here = kNullAddr;
  {
    SharedBlock block;
    EXPECT(ours->exports().share(a, &block).ok());
    here = open(theirs, block);
  }
  ours.reset();
  EXPECT_EQ(word(here), 7u);
  EXPECT_EQ(sim->used_bytes(), 2 * MiB);  // the page is not given to others
  sim.reset();
  EXPECT_EQ(word(here), 7u);
  theirs.expect_ok(theirs.allocator().imports().close(here));
}

TEST(I9_an_unmapping_waits_for_its_streams) {
  Device ours, theirs;
  const Addr a = ours.alloc(MiB);
  const StreamId side = theirs.sim().create_stream();
  const Addr here = open(theirs, share(ours, a));
  theirs.sim().allocated(here, MiB, kDefaultStream);
  theirs.sim().touch(side, here, MiB);
  theirs.expect_ok(theirs.allocator().imports().record_use(here, side));
  theirs.sim().freed(here);
  theirs.expect_ok(theirs.allocator().imports().close(here));
  EXPECT_EQ(theirs.sim().pending(side), 0u);
  ours.free(a);
}

TEST(I9_a_captured_stream_is_waited_for_later) {
  Device ours, theirs;
  const Addr a = ours.alloc(MiB);
  const StreamId side = theirs.sim().create_stream();
  const Addr here = open(theirs, share(ours, a), side);
  GraphId graph = kNoGraph;
  EXPECT(theirs.sim().capture_begin(side).ok());
  theirs.expect_ok(theirs.allocator().imports().close(here));
  EXPECT_EQ(theirs.allocator().imports().count(), 1u);
  EXPECT(theirs.sim().capture_end(side, &graph).ok());  // not broken
  EXPECT(theirs.sim().graph_destroy(graph).ok());
  theirs.empty_cache();
  EXPECT_EQ(theirs.allocator().imports().count(), 0u);
  ours.free(a);
}

TEST(N15_what_cannot_be_shared) {
  Device ours, theirs;
  Device fixed(100 * MiB, kFixed);
  const Addr a = ours.alloc(MiB), f = fixed.alloc(MiB);
  EXPECT(why_not(ours, a + 64 * MiB).starts_with("invalid_pointer"));
  EXPECT(why_not(ours, kNullAddr).starts_with("invalid_pointer"));
  EXPECT(why_not(fixed, f).starts_with("unsupported: sim:0: the memory is in a fixed segment"));
  const Addr here = open(theirs, share(ours, a));
  EXPECT(why_not(theirs, here + 5).starts_with("unsupported: sim:0: the memory is another process'"));
  theirs.expect_ok(theirs.allocator().imports().close(here));
  PoolId pool{0, 1};
  ours.expect_ok(ours.pools().retain(pool, {}));
  Addr p = kNullAddr;
  ours.expect_ok(ours.allocator().allocate({.size = MiB, .pool = pool}, &p));
  EXPECT(why_not(ours, p).starts_with("unsupported: sim:0: the memory is in private pool 0_1"));
  ours.expect_ok(ours.allocator().release(p));
  ours.expect_ok(ours.pools().release(pool));
  ours.free(a);
  fixed.free(f);
  EXPECT(why_not(ours, a).starts_with("invalid_pointer"));
}

TEST(N15_a_driver_that_fails_changes_nothing) {
  for (const SimCall call : {SimCall::physical_export, SimCall::physical_import, SimCall::va_reserve,
                             SimCall::map, SimCall::set_access}) {
    Device ours, theirs;
    const Addr a = ours.alloc(5 * MiB);
    const int files = open_files();
    for (uint64_t nth = 1; nth <= 2; ++nth) {
      ours.sim().fail(call, nth, Status::Oom("planned"));
      theirs.sim().fail(call, nth, Status::Oom("planned"));
      SharedBlock block;
      Status status = ours.allocator().exports().share(a, &block);
      Addr here = kNullAddr;
      if (status.ok()) status = theirs.allocator().imports().open(block, kDefaultStream, &here);
      EXPECT(status.ok() || status.oom());
      if (status.ok()) theirs.expect_ok(theirs.allocator().imports().close(here));
      ours.sim().clear_faults();
      theirs.sim().clear_faults();
    }
    theirs.check();
    EXPECT_EQ(theirs.sim().reserved_va_bytes(), 0u);
    EXPECT_EQ(theirs.sim().handle_count(), 0u);
    (void)ours.allocator().exports().collect();
    EXPECT_EQ(open_files(), files);
    ours.free(a);
  }
}

TEST(E7_what_the_driver_keeps_of_a_failed_open_goes_later) {
  for (const SimCall call : {SimCall::unmap, SimCall::physical_release}) {
    Device ours, theirs;
    const Addr a = ours.alloc(5 * MiB);
    const int files = open_files();
    {
      const SharedBlock block = share(ours, a);
      theirs.sim().fail(SimCall::map, 2, Status::Error("planned", 5));
      theirs.sim().fail(call, 1, Status::Error("planned", 6), 100);
      Addr here = kNullAddr;
      EXPECT_EQ(theirs.allocator().imports().open(block, kDefaultStream, &here).native(), 5);
      theirs.check();
      theirs.sim().clear_faults();
      here = open(theirs, block);
      word(here) = 7;
      EXPECT_EQ(word(a), 7u);
      theirs.expect_ok(theirs.allocator().imports().close(here));
    }
    EXPECT_EQ(theirs.allocator().imports().count(), 0u);
    theirs.empty_cache();
    EXPECT_EQ(theirs.sim().reserved_va_bytes(), 0u);
    EXPECT_EQ(theirs.sim().handle_count(), 0u);
    (void)ours.allocator().exports().collect();
    EXPECT_EQ(open_files(), files);
    ours.free(a);
  }
}

TEST(N15_ten_thousand_cycles_leave_nothing) {
  Device ours, theirs;
  const int files = open_files();
  for (int cycle = 0; cycle < 10'000; ++cycle) {
    Addr a = kNullAddr, here = kNullAddr;
    EXPECT(ours.allocator().allocate({.size = 512}, &a).ok());
    SharedBlock block;
    EXPECT(ours.allocator().exports().share(a, &block).ok());
    EXPECT(theirs.allocator().imports().open(block, kDefaultStream, &here).ok());
    EXPECT(ours.allocator().release(a).ok());
    EXPECT(theirs.allocator().imports().close(here).ok());
  }
  (void)ours.allocator().exports().collect();
  EXPECT_EQ(ours.allocated(), 0u);
  EXPECT_EQ(ours.allocator().exports().count(), 0u);
  EXPECT_EQ(open_files(), files);
}

TEST(N15_thread_caches_are_closed_while_others_have_a_block) {
  Device ours(100 * MiB, "thread_cache:True");
  Addr a = kNullAddr, b = kNullAddr;
  EXPECT(ours.allocator().allocate({.size = 512}, &a).ok());
  {
    const SharedBlock block = share(ours, a);
    EXPECT(ours.allocator().release(a).ok());
    EXPECT(ours.allocator().allocate({.size = 512}, &b).ok());
    EXPECT(a != b);
  }
  (void)ours.allocator().exports().collect();
  EXPECT(ours.allocator().release(b).ok());
  EXPECT(ours.allocator().core().cache_gate != 0);
}

TEST(N15_threads_share_and_free_at_once) {
  Device ours, theirs;
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number)
    threads.emplace_back([&] {
      for (int cycle = 0; cycle < 300; ++cycle) {
        Addr a = kNullAddr, here = kNullAddr;
        EXPECT(ours.allocator().allocate({.size = 4096}, &a).ok());
        SharedBlock block;
        EXPECT(ours.allocator().exports().share(a, &block).ok());
        EXPECT(theirs.allocator().imports().open(block, kDefaultStream, &here).ok());
        EXPECT(ours.allocator().release(a).ok());
        EXPECT(theirs.allocator().imports().close(here).ok());
      }
    });
  for (std::thread& thread : threads) thread.join();
  (void)ours.allocator().exports().collect();
  EXPECT_EQ(ours.allocated(), 0u);
}
