// Work shared among threads.
//
// torch's CPU operators run on an OpenMP team whose threads wait busily for more work. A second
// team would compete with it for the cores, so gateup/ops/native.py hands us the entry points of
// the OpenMP runtime that torch has loaded, and we run on that. Without one: plain threads.
#pragma once

#include <cstdint>

namespace gateup {

using Body = void (*)(void* context, std::int64_t begin, std::int64_t end);

// The address of GOMP_parallel, or 0 for plain threads.
void use_openmp(std::uintptr_t parallel);

// What runs the threads: "openmp" or "std::thread".
const char* team();

// body(context, begin, end) over contiguous parts of [0, items), on at most `threads` threads.
void parallel_for(std::int64_t items, int threads, Body body, void* context);

// work(context) on this thread, while up to threads - 1 others wait, busily, for the loops of the
// parallel_for calls that it makes. For work that is a string of short loops, as a decoder's
// forward pass is: an OpenMP loop ends when every thread has been through it, so one that the
// system has put aside for another process holds up all, each time for milliseconds; here a loop
// ends when its work is done. Nested calls just run.
void with_team(int threads, void (*work)(void* context), void* context);

}  // namespace gateup
