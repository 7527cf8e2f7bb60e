#include <algorithm>
#include <cmath>
#include <exception>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "output.hpp"
#include "run.hpp"
#include "support/attention_sample.hpp"
#include "support/catch.hpp"

namespace {

using Catch::Matchers::WithinAbs;
using support::attention_sample;
using support::temporary_folder;

/// A report over files of these shapes: short texts, window 32 and 4 sinks, then neither.
std::vector<report::sample_report> report_on(std::vector<support::sample_shape> const& shapes,
                                             std::vector<std::string> const& policies = {}, int threads = 2) {
  temporary_folder const folder("kvant_report_run");
  report::request wanted;
  for (std::size_t i = 0; i < shapes.size(); ++i)
    wanted.files.push_back(folder.write(std::to_string(i) + ".safetensors", attention_sample(shapes[i]).bytes()));
  wanted.policies = policies;
  wanted.settings = {{32, 4}, {0, 0}};
  wanted.threads = threads;
  return report::run(wanted, {});
}

report::result const& find(report::sample_report const& r, std::string const& policy, report::setting how) {
  auto const it = std::find_if(r.results.begin(), r.results.end(),
                               [&](auto const& line) { return line.what.name == policy && line.how == how; });
  REQUIRE(it != r.results.end());
  return *it;
}

double real(kvant::half x) { return static_cast<double>(static_cast<float>(x)); }

/// Attention of one query over given keys and values, [tokens, dim]: what the library's reference must come to.
std::vector<double> plain_attention(kvant::half const* q, std::vector<std::vector<double>> const& keys,
                                    std::vector<std::vector<double>> const& values, double scale, int window,
                                    double cap) {
  std::vector<double> logits, out(values[0].size());
  auto const length = static_cast<int>(keys.size());
  int const first = window > 0 ? std::max(0, length - window) : 0;
  double sum = 0;
  for (int t = first; t < length; ++t) {
    double dot = 0;
    auto const& key = keys[static_cast<std::size_t>(t)];
    for (std::size_t c = 0; c < key.size(); ++c) dot += real(q[c]) * key[c];
    double const logit = cap > 0 ? cap * std::tanh(scale * dot / cap) : scale * dot;
    logits.push_back(std::exp(logit));
    sum += logits.back();
  }
  for (int t = first; t < length; ++t)
    for (std::size_t c = 0; c < out.size(); ++c)
      out[c] += logits[static_cast<std::size_t>(t - first)] / sum * values[static_cast<std::size_t>(t)][c];
  return out;
}

/// What fn() throws; empty if nothing.
template <class Fn>
std::string thrown(Fn const& fn) {
  try {
    fn();
    return {};
  } catch (std::exception const& e) {
    return e.what();
  }
}

}  // namespace

TEST_CASE("exact pages change nothing", "[report][run]") {
  auto const reports = report_on({{}}, {"exact"});
  for (auto const& line : reports.at(0).results) {
    auto const& m = line.measures;
    REQUIRE_THAT(m.all(&report::layer_measures::key_cosine).value(), WithinAbs(1, 1e-12));
    REQUIRE_THAT(m.all(&report::layer_measures::key_residual_cosine).value(), WithinAbs(1, 1e-12));
    REQUIRE_THAT(m.all(&report::layer_measures::value_cosine).value(), WithinAbs(1, 1e-12));
    REQUIRE_THAT(m.output_cosine_worst_head(), WithinAbs(1, 1e-12));
    REQUIRE(m.all(&report::layer_measures::output_rel_error).value() == 0);
    REQUIRE(m.all(&report::layer_measures::kl).value() == 0);
    REQUIRE(m.all(&report::layer_measures::top1).value() == 1);
    REQUIRE(m.all(&report::layer_measures::output_cosine).count == 2 * 5 * 4);  // layers, rows, q heads
  }
  // Pages of the last row (position 199): [4, 128) of W = 32, [0, 192) of none; 2 layers of 2 kv heads.
  auto const tokens = [&](std::size_t i) {
    return reports[0].results[i].measures.all(&report::layer_measures::key_cosine).count;
  };
  REQUIRE(tokens(0) == 2 * 2 * 124);
  REQUIRE(tokens(1) == 2 * 2 * 192);
}

