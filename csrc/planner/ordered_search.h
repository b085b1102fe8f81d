// Decides whether items fit below a capacity, by placing them in the order of their offsets.
//
// In a packing pushed down as far as it goes, every item lies on the ground or on another item. Placed by
// rising offset, ties by a fixed rank, each lies at its floor when its turn comes: so only orders are
// searched, and each packing is met once. The branch and bound of MiniMalloc (Moffitt, ASPLOS 2023) searches
// this way; it finds packings that filling valleys (valley_search.h) misses, and the other way round.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "planner/terrain.h"

namespace staticrt::planner {

// A style, below kRanks, says which of several items that may lie at one offset is tried first.
inline constexpr uint32_t kRanks = 3;

std::unique_ptr<Terrain> ordered_search(std::span<const Item> items, int32_t sections, int64_t capacity);

}  // namespace staticrt::planner
