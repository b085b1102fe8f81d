// Whether the process limits what programs take of the host's memory (staticrt.memory.set_limit).
#pragma once

namespace staticrt {

bool host_memory_is_limited();

}  // namespace staticrt
