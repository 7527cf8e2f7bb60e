#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include <ucontext.h>

// Threads of a block as fibers of one host thread. A fiber runs until it meets others: the lanes of its warp (shuffles,
// votes, mma), or a barrier. Who comes last does what they came for and wakes them.
namespace emulated {

struct index {
  unsigned x = 0, y = 0, z = 0;
};

class block {
 public:
  static inline block* running = nullptr;
  static constexpr std::size_t stack_bytes = 128 * 1024;

  block(int threads, std::size_t shared_bytes, std::function<void()> body)
      : fibers_(static_cast<std::size_t>(threads)),
        warps_(static_cast<std::size_t>(threads + 31) / 32),
        body_(std::move(body)) {
    if (shared_bytes > sizeof shared_) {
      std::fprintf(stderr, "emulated block: %zu bytes of shared memory\n", shared_bytes);
      std::abort();
    }
    std::memset(shared_, 0xff, shared_bytes);  // NaN
  }

  void run() {
    running = this;
    for (std::size_t i = 0; i < fibers_.size(); ++i) {
      fiber& f = fibers_[i];
      if (f.stack == nullptr) f.stack = stack_of(i);
      getcontext(&f.context);
      f.context.uc_stack.ss_sp = f.stack, f.context.uc_stack.ss_size = stack_bytes, f.context.uc_link = &scheduler_;
      makecontext(&f.context, enter, 0);
      ready_.push_back(static_cast<int>(i));
    }
    while (!ready_.empty()) {
      current_ = ready_.front();
      ready_.pop_front();
      swapcontext(&scheduler_, &fibers_[static_cast<std::size_t>(current_)].context);
      if (!fibers_[static_cast<std::size_t>(current_)].ended) continue;
      ++ended_;
      // Who has ended is not waited for.
      if (!barriers_[0].empty() && barriers_[0].size() == fibers_.size() - ended_) current_ = -1, wake(barriers_[0]);
    }
    if (ended_ != fibers_.size()) {
      std::fprintf(stderr, "emulated block: %zu threads wait for others that never come\n", fibers_.size() - ended_);
      std::abort();
    }
    running = nullptr;
  }

  [[nodiscard]] int thread() const { return current_; }
  [[nodiscard]] std::byte* shared() { return shared_; }

  /// Groups of asynchronous copies of a thread that are under way, the last one not ended.
  struct copies_under_way {
    std::deque<std::vector<std::function<void()>>> groups{1};
  };
  [[nodiscard]] copies_under_way& later() { return fibers_[static_cast<std::size_t>(current_)].copies; }

  /// All 32 lanes bring an In; compute(in) makes their Outs.
  template <class Out, class In, class Compute>
  Out meet(In const& mine, Compute compute) {
    static_assert(sizeof(In) <= sizeof(warp_state::in[0]) && sizeof(Out) <= sizeof(warp_state::out[0]));
    warp_state& w = warps_[static_cast<std::size_t>(current_) / 32];
    int const lane = current_ % 32;
    std::memcpy(w.in[lane], &mine, sizeof mine);
    w.waiting.push_back(current_);
    if (w.waiting.size() < 32) {
      sleep();
    } else {
      In in[32];
      Out out[32];
      for (int i = 0; i < 32; ++i) std::memcpy(&in[i], w.in[i], sizeof(In));
      compute(in, out);
      for (int i = 0; i < 32; ++i) std::memcpy(w.out[i], &out[i], sizeof(Out));
      wake(w.waiting);
    }
    Out result;
    std::memcpy(&result, w.out[lane], sizeof result);
    return result;
  }
  void barrier(int id, int threads) {
    auto& waiting = barriers_[id];
    waiting.push_back(current_);
    if (static_cast<int>(waiting.size()) < threads)
      sleep();
    else
      wake(waiting);
  }
  void barrier_of_all() { barrier(0, static_cast<int>(fibers_.size() - ended_)); }
  void yield() {
    ready_.push_back(current_);
    sleep();
  }

 private:
  struct fiber {
    ucontext_t context;
    char* stack = nullptr;
    bool ended = false;
    copies_under_way copies;
  };
  struct warp_state {
    alignas(16) std::byte in[32][64], out[32][32];
    std::vector<int> waiting;
  };

