// Prints a digest of encoded pages for each policy and head size. The same text must come from every compiler and flag.
#include <kvant/kvant.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace {

/// Numbers that no compiler can change: bell-shaped sums of integers, a bias on some channels, whole rows of zeros.
std::vector<kvant::half> make_rows(int tokens, int dim, std::uint32_t seed) {  // [tokens, dim]
  std::vector<kvant::half> rows;
  std::uint64_t state = seed;
  for (int i = 0; i < tokens * dim; ++i) {
    std::int32_t sum = 0;
    for (int k = 0; k < 6; ++k) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      sum += static_cast<std::int32_t>(state >> 48) - 32768;
    }
    bool const biased = i % dim % 17 == 3, empty = i / dim % 29 == 7;
    rows.push_back(kvant::half{empty ? 0.f : static_cast<float>(sum + (biased ? 1 << 20 : 0)) / 32768.f});
  }
  return rows;
}

std::uint64_t digest(std::uint64_t seen, void const* from, std::size_t bytes) {  // FNV-1a
  auto const* p = static_cast<unsigned char const*>(from);
  for (std::size_t i = 0; i < bytes; ++i) seen = (seen ^ p[i]) * 0x100000001b3u;
  return seen;
}

template <class Layer>
bool print(char const* policy) {
  for (int const dim : {64, 96, 112, 128, 160, 256, 576}) {
    kvant::page_codec<typename Layer::key, typename Layer::value> codec;
    if (!codec.prepare({.kv_heads = 1, .key_dim = dim, .value_dim = dim}).ok()) continue;
    int const tokens = codec.layout().shape.page_tokens;
    std::vector<kvant::half> factors(static_cast<std::size_t>(dim), kvant::half{1.f});
    std::vector<std::byte> unit(static_cast<std::size_t>(codec.layout().unit_bytes()), std::byte{0xa5});
    std::uint64_t seen = 0xcbf29ce484222325u;
    for (std::uint32_t seed = 1; seed <= 8; ++seed) {
      auto const keys = make_rows(tokens, dim, seed), values = make_rows(tokens, dim, seed + 100);
      if constexpr (Layer::key::is_balanced) codec.make_factors(keys.data(), dim, 4, factors.data());
      if (codec.encode_unit(keys.data(), dim, values.data(), dim, 4, factors.data(), unit.data()) != 0) return false;
      seen = digest(digest(seen, factors.data(), factors.size() * sizeof(kvant::half)), unit.data(), unit.size());
    }
    std::printf("%s %d %016llx\n", policy, dim, static_cast<unsigned long long>(seen));
  }
  return true;
}

}  // namespace

int main() {
  bool const ok = print<kvant::turboquant_4bit>("turboquant_4bit") && print<kvant::k3v2>("k3v2") &&
                  print<kvant::kivi_2bit>("kivi_2bit") && print<kvant::bonsai_1bit_rotated>("bonsai_1bit_rotated");
  return ok ? 0 : 1;
}
