#include <array>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <kvant/io/error.hpp>

#include "options.hpp"
#include "sample.hpp"
#include "support/attention_sample.hpp"
#include "support/catch.hpp"

namespace {

using Catch::Matchers::WithinRel;
using support::attention_sample;
using support::temporary_folder;

/// What load_sample says of the file, without the path at its front; empty if it is taken.
std::string refusal(support::safetensors_builder const& file) {
  temporary_folder const folder("kvant_report_inputs");
  auto const path = folder.write("x.safetensors", file.bytes());
  try {
    (void)report::load_sample(path);
    return {};
  } catch (kvant::io_error const& e) {
    std::string const message = e.what();
    REQUIRE(message.starts_with(path + ": "));
    return message.substr(path.size() + 2);
  }
}

template <class Edit>
std::string refusal_after(Edit edit, support::sample_shape const& shape = {}) {
  auto file = attention_sample(shape);
  edit(file);
  return refusal(file);
}

std::string metadata_refusal(std::string const& key, std::string const& value) {
  return refusal_after([&](auto& file) { file.header["__metadata__"][key] = value; });
}

/// Overwrites one half of the tensor, counted in elements.
void put_half(support::safetensors_builder& file, std::string const& tensor, std::size_t element, std::uint16_t bits) {
  auto const begin = file.header[tensor]["data_offsets"][0].get<std::size_t>();
  std::memcpy(file.data.data() + begin + 2 * element, &bits, 2);
}

report::options parse(std::vector<char const*> const& arguments, std::string const& samples = KVANT_SAMPLES_DIR) {
  return report::parse_options(arguments, samples);
}
std::string usage(std::vector<char const*> const& arguments, std::string const& samples = KVANT_SAMPLES_DIR) {
  try {
    (void)parse(arguments, samples);
    return {};
  } catch (report::usage_error const& e) {
    return e.what();
  }
}

}  // namespace

TEST_CASE("a file of attention inputs is read as it is", "[report][inputs]") {
  auto file = attention_sample({});
  file.header["__metadata__"]["sliding_window.7"] = "96";
  file.header["__metadata__"]["sliding_window.3"] = "nobody reads this";
  file.header["__metadata__"]["soft_cap"] = "50.0";
  file.header["__metadata__"]["rope_pairs"] = "adjacent";
  file.add<float>("layers.7.mystery", "F32", {1}, {1});
  file.add<float>("layers.07.q", "F32", {1}, {1});
  temporary_folder const folder("kvant_report_inputs_read");
  auto const s = report::load_sample(folder.write("one.two.safetensors", file.bytes()));
  REQUIRE(s.name == "one.two");
  REQUIRE(s.said("model") == "Synthetic <b>&\"1\"</b>");
  REQUIRE(s.said("text") == "not given");
  REQUIRE(
      (s.tokens == 200 && s.rows == 5 && s.q_heads == 4 && s.kv_heads == 2 && s.key_dim == 64 && s.value_dim == 32));
  REQUIRE((s.softmax_scale == 0.125 && s.soft_cap == 50 && s.pairs == report::rope_pairs::adjacent));
  REQUIRE(s.positions == std::vector<std::int32_t>{39, 79, 119, 159, 199});
  REQUIRE(s.layers.size() == 2);
  REQUIRE((s.layers[0].index == 0 && s.layers[0].sliding_window == 0));
  REQUIRE((s.layers[1].index == 7 && s.layers[1].sliding_window == 96));
  auto const begin = file.header["layers.7.k"]["data_offsets"][0].get<std::size_t>();
  REQUIRE(std::memcmp(s.keys(s.layers[1]).row(3, 1), file.data.data() + begin + 2 * (3 * 2 + 1) * 64, 128) == 0);
  auto const values = file.header["layers.0.v"]["data_offsets"][0].get<std::size_t>();
  REQUIRE(std::memcmp(s.values(s.layers[0]).row(199, 0), file.data.data() + values + 2 * (199 * 2) * 32, 64) == 0);
}

