#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>

#include "run.hpp"

namespace report {

/// Text for HTML and SVG: what comes from files must not become markup.
[[nodiscard]] inline std::string escaped(std::string_view text) {
  std::string to;
  for (char const c : text) switch (c) {
      case '&':
        to += "&amp;";
        break;
      case '<':
        to += "&lt;";
        break;
      case '>':
        to += "&gt;";
        break;
      case '"':
        to += "&quot;";
        break;
      case '\'':
        to += "&#39;";
        break;
      default:
        to += c;
    }
  return to;
}

/// A template with {} where the parts go, in order.
template <class... Parts>
[[nodiscard]] std::string fill(std::string_view pattern, Parts const&... parts) {
  std::string to;
  auto const put = [&](std::string_view part) {
    auto const at = pattern.find("{}");
    to.append(pattern.substr(0, at)).append(part);
    pattern.remove_prefix(at == pattern.npos ? pattern.size() : at + 2);
  };
  (put(parts), ...);
  return to.append(pattern);
}

/// A coordinate: a tenth of a pixel is enough.
[[nodiscard]] inline std::string px(double x) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.1f", x);
  std::string_view const text = buffer;
  return std::string(text.ends_with(".0") ? text.substr(0, text.size() - 2) : text);
}

/// A logarithmic axis over whole decades: [10^low, 10^high] -> [from, to].
struct log_axis {
  int low = -5, high = 0;
  double from = 0, to = 1;

  [[nodiscard]] double at(double value) const { return from + (std::log10(value) - low) / (high - low) * (to - from); }
  /// Values below are not drawn.
  [[nodiscard]] double least() const { return std::pow(10.0, low); }
  /// The decades around [least, most], of which not more than six below the highest are kept.
  void cover(double least_value, double most_value) {
    high = static_cast<int>(std::ceil(std::log10(most_value) - 1e-9));
    low = static_cast<int>(std::floor(std::log10(least_value) + 1e-9));
    if (low < high - 6) low = high - 6;
    if (low >= high) low = high - 1;
  }
};

struct linear_axis {
  double low = 0, high = 1, from = 0, to = 1;
  [[nodiscard]] double at(double value) const { return from + (value - low) / (high - low) * (to - from); }
};

/// The class of a family's marks (page_style.hpp gives it a colour), and its mark: shape and colour say the same.
[[nodiscard]] std::string family_class(family kind);
[[nodiscard]] std::string mark(family kind, double x, double y);

/// "plain_4bit" for plain_turboquant_4bit: labels in charts must be short.
[[nodiscard]] std::string short_name(policy const& p);

/// 1 - cosine or KL of all policies against bits a value. `setting_index` picks the results.
enum class fidelity_measure { one_minus_cosine, kl };
[[nodiscard]] std::string fidelity_chart(sample_report const& r, setting how, fidelity_measure what);

/// 1 - cosine by position of the query.
[[nodiscard]] std::string position_chart(sample_report const& r, setting how);

/// 1 - cosine: policies down, layers across.
[[nodiscard]] std::string layer_map(sample_report const& r, setting how);

/// 1 - cosine: one small map a policy, layers down and q heads across.
[[nodiscard]] std::string head_maps(sample_report const& r, setting how);

/// The colours of the maps.
[[nodiscard]] std::string map_scale();

/// Bars of the share of key energy in the mean, by layer.
[[nodiscard]] std::string energy_chart(sample_report const& r);

/// A position on the paper that a label may take, and those that are taken.
struct box {
  double left = 0, top = 0, right = 0, bottom = 0;
  [[nodiscard]] double overlap(box const& o) const {
    double const w = std::min(right, o.right) - std::max(left, o.left),
                 h = std::min(bottom, o.bottom) - std::max(top, o.top);
    return w > 0 && h > 0 ? w * h : 0;
  }
};

}  // namespace report
