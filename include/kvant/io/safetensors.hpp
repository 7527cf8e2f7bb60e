#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <kvant/half.hpp>
#include <kvant/io/error.hpp>

namespace kvant::inline v0 {

/// The longest header that readers of safetensors take.
inline constexpr std::uint64_t max_safetensors_header_bytes = 100'000'000;

/// What a safetensors header says of one tensor. Bytes [begin, end) count from the end of the header.
struct safetensors_tensor {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;
};

struct safetensors_header {
  std::map<std::string, std::string> metadata;  // __metadata__
  std::map<std::string, safetensors_tensor> tensors;
};

/// The names of the element types that can be read.
template <class T>
inline constexpr char const* safetensors_dtype = nullptr;
template <>
inline constexpr char const* safetensors_dtype<half> = "F16";
template <>
inline constexpr char const* safetensors_dtype<bfloat16> = "BF16";
template <>
inline constexpr char const* safetensors_dtype<float> = "F32";
template <>
inline constexpr char const* safetensors_dtype<std::int32_t> = "I32";
template <>
inline constexpr char const* safetensors_dtype<std::int64_t> = "I64";

namespace detail {

/// Throws io_error "FILE: WHAT: expected X, got Y".
class safetensors_refusal {
 public:
  explicit safetensors_refusal(std::string_view file) : file_(file) {}
  [[noreturn]] void operator()(std::string const& what, std::string const& expected, std::string const& got) const {
    throw io_error(file_ + ": " + what + ": expected " + expected + ", got " + got);
  }

