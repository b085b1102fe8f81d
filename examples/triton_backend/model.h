// A loaded model, errors, and what runs requests.
#pragma once

#include <staticrt/staticrt.h>
#include <triton/core/tritonbackend.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "config.h"

namespace staticrt_triton {

// One for all instances, which run it beside each other: a Module is thread-safe, and weights are mapped
// once.
struct Model {
  staticrt::Module module;
  Config config;
  std::vector<staticrt::InputSpec> inputs;
};

// A request's fault, or the server's: becomes the error of its response.
struct Failure : std::runtime_error {
  Failure(TRITONSERVER_Error_Code code, const std::string& text) : std::runtime_error(text), code(code) {}
  TRITONSERVER_Error_Code code;
};

// Throws Failure for an error of the server, and deletes it.
void check(TRITONSERVER_Error* error);
// Logs an error that no caller receives, and deletes it.
void log_error(TRITONSERVER_Error* error);
// The server's error for the exception that is being handled.
TRITONSERVER_Error* current_error();

// Takes all requests over: each gets its response and is released, whatever happens.
void execute(TRITONBACKEND_ModelInstance* instance, const Model& model, TRITONBACKEND_Request** requests,
             uint32_t count);

}  // namespace staticrt_triton
