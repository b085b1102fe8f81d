// The state of torch, of the process and of the thread, that decides what eager would compute.
//
// `process_flags` in process_state.cpp is the table of it: a call of a compiled function, its fast path, its
// key in Python (staticrt/frontend/guards/process_state.py), graphs and archives read flags from there and
// nowhere else. One more flag of torch is one line in that table, and one more in kNumProcessFlags. Flags
// that torch keeps in Python variables are lines of PYTHON_FLAGS in
// staticrt/frontend/guards/process_state.py. Modes that intercept every operator (dispatch and function
// modes, functorch transforms) are not flags: nothing compiled runs under them.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>

namespace staticrt {

struct ProcessFlag {
  const char* name;
  bool of_thread;  // each thread has its own value, so that work handed to another thread takes it along
};

inline constexpr size_t kNumProcessFlags = 51;

// One number per flag, in the order of the table. Compares and copies as bytes.
using ProcessState = std::array<uint16_t, kNumProcessFlags>;

std::span<const ProcessFlag, kNumProcessFlags> process_flags();

// Of the calling thread. About 150 ns, most of it the nine float32 precisions, which torch keeps in a map.
ProcessState process_state();

// Devices whose autocasting traced graphs contain as casts.
inline constexpr std::array kAutocastDevices{c10::kCPU, c10::kCUDA};

// What autocasts in a state: "", or "cpu:BFloat16" and the like, joined by commas. Archives store it.
std::string autocast_text(const ProcessState& state);
// The same of the calling thread now, without reading anything else.
std::string autocast_text();

}  // namespace staticrt
