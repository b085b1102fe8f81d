// What a recording tells the stub device: streams are busy until told, and captured when told.
#pragma once

#include <cstdint>

extern "C" {
void stub_set_total(uint64_t bytes);
uint64_t stub_base(void* address);               // of the segment, or of the range reserved for it
void stub_enqueue(void* stream);                 // work that keeps the stream busy
void stub_finish(void* stream);                  // all of it is done
void stub_capture(void* stream, bool captures);  // the stream's work is being recorded
uint64_t stub_device_calls();                    // that made or unmade memory or mappings
}
