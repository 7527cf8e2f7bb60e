#include <cstdio>
#include <exception>
#include <string>

#include <unistd.h>

#include "options.hpp"
#include "output.hpp"

namespace {

/// One line that is rewritten on a terminal; elsewhere a line at each tenth.
class progress_line {
 public:
  void operator()(int done, int total, std::string const& what) {
    int const percent = 100 * done / total;
    if (terminal_) {
      std::fprintf(stderr, "\r\033[K%3d %%  %s", percent, what.c_str());
      if (done == total) std::fputs("\r\033[K", stderr);
      std::fflush(stderr);
    } else if (percent / 10 > last_ / 10 || done == 1) {
      std::fprintf(stderr, "%3d %%  %s\n", percent, what.c_str());
    }
    last_ = percent;
  }

 private:
  bool terminal_ = isatty(STDERR_FILENO) != 0;
  int last_ = 0;
};

int run(int argc, char const* const* argv) {
  auto const options =
      report::parse_options({argv + 1, static_cast<std::size_t>(argc > 0 ? argc - 1 : 0)}, KVANT_SAMPLES_DIR);
  if (options.help) {
    std::fputs(report::help_text().c_str(), stdout);
    return 0;
  }
  report::check_folder(options.out);
  auto const reports = report::run(options.wanted, progress_line{});
  for (auto const& r : reports) std::printf("%s\n", report::table_text(r).c_str());
  report::write_files(options.out,
                      {{"report.json", report::json_text(reports)}, {"report.html", report::html_text(reports)}});
  std::printf("%s", report::legend_text().c_str());
  std::printf("Written: %s/report.json, %s/report.html\n", options.out.c_str(), options.out.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (report::usage_error const& e) {
    std::fprintf(stderr, "report: %s\n(report --help says more)\n", e.what());
    return 2;
  } catch (std::exception const& e) {
    std::fprintf(stderr, "report: %s\n", e.what());
    return 1;
  }
}
