// Requests: read, run alone or as one batch, answered.
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <chrono>
#include <cstring>
#include <utility>

#include "model.h"

namespace staticrt_triton {
namespace {

constexpr std::pair<TRITONSERVER_DataType, at::ScalarType> kTypes[] = {
    {TRITONSERVER_TYPE_BOOL, at::kBool},   {TRITONSERVER_TYPE_UINT8, at::kByte},
    {TRITONSERVER_TYPE_INT8, at::kChar},   {TRITONSERVER_TYPE_INT16, at::kShort},
    {TRITONSERVER_TYPE_INT32, at::kInt},   {TRITONSERVER_TYPE_INT64, at::kLong},
    {TRITONSERVER_TYPE_FP16, at::kHalf},   {TRITONSERVER_TYPE_FP32, at::kFloat},
    {TRITONSERVER_TYPE_FP64, at::kDouble}, {TRITONSERVER_TYPE_BF16, at::kBFloat16}};

uint64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

at::ScalarType scalar_type(TRITONSERVER_DataType type, const char* name) {
  for (const auto& [theirs, ours] : kTypes)
    if (theirs == type) return ours;
  throw Failure(TRITONSERVER_ERROR_UNSUPPORTED,
                std::string("input '") + name + "' has a type that tensors do not have");
}

TRITONSERVER_DataType data_type(at::ScalarType type, const std::string& name) {
  for (const auto& [theirs, ours] : kTypes)
    if (ours == type) return theirs;
  throw Failure(TRITONSERVER_ERROR_UNSUPPORTED,
                "output '" + name + "' has a type that the protocol does not have: " + c10::toString(type));
}

// One request on its way: what it gives, what it gets, or why not.
struct Work {
  TRITONBACKEND_Request* request = nullptr;
  TRITONBACKEND_Response* response = nullptr;  // null: the server could not make one
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  TRITONSERVER_Error* error = nullptr;
};

at::Tensor read_input(TRITONBACKEND_Request* request, const staticrt::InputSpec& spec) {
  TRITONBACKEND_Input* input = nullptr;
  check(TRITONBACKEND_RequestInput(request, spec.name.c_str(), &input));
  const char* name = nullptr;
  TRITONSERVER_DataType type = TRITONSERVER_TYPE_INVALID;
  const int64_t* shape = nullptr;
  uint32_t num_dims = 0, num_buffers = 0;
  uint64_t size_bytes = 0;
  check(TRITONBACKEND_InputProperties(input, &name, &type, &shape, &num_dims, &size_bytes, &num_buffers));
  // A copy: a request's buffers may be unaligned, or several.
  at::Tensor tensor = at::empty(at::IntArrayRef(shape, num_dims), scalar_type(type, name));
  if (tensor.nbytes() != size_bytes)
    throw Failure(TRITONSERVER_ERROR_INVALID_ARG, std::string("input '") + name + "' has " +
                                                      std::to_string(size_bytes) + " bytes, its sizes make " +
                                                      std::to_string(tensor.nbytes()));
  auto* to = static_cast<char*>(tensor.mutable_data_ptr());
  uint64_t copied = 0;
  for (uint32_t index = 0; index < num_buffers; ++index) {
    const void* from = nullptr;
    uint64_t part_bytes = 0;
    TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
    int64_t memory_id = 0;
    check(TRITONBACKEND_InputBuffer(input, index, &from, &part_bytes, &memory, &memory_id));
    if (memory == TRITONSERVER_MEMORY_GPU)
      throw Failure(TRITONSERVER_ERROR_UNSUPPORTED, std::string("input '") + name + "' is in GPU memory");
    if (part_bytes > size_bytes - copied)
      throw Failure(TRITONSERVER_ERROR_INVALID_ARG, std::string("input '") + name + "' has too many bytes");
    if (part_bytes > 0) std::memcpy(to + copied, from, part_bytes);
    copied += part_bytes;
  }
  if (copied != size_bytes)
    throw Failure(TRITONSERVER_ERROR_INVALID_ARG, std::string("input '") + name + "' has too few bytes");
  return tensor;
}

void send_outputs(const Work& work) {
  uint32_t count = 0;
  check(TRITONBACKEND_RequestOutputCount(work.request, &count));
  for (uint32_t index = 0; index < count; ++index) {
    const char* name = nullptr;
    check(TRITONBACKEND_RequestOutputName(work.request, index, &name));
    size_t number = 0;
    while (number < work.outputs.size() && "OUTPUT" + std::to_string(number) != name) ++number;
    if (number == work.outputs.size())
      throw Failure(TRITONSERVER_ERROR_INVALID_ARG, std::string("the model has no output '") + name +
                                                        "', it has OUTPUT0 to OUTPUT" +
                                                        std::to_string(work.outputs.size() - 1));
    const at::Tensor tensor = work.outputs[number].contiguous();
    TRITONBACKEND_Output* output = nullptr;
    check(TRITONBACKEND_ResponseOutput(work.response, &output, name, data_type(tensor.scalar_type(), name),
                                       tensor.sizes().data(), static_cast<uint32_t>(tensor.dim())));
    void* buffer = nullptr;
    TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
    int64_t memory_id = 0;
    check(TRITONBACKEND_OutputBuffer(output, &buffer, tensor.nbytes(), &memory, &memory_id));
    if (memory == TRITONSERVER_MEMORY_GPU)
      throw Failure(TRITONSERVER_ERROR_UNSUPPORTED,
                    std::string("output '") + name + "' is wanted in GPU memory");
    if (tensor.nbytes() > 0) std::memcpy(buffer, tensor.const_data_ptr(), tensor.nbytes());
  }
}

int64_t rows_of(const Work& work) {
  return work.inputs.empty() || work.inputs[0].dim() == 0 ? 1 : work.inputs[0].size(0);
}

// Whether two requests can be rows of one batch.
bool fit_together(const Work& a, const Work& b) {
  for (size_t i = 0; i < a.inputs.size(); ++i) {
    const at::Tensor &x = a.inputs[i], &y = b.inputs[i];
    if (x.dim() == 0 || x.dim() != y.dim() || x.scalar_type() != y.scalar_type() ||
        x.sizes().slice(1) != y.sizes().slice(1) || x.size(0) != rows_of(a) || y.size(0) != rows_of(b))
      return false;
  }
  return !a.inputs.empty();
}

void run_alone(const Model& model, Work& work) {
  try {
    work.outputs = model.module.run(work.inputs);
  } catch (...) {
    work.error = current_error();
  }
}

// Runs requests that fit together as one batch. False, and nothing has changed, where that is not possible:
// the model raised, or an output has not one row for each of the inputs.
bool run_together(const Model& model, const std::vector<Work*>& batch) {
  try {
    std::vector<at::Tensor> inputs;
    std::vector<int64_t> rows;
    for (const Work* work : batch) rows.push_back(rows_of(*work));
    for (size_t i = 0; i < model.inputs.size(); ++i) {
      std::vector<at::Tensor> parts;
      for (const Work* work : batch) parts.push_back(work->inputs[i]);
      inputs.push_back(at::cat(parts));
    }
    const int64_t total = inputs[0].size(0);
    const std::vector<at::Tensor> outputs = model.module.run(inputs);
    for (const at::Tensor& output : outputs)
      if (output.dim() == 0 || output.size(0) != total) return false;
    std::vector<std::vector<at::Tensor>> parts;
    for (const at::Tensor& output : outputs) parts.push_back(output.split_with_sizes(rows));
    for (size_t i = 0; i < batch.size(); ++i)
      for (const std::vector<at::Tensor>& part : parts) batch[i]->outputs.push_back(part[i]);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

void run(const Model& model, std::vector<Work>& works) {
  std::vector<Work*> left;
  for (Work& work : works)
    if (!work.error) left.push_back(&work);
  while (!left.empty()) {
    std::vector<Work*> batch{left.front()}, others;
    int64_t rows = rows_of(*left.front());
    for (size_t i = 1; i < left.size(); ++i) {
      const int64_t more = rows_of(*left[i]);
      const bool joins = rows + more <= model.config.max_batch_size && fit_together(*left.front(), *left[i]);
      (joins ? batch : others).push_back(left[i]);
      if (joins) rows += more;
    }
    if (batch.size() == 1 || !run_together(model, batch))
      for (Work* work : batch) run_alone(model, *work);
    left = std::move(others);
  }
}

}  // namespace

void execute(TRITONBACKEND_ModelInstance* instance, const Model& model, TRITONBACKEND_Request** requests,
             uint32_t count) {
  const at::NoGradGuard no_grad;
  const uint64_t begin_ns = now_ns();
  std::vector<Work> works(count);
  for (uint32_t i = 0; i < count; ++i) {
    Work& work = works[i];
    work.request = requests[i];
    work.error = TRITONBACKEND_ResponseNew(&work.response, work.request);
    try {
      if (!work.error)
        for (const staticrt::InputSpec& spec : model.inputs)
          work.inputs.push_back(read_input(work.request, spec));
    } catch (...) {
      work.error = current_error();
    }
  }
  const uint64_t compute_begin_ns = now_ns();
  run(model, works);
  const uint64_t compute_end_ns = now_ns();
  int64_t rows = 0;
  for (Work& work : works) {
    try {
      if (!work.error) send_outputs(work);
    } catch (...) {
      work.error = current_error();
    }
    const bool good = !work.error;
    if (good) rows += model.config.max_batch_size > 0 ? rows_of(work) : 1;
    if (work.response)
      log_error(TRITONBACKEND_ResponseSend(work.response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, work.error));
    if (work.error) TRITONSERVER_ErrorDelete(work.error);
    log_error(TRITONBACKEND_ModelInstanceReportStatistics(instance, work.request, good, begin_ns,
                                                          compute_begin_ns, compute_end_ns, now_ns()));
    log_error(TRITONBACKEND_RequestRelease(work.request, TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  if (rows > 0)
    log_error(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, rows, begin_ns, compute_begin_ns,
                                                               compute_end_ns, now_ns()));
}

}  // namespace staticrt_triton
