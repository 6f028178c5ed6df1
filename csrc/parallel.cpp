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
  if (const OmpParallel parallel = g_parallel.load()) {
    parallel(run_loop, &loop, static_cast<unsigned>(threads), 0);
    return;
  }
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) {
    try {
      others.emplace_back(run_loop, &loop);
    } catch (const std::exception&) {
      break;  // no more threads to be had: the ones there are take the rest
    }
  }
  loop.run();
  for (std::thread& thread : others) thread.join();
}

}  // namespace gateup
