// How captures fail: the codes and names of the CUDA driver's errors.
#pragma once

#include <string>
#include <string_view>

#include "allocator/core/types.h"

namespace staticrt::alloc {

enum class CaptureError : int32_t {
  illegal_state = 401,
  unsupported = 900,  // a call that no capture permits, or the default stream
  invalidated = 901,  // the capture was broken before
  merge = 902,        // an event would join two captures
  unmatched = 903,    // the end belongs to no begin of this stream
  unjoined = 904,     // a forked stream was not waited for
  isolation = 905,    // a wait for work from outside
  implicit = 906,     // the default stream would have to wait for the capture
  captured_event = 907,
  wrong_thread = 908,
};

constexpr std::string_view name_of(CaptureError error) {
  switch (error) {
    case CaptureError::illegal_state:
      return "CUDA_ERROR_ILLEGAL_STATE";
    case CaptureError::unsupported:
      return "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
    case CaptureError::invalidated:
      return "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED";
    case CaptureError::merge:
      return "CUDA_ERROR_STREAM_CAPTURE_MERGE";
    case CaptureError::unmatched:
      return "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED";
    case CaptureError::unjoined:
      return "CUDA_ERROR_STREAM_CAPTURE_UNJOINED";
    case CaptureError::isolation:
      return "CUDA_ERROR_STREAM_CAPTURE_ISOLATION";
    case CaptureError::implicit:
      return "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT";
    case CaptureError::captured_event:
      return "CUDA_ERROR_CAPTURED_EVENT";
    case CaptureError::wrong_thread:
      return "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD";
  }
  return {};
}

inline Status capture_error(CaptureError error, const std::string& text) {
  return Status::Error("sim: " + text + " (" + std::string(name_of(error)) + ")",
                       static_cast<int32_t>(error));
}
constexpr bool is_capture_error(int32_t native) {
  return !name_of(static_cast<CaptureError>(native)).empty();
}

}  // namespace staticrt::alloc
