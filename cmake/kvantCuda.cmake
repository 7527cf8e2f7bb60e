# What kvant::cuda needs, decided at the CMake that runs: the project's own, and the consumer's (installed beside
# kvantConfig.cmake).

# The toolkit that CUDA::cudart comes from, with CUB. `reason` is empty when it is there, else it says what is missing.
# A macro, so that the imported targets and CUDAToolkit_* land in the caller's scope.
macro(kvant_find_cuda reason)
  set(${reason} "")
  find_package(CUDAToolkit QUIET)
  if(NOT CUDAToolkit_FOUND)
    set(${reason} "no CUDA toolkit was found (nvcc on PATH, or CUDAToolkit_ROOT; package nvidia-cuda-toolkit or NVIDIA's cuda-toolkit)")
  elseif(CUDAToolkit_VERSION VERSION_LESS 12.0)
    set(${reason} "CUDA toolkit 12.0 or later is needed for C++20, ${CUDAToolkit_VERSION} was found")
  else()
    set(kvant_cub "")
    foreach(kvant_dir IN LISTS CUDAToolkit_INCLUDE_DIRS)
      foreach(kvant_file IN ITEMS "${kvant_dir}/cub/version.cuh" "${kvant_dir}/cccl/cub/version.cuh")
        if(EXISTS "${kvant_file}")
          set(kvant_cub "${kvant_file}")
        endif()
      endforeach()
    endforeach()
    if(NOT kvant_cub)
      set(${reason} "the CUDA toolkit ${CUDAToolkit_VERSION} has no CUB headers in ${CUDAToolkit_INCLUDE_DIRS} (package cuda-cccl or libcub-dev)")
    endif()
    unset(kvant_cub)
    unset(kvant_dir)
    unset(kvant_file)
  endif()
endmacro()

# C++20 for nvcc. CMake before 3.25.2 knows no cuda_std_20, so the flag is ours there; never both, nvcc warns of it.
# BUILD_INTERFACE keeps the decision out of an installed target: kvantConfig.cmake takes it anew.
function(kvant_cuda_language_standard target)
  if(CMAKE_VERSION VERSION_LESS 3.25.2)
    target_compile_options(${target} INTERFACE "$<BUILD_INTERFACE:$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>>")
  else()
    target_compile_features(${target} INTERFACE "$<BUILD_INTERFACE:cuda_std_20>")
  endif()
endfunction()
