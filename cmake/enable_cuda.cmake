# nvcc for the project's own checks. A user's CMAKE_CUDA_ARCHITECTURES is respected, and nothing is set for a parent.
if(KVANT_CUDA_MISSING)
  message(FATAL_ERROR "kvant: KVANT_CUDA is on, but ${KVANT_CUDA_MISSING}")
endif()
if(PROJECT_IS_TOP_LEVEL AND NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90a-real)
endif()
enable_language(CUDA)
