// What the backend reads of a model's configuration, which Triton hands over as JSON.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace staticrt_triton {

struct Tensor {
  std::string name;
  std::string data_type;      // "TYPE_FP32"
  std::vector<int64_t> dims;  // without the batch; -1: any
};

struct Config {
  int64_t max_batch_size = 0;  // 0: requests are not batched, and dims hold every dimension
  std::string file_name;       // "default_model_filename"; "model.pt2" where it is empty
  std::vector<Tensor> inputs;
  std::vector<Tensor> outputs;
  std::map<std::string, std::string> parameters;
};

// Throws std::runtime_error where the text is not JSON, or a field is not of its kind.
Config parse_config(const std::string& json);

}  // namespace staticrt_triton
