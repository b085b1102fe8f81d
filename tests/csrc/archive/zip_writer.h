// A zip archive of stored records, each at a 64-byte offset, as torch writes them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "archive/bytes.h"

namespace staticrt::test {

inline std::string make_zip(const std::vector<std::pair<std::string, std::string>>& records) {
  ByteWriter zip;
  ByteWriter directory;
  for (const auto& [name, bytes] : records) {
    const auto offset = static_cast<uint32_t>(zip.bytes().size());
    const auto size = static_cast<uint32_t>(bytes.size());
    const std::string path = "archive/" + name;
    const auto name_size = static_cast<uint16_t>(path.size());
    const auto padding = static_cast<uint16_t>((64 - (offset + 30 + name_size) % 64) % 64);
    const auto common = [&](ByteWriter& out, uint16_t extra) {
      out.put(uint16_t{0});  // flags
      out.put(uint16_t{0});  // stored
      out.put(uint32_t{0});  // time
      out.put(uint32_t{0});  // CRC: not read
      out.put(size);
      out.put(size);
      out.put(name_size);
      out.put(extra);
    };
    zip.put(uint32_t{0x04034b50});
    zip.put(uint16_t{20});
    common(zip, padding);
    for (const char c : path) zip.put(c);
    for (uint16_t i = 0; i < padding; ++i) zip.put('\0');
    for (const char c : bytes) zip.put(c);
    directory.put(uint32_t{0x02014b50});
    directory.put(uint32_t{0});
    common(directory, 0);
    for (int i = 0; i < 10; ++i) directory.put('\0');
    directory.put(offset);
    for (const char c : path) directory.put(c);
  }
  const auto at = static_cast<uint32_t>(zip.bytes().size());
  const auto size = static_cast<uint32_t>(directory.bytes().size());
  const auto count = static_cast<uint16_t>(records.size());
  std::string result = zip.take() + directory.bytes();
  ByteWriter end;
  end.put(uint32_t{0x06054b50});
  end.put(uint32_t{0});
  end.put(count);
  end.put(count);
  end.put(size);
  end.put(at);
  end.put(uint16_t{0});
  return result + end.bytes();
}

}  // namespace staticrt::test
