// A stand-in of Triton Inference Server's header of this name (BSD-3-Clause, NVIDIA;
// github.com/triton-inference-server/core), in own words: the declarations that examples/triton_backend uses,
// with the names, arguments and numbers of API version 1. Only for the backend's test; a backend for a server
// is built with the server's headers.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TRITONBACKEND_API_VERSION_MAJOR 1
#define TRITONBACKEND_API_VERSION_MINOR 19
#define TRITONSERVER_DECLSPEC __attribute__((__visibility__("default")))
#define TRITONBACKEND_DECLSPEC TRITONSERVER_DECLSPEC
#define TRITONBACKEND_ISPEC TRITONSERVER_DECLSPEC

struct TRITONSERVER_Error;
struct TRITONSERVER_Message;
struct TRITONBACKEND_Backend;
struct TRITONBACKEND_Input;
struct TRITONBACKEND_Model;
struct TRITONBACKEND_ModelInstance;
struct TRITONBACKEND_Output;
struct TRITONBACKEND_Request;
struct TRITONBACKEND_Response;

typedef enum TRITONSERVER_datatype_enum {
  TRITONSERVER_TYPE_INVALID,
  TRITONSERVER_TYPE_BOOL,
  TRITONSERVER_TYPE_UINT8,
  TRITONSERVER_TYPE_UINT16,
  TRITONSERVER_TYPE_UINT32,
  TRITONSERVER_TYPE_UINT64,
  TRITONSERVER_TYPE_INT8,
  TRITONSERVER_TYPE_INT16,
  TRITONSERVER_TYPE_INT32,
  TRITONSERVER_TYPE_INT64,
  TRITONSERVER_TYPE_FP16,
  TRITONSERVER_TYPE_FP32,
  TRITONSERVER_TYPE_FP64,
  TRITONSERVER_TYPE_BYTES,
  TRITONSERVER_TYPE_BF16
} TRITONSERVER_DataType;

typedef enum TRITONSERVER_memorytype_enum {
  TRITONSERVER_MEMORY_CPU,
  TRITONSERVER_MEMORY_CPU_PINNED,
  TRITONSERVER_MEMORY_GPU
} TRITONSERVER_MemoryType;

typedef enum TRITONSERVER_errorcode_enum {
  TRITONSERVER_ERROR_UNKNOWN,
  TRITONSERVER_ERROR_INTERNAL,
  TRITONSERVER_ERROR_NOT_FOUND,
  TRITONSERVER_ERROR_INVALID_ARG,
  TRITONSERVER_ERROR_UNAVAILABLE,
  TRITONSERVER_ERROR_UNSUPPORTED,
  TRITONSERVER_ERROR_ALREADY_EXISTS,
  TRITONSERVER_ERROR_CANCELLED
} TRITONSERVER_Error_Code;

typedef enum TRITONSERVER_loglevel_enum {
  TRITONSERVER_LOG_INFO,
  TRITONSERVER_LOG_WARN,
  TRITONSERVER_LOG_ERROR,
  TRITONSERVER_LOG_VERBOSE
} TRITONSERVER_LogLevel;

typedef enum TRITONSERVER_requestreleaseflag_enum {
  TRITONSERVER_REQUEST_RELEASE_ALL = 1,
  TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2
} TRITONSERVER_RequestReleaseFlag;

typedef enum TRITONSERVER_responsecompleteflag_enum {
  TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
} TRITONSERVER_ResponseCompleteFlag;

typedef enum TRITONBACKEND_artifacttype_enum { TRITONBACKEND_ARTIFACT_FILESYSTEM } TRITONBACKEND_ArtifactType;

// What the server provides. Errors are null where a call succeeds, and the caller's to delete.
#define SERVER TRITONBACKEND_DECLSPEC TRITONSERVER_Error*
TRITONSERVER_DECLSPEC TRITONSERVER_Error* TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code code,
                                                                const char* msg);
TRITONSERVER_DECLSPEC void TRITONSERVER_ErrorDelete(TRITONSERVER_Error* error);
TRITONSERVER_DECLSPEC TRITONSERVER_Error_Code TRITONSERVER_ErrorCode(TRITONSERVER_Error* error);
TRITONSERVER_DECLSPEC const char* TRITONSERVER_ErrorMessage(TRITONSERVER_Error* error);
SERVER TRITONSERVER_LogMessage(TRITONSERVER_LogLevel level, const char* filename, const int line,
                               const char* msg);
