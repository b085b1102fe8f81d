#include "runtime/general/free_memory.h"

#if __has_include(<malloc.h>)
#include <malloc.h>

#include "common/tuning.h"
#endif

// MKL's own name of mkl_thread_free_buffers(): unused buffers of this thread's products.
extern "C" __attribute__((weak)) void mkl_serv_thread_free_buffers();

namespace staticrt {

void return_free_memory(int64_t bytes_taken) {
  if (bytes_taken < tuning::kMinReturnedBytes) return;
  if (mkl_serv_thread_free_buffers != nullptr) mkl_serv_thread_free_buffers();
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace staticrt
