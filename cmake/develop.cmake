# For the project's own programs: warnings, and the flags of what is measured. Consumers never see these.
add_library(kvant_develop INTERFACE)
set(host_warnings -Wall -Wextra -Wconversion -Wshadow -Wsign-conversion)
list(JOIN host_warnings "," nvcc_warnings)  # without -Wpedantic: nvcc's own line directives are not
target_compile_options(kvant_develop INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:${host_warnings};-Wpedantic>"
  "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xcompiler=${nvcc_warnings}>")
# g++ 12 sees overlaps in std::string's operator+ that are not there (its bug 105651, mended in 13).
target_compile_options(kvant_develop INTERFACE
  "$<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>")

# Benches and the report run at full speed in every Release build; under sanitizers -O3 takes four times as long to compile.
add_library(kvant_measured INTERFACE)
target_compile_options(kvant_measured INTERFACE "$<$<CONFIG:Release>:-O3;-march=native>")
target_link_libraries(kvant_measured INTERFACE kvant_develop)

# A file in the build tree that includes each of `headers` (paths below include/, a list) and ends with `code`.
function(kvant_write_includes file headers code)
  list(TRANSFORM headers PREPEND "#include <")
  list(TRANSFORM headers APPEND ">\n")
  list(JOIN headers "" includes)
  file(CONFIGURE OUTPUT "${file}" CONTENT "${includes}\n${code}\n" @ONLY)
endfunction()

# All headers, as they are included; `io` gets those that need nlohmann/json, `host` the others.
macro(kvant_list_headers host io)
  file(GLOB_RECURSE ${host} CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/include/*.hpp")
  set(${io} "${${host}}")
  list(FILTER ${host} EXCLUDE REGEX "^kvant/io/")
  list(FILTER ${io} INCLUDE REGEX "^kvant/io/")
endmacro()
