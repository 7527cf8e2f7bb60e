#include <cmath>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "output.hpp"
#include "run.hpp"
#include "support/attention_sample.hpp"
#include "support/catch.hpp"
#include "svg.hpp"

namespace {

using Catch::Matchers::WithinAbs;
using support::attention_sample;
using support::temporary_folder;
namespace fs = std::filesystem;

std::string text_of(fs::path const& path) {
  std::ifstream in{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{in}, {}};
}

/// Two short samples, all policies, two settings.
std::vector<report::sample_report> const& small_reports() {
  static auto const reports = [] {
    temporary_folder const folder("kvant_report_output");
    report::request wanted;
    for (unsigned const seed : {1u, 2u})
      wanted.files.push_back(folder.write("small" + std::to_string(seed) + ".safetensors",
                                          attention_sample({.bias = 50, .seed = seed}).bytes()));
    wanted.settings = {{32, 4}, {0, 0}};
    wanted.threads = 2;
    return report::run(wanted, {});
  }();
  return reports;
}

std::size_t count(std::string const& text, std::string const& what) {
  std::size_t n = 0;
  for (auto at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++n;
  return n;
}

}  // namespace

TEST_CASE("report.json has an object for every sample, policy and setting, with all its numbers", "[report][output]") {
  auto const json = nlohmann::json::parse(report::json_text(small_reports()));
  REQUIRE(json.is_array());
  REQUIRE(json.size() == 2 * 16 * 2);
  std::set<std::string> lines;
  for (auto const& o : json) {
    CAPTURE(o.at("policy"), o.at("sample"));
    for (char const* field : {"bits_per_value",
                              "mib_llama31_8b_32k",
                              "saved",
                              "key_cosine",
                              "key_residual_cosine",
                              "value_cosine",
                              "output_rel_error",
                              "output_cosine_mean",
                              "output_cosine_worst_layer",
                              "output_cosine_worst_head",
                              "attention_kl",
                              "top1_unchanged",
                              "window",
                              "sinks",
                              "seconds",
                              "window_mib",
                              "sinks_mib",
                              "factors_mib",
                              "window_rows",
                              "page_tokens"}) {
      CAPTURE(field);
      REQUIRE(o.at(field).is_number());
      REQUIRE(std::isfinite(o.at(field).get<double>()));
    }
    lines.insert(o.at("sample").get<std::string>() + " " + o.at("policy").get<std::string>() + " " +
                 o.at("window").dump());
    double const worst = o.at("output_cosine_worst_head"), layer = o.at("output_cosine_worst_layer"),
                 mean = o.at("output_cosine_mean");
    REQUIRE((worst <= layer + 1e-12 && layer <= mean + 1e-12));
    REQUIRE((o.at("top1_unchanged") >= 0 && o.at("top1_unchanged") <= 1));
    REQUIRE_THAT(o.at("saved").get<double>(), WithinAbs(1 - o.at("mib_llama31_8b_32k").get<double>() / 4096, 1e-12));
    REQUIRE(o.at("by_layer").size() == 2);
    REQUIRE(o.at("by_layer").at(1).at("layer") == 7);
    REQUIRE(o.at("by_layer").at(1).at("output_cosine_by_head").size() == 4);
    REQUIRE(o.at("by_position").size() == 5);  // rows at 39, 79, ...: sixteenths of 200 tokens that hold one
    double sum = 0;
    for (auto const& l : o.at("by_layer")) sum += l.at("output_cosine_mean").get<double>();
    REQUIRE_THAT(sum / 2, WithinAbs(mean, 1e-12));
  }
  REQUIRE(lines.size() == json.size());
  REQUIRE(lines.contains("small1 turboquant_1bit 32"));
  REQUIRE(lines.contains("small2 exact 0"));
}

TEST_CASE("bits a value are those of the sample's heads", "[report][output]") {
  for (auto const& line : small_reports()[0].results) {
    auto const& name = line.what.name;
    double const bits = line.bits_per_value;
    CAPTURE(name);
    // 64 key channels, 32 value channels, pages of 64 tokens.
    if (name == "exact") REQUIRE(bits == 16);
    if (name == "plain_turboquant_4bit") REQUIRE(bits == 4 + 32 / 96.0);            // one half for each vector
    if (name == "turboquant_4bit") REQUIRE(bits == 4 + (32 + 80 * 8 / 64.0) / 96);  // and a mean of 64 + 2 -> 80 bytes
    if (name == "bonsai_1bit") REQUIRE(bits == 1 + 32 / 96.0);                      // one group of 64, one of 32
    if (name == "kivi_2bit") REQUIRE(bits == 3);
  }
}

TEST_CASE("the table has a line for every policy and setting in fixed width", "[report][output]") {
  auto const text = report::table_text(small_reports()[0]);
  for (auto const& name : report::policy_names()) REQUIRE(count(text, "\n" + name + " ") == 2);
  REQUIRE(count(text, "\nwindow 32, 4 sinks\n") == 1);
  REQUIRE(count(text, "\nno window, no sinks\n") == 1);
  REQUIRE(count(text, "Share of key energy in the mean over tokens, by layer:  0: 0.9") == 1);
  std::set<std::size_t> widths;
  std::size_t begin = 0;
  for (auto end = text.find('\n'); end != text.npos; begin = end + 1, end = text.find('\n', begin)) {
    auto const line = text.substr(begin, end - begin);
    if (line.starts_with("policy ") || line.find("turboquant_") < 7 || line.starts_with("kivi_"))
      widths.insert(line.size());
  }
  REQUIRE(widths.size() == 1);
  REQUIRE(*widths.begin() <= 124);
}

TEST_CASE("report.html stands alone and shows what a file says as text", "[report][output]") {
  auto const html = report::html_text(small_reports());
  for (char const* outside : {"http:", "https:", "src=", "href=", "url(", "@import", "<script", "<link", "<iframe"}) {
    CAPTURE(outside);
    REQUIRE(html.find(outside) == html.npos);
  }
  REQUIRE(html.find("<b>&\"1\"") == html.npos);
  REQUIRE(html.find("Synthetic &lt;b&gt;&amp;&quot;1&quot;&lt;/b&gt;") != html.npos);
  REQUIRE(html.find("prefers-color-scheme:dark") != html.npos);
  REQUIRE(count(html, "class=warning") == 4);             // two samples of two layers
  REQUIRE(count(html, "<svg class=chart") == 2 * 2 * 3);  // samples, settings; cosine, KL, position
  REQUIRE(count(html, "<table class=map>") == 2 * 2);
  REQUIRE(count(html, "<figure>") == 2 * 2 * 15);
  REQUIRE(count(html, "<table class=all>") == 2 * 2);
  REQUIRE(html.find("nan") == html.npos);
  REQUIRE(html.find("inf") == html.npos);
  for (auto const& name : report::policy_names()) REQUIRE(count(html, ">" + name + "<") >= 4);
  for (char const* tag : {"div", "svg", "table", "tr", "td", "th", "g", "text", "section", "dl", "p", "figure"}) {
    CAPTURE(tag);
    std::string const name = tag;
    REQUIRE(count(html, "<" + name + ">") + count(html, "<" + name + " ") == count(html, "</" + name + ">"));
  }
}

TEST_CASE("axes cover the numbers they are given", "[report][output]") {
  report::log_axis axis;
  axis.from = 100, axis.to = 0;
  axis.cover(3e-4, 0.02);
  REQUIRE((axis.low == -4 && axis.high == -1));
  REQUIRE_THAT(axis.at(1e-4), WithinAbs(100, 1e-9));
  REQUIRE_THAT(axis.at(0.1), WithinAbs(0, 1e-9));
  axis.cover(1e-4, 0.1);
  REQUIRE((axis.low == -4 && axis.high == -1));
  axis.cover(1e-15, 1);
  REQUIRE((axis.low == -6 && axis.high == 0));
  axis.cover(1, 1);
  REQUIRE(axis.low < axis.high);
  REQUIRE(report::px(3) == "3");
  REQUIRE(report::px(-0.26) == "-0.3");
  REQUIRE(report::px(12.34) == "12.3");
  REQUIRE(report::fill("<{} {}>", "a", "b") == "<a b>");
  REQUIRE(report::escaped("<a href='x'>&\"") == "&lt;a href=&#39;x&#39;&gt;&amp;&quot;");
  REQUIRE(report::number_text("%.2f", std::numeric_limits<double>::quiet_NaN()) == "-");
}

TEST_CASE("files appear whole or not at all", "[report][output]") {
  temporary_folder const folder("kvant_report_output_files");
  auto const out = folder.path() / "a" / "b";
  report::write_files(out, {{"x.json", "one"}, {"x.html", "two"}});
  REQUIRE(text_of(out / "x.json") == "one");
  REQUIRE(text_of(out / "x.html") == "two");
  report::write_files(out, {{"x.json", "three"}, {"x.html", "four"}});
  REQUIRE(text_of(out / "x.json") == "three");

  auto const refusal = [](fs::path const& to, std::string const& second) {
    try {
      report::write_files(to, {{"x.json", "five"}, {second, "six"}});
      return std::string{};
    } catch (std::exception const& e) {
      return std::string(e.what());
    }
  };
  // The second cannot be written: the first stays what it was, and nothing is left lying about.
  fs::create_directories(out / "y.html");
  REQUIRE(refusal(out, "y.html") == (out / "y.html").string() + ": cannot be written: there is a folder of this name");
  REQUIRE(text_of(out / "x.json") == "three");
  REQUIRE(std::distance(fs::directory_iterator(out), fs::directory_iterator{}) == 3);
  fs::create_directories(out / ".z.html.part");
  REQUIRE(refusal(out, "z.html").find("z.html.part: cannot be written: ") != std::string::npos);
  REQUIRE(text_of(out / "x.json") == "three");
  REQUIRE_FALSE(fs::exists(out / ".x.json.part"));

  auto const file = folder.write("file", "");
  REQUIRE(refusal(file, "x.html").find(file + ": expected a folder to write to") != std::string::npos);
  REQUIRE(refusal(fs::path(file) / "below", "x.html").find(": expected a folder to write to, got: ") !=
          std::string::npos);

  REQUIRE_NOTHROW(report::check_folder(out));
  REQUIRE_NOTHROW(report::check_folder(out / "not" / "yet"));
  REQUIRE_NOTHROW(report::check_folder("."));
  REQUIRE_THROWS_WITH(report::check_folder(fs::path(file) / "below"),
                      (fs::path(file) / "below").string() + ": expected a folder to write to, got a file at " + file);
}
