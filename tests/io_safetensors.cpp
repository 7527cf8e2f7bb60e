#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include <kvant/io/safetensors.hpp>

#include "support/catch.hpp"
#include "support/safetensors_bytes.hpp"

namespace {

using nlohmann::ordered_json;
using support::safetensors_builder;
using support::safetensors_bytes;
using support::temporary_folder;

/// What opening a file of these bytes says, without the path at its front; empty if it opens.
std::string refusal(std::string const& bytes) {
  temporary_folder const folder("kvant_io_safetensors_refusal");
  auto const path = folder.write("x.safetensors", bytes);
  try {
    kvant::safetensors_file const file(path);
    return {};
  } catch (kvant::io_error const& e) {
    std::string const message = e.what();
    REQUIRE(message.starts_with(path + ": "));
    return message.substr(path.size() + 2);
  }
}

/// Two tensors: "a" F32 [2, 3] in bytes [0, 24), "b" F16 [4] in [24, 32).
safetensors_builder two_tensors() {
  safetensors_builder file;
  file.add<float>("a", "F32", {2, 3}, {1, 2, 3, 4, 5, 6});
  file.add<std::uint16_t>("b", "F16", {4}, {0x3c00, 0xc000, 0x7bff, 0x0001});
  return file;
}

/// The refusal after `edit` changed the header of two_tensors().
template <class Edit>
std::string refusal_after(Edit edit) {
  auto file = two_tensors();
  edit(file.header);
  return refusal(file.bytes());
}

}  // namespace

TEMPLATE_TEST_CASE("tensors of every type come back as they were written", "[safetensors][io]", kvant::half,
                   kvant::bfloat16, float, std::int32_t, std::int64_t) {
  // Bytes of all kinds, NaN among them: compared as bytes.
  std::vector<TestType> values(3 * 5 * 2);
  auto* const bytes = reinterpret_cast<unsigned char*>(values.data());
  for (std::size_t i = 0; i < values.size() * sizeof(TestType); ++i)
    bytes[i] = static_cast<unsigned char>(i * 37 + 255);
  safetensors_builder builder;
  builder.header["__metadata__"] = {{"format", "pt"}, {"text", "\u00e9 \" \\ \n"}};
  builder.add("first", "U8", {3}, std::vector<char>{1, 2, 3});
  builder.add("values", kvant::safetensors_dtype<TestType>, {3, 5, 2}, values);
  builder.add("scalar", kvant::safetensors_dtype<TestType>, {}, std::vector<TestType>{values[7]});
  builder.add("none", kvant::safetensors_dtype<TestType>, {4, 0, 2}, std::vector<TestType>{});

  temporary_folder const folder("kvant_io_safetensors_types");
  kvant::safetensors_file file(folder.write("x.safetensors", builder.bytes()));
  auto const same = [](std::vector<TestType> const& a, std::vector<TestType> const& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(TestType)) == 0;
  };
  REQUIRE(same(file.read<TestType>("values"), values));
  REQUIRE(same(file.read<TestType>("scalar"), {values[7]}));
  REQUIRE(same(file.read<TestType>("values"), values));  // again, after another
  REQUIRE(file.read<TestType>("none").empty());
  REQUIRE(file.tensor("values").shape == std::vector<std::int64_t>{3, 5, 2});
  REQUIRE(file.tensor("none").shape == std::vector<std::int64_t>{4, 0, 2});
  REQUIRE(file.tensor("scalar").shape.empty());
  REQUIRE(file.header().metadata.at("format") == "pt");
  REQUIRE(file.header().metadata.at("text") == "\u00e9 \" \\ \n");
  REQUIRE(file.contains("first"));
  REQUIRE_FALSE(file.contains("last"));
}

TEST_CASE("a header may be padded, in any order, and empty", "[safetensors][io]") {
  auto file = two_tensors();
  REQUIRE(refusal(safetensors_bytes(file.header.dump() + std::string(13, ' '), file.data)).empty());
  ordered_json const backwards = {{"b", file.header["b"]}, {"a", file.header["a"]}};
  REQUIRE(refusal(safetensors_bytes(backwards.dump(), file.data)).empty());
  REQUIRE(refusal(safetensors_bytes("{}", "")).empty());
}

