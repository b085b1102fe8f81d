// A stand-in of the server's side: models, instances, requests and responses, all in memory.
#pragma once

#include <triton/core/tritonbackend.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

struct TRITONSERVER_Error {
  TRITONSERVER_Error_Code code;
  std::string text;
};

struct TRITONSERVER_Message {
  std::string json;
};

struct TRITONBACKEND_Backend {};

struct TRITONBACKEND_Model {
  std::string folder;
  std::string config;
  uint64_t version = 1;
  void* state = nullptr;
};

struct TRITONBACKEND_ModelInstance {
  TRITONBACKEND_Model* model = nullptr;
  std::atomic<uint64_t> executions{0}, rows{0}, good{0}, bad{0};
};

struct TRITONBACKEND_Input {
  std::string name;
  TRITONSERVER_DataType type = TRITONSERVER_TYPE_FP32;
  std::vector<int64_t> shape;
  std::vector<std::vector<char>> buffers;
  TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
};

struct TRITONBACKEND_Output {
  std::string name;
  TRITONSERVER_DataType type = TRITONSERVER_TYPE_INVALID;
  std::vector<int64_t> shape;
  std::vector<char> bytes;
};

struct TRITONBACKEND_Request {
  std::map<std::string, TRITONBACKEND_Input> inputs;
  std::vector<std::string> outputs;
  // What became of it.
  std::deque<TRITONBACKEND_Output> results;
  std::string error;
  int responses = 0, releases = 0;
};

struct TRITONBACKEND_Response {
  TRITONBACKEND_Request* request = nullptr;
};

// Errors, messages and responses that are not deleted or sent yet.
extern std::atomic<int> num_errors, num_messages, num_responses;
