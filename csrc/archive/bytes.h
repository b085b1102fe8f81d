// Little-endian records in memory: a writer, and a reader that trusts nothing.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "common/error.h"
#include "staticrt/staticrt.h"

namespace staticrt {

static_assert(std::endian::native == std::endian::little, "records are written as they lie in memory");

#define SRT_ARCHIVE(condition, ...) SRT_CHECK_AS(::staticrt::ArchiveError, condition, __VA_ARGS__)

bool is_utf8(std::string_view text);

class ByteWriter {
 public:
  template <class T>
    requires std::is_arithmetic_v<T>
  void put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void put_size(size_t value) { put(static_cast<uint64_t>(value)); }
  void put_string(std::string_view text) {
    put_size(text.size());
    bytes_.append(text);
  }
  template <class Ints>
  void put_ints(const Ints& values) {
    put_size(values.size());
    for (const int64_t value : values) put(value);
  }
  const std::string& bytes() const { return bytes_; }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Every read is checked against what is left, so that no count in a damaged record can reach outside it or
// ask for more memory than the record has bytes.
class ByteReader {
 public:
  // what: the record's name, for messages. REQUIRES: `bytes` outlives the reader.
  ByteReader(std::string_view bytes, std::string what) : bytes_(bytes), what_(std::move(what)) {}

  template <class T>
    requires std::is_arithmetic_v<T>
  T get() {
    need(sizeof(T));
    T value;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }
  bool get_bool() { return get<uint8_t>() != 0; }
  // The number of elements that follow, each at least min_bytes long.
  size_t get_count(size_t min_bytes = 1) {
    const auto count = get<uint64_t>();
    SRT_ARCHIVE(count <= left() / min_bytes, damaged(), count, " elements announced at byte ", position_,
                ", but only ", left(), " bytes are left");
    return static_cast<size_t>(count);
  }
  std::string_view get_view() {
    const size_t size = get_count();
    const std::string_view view = bytes_.substr(position_, size);
    position_ += size;
    return view;
  }
  // Text: Python could not show anything else.
  std::string get_string() {
    const std::string_view view = get_view();
    SRT_ARCHIVE(is_utf8(view), damaged(), "a text at byte ", position_ - view.size(), " is not UTF-8");
    return std::string(view);
  }
  std::vector<int64_t> get_ints() {
    std::vector<int64_t> values(get_count(sizeof(int64_t)));
    for (int64_t& value : values) value = get<int64_t>();
    return values;
  }
  // An index into a table of `size` entries.
  uint32_t get_index(size_t size, const char* of) {
    const auto index = get<uint32_t>();
    SRT_ARCHIVE(index < size, damaged(), of, " ", index, " of ", size, " at byte ", position_ - 4);
    return index;
  }
  size_t left() const { return bytes_.size() - position_; }
  void expect_end() const { SRT_ARCHIVE(left() == 0, damaged(), left(), " bytes too many"); }
  // "archive record program.bin is damaged: ", the beginning of every message.
  std::string damaged() const { return "archive record " + what_ + " is damaged: "; }

 private:
  void need(size_t size) const {
    SRT_ARCHIVE(size <= left(), damaged(), "it ends at byte ", bytes_.size(), " where ", size,
                " more bytes are expected at byte ", position_);
  }
  std::string_view bytes_;
  size_t position_ = 0;
  std::string what_;
};

// 64-bit checksum of bytes. A change of any single 8-byte word changes it. It does not protect against
// deliberate changes.
uint64_t checksum(const void* data, size_t size);

}  // namespace staticrt