TEST_CASE("bfloat16 and float inputs are rounded to half if they fit", "[report][inputs]") {
  auto const with_values = [](std::string const& dtype, auto const& values) {
    support::safetensors_builder file;
    auto const whole = attention_sample({1, 1, 1, 1, 16, 2, {0}});
    file.header["__metadata__"] = whole.header["__metadata__"];
    file.add<std::int32_t>("q_positions", "I32", {1}, {0});
    file.add("layers.0.q", "F16", {1, 1, 16}, std::vector<kvant::half>(16, kvant::half(1.f)));
    file.add("layers.0.k", "F16", {1, 1, 16}, std::vector<kvant::half>(16, kvant::half(1.f)));
    file.add("layers.0.v", dtype, {1, 1, 2}, values);
    return file;
  };
  temporary_folder const folder("kvant_report_inputs_rounded");
  auto const floats = report::load_sample(folder.write("f", with_values("F32", std::vector{0.1f, -70.f}).bytes()));
  REQUIRE(floats.layers[0].v == std::vector{kvant::half(0.1f), kvant::half(-70.f)});
  std::vector const brain{kvant::bfloat16(0.1f), kvant::bfloat16(3.f)};
  auto const rounded = report::load_sample(folder.write("b", with_values("BF16", brain).bytes()));
  REQUIRE(rounded.layers[0].v == std::vector{kvant::half(static_cast<float>(brain[0])), kvant::half(3.f)});
  REQUIRE(refusal(with_values("F32", std::vector{1.f, 1e6f})) ==
          "layers.0.v[0, 0, 1]: expected a finite half, got F32 inf");
  REQUIRE(refusal(with_values("I32", std::vector{1, 2})) == "tensor \"layers.0.v\": dtype: expected F16, got I32");
}

TEST_CASE("inputs with other metadata are refused", "[report][inputs]") {
  for (std::string const key : {"format", "softmax_scale", "rope_pairs"})
    REQUIRE(refusal_after([&](auto& file) { file.header["__metadata__"].erase(key); }) ==
            "__metadata__: " + key + ": expected this key, got none");
  REQUIRE(metadata_refusal("format", "kvant-attention-inputs-2") ==
          "__metadata__: format: expected kvant-attention-inputs-1, got kvant-attention-inputs-2");
  REQUIRE(metadata_refusal("rope_pairs", "interleaved") ==
          "__metadata__: rope_pairs: expected half_split or adjacent, got interleaved");
  for (std::string const number : {"", "x", "0", "-0.1", "nan", "inf", "1e999", "0.1 ", " 0.1", "0x1p-3", "0,1"}) {
    CAPTURE(number);
    REQUIRE(metadata_refusal("softmax_scale", number) ==
            "__metadata__: softmax_scale: expected a decimal number above 0, got \"" + number + "\"");
    REQUIRE(
        metadata_refusal("soft_cap", number).starts_with("__metadata__: soft_cap: expected a decimal number above 0"));
  }
  for (std::string const number : {"", "0", "-1", "1.5", "09", "99999999999"}) {
    CAPTURE(number);
    REQUIRE(metadata_refusal("sliding_window.7", number) ==
            "__metadata__: sliding_window.7: expected an integer of at least 1, got \"" + number + "\"");
  }
}

