// The instruction set that torch's kernels and these take on this machine.
#pragma once

namespace staticrt {

// 0: baseline, 1: AVX2, 2: AVX512. Honours ATEN_CPU_CAPABILITY, as torch does.
int cpu_level();

}  // namespace staticrt