TEST_CASE("a row attends to its sinks, to the pages decoded and to the exact window", "[report][run]") {
  using key_format = kvant::turboquant_key<2>;
  using value_format = kvant::turboquant<2>;
  auto file = attention_sample({.rows = 7, .layers = {3}});
  file.header["__metadata__"]["sliding_window.3"] = "150";
  file.header["__metadata__"]["soft_cap"] = "2.5";
  temporary_folder const folder("kvant_report_run_rows");
  auto const s = report::load_sample(folder.write("x", file.bytes()));
  auto const& layer = s.layers[0];
  auto const exact = report::attend_exactly(s, layer);
  for (report::setting const how : {report::setting{32, 4}, report::setting{0, 0}, report::setting{1000, 4}}) {
    CAPTURE(how.window);
    auto const measured = report::measure_layer<key_format, value_format>({s, layer, exact, how});
    int const history = report::committed(199, how.window, 64);
    report::plain_cache<key_format, value_format> cache;
    REQUIRE(cache.build({2, 64, 32, 0}, s.keys(layer), s.values(layer), 200, history, how.sinks).ok());
    double cosines = 0;
    for (int head = 0; head < 4; ++head) {
      int const kv = head / 2;
      std::vector<double> keys(200 * 64), values(200 * 32);
      cache.decode(kv, keys.data(), values.data());
      for (std::size_t r = 0; r < 7; ++r) {
        std::vector<std::vector<double>> true_keys, true_values, seen_keys, seen_values;
        int const committed = report::committed(s.positions[r], how.window, 64);
        for (int t = 0; t <= s.positions[r]; ++t) {
          auto& key = true_keys.emplace_back();
          auto& value = true_values.emplace_back();
          for (int c = 0; c < 64; ++c) key.push_back(real(s.keys(layer).row(t, kv)[c]));
          for (int c = 0; c < 32; ++c) value.push_back(real(s.values(layer).row(t, kv)[c]));
          bool const coded = t >= how.sinks && t < committed;
          seen_keys.push_back(coded ? std::vector(keys.begin() + t * 64, keys.begin() + t * 64 + 64) : key);
          seen_values.push_back(coded ? std::vector(values.begin() + t * 32, values.begin() + t * 32 + 32) : value);
        }
        auto const* q = layer.q.data() + (static_cast<std::int64_t>(r) * 4 + head) * 64;
        auto const expected = plain_attention(q, true_keys, true_values, 0.125, 150, 2.5);
        auto const coded = plain_attention(q, seen_keys, seen_values, 0.125, 150, 2.5);
        auto const place = (r * 4 + static_cast<std::size_t>(head)) * 32;
        for (std::size_t c = 0; c < 32; ++c) REQUIRE_THAT(exact.out[place + c], WithinAbs(expected[c], 1e-12));
        cosines += report::cosine(expected, coded);
        REQUIRE(measured.row_cosine[r].count == 4);
      }
    }
    REQUIRE_THAT(measured.output_cosine.value(), WithinAbs(cosines / 28, 1e-12));
    REQUIRE((how.window == 1000) == (cosines == 28 || std::abs(cosines - 28) < 1e-12));  // coded rows do differ
  }
}

TEST_CASE("one thread and three come to the same numbers", "[report][run]") {
  auto const one = report_on({{}}, {"turboquant_2bit", "kivi_2bit"}, 1),
             three = report_on({{}}, {"turboquant_2bit", "kivi_2bit"}, 3);
  for (std::size_t i = 0; i < one[0].results.size(); ++i)
    for (auto member :
         {&report::layer_measures::output_cosine, &report::layer_measures::kl, &report::layer_measures::key_cosine})
      REQUIRE(one[0].results[i].measures.all(member).sum == three[0].results[i].measures.all(member).sum);
}

TEST_CASE("adjacent pairs are balanced as pairs of their own", "[report][run]") {
  auto const cosine_with = [](std::string const& pairs, std::string const& policy) {
    auto file = attention_sample({.layers = {0}});
    file.header["__metadata__"]["rope_pairs"] = pairs;
    // Channels 2 and 3 are loud: one pair by (2c, 2c + 1), two halves of two pairs by (c, c + 32).
    auto const begin = file.header["layers.0.k"]["data_offsets"][0].get<std::size_t>();
    for (std::size_t i = 0; i < 200 * 2; ++i)
      for (std::size_t const c : {std::size_t{2}, std::size_t{3}}) {
        auto* const at = file.data.data() + begin + 2 * (i * 64 + c);
        kvant::half x;
        std::memcpy(&x, at, 2);
        x = kvant::half(static_cast<float>(x) * 30.f);
        std::memcpy(at, &x, 2);
      }
    temporary_folder const folder("kvant_report_run_pairs");
    auto const reports = report::run({{folder.write("x", file.bytes())}, {policy}, {{0, 0}}, 1}, {});
    return reports.at(0).results.at(0).measures.all(&report::layer_measures::kl).value();
  };
  REQUIRE(cosine_with("adjacent", "turboquant_3bit") < 0.8 * cosine_with("half_split", "turboquant_3bit"));
  REQUIRE(cosine_with("adjacent", "plain_turboquant_3bit") == cosine_with("half_split", "plain_turboquant_3bit"));
}

