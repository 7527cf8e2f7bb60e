#include <algorithm>
#include <iterator>

#include "output.hpp"

namespace report {
namespace {

struct column {
  char const* group;  // over this column and those behind it without one
  char const* title;
  int width;
  char const* format;
  double (*value)(result const&);
};

template <running_mean layer_measures::*Member>
double mean_of(result const& r) {
  return r.measures.all(Member).value();
}

constexpr column columns[] = {
    {"", "bits", 7, "%.3f", [](result const& r) { return r.bits_per_value; }},
    {"Llama 32K", "MiB", 6, "%.0f", [](result const& r) { return r.what.mib_llama31_8b_32k; }},
    {nullptr, "saved", 6, "%.1f",
     [](result const& r) { return 100 * (1 - r.what.mib_llama31_8b_32k / llama_fp16_mib); }},
    {"mean cosine", "keys", 8, "%.4f", mean_of<&layer_measures::key_cosine>},
    {nullptr, "values", 7, "%.4f", mean_of<&layer_measures::value_cosine>},
    {"error", "rel.", 8, "%.4f", mean_of<&layer_measures::output_rel_error>},
    {"cosine of output", "mean", 8, "%.4f", mean_of<&layer_measures::output_cosine>},
    {nullptr, "layer", 8, "%.4f", [](result const& r) { return r.measures.output_cosine_worst_layer(); }},
    {nullptr, "head", 8, "%.4f", [](result const& r) { return r.measures.output_cosine_worst_head(); }},
    {"weights", "KL", 9, "%.5f", mean_of<&layer_measures::kl>},
    {nullptr, "top-1", 6, "%.1f", [](result const& r) { return 100 * mean_of<&layer_measures::top1>(r); }},
    {"MiB beside", "window", 7, "%.1f", [](result const& r) { return window_mib(r.what, r.how); }},
    {nullptr, "side", 5, "%.2f", [](result const& r) { return sinks_mib(r.how) + factors_mib(r.what); }},
    {"", "s", 6, "%.2f", [](result const& r) { return r.measures.seconds(); }},
};
constexpr int name_width = 22;

std::string padded(std::string const& text, int width) {
  auto const room = static_cast<std::size_t>(width);
  return text.size() >= room ? " " + text : std::string(room - text.size(), ' ') + text;
}
std::string name_column(std::string text) {
  text.resize(std::max<std::size_t>(text.size(), name_width), ' ');
  return text;
}

/// Titles, above them the names of their groups in the middle of a line.
std::string heading() {
  std::string groups = name_column(""), titles = name_column("policy");
  for (std::size_t i = 0; i < std::size(columns);) {
    std::string const name = columns[i].group;
    std::size_t width = 0;
    do {
      titles += padded(columns[i].title, columns[i].width);
      width += static_cast<std::size_t>(columns[i].width);
    } while (++i < std::size(columns) && columns[i].group == nullptr);
    std::string over(width, ' ');
    if (!name.empty()) {
      std::size_t const room = width - 2, rest = room - std::min(room, name.size());
      if (rest >= 4) over.replace(2, room, room, '-');  // else a dash or two would look like part of the name
      over.replace(2 + (rest >= 4 ? rest / 2 : rest), name.size(), name);
    }
    groups += over;
  }
  groups.erase(groups.find_last_not_of(' ') + 1);
  return groups + "\n" + titles + "\n" + std::string(titles.size(), '-') + "\n";
}

std::string energies_text(sample_report const& r) {
  std::string text = "Share of key energy in the mean over tokens, by layer:";
  for (auto const& e : r.energies)
    text += "  " + std::to_string(e.layer) + ": " + number_text("%.4f", e.in_mean) +
            (e.in_mean > most_energy_in_mean ? " (!)" : "");
  return text + "\n";
}

}  // namespace

std::string table_text(sample_report const& r) {
  auto const& s = r.data;
  std::string text = s.name + ": " + s.said("model") + ", layers";
  for (auto const& layer : s.layers) text.append(" ").append(std::to_string(layer.index));
  text += " of " + s.said("layers_total") + "; " + std::to_string(s.q_heads) + " q heads, " +
          std::to_string(s.kv_heads) + " kv heads, key dim " + std::to_string(s.key_dim) + ", value dim " +
          std::to_string(s.value_dim) + "; " + std::to_string(s.tokens) + " tokens, " + std::to_string(s.rows) +
          " query rows\n";
  text += energies_text(r);
  setting const* last = nullptr;
  for (auto const& line : r.results) {
    if (last == nullptr || !(*last == line.how))
      text.append("\n").append(setting_text(line.how)).append("\n").append(heading());
    last = &line.how;
    text += name_column(line.what.name);
    for (auto const& c : columns) text += padded(number_text(c.format, c.value(line)), c.width);
    text += "\n";
  }
  for (auto const& k : r.skipped) text.append("\nskipped ").append(k.name).append(": ").append(k.reason).append("\n");
  for (auto const& w : r.warnings) text.append("\nWARNING ").append(w).append("\n");
  return text;
}

std::string legend_text() {
  return "bits: of a value, keys and values together, as allocated for the sample's heads. MiB, saved: the pages of\n"
         "Llama-3.1-8B at 32,768 tokens (fp16: 4096). Beside the pages that model holds, for each sequence, a ring of\n"
         "exact rows (window: W newest tokens and an unfinished page) and a side record (sinks, balance factors).\n"
         "keys, values: of tokens in pages. rel.err: |o - o'| / |o| of attention outputs. Output cosine: mean over "
         "layers,\n"
         "rows and heads; the worst layer; the worst head of any layer. KL: exact against quantized weights, in nats.\n"
         "top-1: query rows whose heaviest key stays the same. s: seconds of one thread.\n";
}

}  // namespace report
