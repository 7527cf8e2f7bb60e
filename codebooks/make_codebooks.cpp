// make_codebooks [FOLDER]    writes codebook_d{D}_b{B}.json for every head size and width into FOLDER (default: here)
// make_codebooks --tables    prints the integer tables as they stand in kvant/format/codebook_tables.hpp

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include <kvant/format/lloyd_max_search.hpp>
#include <kvant/io/codebook.hpp>

namespace {

constexpr int head_dims[] = {64, 80, 96, 112, 128, 192, 256, 512, 576};

void write_file(std::filesystem::path const& path, std::string const& text) {
  std::ofstream out{path, std::ios::binary};
  out << text << std::flush;
  if (!out) throw std::runtime_error(path.string() + ": cannot be written");
}

void write_codebooks(std::filesystem::path const& folder) {
  for (int const d : head_dims)
    for (int bits = 1; bits <= 4; ++bits)
      write_file(folder / ("codebook_d" + std::to_string(d) + "_b" + std::to_string(bits) + ".json"),
                 kvant::to_json(kvant::solve_codebook(d, bits)));
  std::printf("wrote 36 codebooks to %s\n", folder.string().c_str());
}

void print_tables() {
  for (int bits = 1; bits <= 4; ++bits) {
    auto const table = kvant::search_integer_table(bits);
    std::string text;
    for (int const m : table.magnitudes) text += (text.empty() ? "" : ", ") + std::to_string(m);
    auto const condition = bits < 4 ? "if (bits == " + std::to_string(bits) + ") " : std::string{};
    std::printf("  %sreturn {%.12gf, {%s}};\n", condition.c_str(), table.step, text.c_str());
  }
}

}  // namespace

int main(int argc, char** argv) try {
  std::string const argument = argc > 1 ? argv[1] : ".";
  if (argc > 2 || (argument.starts_with("-") && argument != "--tables")) {
    std::fprintf(stderr, "usage: make_codebooks [FOLDER]\n       make_codebooks --tables\n");
    return 2;
  }
  if (argument == "--tables") {
    print_tables();
  } else {
    write_codebooks(argument);
  }
} catch (std::exception const& e) {
  std::fprintf(stderr, "make_codebooks: %s\n", e.what());
  return 1;
}
