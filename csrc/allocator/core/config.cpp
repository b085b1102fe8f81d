#include "allocator/core/config.h"

#include <charconv>
#include <cmath>

#include "common/error.h"

namespace staticrt::alloc {
namespace {

// Words of an option string: runs without ":,[]" and spaces, and those four characters.
std::vector<std::string_view> tokenize(std::string_view text) {
  std::vector<std::string_view> tokens;
  size_t i = 0;
  while (i < text.size()) {
    if (text[i] == ' ' || text[i] == '\t' || text[i] == '\n') {
      ++i;
    } else if (std::string_view(":,[]").find(text[i]) != std::string_view::npos) {
      tokens.push_back(text.substr(i++, 1));
    } else {
      const size_t end = std::min(text.find_first_of(":,[] \t\n", i), text.size());
      tokens.push_back(text.substr(i, end - i));
      i = end;
    }
  }
  return tokens;
}

// The tokens of one option's value, and how to complain about them.
struct Value {
  std::string_view key;
  const std::vector<std::string_view>& tokens;
  size_t at;
  std::string problem;  // set by the first failure

  bool failed() const { return !problem.empty(); }
  bool fail(std::string_view what) {
    if (problem.empty()) problem = detail::concat("'", key, "': ", what);
    return false;
  }
  std::string_view peek() const { return at < tokens.size() ? tokens[at] : std::string_view(); }
  std::string_view next() { return at < tokens.size() ? tokens[at++] : std::string_view(); }
  bool expect(std::string_view token) {
    if (peek() != token) return fail(detail::concat("expected '", token, "', got '", peek(), "'"));
    ++at;
    return true;
  }
  bool boolean(bool* out) {
    const std::string_view word = next();
    if (word != "True" && word != "False")
      return fail(detail::concat("expected True or False, got '", word, "'"));
    *out = word == "True";
    return true;
  }
  template <class T>
  bool number(T* out, std::string_view kind = "a number") {
    const std::string_view word = next();
    const char* last = word.data() + word.size();
    T value = 0;
    const auto [end, code] = std::from_chars(word.data(), last, value);
    if (code != std::errc() || end != last || !std::isfinite(static_cast<double>(value)))
      return fail(detail::concat("expected ", kind, ", got '", word, "'"));
    *out = value;
    return true;
  }
  bool integer(uint64_t* out) { return number(out, "a whole number"); }
  // A whole number of MiB, as bytes.
  bool mebibytes(Bytes* out) {
    uint64_t value = 0;
    if (!integer(&value)) return false;
    if (value >= kTooLarge / kMiB) return fail(detail::concat(value, " MiB is more than 1 EiB"));
    *out = value * kMiB;
    return true;
  }
};

bool parse_backend(Value& value, Config&) {
  const std::string_view word = value.next();
  if (word == "native") return true;
  if (word == "cudaMallocAsync")
    return value.fail("cudaMallocAsync has no private pools, checkpoints or history; use native");
  return value.fail(detail::concat("unknown backend '", word, "'; known: native"));
}

bool parse_mode(Value& value, Config& config) {
  const std::string_view word = value.next();
  if (word != "native" && word != "compat")
    return value.fail(detail::concat("expected native or compat, got '", word, "'"));
  config.mode = word == "compat" ? Mode::compat : Mode::native;
  return true;
}

bool parse_max_split(Value& value, Config& config) {
  Bytes bytes = 0;
  if (!value.mebibytes(&bytes)) return false;
  if (bytes < 20 * kMiB) return value.fail("too small; it must be at least 20 (MiB)");
  config.max_split_bytes = bytes;
  return true;
}

bool parse_max_non_split(Value& value, Config& config) {
  Bytes bytes = 0;
  if (!value.mebibytes(&bytes)) return false;
  config.max_non_split_rounding_bytes = bytes;
  return true;
}

bool parse_large_segment(Value& value, Config& config) {
  Bytes bytes = 0;
  if (!value.mebibytes(&bytes)) return false;
  if (bytes <= kOwnSegmentMin) return value.fail("too small; it must be more than 10 (MiB)");
  config.large_segment_bytes = round_up(bytes, kGranule);
  return true;
}

bool parse_gc(Value& value, Config& config) {
  double threshold = 0;
  if (!value.number(&threshold)) return false;
  if (threshold <= 0 || threshold >= 1) return value.fail("must be between 0 and 1, both excluded");
  config.gc_threshold = threshold;
  return true;
}

bool parse_fraction(Value& value, Config& config) {
  double fraction = 0;
  if (!value.number(&fraction)) return false;
  if (fraction < 0 || fraction > 1) return value.fail("must be in [0, 1]");
  config.memory_fraction = fraction;
  return true;
}

bool parse_divisions(Value& value, Config& config) {
  Rounding rounding;
  auto division = [&](uint64_t* out) {
    if (!value.integer(out)) return false;
    return *out == 0 || is_power_of_two(*out) ||
           value.fail(detail::concat("divisions must be a power of two, got ", *out));
  };
  if (value.peek() != "[") {
    uint64_t count = 0;
    if (!division(&count)) return false;
    config.rounding = Rounding::uniform(count);
    return true;
  }
  value.next();
  bool first = true;
  size_t last = 0;
  while (value.peek() != "]") {
    const bool above = value.peek() == ">";
    uint64_t megabytes = 0;
    uint64_t count = 0;
    if (above) {
      value.next();
    } else {
      if (!value.integer(&megabytes)) return false;
      if (!is_power_of_two(megabytes))
        return value.fail(detail::concat("interval must be a power of two (MiB), got ", megabytes));
    }
    if (!value.expect(":") || !division(&count)) return false;
    if (above) {
      for (size_t i = first ? 0 : last + 1; i < Rounding::kSlots; ++i) rounding.divisions[i] = count;
    } else {
      last = std::min<size_t>(std::bit_width(megabytes) - 1, Rounding::kSlots - 1);
      for (size_t i = first ? 0 : last; i <= last; ++i) rounding.divisions[i] = count;
    }
    first = false;
    if (value.peek() != ",") break;
    value.next();
  }
  if (!value.expect("]")) return false;
  for (const uint64_t count : rounding.divisions) rounding.enabled |= count > 1;
  config.rounding = rounding;
  return true;
}

// "0.5" is a fraction of total memory; "40G", "512M" are sizes.
bool parse_va(Value& value, Config& config) {
  const std::string_view word = value.peek();
  const char unit = word.empty() ? ' ' : word.back();
  const Bytes scale = unit == 'G' ? kGiB : unit == 'M' ? kMiB : unit == 'T' ? kGiB << 10 : 0;
  double amount = 0;
  if (scale == 0) {
    if (!value.number(&amount)) return false;
    if (amount <= 0 || amount > 64) return value.fail("a fraction of total memory must be in (0, 64]");
    config.va_fraction = amount;
    config.va_bytes = 0;
    return true;
  }
  value.next();
  const char* end_of_number = word.data() + word.size() - 1;
  const auto [end, code] = std::from_chars(word.data(), end_of_number, amount);
  if (code != std::errc() || end != end_of_number || !(amount > 0) ||
      amount * static_cast<double>(scale) >= static_cast<double>(kTooLarge))
    return value.fail(detail::concat("expected a fraction (0.5) or a size (40G), got '", word, "'"));
  config.va_bytes = round_up(static_cast<Bytes>(amount * static_cast<double>(scale)), kGranule);
  return true;
}

template <auto member>
bool parse_flag(Value& value, Config& config) {
  bool on = false;
  if (!value.boolean(&on)) return false;
  config.*member = on;
  return true;
}

bool parse_ignored_flag(Value& value, Config&) {
  bool ignored = false;
  return value.boolean(&ignored);
}

struct Option {
  std::string_view key;
  bool (*parse)(Value&, Config&);
};

// Sorted by key. Options named pinned_* are accepted too and ignored with one warning.
constexpr Option kOptions[] = {
    // native; anything else is refused
    {"backend", parse_backend},
    // False: every request is a driver call of its own
    {"caching", parse_flag<&Config::caching>},
    // True: segments of mapped pages that grow in place
    {"expandable_segments", parse_flag<&Config::expandable_segments>},
    // address space per stream and pool: a fraction of total (0.5) or a size (40G)
    {"expandable_va", parse_va},
    // free old blocks when reserved exceeds this part of the limit
    {"garbage_collection_threshold", parse_gc},
    // True: reuse memory used on side streams within a capture once all its uses are ordered before
    {"graph_capture_record_stream_reuse", parse_flag<&Config::record_stream_reuse>},
    // segment size of requests below 10 MiB; more than 10
    {"large_segment_size_mb", parse_large_segment},
    // how much larger an unsplittable block may be
    {"max_non_split_rounding_mb", parse_max_non_split},
    // blocks from this size on are never split; at least 20
    {"max_split_size_mb", parse_max_split},
    // native, or compat: the search and retry order of upstream
    {"mode", parse_mode},
    // limit as a part of total memory, in [0, 1]
    {"per_process_memory_fraction", parse_fraction},
    // always on: no lock is held in driver calls
    {"release_lock_on_cudamalloc", parse_ignored_flag},
    // steps between powers of two: N, or [MiB:N,...,>:N]
    {"roundup_power2_divisions", parse_divisions},
    // True: before growing, reuse an idle block of another stream behind an event wait
    {"stream_wait_reuse", parse_flag<&Config::stream_wait_reuse>},
    // False: no per-thread magazines
    {"thread_cache", parse_flag<&Config::thread_cache>},
    // True: refuse a request larger than free device memory without asking the driver
    {"throw_on_cudamalloc_oom", parse_flag<&Config::refuse_before_driver>},
};

}  // namespace

Status parse_config(std::string_view text, std::string_view source, const Config& base, Config* config) {
  Config parsed = base;
  const std::vector<std::string_view> tokens = tokenize(text);
  auto error = [&](const std::string& what) {
    return Status::InvalidArgument(detail::concat(source, ": ", what));
  };
  bool pinned_warned = false;
  size_t at = 0;
  while (at < tokens.size()) {
    const std::string_view key = tokens[at++];
    Value value{key, tokens, at, {}};
    if (std::string_view(":,[]").find(key) != std::string_view::npos)
      return error(detail::concat("expected an option, got '", key, "'"));
    if (!value.expect(":")) return error(value.problem);
    if (key.starts_with("pinned_")) {
      value.next();
      if (!pinned_warned)
        parsed.warnings.push_back(
            detail::concat(source, ": '", key, "' is ignored: no pinned host memory here"));
      pinned_warned = true;
    } else {
      const Option* option = nullptr;
      for (const Option& known : kOptions)
        if (known.key == key) option = &known;
      if (option == nullptr) {
        std::string known;
        for (const Option& each : kOptions) known += (known.empty() ? "" : ", ") + std::string(each.key);
        return error(detail::concat("unknown key '", key, "'; known: ", known));
      }
      if (!option->parse(value, parsed)) return error(value.problem);
    }
    at = value.at;
    if (at < tokens.size() && tokens[at++] != ",")
      return error(detail::concat("expected ',' after '", key, "', got '", tokens[at - 1], "'"));
  }
  if (parsed.max_non_split() < parsed.large_segment_bytes)
    return error(detail::concat("'max_non_split_rounding_mb': ", parsed.max_non_split() / kMiB,
                                " is too small; it must be at least large_segment_size_mb (",
                                parsed.large_segment_bytes / kMiB, ")"));
  parsed.text = std::string(text);
  *config = std::move(parsed);
  return Status::Ok();
}

}  // namespace staticrt::alloc
