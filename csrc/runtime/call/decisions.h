// Programs that follow branches which data decides.
#pragma once

#include <c10/util/Exception.h>

#include <string_view>

namespace staticrt {

// Whether a program stopped because data takes another branch than in its trace: it has written and drawn
// nothing. Such messages begin with OTHERWISE of staticrt/frontend/reasons.py.
inline bool decided_otherwise(const c10::Error& error) {
  return std::string_view(error.what_without_backtrace()).starts_with("staticrt: data decided otherwise");
}

}  // namespace staticrt