  static char* stack_of(std::size_t i) {
    static std::vector<std::unique_ptr<char[]>> stacks;
    while (stacks.size() <= i) stacks.emplace_back(new char[stack_bytes]);
    return stacks[i].get();
  }
  static void enter() {
    running->body_();
    running->fibers_[static_cast<std::size_t>(running->current_)].ended = true;
  }
  void sleep() {
    int const me = current_;
    swapcontext(&fibers_[static_cast<std::size_t>(me)].context, &scheduler_);
  }
  /// Wakes all who wait but the one who runs.
  void wake(std::vector<int>& waiting) {
    for (int f : waiting)
      if (f != current_) ready_.push_back(f);
    waiting.clear();
  }

  std::vector<fiber> fibers_;
  std::vector<warp_state> warps_;
  std::vector<int> barriers_[16];
  alignas(1024) static inline std::byte shared_[232448];  // static: ptx::shared_address
  std::function<void()> body_;
  std::deque<int> ready_;
  ucontext_t scheduler_;
  int current_ = 0;
  std::size_t ended_ = 0;
};

inline index block_index, grid_size, block_size;

struct thread_x {
  operator unsigned() const { return static_cast<unsigned>(block::running->thread()); }
};

/// Runs a grid, block after block.
template <class Body>
void run_grid(dim3 grid, int threads, int shared_bytes, Body body) {
  grid_size = {grid.x, grid.y, grid.z}, block_size = {static_cast<unsigned>(threads), 1, 1};
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        block_index = {x, y, z};
        block b(threads, static_cast<std::size_t>(shared_bytes), body);
        b.run();
      }
}

template <class T>
T shuffle(T value, int from) {
  struct pair {
    T value;
    int from;
  };
  return block::running->meet<T>(pair{value, from}, [](pair const* in, T* out) {
    for (int i = 0; i < 32; ++i) out[i] = in[in[i].from & 31].value;
  });
}

}  // namespace emulated

inline struct { emulated::thread_x x; } const threadIdx;
#define blockIdx (::emulated::block_index)
#define gridDim (::emulated::grid_size)
#define blockDim (::emulated::block_size)

inline int emulated_lane() { return emulated::block::running->thread() % 32; }
template <class T>
T __shfl_sync(unsigned, T v, int lane) {
  return emulated::shuffle(v, lane);
}
template <class T>
T __shfl_xor_sync(unsigned, T v, int mask) {
  return emulated::shuffle(v, emulated_lane() ^ mask);
}
template <class T>
T __shfl_up_sync(unsigned, T v, int by) {
  int const lane = emulated_lane();
  return emulated::shuffle(v, lane >= by ? lane - by : lane);
}
inline unsigned __ballot_sync(unsigned, bool x) {
  return emulated::block::running->meet<unsigned>(x, [](bool const* in, unsigned* out) {
    unsigned all = 0;
    for (int i = 0; i < 32; ++i) all |= in[i] ? 1u << i : 0u;
    std::fill_n(out, 32, all);
  });
}
inline int __any_sync(unsigned mask, bool x) { return __ballot_sync(mask, x) != 0; }
template <class T>
T __reduce_max_sync(unsigned, T x) {
  return emulated::block::running->meet<T>(
      x, [](T const* in, T* out) { std::fill_n(out, 32, *std::max_element(in, in + 32)); });
}
template <class T>
T __reduce_min_sync(unsigned, T x) {
  return emulated::block::running->meet<T>(
      x, [](T const* in, T* out) { std::fill_n(out, 32, *std::min_element(in, in + 32)); });
}
inline void __syncwarp() { __ballot_sync(~0u, true); }
inline void __syncthreads() { emulated::block::running->barrier_of_all(); }
inline void __threadfence() {}
template <class T>
T __ldcs(T const* p) {
  return *p;
}
template <class T>
T __ldcg(T const* p) {
  return *p;
}
template <class T>
void __stcg(T* p, T v) {
  *p = v;
}
template <class T>
void __stcs(T* p, T v) {
  *p = v;
}
template <class To, class From>
To emulated_bits(From x) {
  return __builtin_bit_cast(To, x);
}
inline unsigned __float_as_uint(float x) { return emulated_bits<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return emulated_bits<float>(x); }
inline float __int_as_float(int x) { return emulated_bits<float>(x); }
inline int __float_as_int(float x) { return emulated_bits<int>(x); }
inline int __ffs(unsigned x) { return __builtin_ffs(static_cast<int>(x)); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.f / x; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
using std::max;
using std::min;
