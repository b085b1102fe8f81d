// Words shared by the whole allocator: bytes, addresses, streams, pools, and how a call ended.
//
// The allocator throws nothing. A call returns a Status; bindings turn it into a Python exception.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <type_traits>
#include <utility>

namespace staticrt::alloc {

using Bytes = uint64_t;  // a size or a distance
using Addr = uint64_t;   // a device address; kNullAddr is not an address

inline constexpr Addr kNullAddr = 0;
inline constexpr Bytes kKiB = Bytes{1} << 10;
inline constexpr Bytes kMiB = Bytes{1} << 20;
inline constexpr Bytes kGiB = Bytes{1} << 30;

// Opaque names given by a driver. Distinct types, so that a stream is never passed as an event.
// On CUDA they are the driver's own pointers or handles, so that torch's streams and events work.
enum class StreamId : uint64_t {};    // 0 is the default stream
enum class EventId : uint64_t {};     // 0 is not an event
enum class PhysicalId : uint64_t {};  // physical memory that can be mapped; 0 is none
enum class NodeId : uint64_t {};      // node of a graph under capture; 0 is none
enum class GraphId : uint64_t {};     // what a capture recorded; 0 is none
enum class ExecId : uint64_t {};      // a graph that can be launched; 0 is none

inline constexpr StreamId kDefaultStream{0};
inline constexpr EventId kNoEvent{0};
inline constexpr PhysicalId kNoPhysical{0};
inline constexpr NodeId kNoNode{0};
inline constexpr GraphId kNoGraph{0};
inline constexpr ExecId kNoExec{0};

template <class Id>
concept DriverId = std::is_enum_v<Id> && std::is_same_v<std::underlying_type_t<Id>, uint64_t>;

constexpr uint64_t raw(DriverId auto id) {
  return static_cast<uint64_t>(id);
}
inline std::ostream& operator<<(std::ostream& out, DriverId auto id) {
  return out << raw(id);
}

// Name of a pool, as torch writes it: {0, 0} is the default pool, graph capture makes {0, n},
// a user {n, 0}.
struct PoolId {
  uint64_t first = 0;
  uint64_t second = 0;

  friend constexpr bool operator==(const PoolId&, const PoolId&) = default;
  friend constexpr auto operator<=>(const PoolId&, const PoolId&) = default;
  constexpr bool is_default() const { return first == 0 && second == 0; }
  // "0_1": the key of statistics and of messages.
  std::string key() const { return std::to_string(first) + "_" + std::to_string(second); }
};
inline constexpr PoolId kDefaultPool{};
inline std::ostream& operator<<(std::ostream& out, PoolId id) {
  return out << id.first << "_" << id.second;
}

struct PoolIdHash {
  size_t operator()(const PoolId& id) const {
    return std::hash<uint64_t>{}(id.first * 0x9E3779B97F4A7C15ull ^ id.second);
  }
};

// How a call ended.
enum class Code : uint8_t {
  ok,
  oom,               // no memory (physical, address space or handles); nothing changed
  not_ready,         // an event or stream still has work; not an error
  unsupported,       // this driver or device cannot do it; nothing changed
  invalid_pointer,   // the caller's: not ours, or already freed
  invalid_argument,  // the caller's: any other wrong use
  internal,          // a broken invariant of the allocator
  error,             // the device failed; `native` is its code
};

constexpr const char* name_of(Code code) {
  constexpr const char* names[] = {
      "ok", "oom", "not_ready", "unsupported", "invalid_pointer", "invalid_argument", "internal", "error"};
  return names[static_cast<int>(code)];
}
inline std::ostream& operator<<(std::ostream& out, Code code) {
  return out << name_of(code);
}

// A code, sometimes with a text and the device's error number. It is one word: a code alone is stored in it,
// so that returning ok, oom and not_ready costs nothing; else it points to all three.
class [[nodiscard]] Status {
 public:
  Status() = default;
  explicit Status(Code code, std::string text = {}, int32_t native = 0) : word_(word_of(code)) {
    if (!text.empty() || native != 0) point_to(new Rest{code, native, std::move(text)});
  }
  Status(Status&& other) noexcept : word_(std::exchange(other.word_, 0)) {}
  Status(const Status& other) : word_(other.word_) {
    if (other.rest() != nullptr) point_to(new Rest(*other.rest()));
  }
  Status& operator=(Status other) noexcept {
    std::swap(word_, other.word_);
    return *this;
  }
  ~Status() {
    if (word_ != 0) [[unlikely]]
      delete rest();
  }
  static Status Ok() { return Status(); }
  static Status Oom(std::string text = {}, int32_t native = 0) {
    return Status(Code::oom, std::move(text), native);
  }
  static Status NotReady() { return Status(Code::not_ready); }
  static Status Unsupported(std::string text) { return Status(Code::unsupported, std::move(text)); }
  static Status InvalidPointer(std::string text) { return Status(Code::invalid_pointer, std::move(text)); }
  static Status InvalidArgument(std::string text) { return Status(Code::invalid_argument, std::move(text)); }
  static Status Internal(std::string text) { return Status(Code::internal, std::move(text)); }
  static Status Error(std::string text, int32_t native) {
    return Status(Code::error, std::move(text), native);
  }

  bool ok() const { return word_ == 0; }
  bool oom() const { return code() == Code::oom; }
  Code code() const { return rest() == nullptr ? static_cast<Code>(word_ / 2) : rest()->code; }
  // The device's own error number (a CUresult), or 0.
  int32_t native() const { return rest() == nullptr ? 0 : rest()->native; }
  // What failed and why, or "" if there is only a code.
  const std::string& text() const {
    static const std::string none;
    return rest() == nullptr ? none : rest()->text;
  }
  // For messages and test output: "ok", or "oom: cuMemCreate: out of memory".
  std::string describe() const {
    return text().empty() ? std::string(name_of(code())) : std::string(name_of(code())) + ": " + text();
  }

 private:
  struct Rest {
    Code code;
    int32_t native;
    std::string text;
  };
  // Odd: 1 + twice the code, for codes other than ok. Even: 0, or a pointer.
  static constexpr uintptr_t word_of(Code code) {
    return code == Code::ok ? 0 : 2 * static_cast<uintptr_t>(code) + 1;
  }
  void point_to(Rest* rest) { word_ = reinterpret_cast<uintptr_t>(rest); }
  Rest* rest() const { return word_ & 1 ? nullptr : reinterpret_cast<Rest*>(word_); }

  uintptr_t word_ = 0;
};
static_assert(sizeof(Status) == sizeof(void*));
inline std::ostream& operator<<(std::ostream& out, const Status& status) {
  return out << status.describe();
}

}  // namespace staticrt::alloc

// Leaves the function with the Status of `expression` unless it is ok.
#define SRT_TRY(expression)                                                           \
  do {                                                                                \
    if (::staticrt::alloc::Status status_ = (expression); !status_.ok()) [[unlikely]] \
      return status_;                                                                 \
  } while (0)
