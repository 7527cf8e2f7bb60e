#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "run.hpp"

namespace report {

/// The table of one sample, both settings, in fixed width; what comes before and after it.
[[nodiscard]] std::string table_text(sample_report const& r);

/// What the columns are; once below the tables.
[[nodiscard]] std::string legend_text();

/// An array of objects, one for each line of the tables.
[[nodiscard]] std::string json_text(std::vector<sample_report> const& reports);

/// One page that needs nothing from outside it.
[[nodiscard]] std::string html_text(std::vector<sample_report> const& reports);

/// Throws std::runtime_error where `folder` cannot be or become a folder: better before the measuring than after it.
void check_folder(std::filesystem::path const& folder);

/// Writes all files or, as far as the file system lets us, none: each goes to a temporary file first, and only when all
/// are written they are renamed. Throws std::runtime_error with the path and the reason. Makes the folder.
void write_files(std::filesystem::path const& folder, std::vector<std::pair<std::string, std::string>> const& files);

/// x by printf format; "-" where nothing was measured (NaN).
[[nodiscard]] std::string number_text(char const* format, double x);

/// "window 128, 4 sinks"; "no window, no sinks".
[[nodiscard]] std::string setting_text(setting how);

}  // namespace report
