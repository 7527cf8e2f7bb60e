#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <kvant/format/lloyd_max_solver.hpp>
#include <kvant/io/codebook.hpp>

#include "support/catch.hpp"

namespace {

using Catch::Matchers::WithinRel;
namespace fs = std::filesystem;

fs::path const codebooks = fs::path{KVANT_SOURCE_DIR} / "codebooks";
constexpr std::array file_dims{64, 80, 96, 112, 128, 192, 256, 512, 576};

std::string text_of(fs::path const& path) {
  std::ifstream in{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{in}, {}};
}

/// What parse_codebook says against `text`; empty when it takes it.
std::string refusal(std::string const& text) {
  try {
    (void)kvant::parse_codebook(text, "x.json");
    return {};
  } catch (kvant::io_error const& e) {
    return e.what();
  }
}

nlohmann::ordered_json good(int d = 128, int bits = 2) {
  return nlohmann::ordered_json::parse(kvant::to_json(kvant::solve_codebook(d, bits)));
}

/// The refusal of a good 2-bit codebook for d = 128 after `edit`.
template <class Edit>
std::string refusal_after(Edit edit) {
  auto json = good();
  edit(json);
  return refusal(json.dump());
}

std::string text(double x) { return nlohmann::json(x).dump(); }

/// A file of its own in the temporary folder, removed at the end of its scope.
struct temporary_file {
  fs::path path;
  temporary_file(char const* name, std::string const& content)
      : path(fs::temp_directory_path() / (std::to_string(getpid()) + "_" + name)) {
    std::ofstream{path, std::ios::binary} << content;
  }
  temporary_file(temporary_file const&) = delete;
  temporary_file& operator=(temporary_file const&) = delete;
  ~temporary_file() { fs::remove(path); }
};

}  // namespace

TEST_CASE("the 36 codebook files are what the solver finds, and read back", "[codebooks][io]") {
  for (int const d : file_dims) {
    for (int bits = 1; bits <= 4; ++bits) {
      auto const path = codebooks / ("codebook_d" + std::to_string(d) + "_b" + std::to_string(bits) + ".json");
      CAPTURE(path);
      auto const read = kvant::read_codebook(path.string());
      auto const solved = kvant::solve_codebook(d, bits);
      REQUIRE(read.d == d);
      REQUIRE(read.bits == bits);
      REQUIRE(read.centroids.size() == solved.centroids.size());
      for (std::size_t i = 0; i < read.centroids.size(); ++i)
        REQUIRE_THAT(read.centroids[i], WithinRel(solved.centroids[i], 1e-12));
      for (std::size_t i = 0; i + 1 < read.centroids.size(); ++i)
        REQUIRE(read.boundaries[i] == 0.5 * (read.centroids[i] + read.centroids[i + 1]));
      REQUIRE_THAT(read.mse_per_coord, WithinRel(solved.mse_per_coord, 1e-12));
      REQUIRE_THAT(read.mse_total, WithinRel(solved.mse_total, 1e-12));
      REQUIRE(kvant::to_json(read) == text_of(path));
    }
  }
  auto const is_json = [](fs::directory_entry const& entry) { return entry.path().extension() == ".json"; };
  REQUIRE(std::count_if(fs::directory_iterator{codebooks}, fs::directory_iterator{}, is_json) == 36);
}

TEST_CASE("a codebook survives the way through text bit by bit", "[codebooks][io]") {
  auto const d = GENERATE(3, 64, 160, 1024, 4096);
  auto const bits = GENERATE(1, 2, 4, 8);
  CAPTURE(d, bits);
  auto const book = kvant::solve_codebook(d, bits);
  auto const back = kvant::parse_codebook(kvant::to_json(book), "text");
  REQUIRE(back.d == book.d);
  REQUIRE(back.bits == book.bits);
  REQUIRE(back.centroids == book.centroids);
  REQUIRE(back.boundaries == book.boundaries);
  REQUIRE(back.mse_per_coord == book.mse_per_coord);
  REQUIRE(back.mse_total == book.mse_total);
}

