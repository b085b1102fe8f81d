#include "archive/bytes.h"

#include <bit>

namespace staticrt {
namespace {
constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15ULL;  // odd, so that multiplying loses nothing

uint64_t step(uint64_t lane, uint64_t word) {
  return std::rotl((lane ^ word) * kMultiplier, 29);
}
}  // namespace

// Unicode 15, table 3-7.
bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto first = static_cast<uint8_t>(text[i]);
    const size_t length = first < 0x80   ? 1
                          : first < 0xc2 ? 0
                          : first < 0xe0 ? 2
                          : first < 0xf0 ? 3
                          : first < 0xf5 ? 4
                                         : 0;
    if (length == 0 || length > text.size() - i) return false;
    for (size_t k = 1; k < length; ++k) {
      const auto next = static_cast<uint8_t>(text[i + k]);
      uint8_t low = 0x80;
      uint8_t high = 0xbf;
      if (k == 1 && first == 0xe0) low = 0xa0;
      if (k == 1 && first == 0xed) high = 0x9f;
      if (k == 1 && first == 0xf0) low = 0x90;
      if (k == 1 && first == 0xf4) high = 0x8f;
      if (next < low || next > high) return false;
    }
    i += length;
  }
  return true;
}

uint64_t checksum(const void* data, size_t size) {
  // Four lanes, so that the multiplications overlap: memory speed is reached without vector instructions.
  uint64_t lanes[4] = {1, 2, 3, 4};
  const char* bytes = static_cast<const char*>(data);
  size_t left = size;
  for (; left >= 32; left -= 32, bytes += 32) {
    uint64_t words[4];
    std::memcpy(words, bytes, 32);
    for (int i = 0; i < 4; ++i) lanes[i] = step(lanes[i], words[i]);
  }
  for (int i = 0; left > 0; ++i) {
    uint64_t word = 0;
    const size_t part = left < 8 ? left : 8;
    std::memcpy(&word, bytes, part);
    lanes[i] = step(lanes[i], word);
    left -= part;
    bytes += part;
  }
  uint64_t result = size;
  for (const uint64_t lane : lanes) result = step(result, lane);
  return result ^ (result >> 32);
}

}  // namespace staticrt
