// New segments and pages. The growth mutex is held, the core mutex only where said: Note [Locks].
#include "allocator/core/core.h"
#include "common/error.h"

namespace staticrt::alloc {

Bytes Core::page_bytes(SizeClass size_class) const {
  // Native mode moves whole pages between free blocks: the smaller a page, the more of a block it can move
  // (move.cpp).
  return size_class == SizeClass::small || !compat ? kSmallSegment : settings().large_segment_bytes;
}

Bytes Core::chunk_bytes(SizeClass size_class) const {
  const Bytes least = size_class == SizeClass::small ? kSmallSegment : settings().large_segment_bytes;
  if (compat) return least;
  // More on large devices: fewer driver calls, and what stays unused is less than a thousandth.
  const Bytes most = std::max(least, size_class == SizeClass::small ? 4 * kMiB : 48 * kMiB);
  return std::clamp(info.total_bytes / 1024 / kGranule * kGranule, least, most);
}

bool Core::uses_expandable(const Pool& pool) const {
  return !pool.options.no_split && pool.options.provider == nullptr &&
         settings().expandable(info.virtual_memory);
}

Pool& Core::pool_of(const Want& want) {
  const Lock lock(*this);
  return pools[want.pool];
}

Status Core::admit(Bytes bytes) {
  SRT_TRY(driver.pending_error());  // G8: a broken device is not out of memory
  unmap_leftovers();                // E7
  if (!budget.reserve(bytes)) return Status::Oom("limit");
  if (!settings().refuse_before_driver) return Status::Ok();
  Bytes free = 0;
  Bytes total = 0;
  Status status = driver.memory_info(&free, &total);
  if (status.ok() && bytes <= free) return status;
  budget.give_back(bytes);
  if (!status.ok()) return status;
  const Lock lock(*this);
  ++counters.oom_rejections;
  return Status::Oom("rejected");
}

Status Core::grow(const Want& want, Block** grown) {
  const RelaxedCapture relaxed(driver);  // S7
  Pool& pool = pool_of(want);
  if (pool.options.provider != nullptr) return grow_provided(want, pool, grown);
  if (uses_expandable(pool)) {
    Status status = grow_expandable(want, chunk_bytes(want.size_class), grown);
    // U5: near the limit, whole preferred pages may not fit although the request does.
    if (status.oom() && !compat) status = grow_expandable(want, 0, grown);
    return status;
  }
  const Bytes bytes = segment_size(want.size, settings().large_segment_bytes);
  Status status = grow_fixed(want, bytes, grown);
  const Bytes exact = round_up(want.size, kSegmentRound);
  if (status.oom() && !compat && exact < bytes) status = grow_fixed(want, exact, grown);
  return status;
}

Block& Core::open_segment(const Want& want, SegmentKind kind, Addr base, Bytes size) {
  Segment& segment = segments.create();
  segment.kind = kind;
  segment.size_class = want.size_class;
  segment.pool = want.pool;
  segment.slot = want.slot;
  segment.base = base;
  segment.size = size;
  Block& block = *blocks.create();
  block.address = base;
  block.size = size;
  block.segment = segment.id;
  block.slot = want.slot;
  block.size_class = want.size_class;
  block.pool = want.pool;
  segment.first = block.id;
  return block;
}

Segment& Core::adopt_fixed(const Want& want, SegmentKind kind, Addr base, Bytes size) {
  Block& block = open_segment(want, kind, base, size);
  block.state = BlockState::held;
  Segment& segment = segments[block.segment];
  add_reserved(segment, size);
  count_segment(segment, +1);
  ++counters.device_alloc;
  trace.add(Action::segment_alloc, base, size, want.stream, pools[want.pool].trace_name,
            trace.level() >= ContextLevel::alloc ? want.context : nullptr);
  return segment;
}

Status Core::grow_fixed(const Want& want, Bytes bytes, Block** grown) {
  SRT_TRY(admit(bytes));
  Addr base = kNullAddr;
  Status status = driver.segment_alloc(bytes, &base);
  if (!status.ok()) {
    budget.give_back(bytes);
    return status;
  }
  const Lock lock(*this);
  const Segment& segment = adopt_fixed(want, SegmentKind::fixed, base, bytes);
  if (base % kGranule != 0 || !pages.insert(base, base + bytes, segment.id, want.size_class))
    return Status::Internal(detail::concat("segment at ", base, " cannot enter the page map"));
  *grown = &blocks[segment.first];
  return status;
}

Status Core::grow_provided(const Want& want, Pool& pool, Block** grown) {
  const Bytes bytes = segment_size(want.size, settings().large_segment_bytes);
  SRT_TRY(admit(bytes));
  const Provider& provider = *pool.options.provider;
  Bytes asked = bytes;
  Addr given = provider.alloc(asked, want.stream);
  if (given != kNullAddr && given % kGranule != 0) {
    // The page map knows whole granules only: take one more and align inside.
    provider.free(given, asked, want.stream);
    asked = bytes + kGranule;
    given = provider.alloc(asked, want.stream);
  }
  if (given == kNullAddr) {
    budget.give_back(bytes);
    return Status::Oom("provider");
  }
  const Addr base = round_up(given, kGranule);
  const Lock lock(*this);
  Segment& segment = adopt_fixed(want, SegmentKind::provided, base, bytes);
  segment.provided_base = given;
  segment.provided_size = asked;
  if (!pages.insert(base, base + bytes, segment.id, want.size_class))
    return Status::Internal(detail::concat("segment at ", base, " cannot enter the page map"));
  *grown = &blocks[segment.first];
  return Status::Ok();
}

Status Core::map_pages(Addr begin, Addr end, Bytes page_size, std::map<Addr, Page>* mapped) {
  std::map<Addr, Page> fresh;
  Status status;
  for (Addr at = begin; at < end && status.ok(); at += page_size) {
    Page page{kNoPhysical, std::min(page_size, end - at)};
    status = driver.physical_create(page.size, &page.physical);
    if (!status.ok()) break;
    status = driver.map(at, page.size, page.physical);
    if (status.ok()) {
      fresh.emplace(at, page);
    } else {
      release_page(page);
    }
  }
  if (status.ok()) status = grant(begin, end - begin);
  if (!status.ok()) {
    take_back(fresh);  // E3: all or nothing
    return status;
  }
  mapped->merge(fresh);
  return status;
}

Status Core::unmap_pages(const std::map<Addr, Page>& mapped) {
  // One unmap for each contiguous run.
  for (auto first = mapped.begin(); first != mapped.end();) {
    auto last = first;
    Addr end = first->first;
    for (; last != mapped.end() && last->first == end; ++last) end += last->second.size;
    SRT_TRY(driver.unmap(first->first, end - first->first));
    for (; first != last; ++first) release_page(first->second);
  }
  return Status::Ok();
}

void Core::take_back(const std::map<Addr, Page>& mapped) {
  for (const auto& [at, page] : mapped) budget.add(page.size);
  leftovers.insert(mapped.begin(), mapped.end());
  unmap_leftovers();
}

void Core::release_page(const Page& page) {
  if (driver.physical_release(page.physical).ok()) return;
  budget.add(page.size);
  Lock lock(*this);
  unreleased.push_back(page);
  lock.unlock_untraced();  // trackers may open shared blocks, whose mutex a caller may hold
}

void Core::unmap_leftovers() {
  std::vector<Page> again;
  {
    Lock lock(*this);
    again.swap(unreleased);
    lock.unlock_untraced();
  }
  for (const Page& page : again) {
    budget.give_back(page.size);
    release_page(page);
  }
  // Page by page: neighbours may belong to two reservations.
  std::erase_if(leftovers, [&](const auto& each) {
    const Page& page = each.second;
    if (!driver.unmap(each.first, page.size).ok()) return false;
    budget.give_back(page.size);
    release_page(page);
    return true;
  });
}

Block& Core::put_unmapped(Block& block) {
  set_state(block, BlockState::unmapped);
  auto joins = [&](BlockId id) {
    return id != 0 && blocks[id].state == BlockState::unmapped && !(blocks[id].flags & kStale);
  };
  if (joins(block.next)) absorb_next(block);
  if (!joins(block.prev)) return block;
  Block& prev = blocks[block.prev];
  absorb_next(prev);
  return prev;
}

bool Core::find_room(const Want& want, Bytes chunk, Room* room) {
  // E2: the lowest unmapped block of the stream, with the free block before it.
  std::map<Addr, SegmentId> ours;
  for (const Segment& segment : segments.all())
    if (segment.expandable() && segment.pool == want.pool && segment.size_class == want.size_class &&
        segment.slot == want.slot)
      ours.emplace(segment.base, segment.id);
  auto usable = [&](const Block& block) {
    return (block.state == BlockState::unmapped && !(block.flags & kStale)) ||
           (block.state == BlockState::free && block.slot == want.slot);
  };
  for (const auto& [base, id] : ours) {
    for (BlockId at = segments[id].first; at != 0; at = blocks[at].next) {
      if (blocks[at].state != BlockState::unmapped || (blocks[at].flags & kStale)) continue;
      BlockId start = at;
      if (blocks[at].prev != 0 && usable(blocks[blocks[at].prev])) start = blocks[at].prev;
      std::vector<BlockId> run;
      Bytes have = 0;
      for (BlockId piece = start; piece != 0 && have < want.size && usable(blocks[piece]);
           piece = blocks[piece].next) {
        run.push_back(piece);
        have += blocks[piece].size;
      }
      if (have < want.size) continue;
      room->segment = id;
      hold_room(want, chunk, run, room);
      return true;
    }
  }
  return false;
}

void Core::hold_room(const Want& want, Bytes chunk, const std::vector<BlockId>& run, Room* room) {
  const Bytes unit = compat ? page_bytes(want.size_class) : kGranule;
  Bytes have = 0;
  room->first = run.front();
  for (const BlockId id : run) {
    Block& piece = blocks[id];
    if (piece.state == BlockState::free) {
      remove_free(piece);
      set_state(piece, BlockState::held);
      room->free.push_back(id);
    } else {
      // All but the last piece are needed whole; of the last one as much as the request or a chunk needs.
      Bytes needed = ceil_to(std::min(piece.size, want.size - have), unit);
      if (have + piece.size >= want.size) needed = std::max(needed, chunk);
      if (needed < piece.size) split(piece, needed);
      set_state(piece, BlockState::held);
      room->unmapped.push_back(id);
      room->to_map += piece.size;
    }
    have += piece.size;
  }
}

void Core::leave_room(const Room& room) {
  // Unmapped pieces first: joining them with neighbours does not touch a Held free piece.
  for (const BlockId id : room.unmapped) put_unmapped(blocks[id]);
  for (const BlockId id : room.free) put_free(blocks[id]);
}

Status Core::new_expandable(const Want& want) {
  const Bytes page = page_bytes(want.size_class);
  const Bytes least = ceil_to(want.size, page);
  Bytes size = settings().va_bytes != 0
                   ? settings().va_bytes
                   : static_cast<Bytes>(static_cast<double>(info.total_bytes) * settings().va_fraction);
  size = std::max(round_up(size, kGranule), least);
  size = ceil_to(size, page);
  Addr base = kNullAddr;
  Status status = driver.va_reserve(size, kNullAddr, &base);
  while (status.oom() && size > least) {
    size = std::max(size / 2 / page * page, least);
    status = driver.va_reserve(size, kNullAddr, &base);
  }
  SRT_TRY(status);
  const Lock lock(*this);
  Block& block = open_segment(want, SegmentKind::expandable, base, size);
  block.flags = kExpandable;
  return status;
}

Status Core::grow_expandable(const Want& want, Bytes chunk, Block** grown) {
  Room room;
  bool found = false;
  {
    const Lock lock(*this);
    found = find_room(want, chunk, &room);
  }
  if (!found) {
    SRT_TRY(new_expandable(want));
    const Lock lock(*this);
    if (!find_room(want, chunk, &room)) return Status::Internal("a new expandable segment has no room");
  }
  Status status = admit(room.to_map);
  std::map<Addr, Page> mapped;
  if (status.ok()) {
    for (const BlockId id : room.unmapped) {
      // Held blocks keep their place and size while the core mutex is free.
      status = map_pages(blocks[id].address, blocks[id].end(), page_bytes(want.size_class), &mapped);
      if (!status.ok()) break;
    }
    if (!status.ok()) {
      take_back(mapped);
      budget.give_back(room.to_map);
    }
  }
  const Lock lock(*this);
  Segment& segment = segments[room.segment];
  for (const auto& [at, page] : mapped) {
    if (!status.ok()) break;
    if (!pages.insert(at, at + page.size, segment.id, want.size_class))
      return Status::Internal(detail::concat("page at ", at, " cannot enter the page map"));
  }
  if (!status.ok()) {
    leave_room(room);
    return status;
  }
  for (const BlockId id : room.unmapped) {
    ++counters.device_alloc;
    trace.add(Action::segment_map, blocks[id].address, blocks[id].size, want.stream,
              pools[want.pool].trace_name, trace.level() >= ContextLevel::alloc ? want.context : nullptr);
  }
  add_reserved(segment, room.to_map);
  segment.pages.merge(mapped);
  Block& block = blocks[room.first];
  block.slot = want.slot;
  for (size_t more = room.free.size() + room.unmapped.size(); more > 1; --more) absorb_next(block);
  *grown = &block;
  return status;
}

}  // namespace staticrt::alloc
