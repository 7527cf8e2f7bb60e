// An engine that keeps its own pool: its allocator, its block tables, its strides. The library gets views and writes into
// them what it writes into its own cache, and nothing else.
#include <cstdio>
#include <cstring>
#include <numeric>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include <kvant/cache/append.hpp>
#include <kvant/cache/kv_cache.hpp>
#include <kvant/cache/page_writer.hpp>
#include <kvant/plan/plan.hpp>

#include "toy_model.hpp"

namespace {

using kvant::half;
using kvant::side;
constexpr int window = 64, sinks = 4, page = 64, ring = 144, max_pages = 6, batch = 4;
using low = kvant::layer<kvant::turboquant_key<3>, kvant::turboquant<3>, kvant::window<window>, kvant::sinks<sinks>>;
using kivi = kvant::layer<kvant::kivi_key<2, 32>, kvant::kivi_value<2, 32>, kvant::window<window>, kvant::sinks<sinks>>;
using my_plan = kvant::plan<low, kivi, low>;

/// The toy engine. One allocation holds every layer's part of a page, one behind the other, with room to spare; page 0
/// is nobody's, and entries of a block table that have no page are -1.
class engine {
 public:
  engine() {
    for (int l = 0; l < my_plan::size; ++l)
      unit_bytes_.push_back(kvant::visit_layer(my_plan{}, l, std::int64_t{0}, []<class L>(std::type_identity<L>) {
        return std::int64_t{kvant::page_layout<typename L::key, typename L::value>(toy::shape).unit_bytes()};
      }));
    std::int64_t const all = std::accumulate(unit_bytes_.begin(), unit_bytes_.end(), std::int64_t{0}) * toy::kv_heads;
    page_stride_ = (all + 64 + 255) / 256 * 256;
    pool_.assign(static_cast<std::size_t>(pages * page_stride_), std::byte{0xcd});
    std::int64_t const row = 2 * toy::dim, rows = my_plan::size * batch * 2 * toy::kv_heads;
    window_.assign(static_cast<std::size_t>(rows * ring * row), std::byte{0xcd});
    records_.assign(static_cast<std::size_t>(rows * sinks * row + my_plan::size * batch * toy::kv_heads * row),
                    std::byte{0xcd});
    table_.assign(batch * max_pages, -1);
    for (int id = pages - 1; id >= 1; --id) free_.push_back(id);
  }

  /// Pages for what sequence i will commit at this length.
  bool allocate(int i, int tokens) {
    for (int p = 0; p < (tokens - window) / page; ++p) {
      auto& entry = table_[static_cast<std::size_t>(i * max_pages + p)];
      if (entry >= 0) continue;
      if (free_.empty()) return false;
      std::size_t const pick = free_.size() / 2;  // scattered, as a pool is after a while
      entry = free_[pick], free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(pick));
    }
    return true;
  }

  kvant::layer_view<half> view(int l) {
    std::int64_t before = 0;
    for (int k = 0; k < l; ++k) before += toy::kv_heads * unit_bytes_[static_cast<std::size_t>(k)];
    std::int64_t const row = 2 * toy::dim, slot = 2 * toy::kv_heads * ring * row,
                       sink_bytes = 2 * toy::kv_heads * sinks * row, record = sink_bytes + toy::kv_heads * row;
    kvant::layer_view<half> v;
    v.pages = {pool_.data() + before, page_stride_, unit_bytes_[static_cast<std::size_t>(l)], pages};
    v.window = {window_.data() + l * batch * slot, slot, toy::kv_heads * ring * row, ring * row, row, ring};
    std::byte* const records = records_.data() + l * batch * record;
    v.side = {records, records + sink_bytes, record, toy::kv_heads * sinks * row, sinks * row, row, row, sinks};
    v.table = {table_.data(), max_pages, max_pages};
    v.sequences = {length.data(), history.data(), nullptr, nullptr, slots.data(), nullptr, batch};
    return v;
  }

  /// Bytes that belong to no page of a sequence are as they were.
  [[nodiscard]] bool is_clean() const {
    std::int64_t const used = std::accumulate(unit_bytes_.begin(), unit_bytes_.end(), std::int64_t{0}) * toy::kv_heads;
    std::vector<bool> taken(pages);
    for (auto const id : table_)
      if (id >= 0) taken[static_cast<std::size_t>(id)] = true;
    for (std::int64_t id = 0; id < pages; ++id)
      for (std::int64_t b = taken[static_cast<std::size_t>(id)] ? used : 0; b < page_stride_; ++b)
        if (pool_[static_cast<std::size_t>(id * page_stride_ + b)] != std::byte{0xcd}) return false;
    return !taken[0];
  }

  std::vector<std::int32_t> length{0, 0, 0, 0}, history{0, 0, 0, 0};
  std::vector<std::int32_t> slots{2, 0, -1, 3};  // row 2 of the batch is padding

 private:
  static constexpr int pages = 20;
  std::int64_t page_stride_ = 0;
  std::vector<std::int64_t> unit_bytes_;
  std::vector<std::byte> pool_, window_, records_;
  std::vector<std::int32_t> table_, free_;
};

using writers =
    std::tuple<kvant::page_writer<low::key, low::value, half>, kvant::page_writer<kivi::key, kivi::value, half>>;