TEST_CASE("inputs of other shapes are refused", "[report][inputs]") {
  auto const reshape = [](std::string const& tensor, std::vector<std::int64_t> const& shape) {
    return refusal_after([&](auto& file) { file.header[tensor]["shape"] = shape; });
  };
  REQUIRE(refusal_after([](auto& file) { file = attention_sample({.layers = {}}); }) ==
          "tensors: expected layers.{i}.q, layers.{i}.k and layers.{i}.v of at least one layer, got none");
  REQUIRE(reshape("layers.0.q", {5, 256}) == "layers.0.q: shape: expected three sizes of at least 1, got [5,256]");
  REQUIRE(reshape("layers.0.q", {5, 2, 128}) ==
          "layers.0.k: shape: expected [200,2,128] [tokens, kv_heads, head_dim] as the tensors before it say, got "
          "[200,2,64]");
  REQUIRE(reshape("layers.0.q", {10, 2, 64}) ==
          "layers.0.q: shape: expected [5,2,64] [rows, q_heads, head_dim] as the tensors before it say, got [10,2,64]");
  REQUIRE(reshape("layers.0.v", {100, 4, 32}) ==
          "layers.0.v: shape: expected [200,2,32] [tokens, kv_heads, value_dim] as the tensors before it say, got "
          "[100,4,32]");
  REQUIRE(reshape("layers.7.k", {400, 1, 64}) ==
          "layers.7.k: shape: expected [200,2,64] [tokens, kv_heads, head_dim] as the tensors before it say, got "
          "[400,1,64]");
  REQUIRE(reshape("q_positions", {5, 1}) == "q_positions: shape: expected [rows] with at least 1 row, got [5,1]");
  REQUIRE(refusal_after([](auto&) {}, {.rows = 0}) ==
          "q_positions: shape: expected [rows] with at least 1 row, got [0]");
  REQUIRE(refusal_after([](auto&) {}, {.tokens = 0}) ==
          "layers.0.k: shape: expected three sizes of at least 1, got [0,2,64]");
  REQUIRE(refusal_after([](auto&) {}, {.q_heads = 3}) ==
          "layers.0.q: shape[1]: expected a multiple of the kv heads, 2, got 3 q heads");
  REQUIRE(refusal_after([](auto& file) {
            auto const entry = file.header["layers.7.v"];
            file.header.erase("layers.7.v");
            file.header["other"] = entry;
          }).starts_with("tensor \"layers.7.v\": expected this tensor, got only \"layers.0.k\", "));
}

TEST_CASE("inputs with impossible numbers are refused", "[report][inputs]") {
  REQUIRE(refusal_after([](auto& file) {
            std::int32_t const position = 200;
            std::memcpy(file.data.data() + 4 * 4, &position, 4);
          }) == "q_positions[4]: expected 0 to 199 (the last token), got 200");
  REQUIRE(refusal_after([](auto& file) {
            std::int32_t const position = -1;
            std::memcpy(file.data.data(), &position, 4);
          }) == "q_positions[0]: expected 0 to 199 (the last token), got -1");
  REQUIRE(refusal_after([](auto& file) { put_half(file, "layers.7.q", (1 * 4 + 2) * 64 + 5, 0x7e00); }) ==
          "layers.7.q[1, 2, 5]: expected a finite half, got F16 nan");
  REQUIRE(refusal_after([](auto& file) { put_half(file, "layers.0.k", (199 * 2 + 1) * 64 + 63, 0xfc00); }) ==
          "layers.0.k[199, 1, 63]: expected a finite half, got F16 -inf");
  REQUIRE(refusal_after([](auto& file) { put_half(file, "layers.0.v", 0, 0x7c00); }) ==
          "layers.0.v[0, 0, 0]: expected a finite half, got F16 inf");
}

TEST_CASE("the share of key energy in the mean is that of the keys", "[report][inputs]") {
  report::sample s;
  s.tokens = 2, s.kv_heads = 2, s.key_dim = 2;
  report::layer_inputs layer;
  // head 0: (3, 4) twice: all of it. head 1: (1, 0) and (0, 1): mean (.5, .5), half of it.
  for (float const x : {3.f, 4.f, 1.f, 0.f, 3.f, 4.f, 0.f, 1.f}) layer.k.emplace_back(x);
  auto const by_head = report::key_energy_in_mean_by_head(s, layer);
  REQUIRE(by_head.size() == 2);
  REQUIRE_THAT(by_head[0], WithinRel(1, 1e-14));
  REQUIRE_THAT(by_head[1], WithinRel(0.5, 1e-14));
  REQUIRE_THAT(report::key_energy_in_mean(s, layer), WithinRel(25.5 / 26, 1e-14));
  layer.k.assign(8, kvant::half(0.f));
  REQUIRE(report::key_energy_in_mean(s, layer) == 0);
}

