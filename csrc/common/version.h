#pragma once

namespace staticrt {

// Version of the library, as in pyproject.toml.
const char* version();

}  // namespace staticrt
