# Kernels that are compiled once per instruction set, from kernels/<folder>/<name>_impl.h; at run time cpu_level() chooses.
# csrc/CMakeLists.txt includes this file, and tests/csrc/vector_kernels/CMakeLists.txt for a processor that is emulated.

# The macros select at::vec's variant, as in torch's own build. A block of GEMM_ROWS times two vectors of sums stays in
# registers: NEON has twice as many as SSE.
set(ISA_default "-DCPU_CAPABILITY=DEFAULT;-DCPU_CAPABILITY_DEFAULT;-DSTATICRT_LANES=4")
set(ISA_avx2 "-DCPU_CAPABILITY=AVX2;-DCPU_CAPABILITY_AVX2;-DSTATICRT_LANES=8;-DSTATICRT_GEMM_ROWS=6;-mavx2;-mfma;-mf16c")
set(ISA_avx512 "-DCPU_CAPABILITY=AVX512;-DCPU_CAPABILITY_AVX512;-DSTATICRT_LANES=16;-DSTATICRT_GEMM_ROWS=14;-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mfma;-mf16c")
set(ISA_NAMES default)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  list(APPEND ISA_NAMES avx2 avx512)
endif()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  list(APPEND ISA_default -DSTATICRT_GEMM_ROWS=10)
else()
  list(APPEND ISA_default -DSTATICRT_GEMM_ROWS=4)
endif()

set(KERNELS_FOLDER ${CMAKE_CURRENT_LIST_DIR})
function(staticrt_vector_kernel TARGET FOLDER NAME TYPE KERNELS)
  set(GENERATED ${CMAKE_CURRENT_BINARY_DIR}/kernels/${NAME})
  configure_file(${KERNELS_FOLDER}/instruction_set_choice.cpp.in ${GENERATED}.cpp @ONLY)
  target_sources(${TARGET} PRIVATE ${GENERATED}.cpp)
  set_source_files_properties(${GENERATED}.cpp PROPERTIES SKIP_PRECOMPILE_HEADERS ON UNITY_GROUP instruction_sets)
  foreach(ISA ${ISA_NAMES})
    configure_file(${KERNELS_FOLDER}/instruction_set.cpp.in ${GENERATED}_${ISA}.cpp @ONLY)
    target_sources(${TARGET} PRIVATE ${GENERATED}_${ISA}.cpp)
    # g++'s own AVX-512 intrinsics warn (GCC bug 105593).
    set_source_files_properties(${GENERATED}_${ISA}.cpp PROPERTIES
      SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON COMPILE_OPTIONS
      "${ISA_${ISA}};-fno-math-errno;-fno-trapping-math;-ffp-contract=fast;$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized;-Wno-uninitialized;-Wno-psabi>")
  endforeach()
endfunction()

function(staticrt_vector_kernels TARGET)
  staticrt_vector_kernel(${TARGET} conv depthwise_kernels DepthwiseKernels kKernels)
  staticrt_vector_kernel(${TARGET} conv winograd_kernels WinogradKernels kKernels)
  staticrt_vector_kernel(${TARGET} gemm gemm_kernels GemmKernels kKernels)
  staticrt_vector_kernel(${TARGET} pointwise row_copies RowCopies kKernels)
  staticrt_vector_kernel(${TARGET} pointwise tile_prims PrimTable make_prim_table\(\))
  staticrt_vector_kernel(${TARGET} recurrent recurrent_kernels RecurrentKernels kKernels)
  staticrt_vector_kernel(${TARGET} reduction row_kernels RowKernels kKernels)
endfunction()