TEST_CASE("what is asked for must be there in the right type", "[safetensors][io]") {
  auto builder = two_tensors();
  builder.add<std::uint8_t>("odd", "F4_SOME", {3}, {1, 2});
  temporary_folder const folder("kvant_io_safetensors_asked");
  auto const path = folder.write("x.safetensors", builder.bytes());
  kvant::safetensors_file file(path);
  auto const why = [](auto ask) -> std::string {
    try {
      (void)ask();
      return {};
    } catch (kvant::io_error const& e) {
      return e.what();
    }
  };
  REQUIRE(why([&] { return file.read<float>("c"); }) ==
          path + R"(: tensor "c": expected this tensor, got only "a", "b", "odd")");
  REQUIRE(why([&] { return file.read<float>("b"); }) == path + R"(: tensor "b": dtype: expected F32, got F16)");
  REQUIRE(why([&] { return file.read<kvant::bfloat16>("b"); }) ==
          path + R"(: tensor "b": dtype: expected BF16, got F16)");
  REQUIRE(why([&] { return file.read<std::int64_t>("odd"); }) ==
          path + R"(: tensor "odd": dtype: expected I64, got "F4_SOME", an unknown one)");
  REQUIRE(why([&] { return file.read<float>("\xff\n"); }).find("tensor \"\xef\xbf\xbd\\n\": expected") !=
          std::string::npos);

  kvant::safetensors_file none(folder.write("none.safetensors", safetensors_bytes("{}", "")));
  REQUIRE(
      why([&] { return none.tensor("c"); }).ends_with(": tensor \"c\": expected this tensor, got no tensor at all"));
  safetensors_builder many;
  for (int i = 0; i < 25; ++i) many.add<char>(std::string("t").append(std::to_string(i)), "U8", {1}, {0});
  kvant::safetensors_file all(folder.write("many.safetensors", many.bytes()));
  REQUIRE(why([&] { return all.tensor("c"); }).ends_with("\"t4\" and 5 more"));
}

TEST_CASE("a file that shrinks after it was opened is refused when it is read", "[safetensors][io]") {
  temporary_folder const folder("kvant_io_safetensors_shrinks");
  auto const path = folder.write("x.safetensors", two_tensors().bytes());
  kvant::safetensors_file file(path);
  auto const size = std::filesystem::file_size(path);
  std::filesystem::resize_file(path, size - 4);
  REQUIRE(file.read<float>("a").size() == 6);
  REQUIRE_THROWS_WITH(file.read<kvant::half>("b"),
                      path + ": the file: expected 8 bytes from " + std::to_string(size - 8) + " on, got 4");
}

TEST_CASE("files that are no safetensors are refused", "[safetensors][io]") {
  REQUIRE(refusal("") == "the file: expected at least 8 bytes (the header's length), got 0");
  REQUIRE(refusal("1234567") == "the file: expected at least 8 bytes (the header's length), got 7");
  REQUIRE(refusal(safetensors_bytes("{}", "", 3)) ==
          "the header's length: expected at most 2 (the rest of the file), got 3");
  REQUIRE(refusal(safetensors_bytes("{}", "", 100'000'001)) ==
          "the header's length: expected at most 100000000 bytes, got 100000001");
  REQUIRE(refusal(safetensors_bytes("{}", "", std::numeric_limits<std::uint64_t>::max() - 1)) ==
          "the header's length: expected at most 100000000 bytes, got 18446744073709551614");
  temporary_folder const folder("kvant_io_safetensors_none");
  auto const why = [](std::string const& path) -> std::string {
    try {
      kvant::safetensors_file const file(path);
      return {};
    } catch (kvant::io_error const& e) {
      return e.what();
    }
  };
  auto const missing = (folder.path() / "none").string();
  REQUIRE(why(missing) == missing + ": the file: expected a safetensors file, got No such file or directory");
  REQUIRE(why(folder.path().string()) ==
          folder.path().string() + ": the file: expected a safetensors file, got Is a directory");
}

