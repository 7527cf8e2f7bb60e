#include "sample.hpp"

#include <charconv>
#include <climits>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <set>
#include <string_view>
#include <utility>

#include <kvant/io/safetensors.hpp>

namespace report {
namespace {

constexpr std::string_view format_name = "kvant-attention-inputs-1";

class reader {
 public:
  explicit reader(std::string const& path) : file_(path) {}

  sample read() {
    s_.path = file_.path();
    s_.name = std::filesystem::path(s_.path).stem().string();
    s_.metadata = file_.header().metadata;
    if (metadata("format") != format_name) refuse("__metadata__: format", std::string(format_name), metadata("format"));
    s_.softmax_scale = number("softmax_scale");
    if (s_.metadata.count("soft_cap") != 0) s_.soft_cap = number("soft_cap");
    auto const pairs = metadata("rope_pairs");
    if (pairs != "half_split" && pairs != "adjacent")
      refuse("__metadata__: rope_pairs", "half_split or adjacent", pairs);
    s_.pairs = pairs == "adjacent" ? rope_pairs::adjacent : rope_pairs::half_split;
    read_positions();
    for (int const index : layer_indices()) read_layer(index);
    for (std::size_t r = 0; r < s_.positions.size(); ++r)
      if (s_.positions[r] < 0 || s_.positions[r] >= s_.tokens)
        refuse("q_positions[" + std::to_string(r) + "]", "0 to " + std::to_string(s_.tokens - 1) + " (the last token)",
               std::to_string(s_.positions[r]));
    return std::move(s_);
  }

 private:
  [[noreturn]] void refuse(std::string const& what, std::string const& expected, std::string const& got) const {
    throw kvant::io_error(file_.path() + ": " + what + ": expected " + expected + ", got " + got);
  }

  std::string metadata(std::string const& key) const {
    auto const& all = file_.header().metadata;
    auto const it = all.find(key);
    if (it == all.end()) refuse("__metadata__: " + key, "this key", "none");
    return it->second;
  }

  double number(std::string const& key) const {
    auto const text = metadata(key);
    double value = 0;
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(value) || value <= 0)
      refuse("__metadata__: " + key, "a decimal number above 0", '"' + text + '"');
    return value;
  }

  /// A decimal number without sign or leading zeros, as layer indices are written; -1 for anything else.
  static int natural(std::string_view text) {
    int value = 0;
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    bool const whole = error == std::errc{} && end == text.data() + text.size() && std::to_string(value) == text;
    return whole && value >= 0 ? value : -1;
  }

  void read_positions() {
    auto const& info = file_.tensor("q_positions");
    if (info.shape.size() != 1 || info.shape[0] < 1 || info.shape[0] > INT_MAX)
      refuse("q_positions: shape", "[rows] with at least 1 row", kvant::detail::shape_text(info.shape));
    s_.positions = file_.read<std::int32_t>("q_positions");
    s_.rows = static_cast<int>(info.shape[0]);
  }

  /// The layers of which at least one tensor is there; read_layer asks for all three.
  std::set<int> layer_indices() const {
    std::set<int> indices;
    for (auto const& entry : file_.header().tensors) {
      std::string_view name = entry.first;
      if (!name.starts_with("layers.") || name.size() < 10) continue;
      auto const end = name.substr(name.size() - 2);
      if (end != ".q" && end != ".k" && end != ".v") continue;
      if (int const index = natural(name.substr(7, name.size() - 9)); index >= 0) indices.insert(index);
    }
    if (indices.empty()) refuse("tensors", "layers.{i}.q, layers.{i}.k and layers.{i}.v of at least one layer", "none");
    return indices;
  }