TEST_CASE("without options the samples are measured with and without a window", "[report][options]") {
  auto const o = parse({});
  REQUIRE(o.out == ".");
  REQUIRE(o.wanted.policies.empty());
  REQUIRE(o.wanted.settings == std::vector<report::setting>{{128, 4}, {0, 0}});
  REQUIRE(o.wanted.threads >= 1);
  REQUIRE(o.wanted.files.size() == 2);
  REQUIRE(o.wanted.files[0].ends_with("/qwen2.5-coder-1.5b.safetensors"));
  REQUIRE(o.wanted.files[1].ends_with("/smollm2-135m.safetensors"));
}

TEST_CASE("options are taken as given", "[report][options]") {
  auto const o = parse({"--kv", "a", "b", "--out", "there", "--policies", "exact,k4v2", "--window", "64", "--kv", "c"});
  REQUIRE(o.wanted.files == std::vector<std::string>{"a", "b", "c"});
  REQUIRE(o.out == "there");
  REQUIRE(o.wanted.policies == std::vector<std::string>{"exact", "k4v2"});
  REQUIRE(o.wanted.settings == std::vector<report::setting>{{64, 4}});
  REQUIRE(parse({"--sinks", "0", "--threads", "3"}).wanted.settings == std::vector<report::setting>{{128, 0}});
  REQUIRE(parse({"--sinks", "0", "--threads", "3"}).wanted.threads == 3);
  REQUIRE(parse({"--help"}, "/nowhere").help);
  for (auto const& name : report::policy_names())
    REQUIRE(report::help_text().find("\n  " + name + "\n") != std::string::npos);
}

TEST_CASE("command lines that mean nothing are refused", "[report][options]") {
  REQUIRE(usage({"--kv"}) == "--kv: expected a safetensors file, got nothing");
  REQUIRE(usage({"--kv", "--out", "x"}) == "--kv: expected a safetensors file, got \"--out\"");
  REQUIRE(usage({"--kv", ""}) == "--kv: expected a safetensors file, got \"\"");
  REQUIRE(usage({"--kv", "a", "a"}) == "--kv: expected each file once, got \"a\" twice");
  REQUIRE(usage({"--out"}) == "--out: expected a folder, got nothing");
  REQUIRE(usage({"--out", "a", "--out", "b"}) == "--out: expected once, got twice");
  REQUIRE(usage({"a.safetensors"}) == "a.safetensors: expected one of the options of --help");
  REQUIRE(usage({"--verbose"}) == "--verbose: expected one of the options of --help");
  REQUIRE(usage({"--window"}) == "--window: expected an integer from 0 to 1048576, got nothing");
  for (char const* text : {"-1", "x", "1.5", "", "12x", "1048577", "99999999999999"}) {
    CAPTURE(text);
    REQUIRE(usage({"--window", text}) ==
            "--window: expected an integer from 0 to 1048576, got \"" + std::string(text) + '"');
  }
  REQUIRE(usage({"--sinks", "64"}) == "--sinks: expected an integer from 0 to 63, got \"64\"");
  REQUIRE(usage({"--threads", "0"}) == "--threads: expected an integer from 1 to 1024, got \"0\"");
  REQUIRE(usage({"--policies", "k4v2,k4v2"}) == "--policies: expected each name once, got k4v2 twice");
  for (char const* text : {"k5v2", "k4v2,", ",k4v2", "k4v2, k3v2", "exact;k4v2"}) {
    auto const message = usage({"--policies", text});
    CAPTURE(message);
    REQUIRE(message.starts_with("--policies: expected names out of exact, turboquant_4bit, "));
  }
  REQUIRE(usage({"--policies", "k4v2,"}).ends_with("; got \"\""));
  temporary_folder const empty("kvant_report_options");
  REQUIRE(usage({}, empty.path().string()) ==
          "expected *.safetensors in " + empty.path().string() + ", found none; name files with --kv");
  REQUIRE(usage({}, "/nowhere").starts_with("expected *.safetensors in /nowhere, found none ("));
}