/// One step of the batch: counts[i] new tokens of sequence i, through every layer.
kvant::status step(engine& e, writers& w, std::vector<int> const& counts, bool is_prompt) {
  std::vector<std::int32_t> offsets{0};
  for (int const n : counts) offsets.push_back(offsets.back() + n);
  for (int i = 0; i < batch; ++i)
    if (!e.allocate(i, e.length[static_cast<std::size_t>(i)] + counts[static_cast<std::size_t>(i)]))
      return kvant::status::error("the engine's pool is full");
  kvant::step_view const now{e.length.data(), e.history.data(), e.slots.data(), offsets.data(), batch};
  std::vector<std::int32_t> const before = e.length;
  if (auto s = kvant::begin_step(now); !s.ok()) return s;
  for (int l = 0; l < my_plan::size; ++l) {
    std::vector<half> keys, values;  // [rows of the batch, kv heads, dim]
    for (std::size_t i = 0; i < batch; ++i) {
      toy::new_tokens const fresh(toy::model{i + 1}, l, before[i], counts[i]);
      keys.insert(keys.end(), fresh.keys.begin(), fresh.keys.end());
      values.insert(values.end(), fresh.values.begin(), fresh.values.end());
    }
    constexpr int width = toy::kv_heads * toy::dim;
    kvant::new_rows_view<half> const rows{{keys.data(), width, toy::dim},
                                          {values.data(), width, toy::dim},
                                          offsets.data(),
                                          toy::kv_heads,
                                          toy::dim,
                                          toy::dim,
                                          400};
    auto const s = kvant::visit_layer(my_plan{}, l, kvant::status{}, [&]<class L>(std::type_identity<L>) {
      auto& writer = std::get<kvant::page_writer<typename L::key, typename L::value, half>>(w);
      if (is_prompt) return writer.prefill(e.view(l), rows, window);
      if (auto done = kvant::append(e.view(l), rows); !done.ok()) return done;
      return writer.commit(e.view(l), window);  // an engine attends before it commits
    });
    if (!s.ok()) return s;
  }
  return kvant::end_step(now, window, page);
}

int fail(std::string const& why) { return std::fprintf(stderr, "own_pool: %s\n", why.c_str()), 1; }

/// The same sequence in a cache of the library's own.
int compare(engine& e, kvant::kv_cache<my_plan>& cache, int i) {
  int const length = e.length[static_cast<std::size_t>(i)];
  toy::model const model{static_cast<std::uint64_t>(i + 1)};
  auto const id = cache.add();
  if (!id.ok()) return fail(id.message());
  std::vector<toy::new_tokens> tokens;
  auto const done = cache.prefill(*id, length, [&](int l) { return tokens.emplace_back(model, l, 0, length).rows(); });
  if (!done.ok()) return fail(done.message());
  for (int l = 0; l < my_plan::size; ++l) {
    auto one = e.view(l);
    one.table.ids += i * max_pages;
    one.sequences = {e.length.data() + i, e.history.data() + i, nullptr, nullptr, e.slots.data() + i, &i, 1};
    std::string const fault = kvant::visit_layer(
        my_plan{}, l, std::string("no such layer"), [&]<class L>(std::type_identity<L>) -> std::string {
          auto const here = toy::attend<L>(one, model, l, 1), there = toy::attend<L>(*cache.view(l, *id), model, l, 1);
          if (!here.ok() || !there.ok()) return here.message() + there.message();
          if (*here != *there) return "the library's cache reads something else";
          double const error = toy::error(*here, toy::attend_exactly(model, l, length, 1));
          std::printf("sequence %d, %d tokens, layer %d: error %.4f\n", i, length, l, error);
          return error < (std::is_same_v<L, low> ? 0.25 : 0.45) ? "" : "the error is too large";
        });
    if (!fault.empty()) return fail("sequence " + std::to_string(i) + ", layer " + std::to_string(l) + ": " + fault);
  }
  return 0;
}

}  // namespace

int main() {
  engine e;
  writers w;
  auto const ready = [](auto& writer) { return writer.prepare(toy::shape); };
  if (auto s = ready(std::get<0>(w)); !s.ok()) return fail(s.message());
  if (auto s = ready(std::get<1>(w)); !s.ok()) return fail(s.message());

  if (auto s = step(e, w, {300, 7, 0, 130}, true); !s.ok()) return fail(s.message());
  for (int n = 0; n < 80; ++n)
    if (auto s = step(e, w, {1, 1, 0, n % 3}, false); !s.ok()) return fail(s.message());
  if (!e.is_clean()) return fail("bytes that are nobody's page were written");
  if (e.length != std::vector<std::int32_t>{380, 87, 0, 209} || e.history != std::vector<std::int32_t>{256, 0, 0, 128})
    return fail("unexpected lengths");

  kvant::layer_options const every_layer{toy::shape, 0};
  kvant::cache_options options;
  options.layers = {&every_layer, 1}, options.max_sequences = batch, options.max_tokens = 400;
  auto cache = kvant::kv_cache<my_plan>::create(options);
  if (!cache.ok()) return fail(cache.message());
  for (int const i : {0, 1, 3})
    if (compare(e, *cache, i) != 0) return 1;
  return 0;
}
