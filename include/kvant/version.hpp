#pragma once

/// The library's version; CMakeLists.txt reads it from here.
#define KVANT_VERSION_MAJOR 0
#define KVANT_VERSION_MINOR 1
#define KVANT_VERSION_PATCH 0