 private:
  std::string file_;
};

/// `text` in quotes, control characters escaped: names come from files.
inline std::string quoted_name(std::string_view text) {
  return nlohmann::json(std::string(text)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}
inline std::string tensor_name(std::string_view name) { return "tensor " + quoted_name(name); }

/// Bytes of an element; 0 for a type that is not known here, whose tensors can be listed but not read.
inline std::uint64_t dtype_bytes(std::string_view dtype) {
  struct entry {
    std::string_view name;
    std::uint64_t bytes;
  };
  constexpr entry known[] = {{"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1},
                             {"U16", 2},  {"I16", 2}, {"F16", 2}, {"BF16", 2},    {"U32", 4},
                             {"I32", 4},  {"F32", 4}, {"U64", 8}, {"I64", 8},     {"F64", 8}};
  for (auto const& e : known)
    if (e.name == dtype) return e.bytes;
  return 0;
}

inline std::string shape_text(std::vector<std::int64_t> const& shape) { return nlohmann::json(shape).dump(); }

/// JSON that names a key twice has no single meaning, but parsers take it: so the keys are watched while parsing.
inline nlohmann::json parse_safetensors_json(std::string_view text, safetensors_refusal const& refuse) {
  using event = nlohmann::json::parse_event_t;
  std::vector<std::set<std::string>> open;  // the keys of the objects around what is being read
  auto const watch = [&](int, event e, nlohmann::json& parsed) {
    if (e == event::object_start) open.emplace_back();
    if (e == event::object_end) open.pop_back();
    if (e == event::key)
      if (auto const key = parsed.get<std::string>(); !open.back().insert(key).second)
        refuse("the header", quoted_name(key) + " once", "it twice");
    return true;
  };
  try {
    return nlohmann::json::parse(text.begin(), text.end(), watch);
  } catch (nlohmann::json::parse_error const& e) {
    refuse("the header", "JSON", e.what());
  } catch (nlohmann::json::out_of_range const& e) {  // 1e999
    refuse("the header", "numbers in range", e.what());
  }
}

/// Elements of a shape; refuses a product that does not fit 63 bits.
inline std::uint64_t element_count(std::vector<std::int64_t> const& shape, std::string const& what,
                                   safetensors_refusal const& refuse) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::int64_t count = 1;
  for (std::int64_t const n : shape) {
    if (count > std::numeric_limits<std::int64_t>::max() / n)
      refuse(what + ": shape", "fewer than 2^63 elements", shape_text(shape));
    count *= n;
  }
  return static_cast<std::uint64_t>(count);
}

inline safetensors_tensor parse_tensor(nlohmann::json const& json, std::string const& what,
                                       safetensors_refusal const& refuse) {
  if (!json.is_object()) refuse(what, "an object with dtype, shape and data_offsets", json.type_name());
  for (char const* field : {"dtype", "shape", "data_offsets"})
    if (!json.contains(field)) refuse(what, std::string("a field ") + field, "none");
  for (auto const& item : json.items())
    if (item.key() != "dtype" && item.key() != "shape" && item.key() != "data_offsets")
      refuse(what, "the fields dtype, shape and data_offsets alone", quoted_name(item.key()));
  auto const integers = [&](char const* field) {
    auto const& values = json.at(field);
    if (!values.is_array()) refuse(what + ": " + field, "an array of integers", values.type_name());
    std::vector<std::int64_t> all;
    for (auto const& v : values) {
      if (!v.is_number_unsigned() || v.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max())
        refuse(what + ": " + field, "integers from 0 to 2^63 - 1", v.is_number() ? v.dump() : v.type_name());
      all.push_back(v.get<std::int64_t>());
    }
    return all;
  };

  safetensors_tensor tensor;
  if (!json.at("dtype").is_string()) refuse(what + ": dtype", "a string", json.at("dtype").type_name());
  tensor.dtype = json.at("dtype").get<std::string>();
  tensor.shape = integers("shape");
  auto const offsets = integers("data_offsets");
  if (offsets.size() != 2) refuse(what + ": data_offsets", "2 numbers, begin and end", std::to_string(offsets.size()));
  if (offsets[0] > offsets[1])
    refuse(what + ": data_offsets", "a begin that is not behind the end", shape_text(offsets));
  tensor.begin = static_cast<std::uint64_t>(offsets[0]), tensor.end = static_cast<std::uint64_t>(offsets[1]);

  std::uint64_t const count = element_count(tensor.shape, what, refuse), size = dtype_bytes(tensor.dtype);
  std::uint64_t const bytes = tensor.end - tensor.begin;
  if (size != 0 && (bytes % size != 0 || bytes / size != count))
    refuse(what + ": data_offsets",
           std::to_string(count) + " elements of " + std::to_string(size) + " bytes (" + tensor.dtype + " " +
               shape_text(tensor.shape) + ")",
           std::to_string(bytes) + " bytes");
  return tensor;
}

/// The tensors must tile the data: no hole, no overlap, nothing behind the last one.
inline void check_offsets(std::map<std::string, safetensors_tensor> const& tensors, std::uint64_t data_bytes,
                          safetensors_refusal const& refuse) {
  std::vector<std::map<std::string, safetensors_tensor>::const_iterator> by_offset;
  for (auto it = tensors.begin(); it != tensors.end(); ++it) by_offset.push_back(it);
  std::sort(by_offset.begin(), by_offset.end(), [](auto a, auto b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  std::uint64_t end = 0;
  std::string before = "the data begins";
  for (auto const& it : by_offset) {
    auto const& [name, tensor] = *it;
    if (tensor.begin != end)
      refuse(tensor_name(name) + ": data_offsets", "a begin of " + std::to_string(end) + ", where " + before,
             std::to_string(tensor.begin) + (tensor.begin < end ? " (an overlap)" : " (a hole)"));
    end = tensor.end;
    before = tensor_name(name) + " ends";
  }
  if (end != data_bytes)
    refuse("the data", std::to_string(end) + " bytes behind the header, where " + before,
           std::to_string(data_bytes) + (end > data_bytes ? " (truncated)" : ""));
}

}  // namespace detail

/// The header of a file with data_bytes behind it. `file` stands at the front of error messages. Throws io_error when
/// the text is not what safetensors allows, or does not fit the data.
[[nodiscard]] inline safetensors_header parse_safetensors_header(std::string_view text, std::uint64_t data_bytes,
                                                                 std::string_view file) {
  detail::safetensors_refusal const refuse{file};
  auto const json = detail::parse_safetensors_json(text, refuse);
  if (!json.is_object()) refuse("the header", "a JSON object", json.type_name());
  safetensors_header header;
  for (auto const& item : json.items()) {
    if (item.key() == "__metadata__") {
      if (!item.value().is_object()) refuse("__metadata__", "an object of strings", item.value().type_name());
      for (auto const& entry : item.value().items()) {
        if (!entry.value().is_string())
          refuse("__metadata__: " + detail::quoted_name(entry.key()), "a string", entry.value().type_name());
        header.metadata.emplace(entry.key(), entry.value().get<std::string>());
      }
    } else {
      header.tensors.emplace(item.key(), detail::parse_tensor(item.value(), detail::tensor_name(item.key()), refuse));
    }
  }
  detail::check_offsets(header.tensors, data_bytes, refuse);
  return header;
}

/// A safetensors file: the header is read and checked at once, a tensor when it is asked for. Everything throws io_error
/// with the file, the tensor, what was expected and what came. One object serves one thread at a time.
class safetensors_file {
  static_assert(std::endian::native == std::endian::little, "safetensors are little-endian");

 public:
  explicit safetensors_file(std::string path) : path_(std::move(path)), refuse_(path_) {
    std::error_code code;
    auto const bytes = std::filesystem::file_size(path_, code);
    if (!code) in_.open(path_, std::ios::binary);
    if (code || !in_) refuse_("the file", "a safetensors file", code ? code.message() : "one that cannot be opened");
    if (bytes < 8) refuse_("the file", "at least 8 bytes (the header's length)", std::to_string(bytes));
    std::uint64_t length = 0;
    take(0, 8, &length);
    if (length > max_safetensors_header_bytes)
      refuse_("the header's length", "at most " + std::to_string(max_safetensors_header_bytes) + " bytes",
              std::to_string(length));
    if (length > bytes - 8)
      refuse_("the header's length", "at most " + std::to_string(bytes - 8) + " (the rest of the file)",
              std::to_string(length));
    std::string text(static_cast<std::size_t>(length), '\0');
    take(8, length, text.data());
    data_ = 8 + length;
    header_ = parse_safetensors_header(text, bytes - data_, path_);
  }

  [[nodiscard]] std::string const& path() const { return path_; }
  [[nodiscard]] safetensors_header const& header() const { return header_; }
  [[nodiscard]] bool contains(std::string const& name) const { return header_.tensors.count(name) != 0; }

  /// Throws with the names that exist when there is no such tensor.
  [[nodiscard]] safetensors_tensor const& tensor(std::string const& name) const {
    if (auto const it = header_.tensors.find(name); it != header_.tensors.end()) return it->second;
    std::string names;
    std::size_t listed = 0;
    for (auto const& entry : header_.tensors) {
      if (++listed > 20) break;
      names += (listed == 1 ? "only " : ", ") + detail::quoted_name(entry.first);
    }
    if (listed > 20) names += " and " + std::to_string(header_.tensors.size() - 20) + " more";
    refuse_(detail::tensor_name(name), "this tensor", listed == 0 ? "no tensor at all" : names);
  }

  /// All elements in row-major order. T: half, bfloat16, float, int32 or int64, as the file has them.
  template <class T>
  [[nodiscard]] std::vector<T> read(std::string const& name) {
    static_assert(safetensors_dtype<T> != nullptr,
                  "safetensors_file::read<T>: T must be half, bfloat16, float, int32 or int64");
    auto const& found = tensor(name);
    if (found.dtype != safetensors_dtype<T>)
      refuse_(
          detail::tensor_name(name) + ": dtype", safetensors_dtype<T>,
          detail::dtype_bytes(found.dtype) != 0 ? found.dtype : detail::quoted_name(found.dtype) + ", an unknown one");
    std::vector<T> values(static_cast<std::size_t>((found.end - found.begin) / sizeof(T)));
    take(data_ + found.begin, found.end - found.begin, values.data());
    return values;
  }

 private:
  void take(std::uint64_t offset, std::uint64_t bytes, void* to) {
    if (bytes == 0) return;
    in_.clear();
    in_.seekg(static_cast<std::streamoff>(offset));
    in_.read(static_cast<char*>(to), static_cast<std::streamsize>(bytes));
    if (!in_)
      refuse_("the file", std::to_string(bytes) + " bytes from " + std::to_string(offset) + " on",
              std::to_string(in_.gcount()));
  }

  std::string path_;
  detail::safetensors_refusal refuse_;
  std::ifstream in_;
  safetensors_header header_;
  std::uint64_t data_ = 0;  // where the data begins
};

}  // namespace kvant::inline v0