TEST_CASE("headers that are not one JSON object are refused", "[safetensors][io]") {
  for (std::string const text :
       {"", "{", "{}x", "{} {}", "{\"a\": NaN}", "{\"a\": Infinity}", "{\"\xff\": 1}", "nonsense", "{\"a\":1,}"}) {
    CAPTURE(text);
    REQUIRE(refusal(safetensors_bytes(text, "")).starts_with("the header: expected JSON, got [json.exception"));
  }
  REQUIRE(refusal(safetensors_bytes(std::string(4, '\0'), "")).starts_with("the header: expected JSON, got "));
  REQUIRE(refusal(safetensors_bytes(std::string(100'000, '['), "")).starts_with("the header: expected JSON, got "));
  REQUIRE(refusal(safetensors_bytes("{\"a\": 1e999}", "")).starts_with("the header: expected numbers in range, got "));
  REQUIRE(refusal(safetensors_bytes("[]", "")) == "the header: expected a JSON object, got array");
  REQUIRE(refusal(safetensors_bytes("null", "")) == "the header: expected a JSON object, got null");
}

TEST_CASE("keys that come twice are refused at every depth", "[safetensors][io]") {
  std::string const tensor = R"({"dtype": "U8", "shape": [1], "data_offsets": [0, 1]})";
  REQUIRE(refusal(safetensors_bytes(R"({"a": )" + tensor + R"(, "a": )" + tensor + "}", "x")) ==
          R"(the header: expected "a" once, got it twice)");
  REQUIRE(refusal(safetensors_bytes(R"({"a": {"dtype": "U8", "shape": [1], "shape": [1], "data_offsets": [0, 1]}})",
                                    "x")) == R"(the header: expected "shape" once, got it twice)");
  REQUIRE(refusal(safetensors_bytes(R"({"__metadata__": {"k": "1", "k": "2"}})", "")) ==
          R"(the header: expected "k" once, got it twice)");
  REQUIRE(refusal(safetensors_bytes(R"({"__metadata__": {}, "__metadata__": {}})", "")) ==
          R"(the header: expected "__metadata__" once, got it twice)");
  // The same key in objects beside each other is no repetition.
  REQUIRE(refusal(two_tensors().bytes()).empty());
}

TEST_CASE("metadata that are not strings are refused", "[safetensors][io]") {
  REQUIRE(refusal_after([](auto& h) { h["__metadata__"] = 3; }) ==
          "__metadata__: expected an object of strings, got number");
  REQUIRE(refusal_after([](auto& h) {
            h["__metadata__"] = {{"scale", 0.5}};
          }) == R"(__metadata__: "scale": expected a string, got number)");
}

TEST_CASE("tensors described in another way are refused", "[safetensors][io]") {
  REQUIRE(refusal_after([](auto& h) { h["a"] = 1; }) ==
          R"(tensor "a": expected an object with dtype, shape and data_offsets, got number)");
  for (std::string const field : {"dtype", "shape", "data_offsets"})
    REQUIRE(refusal_after([&](auto& h) { h["a"].erase(field); }) ==
            R"(tensor "a": expected a field )" + field + ", got none");
  REQUIRE(refusal_after([](auto& h) { h["a"]["strides"] = 1; }) ==
          R"(tensor "a": expected the fields dtype, shape and data_offsets alone, got "strides")");
  REQUIRE(refusal_after([](auto& h) { h["a"]["dtype"] = 32; }) ==
          R"(tensor "a": dtype: expected a string, got number)");
  REQUIRE(refusal_after([](auto& h) { h["a"]["shape"] = 6; }) ==
          R"(tensor "a": shape: expected an array of integers, got number)");
  REQUIRE(refusal_after([](auto& h) { h["a"]["shape"][0] = -2; }) ==
          R"(tensor "a": shape: expected integers from 0 to 2^63 - 1, got -2)");
  REQUIRE(refusal_after([](auto& h) { h["a"]["shape"][0] = 2.0; }) ==
          R"(tensor "a": shape: expected integers from 0 to 2^63 - 1, got 2.0)");
  REQUIRE(refusal_after([](auto& h) { h["a"]["shape"][0] = "2"; }) ==
          R"(tensor "a": shape: expected integers from 0 to 2^63 - 1, got string)");
  REQUIRE(refusal_after([](auto& h) { h["a"]["shape"][0] = std::uint64_t{1} << 63; }) ==
          R"(tensor "a": shape: expected integers from 0 to 2^63 - 1, got 9223372036854775808)");
  REQUIRE(refusal_after([](auto& h) { h["a"]["data_offsets"] = {0}; }) ==
          R"(tensor "a": data_offsets: expected 2 numbers, begin and end, got 1)");
  REQUIRE(refusal_after([](auto& h) { h["a"]["data_offsets"][1] = -24; }) ==
          R"(tensor "a": data_offsets: expected integers from 0 to 2^63 - 1, got -24)");
}

TEST_CASE("shapes that do not fit their bytes are refused", "[safetensors][io]") {
  REQUIRE(refusal_after([](auto& h) {
            h["a"]["shape"] = {2, 4};
          }) == R"(tensor "a": data_offsets: expected 8 elements of 4 bytes (F32 [2,4]), got 24 bytes)");
  REQUIRE(refusal_after([](auto& h) { h["a"]["dtype"] = "I64"; }) ==
          R"(tensor "a": data_offsets: expected 6 elements of 8 bytes (I64 [2,3]), got 24 bytes)");
  REQUIRE(refusal_after([](auto& h) { h["b"]["shape"] = ordered_json::array(); }) ==
          R"(tensor "b": data_offsets: expected 1 elements of 2 bytes (F16 []), got 8 bytes)");
  std::int64_t const big = std::int64_t{1} << 40;
  REQUIRE(refusal_after([&](auto& h) {
            h["a"]["shape"] = {big, big};
          }) == R"(tensor "a": shape: expected fewer than 2^63 elements, got [1099511627776,1099511627776])");
  // 2^61 floats are 2^63 bytes: the product of elements fits, that of bytes must not wrap to 0.
  REQUIRE(refusal_after([&](auto& h) {
            h["a"]["shape"] = {std::int64_t{1} << 62, 1};
          }).find("4611686018427387904 elements") != std::string::npos);
  // With a zero among the sizes there is nothing, however large the others are.
  REQUIRE(
      refusal_after([&](auto& h) {
        h["a"]["shape"] = {big, 0, big};
      }) ==
      R"(tensor "a": data_offsets: expected 0 elements of 4 bytes (F32 [1099511627776,0,1099511627776]), got 24 bytes)");
}

TEST_CASE("offsets that do not tile the data are refused", "[safetensors][io]") {
  REQUIRE(refusal_after([](auto& h) {
            h["a"]["data_offsets"] = {24, 0};
          }) == R"(tensor "a": data_offsets: expected a begin that is not behind the end, got [24,0])");
  REQUIRE(refusal_after([](auto& h) {
            h["b"]["data_offsets"] = {22, 30};
          }) == R"(tensor "b": data_offsets: expected a begin of 24, where tensor "a" ends, got 22 (an overlap))");
  REQUIRE(refusal_after([](auto& h) {
            h["b"]["data_offsets"] = {0, 8};
          }) == R"(tensor "a": data_offsets: expected a begin of 8, where tensor "b" ends, got 0 (an overlap))");
  REQUIRE(refusal_after([](auto& h) {
            h["b"]["data_offsets"] = {25, 33};
          }) == R"(tensor "b": data_offsets: expected a begin of 24, where tensor "a" ends, got 25 (a hole))");
  REQUIRE(refusal_after([](auto& h) { h.erase("a"); }) ==
          R"(tensor "b": data_offsets: expected a begin of 0, where the data begins, got 24 (a hole))");
  auto file = two_tensors();
  file.data += "x";
  REQUIRE(refusal(file.bytes()) == R"(the data: expected 32 bytes behind the header, where tensor "b" ends, got 33)");
  file.data.resize(31);
  REQUIRE(refusal(file.bytes()) ==
          R"(the data: expected 32 bytes behind the header, where tensor "b" ends, got 31 (truncated))");
  file.data.clear();
  REQUIRE(refusal(file.bytes()) ==
          R"(the data: expected 32 bytes behind the header, where tensor "b" ends, got 0 (truncated))");
  REQUIRE(refusal(safetensors_bytes("{}", "x")) ==
          "the data: expected 0 bytes behind the header, where the data begins, got 1");
}