SERVER TRITONSERVER_MessageSerializeToJson(TRITONSERVER_Message* message, const char** base,
                                           size_t* byte_size);
SERVER TRITONSERVER_MessageDelete(TRITONSERVER_Message* message);
SERVER TRITONBACKEND_ApiVersion(uint32_t* major, uint32_t* minor);

SERVER TRITONBACKEND_ModelName(TRITONBACKEND_Model* model, const char** name);
SERVER TRITONBACKEND_ModelVersion(TRITONBACKEND_Model* model, uint64_t* version);
SERVER TRITONBACKEND_ModelRepository(TRITONBACKEND_Model* model, TRITONBACKEND_ArtifactType* artifact_type,
                                     const char** location);
SERVER TRITONBACKEND_ModelConfig(TRITONBACKEND_Model* model, const uint32_t config_version,
                                 TRITONSERVER_Message** model_config);
SERVER TRITONBACKEND_ModelState(TRITONBACKEND_Model* model, void** state);
SERVER TRITONBACKEND_ModelSetState(TRITONBACKEND_Model* model, void* state);
SERVER TRITONBACKEND_ModelInstanceModel(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Model** model);
SERVER TRITONBACKEND_ModelInstanceReportStatistics(TRITONBACKEND_ModelInstance* instance,
                                                   TRITONBACKEND_Request* request, const bool success,
                                                   const uint64_t exec_start_ns,
                                                   const uint64_t compute_start_ns,
                                                   const uint64_t compute_end_ns, const uint64_t exec_end_ns);
SERVER TRITONBACKEND_ModelInstanceReportBatchStatistics(
    TRITONBACKEND_ModelInstance* instance, const uint64_t batch_size, const uint64_t exec_start_ns,
    const uint64_t compute_start_ns, const uint64_t compute_end_ns, const uint64_t exec_end_ns);

SERVER TRITONBACKEND_RequestInput(TRITONBACKEND_Request* request, const char* name,
                                  TRITONBACKEND_Input** input);
SERVER TRITONBACKEND_InputProperties(TRITONBACKEND_Input* input, const char** name,
                                     TRITONSERVER_DataType* datatype, const int64_t** shape,
                                     uint32_t* dims_count, uint64_t* byte_size, uint32_t* buffer_count);
SERVER TRITONBACKEND_InputBuffer(TRITONBACKEND_Input* input, const uint32_t index, const void** buffer,
                                 uint64_t* buffer_byte_size, TRITONSERVER_MemoryType* memory_type,
                                 int64_t* memory_type_id);
SERVER TRITONBACKEND_RequestOutputCount(TRITONBACKEND_Request* request, uint32_t* count);
SERVER TRITONBACKEND_RequestOutputName(TRITONBACKEND_Request* request, const uint32_t index,
                                       const char** output_name);
SERVER TRITONBACKEND_RequestRelease(TRITONBACKEND_Request* request, uint32_t release_flags);
SERVER TRITONBACKEND_ResponseNew(TRITONBACKEND_Response** response, TRITONBACKEND_Request* request);
SERVER TRITONBACKEND_ResponseOutput(TRITONBACKEND_Response* response, TRITONBACKEND_Output** output,
                                    const char* name, const TRITONSERVER_DataType datatype,
                                    const int64_t* shape, const uint32_t dims_count);
SERVER TRITONBACKEND_OutputBuffer(TRITONBACKEND_Output* output, void** buffer,
                                  const uint64_t buffer_byte_size, TRITONSERVER_MemoryType* memory_type,
                                  int64_t* memory_type_id);
SERVER TRITONBACKEND_ResponseSend(TRITONBACKEND_Response* response, const uint32_t send_flags,
                                  TRITONSERVER_Error* error);
#undef SERVER

// What the backend provides, and the server looks up by name.
#define BACKEND TRITONBACKEND_ISPEC TRITONSERVER_Error*
BACKEND TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend);
BACKEND TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model);
BACKEND TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model);
BACKEND TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance);
BACKEND TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance);
BACKEND TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                           TRITONBACKEND_Request** requests, const uint32_t request_count);
#undef BACKEND

#ifdef __cplusplus
}
#endif