TEST_CASE("a codebook of seven digits from elsewhere is taken", "[codebooks][io]") {
  auto json = good(64, 4);
  for (char const* field : {"centroids", "boundaries"})
    for (auto& value : json.at(field)) value = std::round(value.get<double>() * 1e8) / 1e8;
  json["mse_per_coord"] = json["mse_per_coord"].get<double>() * (1 + 5e-7);
  REQUIRE(refusal(json.dump()).empty());
}

TEST_CASE("text that is not one JSON object is refused", "[codebooks][io]") {
  auto const whole = kvant::to_json(kvant::solve_codebook(64, 1));
  auto const bad = GENERATE_COPY(std::string{}, std::string{"codebook"}, whole.substr(0, whole.size() / 2), whole + "x",
                                 whole + whole, std::string{"{\"d\": NaN}"}, std::string{"{\"d\": -Infinity}"},
                                 std::string{"{\"d\": 64,}"}, std::string{"{\"\xff\": 1}"}, std::string(4, '\0'));
  CAPTURE(bad);
  REQUIRE(refusal(bad).starts_with("x.json: the text: expected JSON and nothing after it, got [json.exception"));
}

TEST_CASE("JSON of another shape is refused by what came", "[codebooks][io]") {
  REQUIRE(refusal("[1, 2]") == "x.json: the text: expected a JSON object, got array");
  REQUIRE(refusal("null") == "x.json: the text: expected a JSON object, got null");
  REQUIRE(refusal("{}") == "x.json: bits: expected this field, got none");
  REQUIRE(refusal("{\"d\": 1e999}").starts_with("x.json: the text: expected numbers that a double can hold, got "));
}

TEST_CASE("a field that comes twice is refused", "[codebooks][io]") {
  auto const whole = kvant::to_json(kvant::solve_codebook(64, 1));
  REQUIRE(refusal("{\"d\": 64, " + whole.substr(1)) == "x.json: d: expected the field once, got it twice");
  REQUIRE(refusal("{\"mse_total\": 1, " + whole.substr(1)) ==
          "x.json: mse_total: expected the field once, got it twice");
}

TEST_CASE("missing and unknown fields are refused", "[codebooks][io]") {
  for (std::string const field : {"d", "bits", "centroids", "boundaries", "mse_per_coord", "mse_total"}) {
    CAPTURE(field);
    REQUIRE(refusal_after([&](auto& json) { json.erase(field); }) ==
            "x.json: " + field + ": expected this field, got none");
  }
  REQUIRE(refusal_after([](auto& json) { json["dim"] = 64; }) ==
          "x.json: dim: expected no field of this name, got number");
}

TEST_CASE("fields of another type are refused", "[codebooks][io]") {
  REQUIRE(refusal_after([](auto& json) { json["d"] = "64"; }) == "x.json: d: expected an integer, got string");
  REQUIRE(refusal_after([](auto& json) { json["d"] = 64.0; }) == "x.json: d: expected an integer, got 64.0");
  REQUIRE(refusal_after([](auto& json) { json["bits"] = true; }) == "x.json: bits: expected an integer, got boolean");
  REQUIRE(refusal_after([](auto& json) { json["bits"] = nullptr; }) == "x.json: bits: expected an integer, got null");
  REQUIRE(refusal_after([](auto& json) { json["centroids"] = 1; }) ==
          "x.json: centroids: expected an array of numbers, got number");
  REQUIRE(refusal_after([](auto& json) { json["centroids"][1] = nullptr; }) ==
          "x.json: centroids[1]: expected a number, got null");
  REQUIRE(refusal_after([](auto& json) {
            json["centroids"][3] = {{"a", 1}};
          }) == "x.json: centroids[3]: expected a number, got object");
  REQUIRE(refusal_after([](auto& json) { json["boundaries"][0] = "0"; }) ==
          "x.json: boundaries[0]: expected a number, got string");
  REQUIRE(refusal_after([](auto& json) { json["mse_per_coord"] = nullptr; }) ==
          "x.json: mse_per_coord: expected a number, got null");
  REQUIRE(refusal_after([](auto& json) { json["mse_total"] = nlohmann::json::array(); }) ==
          "x.json: mse_total: expected a number, got array");
}

