# kvant::kvant (the standard library, nothing else), kvant::io (adds nlohmann/json), kvant::cuda (adds the CUDA runtime).
# All three exist always; what a component links is looked for quietly, and CMake names it where it is used but missing.
include(GNUInstallDirs)

add_library(kvant INTERFACE)
target_include_directories(kvant INTERFACE
  "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>" "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
target_compile_features(kvant INTERFACE cxx_std_20)

find_package(nlohmann_json QUIET)
add_library(kvant_io INTERFACE)
target_link_libraries(kvant_io INTERFACE kvant nlohmann_json::nlohmann_json)

kvant_find_cuda(KVANT_CUDA_MISSING)
add_library(kvant_cuda INTERFACE)
target_link_libraries(kvant_cuda INTERFACE kvant CUDA::cudart)
if(KVANT_CUDA_MISSING AND PROJECT_IS_TOP_LEVEL)
  message(STATUS "kvant: without component cuda: ${KVANT_CUDA_MISSING}")
endif()
if(IS_DIRECTORY "${PROJECT_SOURCE_DIR}/kernels")
  target_include_directories(kvant_cuda INTERFACE "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/kernels>")
endif()
kvant_cuda_language_standard(kvant_cuda)

foreach(component IN ITEMS io cuda)
  set_target_properties(kvant_${component} PROPERTIES EXPORT_NAME ${component})
  add_library(kvant::${component} ALIAS kvant_${component})
endforeach()
add_library(kvant::kvant ALIAS kvant)
