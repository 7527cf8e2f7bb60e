#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory_resource>
#include <new>
#include <string>
#include <vector>

#include <kvant/cache/kv_cache.hpp>

#include "support/cache_rows.hpp"
#include "support/catch.hpp"
#include "support/small_cache.hpp"

namespace {

/// How many more allocations succeed, of the heap and of the resource below; negative: all.
int allocations_left = -1;
bool fails_now() { return allocations_left >= 0 && allocations_left-- == 0; }

void* take(std::size_t bytes, std::size_t alignment) {
  if (fails_now()) throw std::bad_alloc();
  void* const p = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

}  // namespace

void* operator new(std::size_t bytes) { return take(bytes == 0 ? 1 : bytes, 16); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return take(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, std::nothrow_t const&) noexcept {
  return fails_now() ? nullptr : std::aligned_alloc(16, (bytes + 16) / 16 * 16);
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::nothrow_t const&) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }

namespace {

using support::position_rows;
using support::small_cache;
using support::snapshot;

/// Counts the bytes that are out.
class counting_resource final : public std::pmr::memory_resource {
 public:
  std::int64_t bytes = 0, most = 0;
  int allocations = 0;

 private:
  void* do_allocate(std::size_t n, std::size_t alignment) override {
    void* const p = take(n, alignment < 16 ? 16 : alignment);
    bytes += static_cast<std::int64_t>(n), ++allocations;
    most = bytes > most ? bytes : most;
    return p;
  }
  void do_deallocate(void* p, std::size_t n, std::size_t) override {
    bytes -= static_cast<std::int64_t>(n);
    std::free(p);
  }
  [[nodiscard]] bool do_is_equal(std::pmr::memory_resource const& other) const noexcept override {
    return this == &other;
  }
};

/// f with its n-th allocation failing, for n = 0, 1, ... until it needs no more; before_next after each failure.
template <class F, class Check>
int fail_each_allocation(F const& f, Check const& after_failure) {
  for (int n = 0;; ++n) {
    allocations_left = n;
    bool const ok = f();
    bool const was_hit = allocations_left < 0;
    allocations_left = -1;
    if (!was_hit) {
      REQUIRE(ok);
      return n;
    }
    CAPTURE(n);
    REQUIRE_FALSE(ok);
    after_failure();
  }
}

}  // namespace

TEST_CASE("reported bytes are allocated bytes", "[cache]") {
  counting_resource tables, arenas;
  auto options = support::options_of({.max_sequences = 3, .max_tokens = 1000});
  {
    auto cache = *small_cache::create(options, &tables, &arenas);
    auto const m = cache.memory();
    CHECK(m == kvant::memory_of(cache.geometry()));
    CHECK(m.tables == tables.bytes);
    CHECK(m.codes + m.parameters + m.window + m.sinks == arenas.bytes);
    CHECK(m.total() == tables.bytes + arenas.bytes);

    // By hand. Layer 0: 2 heads, keys of 16, values of 32, 3 bits, two halves a token, factors; layer 1: 16-bit rows.
    std::int64_t const pages = (1000 - 40) / 64 * 3;
    CHECK(m.codes == pages * 64 * (2 * 3 * (16 + 32) / 8 + 2 * (32 + 16)));
    CHECK(m.parameters == pages * 2 * (64 * 2 * 2 + 32 /* page mean */) + 3 * 2 * 2 * 16);
    std::int64_t const ring = (40 + 63 + 70 + 15) / 16 * 16;
    CHECK(m.window == 3 * ring * 2 * 2 * (2 * 32 + 32));
    CHECK(m.sinks == 3 * 2 * 2 * (4 * 2 * 32 + 2 * 32));

    // Nothing that a sequence does allocates but a prefill's table, for as long as it runs.
    int const before = tables.allocations, arenas_before = arenas.allocations;
    position_rows const rows(cache.geometry(), 900);
    auto const id = *cache.add();
    for (int n = 0; n < 900; n += 60) {
      REQUIRE(cache.append({id, 60}, rows.from(n)).ok());
      REQUIRE(cache.commit().ok());
    }
    auto const child = *cache.fork(id);
    REQUIRE(cache.truncate(child, 5).ok());
    REQUIRE(cache.release(id).ok());
    CHECK(tables.allocations == before);
    REQUIRE(cache.prefill(child, 800, rows.from(0)).ok());
    CHECK(arenas.allocations == arenas_before);
    CHECK(tables.bytes == m.tables);
  }
  CHECK(tables.bytes == 0);
  CHECK(arenas.bytes == 0);
}

TEST_CASE("an allocation that fails leaves everything as it was", "[cache]") {
  counting_resource memory;
  auto const options = support::options_of({.max_sequences = 3, .max_tokens = 1000});
  int const in_create = fail_each_allocation([&] { return small_cache::create(options, &memory).ok(); },
                                             [&] { REQUIRE(memory.bytes == 0); });
  CHECK(in_create > 15);
  CHECK(memory.bytes == 0);

  auto cache = *small_cache::create(options, &memory);
  position_rows const rows(cache.geometry(), 900);
  auto const a = *cache.add(), b = *cache.add();
  REQUIRE(cache.prefill(a, 300, rows.from(0)).ok());
  REQUIRE(cache.append({b, 50}, rows.from(0)).ok());
  auto const none_of_it = [&, bytes = memory.bytes, of_a = snapshot(cache, a), of_b = snapshot(cache, b),
                           used = cache.stats().pages_used](std::int64_t tokens) {
    REQUIRE(snapshot(cache, a) == of_a);
    REQUIRE(snapshot(cache, b) == of_b);
    REQUIRE(cache.stats().pages_used == used);
    REQUIRE(cache.stats().tokens == tokens);
    REQUIRE(memory.bytes == bytes);
  };
  auto const unchanged = [&] { none_of_it(350); };

  SECTION("prefill") {
    CHECK(fail_each_allocation([&] { return cache.prefill(a, 500, rows.from(300)).ok(); }, unchanged) > 2);
  }
  SECTION("the first commit, which makes factors") {
    REQUIRE(cache.append({b, 60}, rows.from(50)).ok());
    auto const before = snapshot(cache, b);
    CHECK(fail_each_allocation([&] { return cache.commit(b).ok(); }, [&] { REQUIRE(snapshot(cache, b) == before); }) >
          0);
    CHECK(cache.history(b, 0) == 64);
  }
  SECTION("truncation into a page") {
    fail_each_allocation([&] { return cache.truncate(a, 100).ok(); }, unchanged);
  }
  SECTION("all others") {
    fail_each_allocation([&] { return cache.append({b, 20}, rows.from(50)).ok(); }, unchanged);
    REQUIRE(cache.truncate(b, 50).ok());
    fail_each_allocation([&] { return cache.fork(a).ok(); }, unchanged);
    fail_each_allocation([&] { return cache.drop(a, 100).ok(); }, unchanged);
    fail_each_allocation([&] { return cache.release(b).ok(); }, unchanged);
    // Errors are sentences, and those need memory too.
    fail_each_allocation([&] { return cache.release(b).message().find("released") != std::string::npos; }, [] {});
  }
}

TEST_CASE("tokens_that_fit is what a cache of so many bytes holds", "[cache]") {
  using llama = kvant::plan<kvant::repeat<32, kvant::turboquant_4bit>>;
  kvant::page_shape const shape{8, 128, 128, 0};
  auto const bytes_for = [&](std::int32_t tokens) {
    kvant::layer_options const layer{shape, 0};
    kvant::cache_options o;
    o.layers = {&layer, 1}, o.max_tokens = tokens;
    return kvant::memory_of(*kvant::make_geometry<llama>(o)).total();
  };
  std::int64_t const bytes = std::int64_t{8} << 30;
  std::int32_t const tokens = kvant::tokens_that_fit(bytes, llama{}, shape);
  CHECK(bytes_for(tokens) <= bytes);
  CHECK(bytes_for(tokens + 1) > bytes);
  // 4.195 bits a value against 16: within the window's share of the 3.8 times as many.
  CHECK(tokens > 245000);
  CHECK(tokens < 250500);
  CHECK(kvant::tokens_that_fit(1000, llama{}, shape) == 0);
  CHECK(kvant::tokens_that_fit(bytes, llama{}, {8, 100, 128, 0}) == 0);
}
