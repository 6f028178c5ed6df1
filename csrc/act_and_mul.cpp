// h = act(gate) * up, forward and backward, for the instruction set GATEUP_ISA is compiled for.
//
// Everything is float32 inside and rounded once, at the end. A block goes through three steps,
// each a loop that the compiler vectorises: widen to float32, compute, narrow and store.
#include "act_and_mul.hpp"

#include "activations.hpp"
#include "elementary.hpp"

namespace gateup {
namespace GATEUP_ISA {
namespace {

using i64 = std::int64_t;

// ---- one block ------------------------------------------------------------------------------

using Floats = float[kBlock];

template <class A>
void forward_block(const float* __restrict gate, const float* __restrict up,
                   float* __restrict h) {
  for (int i = 0; i < kBlock; ++i) h[i] = A::value(gate[i]) * A::factor(up[i]);
}

template <class A>
void backward_block(const float* __restrict dy, const float* __restrict gate,
                    const float* __restrict up, float* __restrict h, float* __restrict d_gate,
                    float* __restrict d_up) {
  for (int i = 0; i < kBlock; ++i) {
    const Value a = A::both(gate[i]);
    const float factor = A::factor(up[i]);
    h[i] = a.value * factor;
    d_gate[i] = A::d_gate(gate[i], dy[i] * factor, a.slope);
    d_up[i] = A::d_up(up[i], dy[i] * a.value);
  }
}

struct ActBlocks {
  void (*forward)(const float*, const float*, float*);
  void (*backward)(const float*, const float*, const float*, float*, float*, float*);
};

template <class A>
constexpr ActBlocks blocks_of() {
  return {forward_block<A>, backward_block<A>};
}

// In the order of enum Act.
constexpr ActBlocks kActBlocks[kActs] = {
    blocks_of<Silu>(),  blocks_of<Gelu>(),    blocks_of<GeluTanh>(), blocks_of<Relu>(),
    blocks_of<Relu2>(), blocks_of<Sigmoid>(), blocks_of<Identity>(), blocks_of<GptOss>(),
};

// ---- memory ---------------------------------------------------------------------------------

template <class T>
void load(const char* from, float* __restrict to, int n) {
  const T* p = reinterpret_cast<const T*>(from);
  for (int i = 0; i < n; ++i) to[i] = widen(p[i]);
}

template <class T>
void load_pair(const char* from, float* __restrict first, float* __restrict second, int n) {
  const T* p = reinterpret_cast<const T*>(from);
  for (int i = 0; i < n; ++i) {
    first[i] = widen(p[2 * i]);
    second[i] = widen(p[2 * i + 1]);
  }
}

template <class T>
void store(const float* __restrict from, char* to, int n) {
  T* p = reinterpret_cast<T*>(to);
  for (int i = 0; i < n; ++i) narrow(from[i], p[i]);
}

template <class T>
void store_pair(const float* __restrict first, const float* __restrict second, char* to, int n) {
  T* p = reinterpret_cast<T*>(to);
  for (int i = 0; i < n; ++i) {
    narrow(first[i], p[2 * i]);
    narrow(second[i], p[2 * i + 1]);
  }
}

struct Memory {
  i64 itemsize;
  void (*load)(const char*, float*, int);
  void (*load_pair)(const char*, float*, float*, int);
  void (*store)(const float*, char*, int);
  void (*store_pair)(const float*, const float*, char*, int);
};

template <class T>
constexpr Memory memory_of() {
  return {sizeof(T), load<T>, load_pair<T>, store<T>, store_pair<T>};
}

// In the order of enum DType.
constexpr Memory kMemory[] = {memory_of<float>(), memory_of<BFloat16>(), memory_of<Float16>()};

struct Span {
  i64 row, col;
  int n;
};

Span span_of(const Job& job, i64 index) {
  const i64 row = index / job.blocks_per_row;
  const i64 col = (index - row * job.blocks_per_row) * kBlock;
  const i64 left = job.cols - col;
  return {row, col, static_cast<int>(left < kBlock ? left : kBlock)};
}

char* at(const View& view, const Span& span) {
  const i64 offset = span.row * view.row_stride + span.col * view.step;
  return view.data + offset * kMemory[view.dtype].itemsize;
}

void pad(float* x, int n) {
  for (int i = n; i < kBlock; ++i) x[i] = 0.0f;
}

void read(const View& view, const Span& span, float* to) {
  kMemory[view.dtype].load(at(view, span), to, span.n);
  pad(to, span.n);
}

// Interleaved halves are neighbours: whichever lies first in memory leads the pair.
void read_both(const View& a, const View& b, const Span& span, float* to_a, float* to_b) {
  if (a.step == 1) {
    read(a, span, to_a);
    read(b, span, to_b);
    return;
  }
  const bool ordered = a.data < b.data;
  kMemory[a.dtype].load_pair(at(ordered ? a : b, span), ordered ? to_a : to_b,
                             ordered ? to_b : to_a, span.n);
  pad(to_a, span.n);
  pad(to_b, span.n);
}

void write(const float* from, const View& view, const Span& span) {
  if (view.data != nullptr) kMemory[view.dtype].store(from, at(view, span), span.n);
}

void write_both(const float* from_a, const float* from_b, const View& a, const View& b,
                const Span& span) {
  if (a.step == 1) {
    write(from_a, a, span);
    write(from_b, b, span);
    return;
  }
  const bool ordered = a.data < b.data;
  kMemory[a.dtype].store_pair(ordered ? from_a : from_b, ordered ? from_b : from_a,
                              at(ordered ? a : b, span), span.n);
}

// ---- jobs -----------------------------------------------------------------------------------

void forward(const Job& job, i64 begin, i64 end) {
  const ActBlocks& act = kActBlocks[job.act];
  alignas(64) Floats gate, up, h;
  for (i64 index = begin; index < end; ++index) {
    const Span span = span_of(job, index);
    read_both(job.gate, job.up, span, gate, up);
    act.forward(gate, up, h);
    write(h, job.h, span);
  }
}

// A block is read whole before any of it is written: outputs may lie where inputs lay.
void backward(const Job& job, i64 begin, i64 end) {
  const ActBlocks& act = kActBlocks[job.act];
  alignas(64) Floats dy, gate, up, h, d_gate, d_up;
  for (i64 index = begin; index < end; ++index) {
    const Span span = span_of(job, index);
    read(job.dy, span, dy);
    read_both(job.gate, job.up, span, gate, up);
    act.backward(dy, gate, up, h, d_gate, d_up);
    write_both(d_gate, d_up, job.d_gate, job.d_up, span);
    write(h, job.h, span);
  }
}

void exp(const float* in, float* out, i64 n) {
  for (i64 i = 0; i < n; ++i) out[i] = exp_negative(in[i]);
}

#define GATEUP_TEXT(x) #x
#define GATEUP_NAME(x) GATEUP_TEXT(x)

}  // namespace

const Kernels& kernels() {
  static constexpr Kernels k = {GATEUP_NAME(GATEUP_ISA), forward, backward, exp};
  return k;
}

}  // namespace GATEUP_ISA
}  // namespace gateup
