// Search of free blocks: rules B1, B3 to B7, B10, B11, N8. The core mutex is held.
#include "allocator/core/core.h"

namespace staticrt::alloc {

Block* Core::search(const Want& want) {
  Pool& pool = pools[want.pool];
  ++pool.searches[static_cast<size_t>(want.size_class)];
  if (want.address != kNullAddr) [[unlikely]]
    return search_at(want);
  if (compat) return search_compat(want);
  if (!plain) [[unlikely]]
    return search_constrained(want);
  const BlockId id = pool.free_of(want.size_class).find(blocks, want.slot, want.size);
  if (id == 0) return nullptr;
  Block& block = blocks[id];
  remove_free(block);
  return &block;
}

// Upstream's search, step by step, because its results depend on which blocks it skips.
Block* Core::search_compat(const Want& want) {
  const OrderedIndex& index = pools[want.pool].free_of(want.size_class).ordered();
  auto at = index.from(want.slot, want.size);
  auto ours = [&](auto it) { return it != index.end() && it->slot == want.slot; };
  if (!ours(at)) return nullptr;
  auto expandable = [&](auto it) { return (blocks[it->id].flags & kExpandable) != 0; };
  if (expandable(at)) {
    if (settings().expandable(info.virtual_memory)) {
      // B10: a block counts as what it can grow to, so a larger one now may be the tighter one.
      auto reach = [&](auto it) {
        const Block& block = blocks[it->id];
        const bool grows = block.next != 0 && blocks[block.next].state == BlockState::unmapped;
        return block.size + (grows ? blocks[block.next].size : 0);
      };
      for (auto next = std::next(at); ours(next) && expandable(at) && reach(next) < reach(at); ++next)
        at = next;
    } else {
      while (ours(at) && expandable(at)) ++at;  // B11
      if (!ours(at)) return nullptr;
    }
  }
  Block& block = blocks[at->id];
  if (want.size < settings().max_split_bytes && block.size >= settings().max_split_bytes) return nullptr;
  if (want.size >= settings().max_split_bytes && block.size >= want.size + settings().max_non_split())
    return nullptr;
  remove_free(block);
  return &block;
}

// Native mode with options that rule blocks out (B7, B11): best fit among those that remain.
Block* Core::search_constrained(const Want& want) {
  Block* best = nullptr;
  const bool expandable = settings().expandable(info.virtual_memory);
  pools[want.pool].free_of(want.size_class).for_each(blocks, want.slot, [&](Block& block) {
    if (block.size < want.size || (!expandable && (block.flags & kExpandable) != 0)) return;
    if (want.size < settings().max_split_bytes && block.size >= settings().max_split_bytes) return;
    if (want.size >= settings().max_split_bytes && block.size >= want.size + settings().max_non_split())
      return;
    if (best == nullptr || block.size < best->size ||
        (block.size == best->size && block.address < best->address))
      best = &block;
  });
  if (best != nullptr) remove_free(*best);
  return best;
}

Block* Core::search_at(const Want& want) {
  Block* block = block_containing(want.address);
  if (block == nullptr || block->state != BlockState::free || block->pool != want.pool ||
      block->slot != want.slot || block->size_class != want.size_class || want.address % kMinBlock != 0 ||
      block->end() - want.address < want.size)
    return nullptr;
  if (pools[want.pool].options.no_split && want.address != block->address) return nullptr;
  remove_free(*block);
  if (want.address == block->address) return block;
  Block& high = split(*block, want.address - block->address);
  insert_free(*block);
  return &high;
}

}  // namespace staticrt::alloc
