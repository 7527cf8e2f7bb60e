#include <algorithm>
#include <vector>

#include "output.hpp"
#include "svg.hpp"

namespace report {
namespace {

/// Half a decade a step, from 1e-5 to 1.
constexpr int steps = 10;

int step_of(double error) {
  if (!(error > 1e-5)) return 0;
  return std::clamp(static_cast<int>(std::floor((std::log10(error) + 5) * 2)), 0, steps - 1);
}

std::string class_of(double error) { return fill("h{}", std::to_string(step_of(error))); }

/// "3e-4", "0.02": short enough for a cell.
std::string short_number(double x) {
  if (!(x > 1e-12)) return "0";
  if (x >= 0.095) return number_text("%.2f", x);
  auto text = number_text("%.0e", x);  // 3e-04
  if (auto const at = text.find("e-0"); at != text.npos) text.erase(at + 2, 1);
  return text;
}

}  // namespace

std::string map_scale() {
  std::string html = "<p class=scale><span>10<sup>&#8722;5</sup></span>";
  for (int i = 0; i < steps; ++i) html += fill("<i class=h{}></i>", std::to_string(i));
  return html + "<span>1 (each step half a decade)</span></p>\n";
}

std::string layer_map(sample_report const& r, setting how) {
  std::string html = "<div class=scroll><table class=map><thead><tr><th></th>";
  for (auto const& layer : r.data.layers) html += fill("<th>layer {}</th>", std::to_string(layer.index));
  html += "<th>mean</th></tr></thead><tbody>";
  for (auto const& line : r.results) {
    if (!(line.how == how) || line.what.kind == family::exact) continue;
    html += fill("<tr><th class={}>{}</th>", family_class(line.what.kind), short_name(line.what));
    auto const cell = [&](double error, char const* extra) {
      html += fill("<td class='{}{}' title='{}'>{}</td>", class_of(error), extra, number_text("%.6f", error),
                   short_number(error));
    };
    for (auto const& m : line.measures.layers) cell(1 - m.output_cosine.value(), "");
    cell(1 - line.measures.all(&layer_measures::output_cosine).value(), " mean");
    html += "</tr>";
  }
  return html + "</tbody></table></div>\n";
}

std::string head_maps(sample_report const& r, setting how) {
  constexpr double cell = 16, gap = 2, names = 26;
  double const w = names + r.data.q_heads * (cell + gap), h = static_cast<double>(r.data.layers.size()) * (cell + gap);
  std::string html = "<div class=multiples>";
  for (auto const& line : r.results) {
    if (!(line.how == how) || line.what.kind == family::exact) continue;
    html += fill("<figure><figcaption><b class={}>{}</b> worst head {}</figcaption>", family_class(line.what.kind),
                 short_name(line.what), number_text("%.4f", line.measures.output_cosine_worst_head()));
    html += fill("<svg viewBox='0 0 {} {}' width={} role=img aria-label='1 - cosine by layer and head, {}'>", px(w),
                 px(h), px(w), line.what.name);
    for (std::size_t i = 0; i < line.measures.layers.size(); ++i) {
      auto const& m = line.measures.layers[i];
      double const y = static_cast<double>(i) * (cell + gap);
      html += fill("<text class=tick x={} y={} text-anchor=end>{}</text>", px(names - 6), px(y + 12),
                   std::to_string(m.layer));
      for (std::size_t q = 0; q < m.head_cosine.size(); ++q) {
        double const error = 1 - m.head_cosine[q].value();
        html += fill(
            "<rect class={} x={} y={} width=16 height=16 rx=2><title>layer {}, q head {}: cosine {}</title></rect>",
            class_of(error), px(names + static_cast<double>(q) * (cell + gap)), px(y), std::to_string(m.layer),
            std::to_string(q), number_text("%.5f", 1 - error));
      }
    }
    html += "</svg></figure>";
  }
  return html + "</div>\n";
}

std::string energy_chart(sample_report const& r) {
  constexpr double row = 20, left = 64, full = 260;
  double const h = static_cast<double>(r.energies.size()) * row + 22;
  double const limit = left + full * most_energy_in_mean;
  std::string svg =
      fill("<svg class=bars viewBox='0 0 {} {}' width={} role=img aria-label='share of key energy in the mean'>",
           px(left + full + 60), px(h), px(left + full + 60));
  for (std::size_t i = 0; i < r.energies.size(); ++i) {
    auto const& e = r.energies[i];
    double const y = static_cast<double>(i) * row;
    std::string heads;
    for (double const x : e.in_mean_by_head) heads += (heads.empty() ? "" : ", ") + number_text("%.4f", x);
    svg += fill("<g><text class=tick x={} y={} text-anchor=end>layer {}</text>", px(left - 8), px(y + 13),
                std::to_string(e.layer));
    svg +=
        fill("<rect class='bar{}' x={} y={} width={} height=12 rx=2 />", e.in_mean > most_energy_in_mean ? " bad" : "",
             px(left), px(y + 3), px(std::max(1.0, full * e.in_mean)));
    svg += fill("<text class=tick x={} y={}>{}</text><title>by kv head: {}</title></g>",
                px(left + full * e.in_mean + 6), px(y + 13), number_text("%.4f", e.in_mean), heads);
  }
  svg +=
      fill("<line class=limit x1={} x2={} y1=0 y2={} /><text class=tick x={} y={} text-anchor=middle>{}</text></svg>\n",
           px(limit), px(limit), px(h - 16), px(limit), px(h - 4), number_text("%.1f", most_energy_in_mean));
  return svg;
}

}  // namespace report
