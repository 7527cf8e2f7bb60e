# cmake -D ROOT=include -D HEADERS=a,b -P includes.cmake: each header includes the standard library and kvant alone,
# and the vector intrinsics where the compiler has them; nothing in it throws.
string(REPLACE "," ";" HEADERS "${HEADERS}")
set(wrong "")
list(LENGTH HEADERS count)
foreach(header IN LISTS HEADERS)
  file(STRINGS "${ROOT}/${header}" lines REGEX "^[ \t]*#[ \t]*include|(^|[^a-z_])throw[ ;]")
  foreach(line IN LISTS lines)
    if(NOT line MATCHES "include <[a-z_]+>|include <kvant/[a-z_/]+\\.hpp>|include <(immintrin|emmintrin|arm_neon)\\.h>|^ *//"
       OR line MATCHES "include <kvant/io/")
      string(APPEND wrong "  ${header}: ${line}\n")
    endif()
  endforeach()
endforeach()
if(count EQUAL 0 OR wrong)
  message(FATAL_ERROR "${count} headers; not the standard library, not kvant, or a throw:\n${wrong}")
endif()
message(STATUS "${count} headers include the standard library and kvant alone")
