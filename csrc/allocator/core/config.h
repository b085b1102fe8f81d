// Config: an immutable snapshot of every option, and the parser of option strings.
//
// One table (config.cpp) gives the parser, its errors and the documentation, so that they agree.
// Strings have torch's form: "key:value,key:[a:b,...]"; spaces and a trailing comma are fine.
//
// Thread safety: a Config is a value; share it as shared_ptr<const Config>.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/core/size_policy.h"
#include "allocator/core/types.h"

namespace staticrt::alloc {

// native: our search and reclaim steps. compat: upstream's search and retry order, thread cache off.
enum class Mode : uint8_t { native, compat };

struct Config {
  Mode mode = Mode::native;
  // Unset: on in native mode where the driver has virtual memory, off in compat mode.
  std::optional<bool> expandable_segments;
  Rounding rounding;                                          // R5, R6
  Bytes max_split_bytes = std::numeric_limits<Bytes>::max();  // B4, B7
  std::optional<Bytes> max_non_split_rounding_bytes;          // B7; unset: large_segment_bytes
  Bytes large_segment_bytes = kDefaultLargeSegment;           // R4, E1
  double gc_threshold = 0;                                    // G4; 0 is off
  std::optional<double> memory_fraction;                      // G3
  bool record_stream_reuse = false;                           // N12
  bool refuse_before_driver = false;                          // N13, throw_on_cudamalloc_oom
  bool thread_cache = true;                                   // native mode only
  bool stream_wait_reuse = false;                             // N14: steal before growing
  bool caching = true;                                        // N14: off = plain driver calls
  double va_fraction = 9.0 / 8.0;                             // E1: of total memory
  Bytes va_bytes = 0;                                         // N14: absolute; 0 = by fraction
  std::vector<std::string> warnings;                          // ignored options (N10)
  std::string text;                                           // as given, for snapshots

  Bytes max_non_split() const { return max_non_split_rounding_bytes.value_or(large_segment_bytes); }
  bool compat() const { return mode == Mode::compat; }
  bool expandable(bool driver_has_virtual_memory) const {
    return driver_has_virtual_memory && expandable_segments.value_or(mode == Mode::native);
  }
};

// Parses `text` on top of `base`. `source` (an environment variable, say) opens every error.
// invalid_argument leaves `config` untouched.
Status parse_config(std::string_view text, std::string_view source, const Config& base, Config* config);

}  // namespace staticrt::alloc
