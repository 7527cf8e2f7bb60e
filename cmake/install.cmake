# Install rules: every include root into one directory, and the package beside it. Nothing depends on the machine.
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_DATADIR}/cmake/kvant")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.hpp")
if(IS_DIRECTORY "${PROJECT_SOURCE_DIR}/kernels")
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/kernels/" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
    FILES_MATCHING PATTERN "*.cuh" PATTERN "*.hpp")
endif()

install(TARGETS kvant EXPORT kvantTargets)
install(TARGETS kvant_io EXPORT kvantIoTargets)
install(TARGETS kvant_cuda EXPORT kvantCudaTargets)
foreach(set IN ITEMS kvantTargets kvantIoTargets kvantCudaTargets)
  install(EXPORT ${set} NAMESPACE kvant:: DESTINATION "${package_dir}")
endforeach()

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/kvantConfig.cmake.in" "${PROJECT_BINARY_DIR}/kvantConfig.cmake"
  INSTALL_DESTINATION "${package_dir}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/kvantConfigVersion.cmake" COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES "${PROJECT_BINARY_DIR}/kvantConfig.cmake" "${PROJECT_BINARY_DIR}/kvantConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/kvantCuda.cmake" DESTINATION "${package_dir}")
