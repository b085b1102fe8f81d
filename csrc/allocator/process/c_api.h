// C functions that torch.cuda.MemPool gets its segments from.
//
// The names and signatures are stable: torch finds them by name in the library that holds them.
#pragma once

#include <sys/types.h>

#include <cstddef>

extern "C" {

// A segment of `size` bytes on CUDA device `device` for `stream` (a CUstream), or NULL if there is no memory
// or no such device; torch then runs its own retries. Takes no GIL, throws nothing, works under capture.
__attribute__((visibility("default"))) void* staticrt_alloc(ssize_t size, int device, void* stream);

// Gives a segment back. NULL and foreign pointers are ignored.
__attribute__((visibility("default"))) void staticrt_free(void* pointer, size_t size, int device,
                                                          void* stream);
}

namespace staticrt::alloc {

// Whether this thread is inside one of the functions above: torch may hold a lock that a thread with the GIL
// waits for, so nothing may wait for the GIL here.
bool in_torch_call();

}  // namespace staticrt::alloc
