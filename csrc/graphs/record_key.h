// The dispatch key whose fallback records.
#pragma once

#include <c10/core/DispatchKey.h>

namespace staticrt::graphs {

// Below autograd, Python modes and functionalization; above BackendSelect and kernels. torch 2.11 to 2.15
// register nothing for it: a torch that does is refused at the first capture (see install_recording).
inline constexpr c10::DispatchKey kRecordKey = c10::DispatchKey::Fake;

// Registers the fallback once. Throws InputError if this torch uses the key itself.
void install_recording();

}  // namespace staticrt::graphs