TEST_CASE("d and bits out of range are refused", "[codebooks][io]") {
  for (int const d : {-128, 0, 2, 4097}) {
    CAPTURE(d);
    REQUIRE(refusal_after([&](auto& json) { json["d"] = d; }) ==
            "x.json: d: expected an integer from 3 to 4096, got " + std::to_string(d));
  }
  for (int const bits : {-1, 0, 9, 33}) {
    CAPTURE(bits);
    REQUIRE(refusal_after([&](auto& json) { json["bits"] = bits; }) ==
            "x.json: bits: expected an integer from 1 to 8, got " + std::to_string(bits));
  }
  REQUIRE(refusal_after([](auto& json) { json["d"] = (std::int64_t{1} << 32) + 128; }) ==
          "x.json: d: expected an integer of 32 bits, got 4294967424");
  REQUIRE(refusal_after([](auto& json) { json["bits"] = -(std::int64_t{1} << 32) + 2; }) ==
          "x.json: bits: expected an integer of 32 bits, got -4294967294");
  REQUIRE(refusal_after([](auto& json) { json["bits"] = std::numeric_limits<std::uint64_t>::max(); }) ==
          "x.json: bits: expected an integer of 32 bits, got 18446744073709551615");
}

TEST_CASE("counts that do not fit the bits are refused", "[codebooks][io]") {
  REQUIRE(refusal_after([](auto& json) { json["bits"] = 3; }) ==
          "x.json: centroids: expected 8 numbers (2^bits), got 4");
  REQUIRE(refusal_after([](auto& json) { json["centroids"].erase(0); }) ==
          "x.json: centroids: expected 4 numbers (2^bits), got 3");
  REQUIRE(refusal_after([](auto& json) { json["centroids"] = nlohmann::json::array(); }) ==
          "x.json: centroids: expected 4 numbers (2^bits), got 0");
  REQUIRE(refusal_after([](auto& json) { json["boundaries"].push_back(1); }) ==
          "x.json: boundaries: expected 3 numbers (2^bits - 1), got 4");
}

TEST_CASE("centroids that are no codebook of the sphere are refused", "[codebooks][io]") {
  auto const book = kvant::solve_codebook(128, 2);
  auto const& c = book.centroids;
  REQUIRE(refusal_after([](auto& json) { json["centroids"][3] = 1.25; }) ==
          "x.json: centroids[3]: expected a number from -1 to 1, got 1.25");
  REQUIRE(refusal_after([](auto& json) { std::swap(json["centroids"][1], json["centroids"][2]); }) ==
          "x.json: centroids[2]: expected more than " + text(c[2]) + " (ascending order), got " + text(c[1]));
  REQUIRE(refusal_after([](auto& json) { json["centroids"][3] = json["centroids"][2]; }) ==
          "x.json: centroids[3]: expected more than " + text(c[2]) + " (ascending order), got " + text(c[2]));
  REQUIRE(refusal_after([](auto& json) { json["centroids"][0] = -0.25; }) ==
          "x.json: centroids[0]: expected " + text(c[0]) + " (symmetry), got -0.25");
  REQUIRE(refusal_after([](auto& json) { json["boundaries"][1] = 0.001; }) ==
          "x.json: boundaries[1]: expected 0.0 (midpoint of its centroids), got 0.001");
  REQUIRE(refusal_after([](auto& json) { json["boundaries"][0] = -1; }) ==
          "x.json: boundaries[0]: expected " + text(book.boundaries[0]) + " (midpoint of its centroids), got -1.0");
}

