// Speculative decoding: in every step a draft of four tokens is appended and attended to, as many as were right stay,
// the others are taken back. The cache then holds what it would hold had they never come.
#include <cstdio>
#include <type_traits>

#include <kvant/cache/kv_cache.hpp>
#include <kvant/plan/plan.hpp>

#include "toy_model.hpp"

namespace {

using my_plan = kvant::plan<kvant::exact_layer, kvant::repeat<2, kvant::turboquant_3bit>>;
using cache_type = kvant::kv_cache<my_plan>;
constexpr int prompt = 150, steps = 60, draft = 4;

int fail(std::string const& why) { return std::fprintf(stderr, "decode_loop: %s\n", why.c_str()), 1; }

/// The tokens of one layer; they live as long as the object.
struct feed {
  toy::model const& model;
  int begin, tokens;
  std::vector<toy::new_tokens> kept{};
  kvant::layer_rows<kvant::half> operator()(int layer) {
    kept.emplace_back(model, layer, begin, tokens);
    return kept.back().rows();
  }
};

/// Attention of the newest tokens in every layer; empty and a word on stderr where it failed.
std::vector<double> attend_in(cache_type const& cache, kvant::sequence_id id, toy::model const& model, int layer,
                              int rows) {
  auto const out =
      kvant::visit_layer(my_plan{}, layer, kvant::result<std::vector<double>>(kvant::status::error("no such layer")),
                         [&]<class Layer>(std::type_identity<Layer>) {
                           return toy::attend<Layer>(*cache.view(layer, id), model, layer, rows);
                         });
  if (!out.ok()) std::fprintf(stderr, "attention: %s\n", out.message().c_str());
  return out.ok() ? *out : std::vector<double>{};
}

}  // namespace

int main() {
  toy::model const right{1}, wrong{2};
  kvant::layer_options const every_layer{toy::shape, 0};
  kvant::cache_options options;
  options.layers = {&every_layer, 1}, options.max_sequences = 2, options.max_tokens = 1000;
  auto created = cache_type::create(options);
  if (!created.ok()) return fail(created.message());
  cache_type& cache = *created;
  auto const drafted = *cache.add(), plain = *cache.add();
  for (auto const id : {drafted, plain})
    if (auto s = cache.prefill(id, prompt, feed{right, 0, prompt}); !s.ok()) return fail(s.message());

  double worst = 0;
  for (int step = 0; step < steps; ++step) {
    int const length = cache.length(drafted), good = 1 + step * 7 % draft;  // 1 to 4 of the draft are right
    if (auto s = cache.begin({drafted, draft}); !s.ok()) return fail(s.message());
    for (int layer = 0; layer < my_plan::size; ++layer) {
      // The first `good` tokens of the draft are the text's, the others are not.
      toy::new_tokens tokens(wrong, layer, length, draft);
      toy::new_tokens const accepted(right, layer, length, good);
      std::copy(accepted.keys.begin(), accepted.keys.end(), tokens.keys.begin());
      std::copy(accepted.values.begin(), accepted.values.end(), tokens.values.begin());
      if (auto s = cache.append(layer, tokens.rows()); !s.ok()) return fail(s.message());
      auto out = attend_in(cache, drafted, right, layer, draft);
      if (out.empty()) return 1;
      out.resize(static_cast<std::size_t>(good * toy::q_heads * toy::dim));  // rows see no later rows
      // As if the sequence ended with the last good token.
      worst = std::max(worst, toy::error(out, toy::attend_exactly(right, layer, length + good, good)));
    }
    auto const kept = cache.truncate(drafted, length + good);
    if (!kept.ok()) return fail(kept.message());
    if (*kept != kvant::truncation::exact) return fail("a rejected draft must leave nothing behind");
    if (auto s = cache.commit(drafted); !s.ok()) return fail(s.message());

    for (int i = 0; i < good; ++i) {  // the same text, token by token
      if (auto s = cache.append({plain, 1}, feed{right, length + i, 1}); !s.ok()) return fail(s.message());
      if (auto s = cache.commit(plain); !s.ok()) return fail(s.message());
    }
  }

  std::printf("%d tokens, worst error of an attention output against exact tokens %.4f\n", cache.length(drafted),
              worst);
  for (int layer = 0; layer < my_plan::size; ++layer) {
    if (cache.history(drafted, layer) != cache.history(plain, layer)) return fail("unlike histories");
    if (attend_in(cache, drafted, right, layer, 1) != attend_in(cache, plain, right, layer, 1))
      return fail("layer " + std::to_string(layer) + ": drafts left a trace");
  }
  // 3 bits leave 0.19 of a value, and values are noise here.
  return worst < 0.25 ? 0 : fail("expected an error below 0.25");
}
