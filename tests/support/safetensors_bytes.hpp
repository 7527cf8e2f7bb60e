#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace support {

/// A safetensors file of this header text and data, with a header length that may lie.
inline std::string safetensors_bytes(std::string const& header, std::string const& data,
                                     std::uint64_t length = ~std::uint64_t{0}) {
  if (length == ~std::uint64_t{0}) length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes.append(header).append(data);
}

/// Builds a safetensors file tensor by tensor. `header` and `data` may be broken on purpose before bytes().
struct safetensors_builder {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  std::string data;

  template <class T>
  safetensors_builder& add(std::string const& name, std::string const& dtype, std::vector<std::int64_t> const& shape,
                           std::vector<T> const& values) {
    auto const begin = data.size();
    data.append(reinterpret_cast<char const*>(values.data()), values.size() * sizeof(T));
    header[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {begin, data.size()}}};
    return *this;
  }
  [[nodiscard]] std::string bytes() const { return safetensors_bytes(header.dump(), data); }
};

/// A folder of its own, removed at the end of its scope. Test cases run side by side, so the process is in the name.
class temporary_folder {
 public:
  explicit temporary_folder(std::string const& name)
      : path_(std::filesystem::temp_directory_path() / (name + "_" + std::to_string(getpid()))) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  temporary_folder(temporary_folder const&) = delete;
  temporary_folder& operator=(temporary_folder const&) = delete;
  ~temporary_folder() { std::filesystem::remove_all(path_); }

  [[nodiscard]] std::filesystem::path const& path() const { return path_; }
  /// Writes a file and returns its path.
  [[nodiscard]] std::string write(std::string const& name, std::string const& bytes) const {
    auto const file = (path_ / name).string();
    std::ofstream{file, std::ios::binary} << bytes;
    return file;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace support
