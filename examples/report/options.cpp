#include "options.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <thread>

namespace report {
namespace {

namespace fs = std::filesystem;

class parser {
 public:
  explicit parser(std::span<char const* const> arguments) : rest_(arguments) {}

  options parse(std::string const& samples) {
    int window = default_window, sinks = default_sinks, threads = 0;
    bool one_setting = false;
    while (!rest_.empty()) {
      std::string const option = next();
      if (option == "--help" || option == "-h")
        result_.help = true;
      else if (option == "--kv")
        files();
      else if (option == "--out")
        once(option), result_.out = argument(option, "a folder");
      else if (option == "--policies")
        once(option), policies(argument(option, "names with commas between them"));
      else if (option == "--window")
        once(option), window = integer(option, 0, 1 << 20), one_setting = true;
      else if (option == "--sinks")
        once(option), sinks = integer(option, 0, 63), one_setting = true;
      else if (option == "--threads")
        once(option), threads = integer(option, 1, 1024);
      else
        throw usage_error(option + ": expected one of the options of --help");
    }
    auto& wanted = result_.wanted;
    if (one_setting)
      wanted.settings = {{window, sinks}};
    else
      wanted.settings = {{default_window, default_sinks}, {0, 0}};
    wanted.threads = threads > 0 ? threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    if (wanted.files.empty() && !result_.help) embedded(samples);
    return std::move(result_);
  }

 private:
  static constexpr int default_window = 128, default_sinks = 4;

  static bool is_option(std::string_view text) { return text.starts_with("-") && text.size() > 1; }

  std::string next() {
    std::string const text = rest_.front();
    rest_ = rest_.subspan(1);
    return text;
  }

  void once(std::string const& option) {
    if (std::find(seen_.begin(), seen_.end(), option) != seen_.end())
      throw usage_error(option + ": expected once, got twice");
    seen_.push_back(option);
  }

  std::string argument(std::string const& option, std::string const& what) {
    if (rest_.empty() || is_option(rest_.front()) || *rest_.front() == '\0')
      throw usage_error(option + ": expected " + what + ", got " +
                        (rest_.empty() ? std::string("nothing") : '"' + std::string(rest_.front()) + '"'));
    return next();
  }

  int integer(std::string const& option, int least, int most) {
    std::string const range = "an integer from " + std::to_string(least) + " to " + std::to_string(most);
    if (rest_.empty()) throw usage_error(option + ": expected " + range + ", got nothing");
    std::string const text = next();
    int value = 0;
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size() || value < least || value > most)
      throw usage_error(option + ": expected " + range + ", got \"" + text + '"');
    return value;
  }

  void files() {
    do add_file(argument("--kv", "a safetensors file"));
    while (!rest_.empty() && !is_option(rest_.front()));
  }

  void add_file(std::string file) {
    auto& files = result_.wanted.files;
    if (std::find(files.begin(), files.end(), file) != files.end())
      throw usage_error("--kv: expected each file once, got \"" + file + "\" twice");
    files.push_back(std::move(file));
  }

  void policies(std::string_view text) {
    auto const known = policy_names();
    for (bool more = true; more;) {
      auto const comma = text.find(',');
      more = comma != text.npos;
      std::string const name(text.substr(0, comma));
      text.remove_prefix(more ? comma + 1 : text.size());
      if (std::find(known.begin(), known.end(), name) == known.end()) {
        std::string names;
        for (auto const& k : known) names += (names.empty() ? "" : ", ") + k;
        throw usage_error("--policies: expected names out of " + names + "; got \"" + name + '"');
      }
      auto& chosen = result_.wanted.policies;
      if (std::find(chosen.begin(), chosen.end(), name) != chosen.end())
        throw usage_error("--policies: expected each name once, got " + name + " twice");
      chosen.push_back(name);
    }
  }

  void embedded(std::string const& samples) {
    std::error_code code;
    for (fs::directory_iterator it(samples, code), end; !code && it != end; it.increment(code))
      if (it->path().extension() == ".safetensors") add_file(it->path().string());
    auto& files = result_.wanted.files;
    std::sort(files.begin(), files.end());
    if (files.empty())
      throw usage_error("expected *.safetensors in " + samples + ", found none" +
                        (code ? " (" + code.message() + ")" : "") + "; name files with --kv");
  }

  std::span<char const* const> rest_;
  std::vector<std::string> seen_;
  options result_;
};

}  // namespace

options parse_options(std::span<char const* const> arguments, std::string const& samples) {
  return parser(arguments).parse(samples);
}

std::string help_text() {
  std::string text = R"(report: what every policy of kvant costs and saves on real queries, keys and values

  report [--kv FILE ...] [--out DIR] [--policies a,b,...] [--window N] [--sinks N] [--threads N]

  --kv FILE ...     safetensors files of attention inputs (examples/report/samples/README.md says the format, and
                    capture.py beside it makes them from a model); default: the samples that come with kvant
  --out DIR         where report.json and report.html go; default: the current folder
  --policies a,b    only these policies; default: all
  --window N        only with a window of N exact newest tokens (128 if only --sinks is given)
  --sinks N         and N exact first tokens, 0 to 63 (4 if only --window is given)
                    default: 128 and 4, then 0 and 0
  --threads N       default: one for each processor
  --help            this text

Policies:
)";
  for (auto const& name : policy_names()) text += "  " + name + "\n";
  return text;
}

}  // namespace report
