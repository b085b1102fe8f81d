// MKL on the calling thread alone. Outside of a parallel region it starts threads of its own, for each tile.
#pragma once

extern "C" {
__attribute__((weak)) int MKL_Set_Num_Threads_Local(int count);  // of torch's MKL; null where there is none
}

namespace staticrt {
namespace {  // files compiled for one instruction set include it

class OneMklThread {
 public:
  OneMklThread() {
    if (MKL_Set_Num_Threads_Local) before_ = MKL_Set_Num_Threads_Local(1);
  }
  ~OneMklThread() {
    if (MKL_Set_Num_Threads_Local) MKL_Set_Num_Threads_Local(before_);
  }
  OneMklThread(const OneMklThread&) = delete;
  OneMklThread& operator=(const OneMklThread&) = delete;

 private:
  int before_ = 0;
};

}  // namespace
}  // namespace staticrt