TEST_CASE("errors that the density does not give are refused", "[codebooks][io]") {
  auto const book = kvant::solve_codebook(128, 2);
  double const wrong = book.mse_per_coord * (1 + 2e-6);
  REQUIRE(refusal_after([&](auto& json) {
            json["mse_per_coord"] = wrong;
          }).starts_with("x.json: mse_per_coord: expected " + text(book.mse_per_coord).substr(0, 12)));
  REQUIRE(refusal_after([&](auto& json) {
            json["mse_per_coord"] = wrong;
          }).ends_with(" (these centroids at this d), got " + text(wrong)));
  REQUIRE(refusal_after([](auto& json) { json["mse_per_coord"] = 0; }).ends_with(" got 0.0"));
  REQUIRE(refusal_after([](auto& json) { json["mse_total"] = 0.117; }) ==
          "x.json: mse_total: expected " + text(book.mse_total) + " (d * mse_per_coord), got 0.117");
  // Centroids of one head size under the name of another.
  REQUIRE(refusal_after([](auto& json) { json["d"] = 112; }).starts_with("x.json: mse_per_coord: expected "));
}

TEST_CASE("numbers that JSON cannot hold are refused before writing", "[codebooks][io]") {
  auto const nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  auto const why = [](auto edit) -> std::string {
    auto book = kvant::solve_codebook(128, 2);
    edit(book);
    try {
      return kvant::to_json(book);
    } catch (kvant::io_error const& e) {
      return e.what();
    }
  };
  REQUIRE(why([&](auto& book) { book.centroids[2] = nan; }) ==
          "codebook: centroids[2]: expected a number from -1 to 1, got NaN");
  REQUIRE(why([&](auto& book) { book.centroids[0] = -infinity; }) ==
          "codebook: centroids[0]: expected a number from -1 to 1, got -infinity");
  REQUIRE(why([&](auto& book) { book.boundaries[1] = nan; }) ==
          "codebook: boundaries[1]: expected 0.0 (midpoint of its centroids), got NaN");
  REQUIRE(why([&](auto& book) { book.mse_per_coord = nan; }).ends_with(" got NaN"));
  REQUIRE(why([&](auto& book) { book.mse_total = infinity; }).ends_with(" got infinity"));
  REQUIRE(why([&](auto& book) { book = {}; }) == "codebook: d: expected an integer from 3 to 4096, got 0");
}

TEST_CASE("files that are too long, missing or folders are refused", "[codebooks][io]") {
  auto const why = [](fs::path const& path) -> std::string {
    try {
      (void)kvant::read_codebook(path.string());
      return {};
    } catch (kvant::io_error const& e) {
      return e.what();
    }
  };
  auto const whole = kvant::to_json(kvant::solve_codebook(64, 1));
  temporary_file const full{"kvant_io_codebooks_full.json", whole + std::string(1'000'000 - whole.size(), ' ')};
  temporary_file const longer{"kvant_io_codebooks_longer.json", whole + std::string(1'000'001 - whole.size(), ' ')};
  REQUIRE(why(full.path).empty());
  REQUIRE(why(longer.path) == longer.path.string() + ": the text: expected at most 1000000 bytes, got more");
  REQUIRE(refusal(std::string(1'000'001, '[')) == "x.json: the text: expected at most 1000000 bytes, got more");
  REQUIRE(refusal(std::string(100'000, '[')).starts_with("x.json: the text: expected JSON and nothing after it"));
  REQUIRE(why(codebooks / "none.json") ==
          (codebooks / "none.json").string() + ": expected a codebook file, but it cannot be opened");
  REQUIRE(why(codebooks) == codebooks.string() + ": expected a codebook file, but it cannot be read");
}
