// Numbers as messages show them.
#pragma once

#include <cstdio>
#include <string>

#include "allocator/core/types.h"

namespace staticrt::alloc {

// "0 B", "512 B", "1.50 KiB", "60.00 MiB".
inline std::string format_bytes(Bytes bytes) {
  const char* units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < kKiB) return std::to_string(bytes) + " B";
  auto amount = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (amount >= 1024 && unit < 5) {
    amount /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.2f %s", amount, units[unit]);
  return text;
}

}  // namespace staticrt::alloc
