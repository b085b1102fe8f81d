// Stitching (GMLake, ASPLOS 2024): pages of several free blocks, mapped once more side by side.
//
// It serves requests that no other step can: in a capture, or in a captured pool, pages may not leave
// their addresses, since earlier nodes and replays touch them there. The lenders stay Held as long as the
// pool lives, so the bytes have one owner at a time: whoever has the stitched block.
#include "allocator/core.h"

namespace staticrt::alloc {

Status Core::stitch(const Want& want, Block** stitched) {
  (void)want;
  (void)stitched;
  return Status::Unsupported("stitch");
}

void Core::unstitch(SegmentId id) {
  (void)id;
}

}  // namespace staticrt::alloc
