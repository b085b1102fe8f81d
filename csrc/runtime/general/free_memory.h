// Memory that rare work leaves behind: first runs and packing free megabytes that malloc and BLAS keep, and
// that no later call uses.
#pragma once

#include <cstdint>

namespace staticrt {

// Returns to the system what is free in malloc's heap and in this thread's buffers of BLAS, after work that
// took `bytes_taken` and freed what it took. Does nothing where that was little.
void return_free_memory(int64_t bytes_taken);

}  // namespace staticrt
