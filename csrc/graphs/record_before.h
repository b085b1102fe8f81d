// Record::Before: the bytes that a replay is about to change, to restore them if it fails.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Allocator.h>

#include <utility>
#include <vector>

#include "graphs/record.h"

namespace staticrt::graphs {

class Record::Before {
 public:
  void keep(char* at, size_t nbytes);
  void keep(at::Generator generator);
  void put_back();

 private:
  struct Bytes {
    char* at;
    at::DataPtr copy;
    size_t nbytes;
  };
  std::vector<Bytes> bytes_;
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

}  // namespace staticrt::graphs
