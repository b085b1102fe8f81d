// Loads the backend as the server does, and runs requests through instances of one model, each in a thread of
// its own.
//
//   stand_in_server BACKEND.so MODEL_FOLDER CONFIG.json INSTANCES REQUESTS
//
// REQUESTS: executions by '/', their requests by ';', the inputs of a request by '+': NAME=TYPE:SIZES, as
// x=FP32:2x6, whose values are 0, 1/n, 2/n, ... (integers: 0, 1, 2, ...). NAME=TYPE:SIZES:BYTES gives other
// bytes than the sizes need, NAME=TYPE:SIZES:gpu lies in GPU memory, NAME=TYPE:SIZES:split in two buffers. A
// last part "-> A,B" names outputs (else OUTPUT0). Prints a line for each request of the first instance, and
// what is left at the end; ends with 1 where instances answer differently.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "core.h"

namespace {

std::vector<std::string> split(const std::string& text, char by) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, by);) parts.push_back(part);
  return parts;
}

template <typename T>
std::vector<char> values(int64_t count, double step) {
  std::vector<T> numbers;
  for (int64_t i = 0; i < count; ++i) numbers.push_back(static_cast<T>(static_cast<double>(i) * step));
  std::vector<char> bytes(numbers.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

TRITONBACKEND_Input input_of(const std::string& text) {
  const size_t equals = text.find('=');
  const std::vector<std::string> parts = split(text.substr(equals + 1), ':');
  TRITONBACKEND_Input input;
  input.name = text.substr(0, equals);
  int64_t count = 1;
  if (parts.at(1) != "scalar")
    for (const std::string& size : split(parts.at(1), 'x')) {
      input.shape.push_back(std::atoll(size.c_str()));
      count *= input.shape.back();
    }
  std::vector<char> bytes;
  if (parts.at(0) == "FP32") {
    bytes = values<float>(count, count ? 1.0 / static_cast<double>(count) : 0.0);
  } else if (parts.at(0) == "INT64") {
    input.type = TRITONSERVER_TYPE_INT64;
    bytes = values<int64_t>(count, 1.0);
  } else {
    input.type = TRITONSERVER_TYPE_BYTES;
    bytes.resize(static_cast<size_t>(count));
  }
  const std::string how = parts.size() > 2 ? parts[2] : "";
  if (how == "gpu") {
    input.memory = TRITONSERVER_MEMORY_GPU;
  } else if (how == "split") {
    const auto middle = bytes.begin() + static_cast<int64_t>(bytes.size() / 3);  // not at a value's end
    input.buffers = {{bytes.begin(), middle}, {middle, bytes.end()}};
    return input;
  } else if (!how.empty()) {
    bytes.resize(std::stoul(how));
  }
  input.buffers = {std::move(bytes)};
  return input;
}

std::vector<std::vector<TRITONBACKEND_Request>> requests_of(const std::string& text) {
  std::vector<std::vector<TRITONBACKEND_Request>> executions;
  for (const std::string& execution : split(text, '/')) {
    auto& made = executions.emplace_back();
    for (const std::string& request : split(execution, ';')) {
      TRITONBACKEND_Request& one = made.emplace_back();
      const size_t arrow = request.find("->");
      one.outputs = arrow == std::string::npos ? std::vector<std::string>{"OUTPUT0"}
                                               : split(request.substr(arrow + 2), ',');
      for (const std::string& input : split(request.substr(0, arrow), '+')) {
        TRITONBACKEND_Input parsed = input_of(input);
        one.inputs[parsed.name] = parsed;
      }
    }
  }
  return executions;
}

std::string in_one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

std::string text_of(const TRITONBACKEND_Request& request) {
  std::string text;
  if (request.responses != 1 || request.releases != 1)
    text += "responses " + std::to_string(request.responses) + " releases " +
            std::to_string(request.releases) + " ";
  if (!request.error.empty()) return text + "error " + in_one_line(request.error);
  for (const TRITONBACKEND_Output& output : request.results) {
    text += output.name + " [";
    for (size_t d = 0; d < output.shape.size(); ++d)
      text += (d ? ", " : "") + std::to_string(output.shape[d]);
    text += "]";
    char number[32];
    for (size_t at = 0; at < output.bytes.size();) {
      double value = 0;
      if (output.type == TRITONSERVER_TYPE_INT64) {
        int64_t read = 0;
        std::memcpy(&read, &output.bytes[at], sizeof(read));
        at += sizeof(read);
        value = static_cast<double>(read);
      } else {
        float read = 0;
        std::memcpy(&read, &output.bytes[at], sizeof(read));
        at += sizeof(read);
        value = read;
      }
      std::snprintf(number, sizeof(number), " %.7g", value);
      text += number;
    }
    text += "  ";
  }
  return text;
}

template <typename F>
F find(void* library, const char* name) {
  auto* found = reinterpret_cast<F>(dlsym(library, name));
  if (!found) throw std::runtime_error(std::string("the backend has no ") + name);
  return found;
}

void check(TRITONSERVER_Error* error) {
  if (!error) return;
  const std::string text = error->text;
  TRITONSERVER_ErrorDelete(error);
  throw std::runtime_error(text);
}

int run(char** argv) {
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) throw std::runtime_error(dlerror());
  TRITONBACKEND_Backend backend;
  check(find<decltype(&TRITONBACKEND_Initialize)>(library, "TRITONBACKEND_Initialize")(&backend));
  TRITONBACKEND_Model model;
  model.folder = argv[2];
  std::stringstream config;
  config << std::ifstream(argv[3]).rdbuf();
  model.config = config.str();
  check(find<decltype(&TRITONBACKEND_ModelInitialize)>(library, "TRITONBACKEND_ModelInitialize")(&model));

  const auto execute =
      find<decltype(&TRITONBACKEND_ModelInstanceExecute)>(library, "TRITONBACKEND_ModelInstanceExecute");
  const auto begin = find<decltype(&TRITONBACKEND_ModelInstanceInitialize)>(
      library, "TRITONBACKEND_ModelInstanceInitialize");
  const auto end =
      find<decltype(&TRITONBACKEND_ModelInstanceFinalize)>(library, "TRITONBACKEND_ModelInstanceFinalize");
  const int num_instances = std::atoi(argv[4]);
  std::vector<std::vector<std::string>> lines(static_cast<size_t>(num_instances));
  std::vector<TRITONBACKEND_ModelInstance> instances(static_cast<size_t>(num_instances));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < instances.size(); ++i) {
    instances[i].model = &model;
    check(begin(&instances[i]));
    threads.emplace_back([&, i] {
      auto executions = requests_of(argv[5]);
      for (auto& execution : executions) {
        std::vector<TRITONBACKEND_Request*> pointers;
        for (TRITONBACKEND_Request& request : execution) pointers.push_back(&request);
        check(execute(&instances[i], pointers.data(), static_cast<uint32_t>(pointers.size())));
        for (const TRITONBACKEND_Request& request : execution) lines[i].push_back(text_of(request));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (TRITONBACKEND_ModelInstance& instance : instances) check(end(&instance));
  const auto& first = instances.front();
  check(find<decltype(&TRITONBACKEND_ModelFinalize)>(library, "TRITONBACKEND_ModelFinalize")(&model));
  for (const std::string& line : lines.front()) std::printf("%s\n", line.c_str());
  std::printf("rows %llu good %llu bad %llu\n", static_cast<unsigned long long>(first.rows),
              static_cast<unsigned long long>(first.good), static_cast<unsigned long long>(first.bad));
  std::printf("left: %d errors, %d messages, %d responses\n", num_errors.load(), num_messages.load(),
              num_responses.load());
  // Instances run beside each other, and the first call of a size takes another path than later ones:
  // rounding differs.
  int differing = 0;
  for (const auto& other : lines)
    for (size_t i = 0; i < other.size(); ++i)
      differing +=
          other[i].substr(0, other[i].find(']')) != lines.front()[i].substr(0, lines.front()[i].find(']'));
  return differing > 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: stand_in_server BACKEND.so MODEL_FOLDER CONFIG.json INSTANCES REQUESTS\n");
    return 2;
  }
  try {
    return run(argv);
  } catch (const std::exception& error) {
    std::printf("failed: %s\n", in_one_line(error.what()).c_str());
    return 1;
  }
}
