#include "graphs/digest.h"

#include <cstring>

#include "graphs/routing.h"

namespace staticrt::graphs {
namespace {

constexpr uint64_t kSeed = 0x9E3779B97F4A7C15ULL;

uint64_t mixed(uint64_t state, uint64_t word) {
  state = (state ^ word) * 0xFF51AFD7ED558CCDULL;
  return state ^ (state >> 32);
}

uint64_t mixed(uint64_t state, const void* bytes, size_t nbytes) {
  const char* at = static_cast<const char*>(bytes);
  uint64_t word = 0;
  for (size_t left = nbytes; left > 0;) {
    const size_t take = left < sizeof(word) ? left : sizeof(word);
    word = 0;
    std::memcpy(&word, at, take);
    state = mixed(state, word);
    at += take;
    left -= take;
  }
  return mixed(state, nbytes);
}

}  // namespace

uint64_t digest(const void* bytes, size_t nbytes) {
  return mixed(kSeed, bytes, nbytes) | 1;
}

uint64_t digest(const std::vector<at::Tensor>& tensors) {
  const RouteScope unrouted(nullptr);
  uint64_t state = kSeed;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor whole = tensor.resolve_conj().resolve_neg().contiguous();
    const size_t nbytes = static_cast<size_t>(whole.numel()) * whole.itemsize();
    state = mixed(state, nbytes == 0 ? nullptr : whole.const_data_ptr(), nbytes);
  }
  return state | 1;
}

}  // namespace staticrt::graphs