  void read_layer(int index) {
    std::string const prefix = "layers." + std::to_string(index) + ".";
    layer_inputs layer;
    layer.index = index;
    auto const q = shape(prefix + "q"), k = shape(prefix + "k"), v = shape(prefix + "v");
    if (s_.layers.empty()) {
      s_.q_heads = q[1], s_.key_dim = q[2];
      s_.tokens = k[0], s_.kv_heads = k[1];
      s_.value_dim = v[2];
      if (s_.q_heads % s_.kv_heads != 0)
        refuse(prefix + "q: shape[1]", "a multiple of the kv heads, " + std::to_string(s_.kv_heads),
               std::to_string(s_.q_heads) + " q heads");
    }
    expect(prefix + "q", q, {s_.rows, s_.q_heads, s_.key_dim}, "[rows, q_heads, head_dim]");
    expect(prefix + "k", k, {s_.tokens, s_.kv_heads, s_.key_dim}, "[tokens, kv_heads, head_dim]");
    expect(prefix + "v", v, {s_.tokens, s_.kv_heads, s_.value_dim}, "[tokens, kv_heads, value_dim]");
    layer.q = values(prefix + "q", q), layer.k = values(prefix + "k", k), layer.v = values(prefix + "v", v);

    std::string const key = "sliding_window." + std::to_string(index);
    if (s_.metadata.count(key) != 0) {
      layer.sliding_window = natural(metadata(key));
      if (layer.sliding_window < 1)
        refuse("__metadata__: " + key, "an integer of at least 1", '"' + metadata(key) + '"');
    }
    s_.layers.push_back(std::move(layer));
  }

  std::vector<int> shape(std::string const& name) {
    auto const& from = file_.tensor(name).shape;
    std::vector<int> to;
    for (std::int64_t const n : from)
      if (n >= 1 && n <= INT_MAX) to.push_back(static_cast<int>(n));
    if (from.size() != 3 || to.size() != 3)
      refuse(name + ": shape", "three sizes of at least 1", kvant::detail::shape_text(from));
    return to;
  }

  void expect(std::string const& name, std::vector<int> const& got, std::vector<int> const& expected,
              std::string const& words) const {
    if (got != expected)
      refuse(name + ": shape", nlohmann::json(expected).dump() + " " + words + " as the tensors before it say",
             nlohmann::json(got).dump());
  }

  /// Halves as they are; bfloat16 and float rounded to half, if they fit.
  std::vector<kvant::half> values(std::string const& name, std::vector<int> const& dims) {
    std::vector<kvant::half> all;
    auto const& dtype = file_.tensor(name).dtype;
    auto const round = [&](auto const& from) {
      all.reserve(from.size());
      for (auto const x : from) all.emplace_back(static_cast<float>(x));
    };
    if (dtype == "BF16")
      round(file_.read<kvant::bfloat16>(name));
    else if (dtype == "F32")
      round(file_.read<float>(name));
    else
      all = file_.read<kvant::half>(name);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (std::isfinite(static_cast<float>(all[i]))) continue;
      auto const channels = static_cast<std::size_t>(dims[2]), heads = static_cast<std::size_t>(dims[1]);
      refuse(name + "[" + std::to_string(i / channels / heads) + ", " + std::to_string(i / channels % heads) + ", " +
                 std::to_string(i % channels) + "]",
             "a finite half", dtype + " " + std::to_string(static_cast<float>(all[i])));
    }
    return all;
  }

  kvant::safetensors_file file_;
  sample s_;
};

/// ||mean||^2 and mean ||k||^2 of a kv head.
std::pair<double, double> key_energies(sample const& s, layer_inputs const& layer, int head) {
  std::vector<double> mean(static_cast<std::size_t>(s.key_dim));
  double all = 0;
  auto const keys = s.keys(layer);
  for (int t = 0; t < s.tokens; ++t)
    for (std::size_t c = 0; c < mean.size(); ++c) {
      double const x = static_cast<double>(static_cast<float>(keys.row(t, head)[c]));
      mean[c] += x / s.tokens;
      all += x * x / s.tokens;
    }
  double of_mean = 0;
  for (double const m : mean) of_mean += m * m;
  return {of_mean, all};
}

double share(double part, double all) { return all > 0 ? part / all : 0; }

}  // namespace

std::string sample::said(std::string const& key) const {
  auto const it = metadata.find(key);
  return it == metadata.end() || it->second.empty() ? "not given" : it->second;
}

sample load_sample(std::string const& path) { return reader(path).read(); }

std::vector<double> key_energy_in_mean_by_head(sample const& s, layer_inputs const& layer) {
  std::vector<double> shares;
  for (int head = 0; head < s.kv_heads; ++head) {
    auto const [of_mean, all] = key_energies(s, layer, head);
    shares.push_back(share(of_mean, all));
  }
  return shares;
}

double key_energy_in_mean(sample const& s, layer_inputs const& layer) {
  double of_mean = 0, all = 0;
  for (int head = 0; head < s.kv_heads; ++head) {
    auto const energies = key_energies(s, layer, head);
    of_mean += energies.first, all += energies.second;
  }
  return share(of_mean, all);
}

}  // namespace report
