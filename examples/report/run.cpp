#include "run.hpp"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <thread>

namespace report {
namespace {

/// fn(0) .. fn(count - 1) on `threads` threads. The first exception stops the rest and is thrown.
template <class Fn>
void parallel_for(int count, int threads, Fn const& fn) {
  std::atomic<int> next{0};
  std::exception_ptr failed;
  std::mutex guard;
  auto const work = [&] {
    for (int i = next++; i < count; i = next++) try {
        fn(i);
      } catch (...) {
        std::lock_guard const lock(guard);
        if (!failed) failed = std::current_exception();
        next = count;
      }
  };
  std::vector<std::thread> others;
  for (int t = 1; t < std::min(threads, count); ++t) others.emplace_back(work);
  work();
  for (auto& t : others) t.join();
  if (failed) std::rethrow_exception(failed);
}

std::string to_text(char const* format, double x) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, x);
  return buffer;
}

std::vector<key_energy> energies_of(sample const& s) {
  std::vector<key_energy> all;
  for (auto const& layer : s.layers)
    all.push_back({layer.index, key_energy_in_mean(s, layer), key_energy_in_mean_by_head(s, layer)});
  return all;
}

/// The policies that were asked for, and of them those that the shape allows.
std::vector<policy> choose(request const& wanted, sample const& s, std::vector<skipped_policy>& skipped) {
  auto const all = all_policies(s.pairs);
  for (auto const& name : wanted.policies)
    if (std::none_of(all.begin(), all.end(), [&](policy const& p) { return p.name == name; }))
      throw std::runtime_error("policy " + name + ": there is none of this name");
  std::vector<policy> chosen;
  for (auto const& p : all) {
    auto const& names = wanted.policies;
    if (!names.empty() && std::find(names.begin(), names.end(), p.name) == names.end()) continue;
    auto const allowed = p.check({s.kv_heads, s.key_dim, s.value_dim, 0});
    if (allowed.ok())
      chosen.push_back(p);
    else
      skipped.push_back({p.name, allowed.message()});
  }
  return chosen;
}

/// Two files of one name in different folders are told apart by their paths.
void name_apart(std::vector<sample>& samples) {
  std::map<std::string, int> count;
  for (auto const& s : samples) ++count[s.name];
  for (auto& s : samples)
    if (count[s.name] > 1) s.name = s.path;
}

class counter {
 public:
  counter(progress const& tell, int total) : tell_(tell), total_(total) {}
  void add(std::string const& what) {
    std::lock_guard const lock(guard_);
    ++done_;
    if (tell_) tell_(done_, total_, what);
  }

 private:
  progress const& tell_;
  int done_ = 0, total_;
  std::mutex guard_;
};

/// All policies and settings of one layer, side by side: the exact attention of other layers need not be in memory.
void measure(sample_report& into, std::size_t layer, int threads, counter& done) {
  auto const& s = into.data;
  auto const& inputs = s.layers[layer];
  auto const exact = attend_exactly(s, inputs);
  std::string const where = s.name + ", layer " + std::to_string(inputs.index) + ": ";
  done.add(where + "exact attention");
  parallel_for(static_cast<int>(into.results.size()), threads, [&](int i) {
    auto& r = into.results[static_cast<std::size_t>(i)];
    r.measures.layers[layer] = r.what.measure({s, inputs, exact, r.how});
    done.add(where + r.what.name);
  });
}

}  // namespace

std::vector<std::string> warnings_of(std::vector<key_energy> const& energies, std::vector<policy> const& chosen) {
  std::string names;
  for (auto const& p : chosen)
    if (p.rotates_without_centering) names += (names.empty() ? "" : ", ") + p.name;
  std::vector<std::string> all;
  for (auto const& e : energies)
    if (!names.empty() && e.in_mean > most_energy_in_mean)
      all.push_back(
          "layer " + std::to_string(e.layer) + ": the mean over tokens carries " + to_text("%.4f", e.in_mean) +
          " of the key energy (more than " + to_text("%.1f", most_energy_in_mean) +
          "): after a rotation without centering these keys fall into the same codes. Not for this layer: " + names +
          ". Centered keys (turboquant_4bit and its like) are made for it.");
  return all;
}

std::vector<sample_report> run(request const& wanted, progress const& tell) {
  std::vector<sample> samples;
  for (auto const& file : wanted.files) samples.push_back(load_sample(file));
  name_apart(samples);
  std::vector<sample_report> reports;
  int total = 0;
  for (auto& s : samples) {
    auto& r = reports.emplace_back();
    r.data = std::move(s);
    r.energies = energies_of(r.data);
    auto const chosen = choose(wanted, r.data, r.skipped);
    r.warnings = warnings_of(r.energies, chosen);
    for (auto const how : wanted.settings)
      for (auto const& p : chosen) {
        auto& line = r.results.emplace_back();
        line.what = p, line.how = how;
        line.bits_per_value = p.bits_per_value({r.data.kv_heads, r.data.key_dim, r.data.value_dim, p.page_tokens});
        line.measures.layers.resize(r.data.layers.size());
      }
    if (r.results.empty()) {
      std::string why;
      for (auto const& k : r.skipped) why += "\n  " + k.name + ": " + k.reason;
      throw std::runtime_error(r.data.path + ": no policy can serve this shape:" + why);
    }
    total += static_cast<int>(r.data.layers.size() * (1 + r.results.size()));
  }
  counter done(tell, total);
  for (auto& r : reports)
    for (std::size_t layer = 0; layer < r.data.layers.size(); ++layer) measure(r, layer, wanted.threads, done);
  return reports;
}

}  // namespace report