TEST_CASE("a mean that carries the keys is warned of where a plain rotation is chosen", "[report][run]") {
  auto const biased =
      report_on({{.bias = 100}}, {"turboquant_4bit", "plain_turboquant_4bit", "bonsai_1bit_rotated", "kivi_2bit"});
  auto const& r = biased.at(0);
  REQUIRE(r.energies.size() == 2);
  for (auto const& e : r.energies) REQUIRE(e.in_mean > 0.99);
  REQUIRE(r.warnings.size() == 2);
  REQUIRE(r.warnings[1].starts_with("layer 7: the mean over tokens carries 0.99"));
  REQUIRE(r.warnings[1].find(": plain_turboquant_4bit, bonsai_1bit_rotated. ") != std::string::npos);
  auto const table = report::table_text(r);
  REQUIRE(table.find("WARNING layer 0: ") != std::string::npos);
  REQUIRE(table.find("  0: 0.99") != std::string::npos);
  // And it is right to warn: centering is worth it.
  auto const kl = [&](char const* policy) {
    return find(r, policy, {0, 0}).measures.all(&report::layer_measures::kl).value();
  };
  REQUIRE(kl("turboquant_4bit") < 0.1 * kl("plain_turboquant_4bit"));
  REQUIRE(report_on({{.bias = 100}}, {"turboquant_4bit", "kivi_2bit"}).at(0).warnings.empty());
  REQUIRE(report_on({{.bias = 1}}, {"plain_turboquant_4bit"}).at(0).warnings.empty());
}

TEST_CASE("a text shorter than a page leaves nothing to measure but is no error", "[report][run]") {
  auto const reports = report_on({{.tokens = 40, .rows = 2, .layers = {0}}}, {"turboquant_2bit"});
  auto const& m = reports.at(0).results.at(1).measures;
  REQUIRE(std::isnan(m.all(&report::layer_measures::key_cosine).value()));
  REQUIRE_THAT(m.output_cosine_worst_head(), WithinAbs(1, 1e-12));
  auto const json = nlohmann::json::parse(report::json_text(reports));
  REQUIRE(json.at(1).at("key_cosine").is_null());
  REQUIRE(json.at(1).at("output_cosine_mean").get<double>() > 0.999999);
  REQUIRE(report::html_text(reports).size() > 10'000);
}

TEST_CASE("policies that cannot serve a head size are skipped and named", "[report][run]") {
  // 48 = 12 * 4: a Hadamard order. 176 = 11 * 16 is none.
  REQUIRE(report_on({{.tokens = 70, .key_dim = 48, .layers = {0}}}, {"turboquant_4bit"}).at(0).skipped.empty());
  auto const reports = report_on({{.tokens = 70, .key_dim = 176, .layers = {0}}});
  auto const& r = reports.at(0);
  std::set<std::string> skipped, measured;
  for (auto const& k : r.skipped) skipped.insert(k.name);
  for (auto const& line : r.results) measured.insert(line.what.name);
  REQUIRE(skipped.contains("turboquant_4bit"));
  REQUIRE(skipped.contains("bonsai_1bit_rotated"));
  REQUIRE(measured == std::set<std::string>{"exact", "kivi_2bit", "kivi_2bit_g64", "kivi_4bit", "bonsai_1bit"});
  REQUIRE(r.skipped[0].reason.find("got 176") != std::string::npos);
  REQUIRE(report::table_text(r).find("skipped turboquant_4bit: key_dim: expected") != std::string::npos);
  REQUIRE(report::html_text(reports).find("turboquant_4bit: key_dim: expected") != std::string::npos);
  auto const why = thrown([] { (void)report_on({{.tokens = 70, .key_dim = 176, .layers = {0}}}, {"k4v2"}); });
  REQUIRE(why.find("no policy can serve this shape:\n  k4v2: key_dim: expected") != std::string::npos);
}

TEST_CASE("a bad second file is refused before the first is measured", "[report][run]") {
  temporary_folder const folder("kvant_report_run_second");
  report::request wanted;
  wanted.files = {folder.write("good.safetensors", attention_sample({}).bytes()),
                  folder.write("bad.safetensors", "short")};
  wanted.settings = {{0, 0}};
  int told = 0;
  auto const why = thrown([&] { (void)report::run(wanted, [&](int, int, std::string const&) { ++told; }); });
  REQUIRE(why.find("bad.safetensors: the file: expected at least 8 bytes") != std::string::npos);
  REQUIRE(told == 0);
  wanted.files.pop_back();
  wanted.policies = {"exact", "k3v2"};
  int last = 0, total = 0;
  (void)report::run(wanted, [&](int done, int of, std::string const&) {
    REQUIRE(done == ++last);
    total = of;
  });
  REQUIRE(last == total);
  REQUIRE(total == 2 * 3);  // layers; exact attention and two policies
}
