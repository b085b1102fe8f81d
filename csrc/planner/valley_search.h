// Decides whether items fit below a capacity, by filling valleys.
//
// Placed items form a terrain: one height per section. The lowest sections make valleys. Some section s at
// the lowest level h is chosen; in a packing pushed down as far as it goes, either exactly one of the items
// over s lies at h - then it lies in the valley, for it must not cut into a wall - or none does, and the
// terrain at s may be raised to the next level at which one of them can rest. Each packing is met on one
// path only, and on a tight section, where nothing may be wasted, few items qualify.
//
// A state is terrain and unplaced items, however reached: failed ones are kept and not searched twice.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "planner/terrain.h"

namespace staticrt::planner {

// A style (any number) says in which order the items of a valley are tried. What one run refuted, later runs
// do not search again.
std::unique_ptr<Terrain> valley_search(std::span<const Item> items, int32_t sections, int64_t capacity);

}  // namespace staticrt::planner
