// A backend of Triton Inference Server that runs archives of staticrt.save: no Python, any sizes, one program
// for all instances.
//
// The inputs of a request are the archive's inputs by name, its outputs OUTPUT0, OUTPUT1, ... in the order of
// the archive's, as `staticrt inspect MODEL --triton` writes them into config.pbtxt. Requests of one
// execution whose inputs agree in all but their first dimension run as one batch where max_batch_size allows
// batches.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <utility>

#include "model.h"

namespace staticrt_triton {

void check(TRITONSERVER_Error* error) {
  if (!error) return;
  Failure failure(TRITONSERVER_ErrorCode(error), TRITONSERVER_ErrorMessage(error));
  TRITONSERVER_ErrorDelete(error);
  throw failure;
}

// What a server's statistics do not take is only logged.
void log_error(TRITONSERVER_Error* error) {
  if (!error) return;
  TRITONSERVER_Error* second =
      TRITONSERVER_LogMessage(TRITONSERVER_LOG_ERROR, __FILE__, __LINE__, TRITONSERVER_ErrorMessage(error));
  if (second) TRITONSERVER_ErrorDelete(second);
  TRITONSERVER_ErrorDelete(error);
}

// The error of the exception that is being handled.
TRITONSERVER_Error* current_error() {
  try {
    throw;
  } catch (const Failure& failure) {
    return TRITONSERVER_ErrorNew(failure.code, failure.what());
  } catch (const staticrt::CallError& error) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, error.what());
  } catch (const staticrt::ArchiveError& error) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, error.what());
  } catch (const c10::Error& error) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, error.what());
  } catch (...) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNKNOWN, "an exception that is not of std");
  }
}

namespace {

std::vector<int64_t> numbers(const std::string& text, const char* parameter) {
  std::vector<int64_t> found;
  std::stringstream stream(text);
  for (std::string word; std::getline(stream, word, ',');) {
    size_t used = 0;
    int64_t number = 0;
    try {
      number = std::stoll(word, &used);
    } catch (const std::exception&) {
    }
    if (number < 1 || word.find_first_not_of(' ', used) != std::string::npos)
      throw Failure(TRITONSERVER_ERROR_INVALID_ARG,
                    std::string("parameter ") + parameter + " is '" + text + "', expected numbers by comma");
    found.push_back(number);
  }
  return found;
}

// Plans for each size of the parameter "prepare", before the server says that the model is ready.
void prepare(const Model& model) {
  const auto sizes = model.config.parameters.find("prepare");
  if (sizes == model.config.parameters.end()) return;
  for (const int64_t size : numbers(sizes->second, "prepare")) {
    std::vector<c10::IValue> inputs;
    for (const staticrt::InputSpec& spec : model.inputs) {
      const auto found = std::find_if(model.config.inputs.begin(), model.config.inputs.end(),
                                      [&](const Tensor& tensor) { return tensor.name == spec.name; });
      if (found == model.config.inputs.end())
        throw Failure(TRITONSERVER_ERROR_INVALID_ARG, "the configuration has no input '" + spec.name + "'");
      std::vector<int64_t> dims = found->dims;
      if (model.config.max_batch_size > 0) dims.insert(dims.begin(), size);
      for (int64_t& dim : dims)
        if (dim < 0) dim = size;  // of a model without batches: the sizes that vary
      inputs.emplace_back(at::empty(dims, spec.dtype));
    }
    model.module.prepare(inputs);
  }
}

std::unique_ptr<Model> open_model(TRITONBACKEND_Model* model) {
  TRITONSERVER_Message* message = nullptr;
  check(TRITONBACKEND_ModelConfig(model, 1, &message));
  const std::unique_ptr<TRITONSERVER_Message, void (*)(TRITONSERVER_Message*)> owner(
      message, [](TRITONSERVER_Message* m) { log_error(TRITONSERVER_MessageDelete(m)); });
  const char* base = nullptr;
  size_t size_bytes = 0;
  check(TRITONSERVER_MessageSerializeToJson(message, &base, &size_bytes));
  Config config = parse_config(std::string(base, size_bytes));

  TRITONBACKEND_ArtifactType kind = TRITONBACKEND_ARTIFACT_FILESYSTEM;
  const char* folder = nullptr;
  uint64_t version = 0;
  check(TRITONBACKEND_ModelRepository(model, &kind, &folder));
  check(TRITONBACKEND_ModelVersion(model, &version));
  if (kind != TRITONBACKEND_ARTIFACT_FILESYSTEM)
    throw Failure(TRITONSERVER_ERROR_UNSUPPORTED, "the model is not in a folder");
  const std::string path = std::string(folder) + "/" + std::to_string(version) + "/" + config.file_name;

  // Of the process, as torch has it: where several models give numbers, the last one loaded decides.
  const auto threads = config.parameters.find("threads");
  if (threads != config.parameters.end())
    at::set_num_threads(static_cast<int>(numbers(threads->second, "threads").at(0)));
  staticrt::Module module = staticrt::load(path);
  std::vector<staticrt::InputSpec> inputs = module.inputs();
  for (const staticrt::InputSpec& input : inputs)
    if (!input.is_tensor)
      throw Failure(TRITONSERVER_ERROR_UNSUPPORTED,
                    "input '" + input.name + "' is a number: requests hold tensors");
  auto state = std::make_unique<Model>(Model{std::move(module), std::move(config), std::move(inputs)});
  prepare(*state);
  return state;
}

// The model's state, which ModelInitialize left with the server.
Model* state_of(TRITONBACKEND_Model* model) {
  void* state = nullptr;
  check(TRITONBACKEND_ModelState(model, &state));
  return static_cast<Model*>(state);
}

}  // namespace
}  // namespace staticrt_triton

// -- what the server calls: no exception leaves these ---------------------------------------------------

using staticrt_triton::check;
using staticrt_triton::current_error;

extern "C" {

TRITONBACKEND_ISPEC TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend*) {
  try {
    uint32_t major = 0, minor = 0;
    check(TRITONBACKEND_ApiVersion(&major, &minor));
    if (major != TRITONBACKEND_API_VERSION_MAJOR || minor < TRITONBACKEND_API_VERSION_MINOR)
      throw staticrt_triton::Failure(TRITONSERVER_ERROR_UNSUPPORTED,
                                     "the server's backend API is " + std::to_string(major) + "." +
                                         std::to_string(minor) + ", this backend was built with another");
    return nullptr;
  } catch (...) {
    return current_error();
  }
}

TRITONBACKEND_ISPEC TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  try {
    auto state = staticrt_triton::open_model(model);
    check(TRITONBACKEND_ModelSetState(model, state.get()));
    state.release();  // the server's until ModelFinalize
    return nullptr;
  } catch (...) {
    return current_error();
  }
}

TRITONBACKEND_ISPEC TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  try {
    delete staticrt_triton::state_of(model);
    return nullptr;
  } catch (...) {
    return current_error();
  }
}

TRITONBACKEND_ISPEC TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance*) {
  return nullptr;  // an instance has nothing of its own
}

TRITONBACKEND_ISPEC TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance*) {
  return nullptr;
}

TRITONBACKEND_ISPEC TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t request_count) {
  try {
    TRITONBACKEND_Model* model = nullptr;
    check(TRITONBACKEND_ModelInstanceModel(instance, &model));
    const staticrt_triton::Model& state = *staticrt_triton::state_of(model);
    staticrt_triton::execute(instance, state, requests, request_count);
    return nullptr;
  } catch (...) {
    return current_error();  // nothing was taken over: the server answers
  }
}

}  // extern "C"
