#include <algorithm>
#include <filesystem>
#include <vector>

#include "output.hpp"
#include "page_style.hpp"
#include "svg.hpp"

namespace report {
namespace {

std::vector<setting> settings_of(std::vector<sample_report> const& reports) {
  std::vector<setting> all;
  for (auto const& line : reports.front().results)
    if (std::find(all.begin(), all.end(), line.how) == all.end()) all.push_back(line.how);
  return all;
}

std::string percent(double share) { return number_text("%.1f", 100 * share) + " %"; }

double mean(result const& line, running_mean layer_measures::*member) { return line.measures.all(member).value(); }

/// content(setting) once for each, of which the page shows the chosen one.
template <class Fn>
std::string by_setting(std::vector<setting> const& settings, Fn const& content) {
  std::string html;
  for (std::size_t i = 0; i < settings.size(); ++i)
    html += fill("<div class=s{}>", std::to_string(i)) + content(settings[i]) + "</div>\n";
  return html;
}

std::string legend() {
  std::string html = "<div class=legend>";
  struct entry {
    family kind;
    char const* words;
  };
  for (auto const& [kind, words] : {entry{family::balanced, "balanced, centered keys (the defaults)"},
                                    entry{family::plain, "plain TurboQuant: rotation alone"},
                                    entry{family::kivi, "KIVI"}, entry{family::bonsai, "Bonsai q1_0"}})
    html += "<span><svg viewBox='-7 -7 14 14'>" + mark(kind, 0, 0) + "</svg>" + words + "</span>";
  return html + "</div>";
}

std::string navigation(std::vector<setting> const& settings) {
  std::string inputs, labels;
  for (std::size_t i = 0; i < settings.size(); ++i) {
    auto const n = std::to_string(i);
    inputs += fill("<input class=pick type=radio name=setting id=s{}{}>", n, i == 0 ? " checked" : "");
    labels += fill("<label for=s{}>{}</label>", n, setting_text(settings[i]));
  }
  return inputs + "\n<nav><div><div class=labels>" + labels + "</div>" + legend() + "</div></nav>\n";
}

/// The defaults in large: what they take, and how they do on each sample.
std::string cards(std::vector<sample_report> const& reports, setting how) {
  std::string html = "<div class=cards>";
  for (char const* name : {"turboquant_4bit", "turboquant_3bit", "turboquant_2bit"}) {
    std::string rows;
    policy const* found = nullptr;
    for (auto const& r : reports)
      for (auto const& line : r.results) {
        if (line.what.name != name || !(line.how == how)) continue;
        found = &line.what;
        rows += fill("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>", escaped(r.data.name),
                     number_text("%.4f", mean(line, &layer_measures::output_cosine)),
                     number_text("%.4f", line.measures.output_cosine_worst_layer()),
                     number_text("%.4f", line.measures.output_cosine_worst_head()),
                     number_text("%.4f", mean(line, &layer_measures::kl)));
      }
    if (found == nullptr) continue;
    html += fill("<div class=card><h3>{}</h3><div class=big>{} MiB <small>of {}: {} saved</small></div>", name,
                 number_text("%.0f", found->mib_llama31_8b_32k), number_text("%.0f", llama_fp16_mib),
                 percent(1 - found->mib_llama31_8b_32k / llama_fp16_mib));
    html += "<table><tr><th>output cosine</th><th>mean</th><th>worst layer</th><th>worst head</th><th>KL</th></tr>" +
            rows + "</table></div>\n";
  }
  return html + "</div>\n";
}

std::string full_table(sample_report const& r, setting how) {
  std::string html =
      "<div class=scroll><table class=all><thead><tr><th></th><th></th><th colspan=2>Llama-3.1-8B, 32K</th>"
      "<th colspan=2>mean cosine of</th><th></th><th colspan=3>cosine of attention output</th>"
      "<th colspan=2>attention weights</th><th colspan=2>MiB beside pages</th><th></th></tr>"
      "<tr><th>policy</th><th>bits</th><th>MiB</th><th>saved</th><th>keys</th><th>values</th>"
      "<th>rel. error</th><th>mean</th><th>worst layer</th><th>worst head</th><th>KL</th><th>top-1 kept</th>"
      "<th>window</th><th>side</th><th>seconds</th></tr></thead><tbody>";
  for (auto const& line : r.results) {
    if (!(line.how == how)) continue;
    html += fill("<tr><td class={}>{}</td>", family_class(line.what.kind), line.what.name);
    auto const cell = [&](std::string const& text) { html += "<td>" + text + "</td>"; };
    cell(number_text("%.3f", line.bits_per_value));
    cell(number_text("%.0f", line.what.mib_llama31_8b_32k));
    cell(percent(1 - line.what.mib_llama31_8b_32k / llama_fp16_mib));
    cell(number_text("%.4f", mean(line, &layer_measures::key_cosine)));
    cell(number_text("%.4f", mean(line, &layer_measures::value_cosine)));
    cell(number_text("%.4f", mean(line, &layer_measures::output_rel_error)));
    cell(number_text("%.5f", mean(line, &layer_measures::output_cosine)));
    cell(number_text("%.5f", line.measures.output_cosine_worst_layer()));
    cell(number_text("%.5f", line.measures.output_cosine_worst_head()));
    cell(number_text("%.5f", mean(line, &layer_measures::kl)));
    cell(percent(mean(line, &layer_measures::top1)));
    cell(number_text("%.1f", window_mib(line.what, line.how)));
    cell(number_text("%.2f", sinks_mib(line.how) + factors_mib(line.what)));
    cell(number_text("%.2f", line.measures.seconds()));
    html += "</tr>";
  }
  return html + "</tbody></table></div>\n";
}

std::string provenance(sample_report const& r) {
  auto const& s = r.data;
  std::string html = "<dl>";
  auto const entry = [&](std::string const& key, std::string const& text) {
    html += "<dt>" + escaped(key) + "</dt><dd>" + escaped(text) + "</dd>";
  };
  for (char const* key : {"model", "license", "architecture", "quantization", "text"}) entry(key, s.said(key));
  std::string layers;
  for (auto const& layer : s.layers) {
    layers += (layers.empty() ? "" : ", ") + std::to_string(layer.index);
    if (layer.sliding_window > 0) layers += " (sliding window " + std::to_string(layer.sliding_window) + ")";
  }
  entry("layers", layers + " of " + s.said("layers_total"));
  entry("heads", std::to_string(s.q_heads) + " q, " + std::to_string(s.kv_heads) + " kv, key dim " +
                     std::to_string(s.key_dim) + ", value dim " + std::to_string(s.value_dim));
  entry("rows", std::to_string(s.tokens) + " tokens of keys and values, " + std::to_string(s.rows) + " query rows");
  entry("softmax scale", s.said("softmax_scale") + (s.soft_cap > 0 ? ", soft cap " + s.said("soft_cap") : ""));
  entry("RoPE pairs", s.said("rope_pairs"));
  entry("file", std::filesystem::path(s.path).filename().string());
  return html + "</dl>\n";
}

std::string panel(std::string const& title, std::string const& note, std::string const& content) {
  return fill("<div class=panel><h3>{}</h3><p class=note>{}</p>{}</div>\n", title, note, content);
}

std::string section(sample_report const& r, std::vector<setting> const& settings) {
  auto const& s = r.data;
  std::string html = fill(
      "<section><h2>{}</h2><p class=note>{}; license {}; {} q heads, {} kv heads of {}; {} layers of {}, "
      "{} tokens, {} query rows</p>",
      escaped(s.said("model")), escaped(s.name), escaped(s.said("license")), std::to_string(s.q_heads),
      std::to_string(s.kv_heads), std::to_string(s.key_dim), std::to_string(s.layers.size()),
      escaped(s.said("layers_total")), std::to_string(s.tokens), std::to_string(s.rows));
  for (auto const& w : r.warnings) html += "<div class=warning><b>Warning.</b> " + escaped(w) + "</div>\n";
  for (auto const& k : r.skipped)
    html += "<div class=warning><b>Skipped</b> " + escaped(k.name) + ": " + escaped(k.reason) + "</div>\n";
  html += "<div class=two>" +
          panel("Attention output against bits",
                "Lower is better; left is smaller. Mean over layers, query rows and heads.",
                by_setting(settings,
                           [&](setting how) { return fidelity_chart(r, how, fidelity_measure::one_minus_cosine); })) +
          panel("Attention weights against bits", "KL divergence of the quantized weights from the exact ones.",
                by_setting(settings, [&](setting how) { return fidelity_chart(r, how, fidelity_measure::kl); })) +
          panel("By layer", "1 &#8722; cosine of the attention output. A mean over layers hides a dead one.",
                by_setting(settings, [&](setting how) { return layer_map(r, how); }) + map_scale()) +
          panel("By position", "Means over sixteenths of the text; a line begins where pages are read.",
                by_setting(settings, [&](setting how) { return position_chart(r, how); })) +
          "</div>";
  html += panel("By head", "One map a policy: layers down, q heads across, 1 &#8722; cosine of the attention output.",
                by_setting(settings, [&](setting how) { return head_maps(r, how); }) + map_scale());
  html += panel("All numbers", "", by_setting(settings, [&](setting how) { return full_table(r, how); }));
  html += "<div class=two>" +
          panel("Share of key energy in the mean over tokens",
                "Near 1 the keys hardly differ: a rotation without centering spends its codes on what they share.",
                energy_chart(r)) +
          panel("Where the numbers come from", "", provenance(r)) + "</div></section>\n";
  return html;
}

constexpr char reading[] =
    "<div class=panel style='margin-top:44px'><h3>How to read it</h3><dl>"
    "<dt>What is compared</dt><dd>Attention in double precision over the same queries: once over exact 16-bit keys and "
    "values, once over sinks, quantized pages and the exact window, as a cache would hold them when that row was "
    "generated.</dd>"
    "<dt>Bits a value</dt><dd>Keys and values together, as allocated: codes, scales, minima and page means, for the "
    "heads "
    "of the sample.</dd>"
    "<dt>MiB, saved</dt><dd>Pages of Llama-3.1-8B (32 layers, 8 kv heads of 128) at 32,768 tokens; 4096 in fp16.</dd>"
    "<dt>MiB beside pages</dt><dd>What one sequence of that model holds beside its pages: a ring of exact rows "
    "(window: the W "
    "newest tokens and an unfinished page) and the side record (sinks, balance factors).</dd>"
    "<dt>Cosine of keys, values</dt><dd>Decoded against exact, over tokens in pages. Keys with a large mean look good "
    "here "
    "and may still be useless: judge by the attention.</dd>"
    "<dt>Worst layer, worst head</dt><dd>The least of the means over the rows of a layer, and of a q head in any "
    "layer.</dd>"
    "<dt>Relative error</dt><dd>|o &#8722; o&#8242;| / |o| of attention outputs, mean over rows and heads.</dd>"
    "<dt>KL</dt><dd>Of attention weights, exact against quantized, in nats, mean over rows and heads.</dd>"
    "<dt>Top-1 kept</dt><dd>Query rows, by head, whose heaviest key stays the same.</dd></dl></div>\n";

}  // namespace

std::string html_text(std::vector<sample_report> const& reports) {
  auto const settings = settings_of(reports);
  std::string html =
      "<!doctype html>\n<html lang=en><head><meta charset=utf-8><meta name=viewport "
      "content='width=device-width,initial-scale=1'><title>kvant: fidelity report</title>\n<style>";
  html += page_style;
  html +=
      "</style></head><body>\n<header><h1>What a quantized KV cache keeps</h1><p class=lead>Every policy of kvant on "
      "attention inputs of real models";
  for (std::size_t i = 0; i < reports.size(); ++i)
    html += (i == 0 ? ": " : i + 1 < reports.size() ? ", " : " and ") + escaped(reports[i].data.said("model"));
  html += ". Bytes are those of the pages as allocated; the exact window and sinks are billed apart.</p></header>\n";
  html += navigation(settings) + "<main>\n";
  html += by_setting(settings, [&](setting how) { return cards(reports, how); });
  for (auto const& r : reports) html += section(r, settings);
  return html + reading +
         "</main>\n<footer>Made by <code>examples/report</code>. The same numbers are in "
         "<code>report.json</code>.</footer></body></html>\n";
}

}  // namespace report
