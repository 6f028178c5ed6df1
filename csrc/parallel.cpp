#include "parallel.hpp"

#include <atomic>
#include <exception>
#include <thread>
#include <vector>

namespace gateup {
namespace {

// The OpenMP entry point that GCC's code calls; LLVM's and Intel's runtimes have it as well.
using OmpParallel = void (*)(void (*fn)(void*), void* data, unsigned threads, unsigned flags);

std::atomic<OmpParallel> g_parallel{nullptr};

// Parts per thread: a thread that was held up leaves its share to the others.
constexpr int kParts = 4;

struct Loop {
  std::int64_t items;
  std::int64_t parts;
  Body body;
  void* context;
  std::atomic<std::int64_t> next{0};

  // The runtime may give fewer threads than asked for: parts are taken, not assigned.
  void run() {
    const std::int64_t size = items / parts, larger = items % parts;
    for (std::int64_t part = next.fetch_add(1); part < parts; part = next.fetch_add(1)) {
      const std::int64_t begin = part * size + (part < larger ? part : larger);
      body(context, begin, begin + size + (part < larger ? 1 : 0));
    }
  }
};

void run_loop(void* loop) { static_cast<Loop*>(loop)->run(); }

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Rounds of waiting before a thread lets others have its core: some 50 microseconds.
constexpr int kSpins = 1000;

// The calling thread opens one loop after the other; the others help with those they notice. A
// thread that the system has put aside holds nobody up: it enters only a loop that is still open.
class Team {
 public:
  Team(void (*work)(void*), void* context)
      : owner_(std::this_thread::get_id()), work_(work), context_(context) {}

  // What every thread of the team runs.
  void run() {
    if (std::this_thread::get_id() == owner_) {
      lead();
    } else {
      help();
    }
  }

  void share(Loop& loop) {
    open_.store(&loop);
    generation_.fetch_add(1);
    loop.run();
    open_.store(nullptr);
    while (inside_.load() != 0) pause();
  }

  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void lead();

  void help() {
    std::uint64_t seen = 0;
    int spins = 0;
    while (!over_.load(std::memory_order_acquire)) {
      const std::uint64_t now = generation_.load(std::memory_order_acquire);
      if (now == seen && spins < kSpins) {
        ++spins;
        pause();
        continue;
      }
      if (now == seen) {
        std::this_thread::yield();
        continue;
      }
      seen = now;
      spins = 0;
      inside_.fetch_add(1);
      if (Loop* loop = open_.load()) loop->run();
      inside_.fetch_sub(1);
    }
  }

  std::thread::id owner_;
  void (*work_)(void*);
  void* context_;
  std::exception_ptr error_;
  alignas(64) std::atomic<std::uint64_t> generation_{0};  // raised with every loop
  std::atomic<Loop*> open_{nullptr};
  std::atomic<bool> over_{false};
  alignas(64) std::atomic<int> inside_{0};  // helpers that may be looking at the open loop
};

thread_local Team* t_team = nullptr;

void Team::lead() {
  t_team = this;
  try {
    work_(context_);
  } catch (...) {  // an OpenMP runtime's frames are not to be unwound
    error_ = std::current_exception();
  }
  t_team = nullptr;
  over_.store(true, std::memory_order_release);
}

void run_team(void* team) { static_cast<Team*>(team)->run(); }

// fn(data) on this thread and on up to threads - 1 others.
void run_on(int threads, void (*fn)(void*), void* data) {
  if (const OmpParallel parallel = g_parallel.load()) {
    parallel(fn, data, static_cast<unsigned>(threads), 0);
    return;
  }
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) {
    try {
      others.emplace_back(fn, data);
    } catch (const std::exception&) {
      break;  // no more threads to be had: the ones there do everything
    }
  }
  fn(data);
  for (std::thread& thread : others) thread.join();
}

}  // namespace

void use_openmp(std::uintptr_t parallel) {
  g_parallel = reinterpret_cast<OmpParallel>(parallel);
}

const char* team() { return g_parallel.load() != nullptr ? "openmp" : "std::thread"; }

void parallel_for(std::int64_t items, int threads, Body body, void* context) {
  if (items <= 0) return;
  if (threads > items) threads = static_cast<int>(items);
  if (threads <= 1) {
    body(context, 0, items);
    return;
  }
  Loop loop{items, items < threads * kParts ? items : threads * kParts, body, context};
  if (t_team != nullptr) {
    t_team->share(loop);
    return;
  }
  run_on(threads, run_loop, &loop);
}

void with_team(int threads, void (*work)(void*), void* context) {
  if (threads <= 1 || t_team != nullptr) {
    work(context);
    return;
  }
  Team team(work, context);
  run_on(threads, run_team, &team);
  team.rethrow();
}

}  // namespace gateup
