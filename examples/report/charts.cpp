#include <algorithm>
#include <map>
#include <vector>

#include "output.hpp"
#include "svg.hpp"

namespace report {
namespace {

constexpr double width = 560, height = 400, left = 58, top = 14, bottom = 356;

/// The results that a chart shows: one setting, without the exact policy, whose error is zero.
std::vector<result const*> shown(sample_report const& r, setting how) {
  std::vector<result const*> all;
  for (auto const& line : r.results)
    if (line.how == how && line.what.kind != family::exact) all.push_back(&line);
  return all;
}

/// Decades of both settings, so that a change of the setting moves the points and not the axis.
template <class Fn>
log_axis axis_over(sample_report const& r, Fn const& values_of) {
  double least = 1e300, most = 0;
  for (auto const& line : r.results) {
    if (line.what.kind == family::exact) continue;
    for (double const x : values_of(line))
      if (x > 0) least = std::min(least, x), most = std::max(most, x);
  }
  log_axis axis;
  if (most > 0) axis.cover(least, most);
  axis.from = bottom, axis.to = top;
  return axis;
}

std::string decade_lines(log_axis const& y, double right) {
  std::string svg;
  for (int d = y.low; d <= y.high; ++d) {
    auto const at = px(y.at(std::pow(10.0, d)));
    svg += fill("<line class=grid x1={} x2={} y1={} y2={} />", px(left), px(right), at, at);
    svg += fill("<text class=tick x={} y={} dy=4 text-anchor=end>10<tspan class=power dy=-4>{}</tspan></text>",
                px(left - 12 - (d < 0 ? 6 : 0) + 6), at, std::to_string(d));
  }
  return svg;
}

std::string axis_titles(std::string const& x, std::string const& y, double right) {
  return fill("<text class=axis x={} y={} text-anchor=middle>{}</text>", px((left + right) / 2), px(height - 8), x) +
         fill("<text class=axis transform='translate(13 {}) rotate(-90)' text-anchor=middle>{}</text>",
              px((top + bottom) / 2), y);
}

std::string frame(std::string const& label, std::string const& content) {
  return fill("<svg class=chart viewBox='0 0 {} {}' role=img aria-label='{}'>", px(width), px(height), escaped(label)) +
         content + "</svg>\n";
}

double measure_of(result const& line, fidelity_measure what) {
  return what == fidelity_measure::kl ? line.measures.all(&layer_measures::kl).value()
                                      : 1 - line.measures.all(&layer_measures::output_cosine).value();
}

struct point {
  result const* line;
  double x, y, value;
};

/// Where the labels go: of the places around each point, the one that covers least.
std::vector<std::pair<box, bool>> place_labels(std::vector<point> const& points, box const& paper) {
  std::vector<box> taken;
  for (auto const& p : points) taken.push_back({p.x - 6, p.y - 6, p.x + 6, p.y + 6});
  std::vector<std::pair<box, bool>> places;
  for (auto const& p : points) {
    double const w = 6.3 * static_cast<double>(short_name(p.line->what).size()) + 2;
    box best;
    bool best_far = false;
    double least = 1e300;
    for (double const away : {0.0, 14.0, 28.0, 42.0})
      for (auto const& [dx, dy] : {std::pair{8.0, -7.0},
                                   {-8.0 - w, -7.0},
                                   {6.0, -19.0},
                                   {6.0, 5.0},
                                   {-6.0 - w, -19.0},
                                   {-6.0 - w, 5.0},
                                   {-w / 2, -22.0},
                                   {-w / 2, 8.0}}) {
        double const shift = dy < -8 ? -away : dy > 0 ? away : 0;
        if (away > 0 && shift == 0) continue;
        box const b{p.x + dx, p.y + dy + shift, p.x + dx + w, p.y + dy + shift + 14};
        double cost = away * 2;
        for (auto const& t : taken) cost += 10 * b.overlap(t);
        cost += 10 * (w * 14 - b.overlap(paper));
        if (cost < least - 1e-9) least = cost, best = b, best_far = away > 0;
      }
    taken.push_back(best);
    places.emplace_back(best, best_far);
  }
  return places;
}

/// The points of one family of equal key and value bits, joined: 4, 3, 2, 1 bits of the same idea.
std::string joined(std::vector<point> const& points, std::string const& prefix, family kind) {
  std::string path;
  std::vector<point> chain;
  for (auto const& p : points)
    if (p.line->what.name.starts_with(prefix)) chain.push_back(p);
  std::sort(chain.begin(), chain.end(), [](auto const& a, auto const& b) { return a.x < b.x; });
  for (auto const& p : chain) path += fill("{}{} {}", path.empty() ? "M" : "L", px(p.x), px(p.y));
  return chain.size() < 2 ? "" : fill("<path class='chain {}' d='{}'/>", family_class(kind), path);
}

std::string tooltip(result const& line) {
  auto const& m = line.measures;
  return "<title>" + line.what.name + ": " + number_text("%.3f", line.bits_per_value) + " bits, output cosine " +
         number_text("%.5f", m.all(&layer_measures::output_cosine).value()) + " (worst layer " +
         number_text("%.5f", m.output_cosine_worst_layer()) + ", worst head " +
         number_text("%.5f", m.output_cosine_worst_head()) + "), KL " +
         number_text("%.5f", m.all(&layer_measures::kl).value()) + "</title>";
}

}  // namespace

std::string family_class(family kind) {
  switch (kind) {
    case family::exact:
      return "f-exact";
    case family::balanced:
      return "f-balanced";
    case family::plain:
      return "f-plain";
    case family::kivi:
      return "f-kivi";
    case family::bonsai:
      return "f-bonsai";
  }
  return "";
}

std::string mark(family kind, double x, double y) {
  auto const c = family_class(kind);
  auto const path = [&](char const* d) {
    return fill("<path class='mark {}' transform='translate({} {})' d='{}'/>", c, px(x), px(y), d);
  };
  switch (kind) {
    case family::plain:
      return path("M0-6.2L6.2 0 0 6.2-6.2 0Z");
    case family::kivi:
      return path("M-4.6-4.6H4.6V4.6H-4.6Z");
    case family::bonsai:
      return path("M0-5.8 5.8 4.6H-5.8Z");
    default:
      return fill("<circle class='mark {}' cx={} cy={} r=5.2 />", c, px(x), px(y));
  }
}

std::string short_name(policy const& p) {
  std::string name = p.name;
  if (auto const at = name.find("plain_turboquant"); at == 0) name.erase(5, 11);
  return name;
}

std::string fidelity_chart(sample_report const& r, setting how, fidelity_measure what) {
  constexpr double right = width - 14;
  auto const y = axis_over(r, [&](result const& line) { return std::vector{measure_of(line, what)}; });
  linear_axis x;
  x.low = 1, x.high = 4.5, x.from = left, x.to = right;
  for (auto const& line : r.results)
    if (line.what.kind != family::exact)
      x.low = std::min(x.low, line.bits_per_value), x.high = std::max(x.high, line.bits_per_value + 0.1);

  std::string svg = decade_lines(y, right);
  for (int bits = static_cast<int>(std::ceil(x.low)); bits <= x.high; ++bits)
    svg += fill("<text class=tick x={} y={} text-anchor=middle>{}</text>", px(x.at(bits)), px(bottom + 18),
                std::to_string(bits));
  std::vector<point> points;
  for (auto const* line : shown(r, how))
    if (double const value = measure_of(*line, what); value > 0)
      points.push_back({line, x.at(line->bits_per_value), y.at(std::max(value, y.least())), value});
  // The defaults choose their places first.
  std::stable_sort(points.begin(), points.end(), [](auto const& a, auto const& b) {
    return (a.line->what.kind == family::balanced) > (b.line->what.kind == family::balanced);
  });
  svg += joined(points, "plain_turboquant_", family::plain) + joined(points, "turboquant_", family::balanced);
  auto const places = place_labels(points, {left + 2, top, right, bottom - 2});
  for (std::size_t i = 0; i < points.size(); ++i) {
    auto const& p = points[i];
    auto const& [place, far] = places[i];
    double const middle = (place.left + place.right) / 2, under = place.top < p.y ? place.bottom : place.top;
    if (far)
      svg += fill("<line class=leader x1={} y1={} x2={} y2={} />", px(p.x), px(p.y),
                  px(std::clamp(p.x, place.left, place.right)), px(under));
    bool const before = place.right<p.x, behind = place.left> p.x;
    svg += fill("<text class='label {}' x={} y={} text-anchor={}>{}</text>", family_class(p.line->what.kind),
                px(before   ? place.right
                   : behind ? place.left
                            : middle),
                px(place.top + 11),
                before   ? "end"
                : behind ? "start"
                         : "middle",
                short_name(p.line->what));
  }
  for (auto const& p : points) svg += "<g>" + mark(p.line->what.kind, p.x, p.y) + tooltip(*p.line) + "</g>";
  bool const kl = what == fidelity_measure::kl;
  svg += axis_titles("bits a value, as allocated",
                     kl ? "KL of attention weights (nats)" : "1 &#8722; cosine of attention output", right);
  return frame(kl ? "KL divergence against bits a value" : "1 - cosine of the attention output against bits a value",
               svg);
}

std::string position_chart(sample_report const& r, setting how) {
  constexpr double right = width - 140;
  auto const bins_of = [&](result const& line) {
    return line.measures.by_position(r.data.positions, r.data.tokens, 16);
  };
  auto const y = axis_over(r, [&](result const& line) {
    std::vector<double> all;
    for (auto const& bin : bins_of(line))
      if (double const e = 1 - bin.cosine.value(); e > 1e-9) all.push_back(e);
    return all;
  });
  linear_axis x;
  x.high = r.data.tokens, x.from = left, x.to = right;
  std::string svg = decade_lines(y, right);
  for (int i = 0; i <= 4; ++i)
    svg += fill("<text class=tick x={} y={} text-anchor=middle>{}</text>", px(x.at(r.data.tokens * i / 4)),
                px(bottom + 18), std::to_string(r.data.tokens * i / 4));

  struct end_label {
    result const* line;
    double y, at;  // wanted, given
  };
  std::vector<end_label> labels;
  std::map<result const*, std::string> paths;
  for (auto const* line : shown(r, how)) {
    double last = 0;
    for (auto const& bin : bins_of(*line)) {
      double const error = 1 - bin.cosine.value();
      if (!(error > y.least())) continue;
      auto& path = paths[line];
      last = y.at(error);
      path += fill("{}{} {}", path.empty() ? "M" : "L", px(x.at((bin.from + bin.to) / 2.0)), px(last));
    }
    if (last > 0) labels.push_back({line, last, last});
  }
  std::sort(labels.begin(), labels.end(), [](auto const& a, auto const& b) { return a.y < b.y; });
  constexpr double gap = 14;
  for (std::size_t i = 1; i < labels.size(); ++i) labels[i].at = std::max(labels[i].at, labels[i - 1].at + gap);
  for (std::size_t i = labels.size(); i-- > 0;)
    labels[i].at = std::min(labels[i].at, i + 1 < labels.size() ? labels[i + 1].at - gap : bottom);
  for (auto const& l : labels) {
    auto const c = family_class(l.line->what.kind);
    svg += fill("<g class='series {}'><path class=line d='{}'/>", c, paths[l.line]);
    svg += fill("<path class=leader d='M{} {}L{} {}'/>", px(x.at(r.data.tokens * 31 / 32.0) + 3), px(l.y),
                px(right + 16), px(l.at));
    svg +=
        fill("<text class='label {}' x={} y={}>{}</text>", c, px(right + 19), px(l.at + 4), short_name(l.line->what));
    svg += tooltip(*l.line) + "</g>";
  }
  svg += axis_titles("position of the query", "1 &#8722; cosine of attention output", right);
  return frame("1 - cosine of the attention output by position of the query", svg);
}

}  // namespace report
