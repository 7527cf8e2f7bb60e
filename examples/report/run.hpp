#pragma once

#include <functional>
#include <string>
#include <vector>

#include "policy.hpp"

namespace report {

/// One line of the table: a policy on a sample with a window and sinks.
struct result {
  policy what;
  setting how;
  double bits_per_value = 0;  // of the sample's shape, as allocated
  sample_measures measures;
};

/// A policy that the sample's shape does not allow.
struct skipped_policy {
  std::string name, reason;
};

/// Where a layer's key energy lies.
struct key_energy {
  int layer = 0;
  double in_mean = 0;
  std::vector<double> in_mean_by_head;  // [kv_heads]
};

/// Above this share of the key energy in the mean, a rotated format that does not take it off is warned of.
inline constexpr double most_energy_in_mean = 0.9;

/// Everything that is known of one sample.
struct sample_report {
  sample data;
  std::vector<key_energy> energies;  // by layer
  std::vector<result> results;       // by setting, then policy
  std::vector<skipped_policy> skipped;
  std::vector<std::string> warnings;
};

/// Told after each piece of work: how many are done, of how many, and which one.
using progress = std::function<void(int done, int total, std::string const& what)>;

struct request {
  std::vector<std::string> files;
  std::vector<std::string> policies;  // empty: all
  std::vector<setting> settings;
  int threads = 1;
};

/// Loads all files (so that a bad one is refused before anything is measured), then measures. Throws std::runtime_error
/// (kvant::io_error for files). `tell` is called from one thread at a time.
[[nodiscard]] std::vector<sample_report> run(request const& wanted, progress const& tell);

/// What a reader should know before choosing: layers whose mean carries more than most_energy_in_mean, and the policies
/// among `chosen` that this breaks.
[[nodiscard]] std::vector<std::string> warnings_of(std::vector<key_energy> const& energies,
                                                   std::vector<policy> const& chosen);

}  // namespace report
