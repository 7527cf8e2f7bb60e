#pragma once

// Catch2 3 and 2.13 from one source. Tests use what both have: no SKIP(), matchers by their names in Catch::Matchers.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif
