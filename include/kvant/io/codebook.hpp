#pragma once

#include <cmath>
#include <cstdint>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <kvant/format/lloyd_max_solver.hpp>
#include <kvant/io/error.hpp>

namespace kvant::inline v0 {

/// Codebook files are a few hundred bytes; anything longer is something else.
inline constexpr std::size_t max_codebook_file_bytes = 1'000'000;

namespace detail {

/// Throws io_error "NAME: FIELD: expected X, got Y".
class codebook_refusal {
 public:
  explicit codebook_refusal(std::string_view name) : name_(name) {}
  [[noreturn]] void operator()(std::string const& field, std::string const& expected, std::string const& got) const {
    throw io_error(name_ + ": " + field + ": expected " + expected + ", got " + got);
  }

 private:
  std::string name_;
};

inline std::string number_text(double x) {
  return std::isfinite(x) ? nlohmann::json(x).dump() : std::isnan(x) ? "NaN" : x > 0 ? "infinity" : "-infinity";
}

inline std::string element_name(char const* field, std::size_t i) {
  return std::string{field} + "[" + std::to_string(i) + "]";
}

/// Refuses numbers that cannot be a codebook. Centroids may come from another solver: they must be what they claim
/// (antisymmetric, midpoints between them, the mse that the density gives them), not the optimum.
inline void check_codebook(codebook const& book, codebook_refusal const& refuse) {
  auto const range = [](int lo, int hi) {
    return "an integer from " + std::to_string(lo) + " to " + std::to_string(hi);
  };
  if (book.d < min_codebook_dim || book.d > max_codebook_dim)
    refuse("d", range(min_codebook_dim, max_codebook_dim), std::to_string(book.d));
  if (book.bits < 1 || book.bits > max_codebook_bits)
    refuse("bits", range(1, max_codebook_bits), std::to_string(book.bits));

  auto const n = std::size_t{1} << book.bits;
  auto const &c = book.centroids, &b = book.boundaries;
  if (c.size() != n) refuse("centroids", std::to_string(n) + " numbers (2^bits)", std::to_string(c.size()));
  if (b.size() != n - 1)
    refuse("boundaries", std::to_string(n - 1) + " numbers (2^bits - 1)", std::to_string(b.size()));
  for (std::size_t i = 0; i < n; ++i) {
    if (!(std::abs(c[i]) <= 1)) refuse(element_name("centroids", i), "a number from -1 to 1", number_text(c[i]));
    if (i > 0 && c[i] <= c[i - 1])
      refuse(element_name("centroids", i), "more than " + number_text(c[i - 1]) + " (ascending order)",
             number_text(c[i]));
  }
  double const tolerance = 1e-6 * c.back();
  for (std::size_t i = 0; i < n / 2; ++i)
    if (!(std::abs(c[i] + c[n - 1 - i]) <= tolerance))
      refuse(element_name("centroids", i), number_text(-c[n - 1 - i]) + " (symmetry)", number_text(c[i]));
  for (std::size_t i = 0; i + 1 < n; ++i)
    if (double const middle = 0.5 * (c[i] + c[i + 1]); !(std::abs(b[i] - middle) <= tolerance))
      refuse(element_name("boundaries", i), number_text(middle) + " (midpoint of its centroids)", number_text(b[i]));

  auto const fits = [&](char const* field, double value, double right, char const* why) {
    if (!(std::abs(value - right) <= 1e-6 * right)) refuse(field, number_text(right) + why, number_text(value));
  };
  std::vector<double> const positive(c.begin() + static_cast<std::ptrdiff_t>(n / 2), c.end());
  double const error = mean_squared_error(sphere_density{book.d}, positive);
  fits("mse_per_coord", book.mse_per_coord, error, " (these centroids at this d)");
  fits("mse_total", book.mse_total, book.d * book.mse_per_coord, " (d * mse_per_coord)");
}

/// JSON that names a field twice has no single meaning, but parsers take it: so the keys are watched while parsing.
inline nlohmann::json parse_codebook_json(std::string_view text, codebook_refusal const& refuse) {
  std::set<std::string> seen;
  auto const watch = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    if (event == nlohmann::json::parse_event_t::key && depth == 1)
      if (auto const key = parsed.get<std::string>(); !seen.insert(key).second)
        refuse(key, "the field once", "it twice");
    return true;
  };
  try {
    return nlohmann::json::parse(text.begin(), text.end(), watch);
  } catch (nlohmann::json::parse_error const& e) {
    refuse("the text", "JSON and nothing after it", e.what());
  } catch (nlohmann::json::out_of_range const& e) {  // 1e999
    refuse("the text", "numbers that a double can hold", e.what());
  }
}

}  // namespace detail

/// A codebook from JSON text. `name` stands at the front of error messages. Throws io_error when the text is not a
/// JSON object of exactly d, bits, centroids, boundaries, mse_per_coord and mse_total, or its numbers do not agree.
[[nodiscard]] inline codebook parse_codebook(std::string_view text, std::string_view name) {
  detail::codebook_refusal const refuse{name};
  if (text.size() > max_codebook_file_bytes)
    refuse("the text", "at most " + std::to_string(max_codebook_file_bytes) + " bytes", "more");
  auto const json = detail::parse_codebook_json(text, refuse);
  if (!json.is_object()) refuse("the text", "a JSON object", json.type_name());

  std::set<std::string> const fields{"d", "bits", "centroids", "boundaries", "mse_per_coord", "mse_total"};
  for (auto const& field : fields)
    if (!json.contains(field)) refuse(field, "this field", "none");
  for (auto const& item : json.items())
    if (!fields.contains(item.key())) refuse(item.key(), "no field of this name", json.at(item.key()).type_name());

  auto const integer = [&](char const* field) {
    auto const& value = json.at(field);
    if (!value.is_number_integer()) refuse(field, "an integer", value.is_number() ? value.dump() : value.type_name());
    bool const fits =
        value.is_number_unsigned() ? value.get<std::uint64_t>() <= INT32_MAX : value.get<std::int64_t>() >= INT32_MIN;
    if (!fits) refuse(field, "an integer of 32 bits", value.dump());
    return value.get<int>();
  };
  auto const number = [&](std::string const& field, nlohmann::json const& value) {
    if (!value.is_number()) refuse(field, "a number", value.type_name());
    return value.get<double>();
  };
  auto const numbers = [&](char const* field) {
    auto const& values = json.at(field);
    if (!values.is_array()) refuse(field, "an array of numbers", values.type_name());
    std::vector<double> all;
    for (auto const& value : values) all.push_back(number(detail::element_name(field, all.size()), value));
    return all;
  };
  codebook book{};
  book.d = integer("d");
  book.bits = integer("bits");
  book.centroids = numbers("centroids");
  book.boundaries = numbers("boundaries");
  book.mse_per_coord = number("mse_per_coord", json.at("mse_per_coord"));
  book.mse_total = number("mse_total", json.at("mse_total"));
  detail::check_codebook(book, refuse);
  return book;
}

/// Reads a codebook file. Throws io_error when it cannot be read or parse_codebook refuses it.
[[nodiscard]] inline codebook read_codebook(std::string const& path) {
  std::ifstream in{path, std::ios::binary};
  if (!in) throw io_error(path + ": expected a codebook file, but it cannot be opened");
  std::string text(max_codebook_file_bytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) throw io_error(path + ": expected a codebook file, but it cannot be read");
  text.resize(static_cast<std::size_t>(in.gcount()));
  return parse_codebook(text, path);
}

/// JSON text of a codebook; parse_codebook gives the same numbers back, bit by bit. Throws io_error for a codebook
/// that parse_codebook would refuse.
[[nodiscard]] inline std::string to_json(codebook const& book) {
  detail::check_codebook(book, detail::codebook_refusal{"codebook"});
  nlohmann::ordered_json json;
  json["d"] = book.d;
  json["bits"] = book.bits;
  json["centroids"] = book.centroids;
  json["boundaries"] = book.boundaries;
  json["mse_per_coord"] = book.mse_per_coord;
  json["mse_total"] = book.mse_total;
  return json.dump(2) + "\n";
}

}  // namespace kvant::inline v0
