#include "output.hpp"

#include <cmath>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <system_error>

namespace report {

namespace fs = std::filesystem;

std::string number_text(char const* format, double x) {
  if (std::isnan(x)) return "-";
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, x);
  return buffer;
}

std::string setting_text(setting how) {
  return (how.window == 0 ? std::string("no window") : "window " + std::to_string(how.window)) + ", " +
         (how.sinks == 0   ? std::string("no sinks")
          : how.sinks == 1 ? std::string("1 sink")
                           : std::to_string(how.sinks) + " sinks");
}

void check_folder(fs::path const& folder) {
  std::error_code code;
  auto there = fs::absolute(folder, code);
  while (!fs::exists(there, code) && there.has_relative_path()) there = there.parent_path();
  if (!fs::is_directory(there, code))
    throw std::runtime_error(folder.string() + ": expected a folder to write to, got a file at " + there.string());
}

void write_files(fs::path const& folder, std::vector<std::pair<std::string, std::string>> const& files) {
  std::error_code code;
  fs::create_directories(folder, code);
  if (!fs::is_directory(folder))
    throw std::runtime_error(folder.string() + ": expected a folder to write to" +
                             (code ? ", got: " + code.message() : std::string()));
  auto const temporary = [&](std::string const& name) { return folder / ("." + name + ".part"); };
  auto const give_up = [&](fs::path const& path, std::string const& why) {
    for (auto const& file : files) fs::remove(temporary(file.first), code);
    throw std::runtime_error(path.string() + ": cannot be written: " + why);
  };
  for (auto const& [name, text] : files) {
    if (fs::is_directory(folder / name)) give_up(folder / name, "there is a folder of this name");
    std::ofstream out(temporary(name), std::ios::binary | std::ios::trunc);
    out.write(text.data(), static_cast<std::streamsize>(text.size()));
    out.close();
    if (!out) give_up(temporary(name), std::generic_category().message(errno));
  }
  for (auto const& file : files) {
    fs::rename(temporary(file.first), folder / file.first, code);
    if (code) give_up(folder / file.first, code.message());
  }
}

}  // namespace report
