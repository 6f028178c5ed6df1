// h = act(gate) * up, forward and backward, for the instruction set GATEUP_ISA is compiled for.
//
// Everything is float32 inside and rounded once, at the end. A block goes through three steps,
// each a loop that the compiler vectorises: widen to float32, compute, narrow and store.
#include "act_and_mul.hpp"

#include "elementary.hpp"

namespace gateup {
namespace GATEUP_ISA {
namespace {

using i64 = std::int64_t;

// ---- activations: value, and value with derivative ------------------------------------------

struct Value {
  float value, slope;
};

// What an activation does unless it says otherwise: up enters the product as it is, and the
// gradient of act(gate) passes by the slope. Bounds select rather than multiply by 0, as torch's
// do: beyond them even an infinite gradient counts for nothing.
struct Plain {
  GATEUP_INLINE float factor(float up) { return up; }
  GATEUP_INLINE float d_up(float up, float d_factor) { return (void)up, d_factor; }
  GATEUP_INLINE float d_gate(float gate, float d_act, float slope) {
    return (void)gate, d_act * slope;
  }
};

struct Silu : Plain {
  GATEUP_INLINE float value(float g) { return logistic(g, g).product; }
  GATEUP_INLINE Value both(float g) {
    const Logistic s = logistic(g, g);
    return {s.product, s.value * fmadd(g, s.complement, 1.0f)};
  }
};

struct Gelu : Plain {
  GATEUP_INLINE float value(float g) { return g * normal(g).cumulative; }
  GATEUP_INLINE Value both(float g) {
    const Normal n = normal(g);
    return {g * n.cumulative, fmadd(g * n.density, 0.398942292f, n.cumulative)};  // 1/sqrt(2·pi)
  }
};

// 0.5·(1 + tanh w) is the logistic function of 2w: no cancellation for negative gates.
// 2w = g·(root + cubic·g²) with root = 2·sqrt(2/pi) and cubic = 0.044715·root.
struct GeluTanh : Plain {
  static constexpr float kRoot = 1.59576912f, kCubic = 0.0713548163f;

  // Beyond 20 the logistic is 0 or 1; the bound keeps g³ from overflowing.
  GATEUP_INLINE float bounded(float g) {
    const float above = g < -20.0f ? -20.0f : g;
    return above > 20.0f ? 20.0f : above;
  }
  GATEUP_INLINE float value(float g) {
    const float b = bounded(g);
    return logistic(b * fmadd(kCubic, b * b, kRoot), g).product;
  }
  GATEUP_INLINE Value both(float g) {
    const float b = bounded(g);
    const Logistic s = logistic(b * fmadd(kCubic, b * b, kRoot), g);
    const float inner = fmadd(3.0f * kCubic, b * b, kRoot);
    return {s.product, fmadd(g * s.value * s.complement, inner, s.value)};
  }
};

// The comparisons are written so that NaN passes through.
struct Relu : Plain {
  GATEUP_INLINE float value(float g) { return g < 0.0f ? 0.0f : g; }
  GATEUP_INLINE Value both(float g) { return {value(g), 1.0f}; }
  GATEUP_INLINE float d_gate(float gate, float d_act, float slope) {
    return gate <= 0.0f ? 0.0f : d_act * slope;
  }
};

struct Relu2 : Relu {
  GATEUP_INLINE float value(float g) {
    const float r = Relu::value(g);
    return r * r;
  }
  GATEUP_INLINE Value both(float g) {
    const float r = Relu::value(g);
    return {r * r, 2.0f * r};
  }
};

struct Sigmoid : Plain {
  GATEUP_INLINE float value(float g) { return logistic(g, 0.0f).value; }
  GATEUP_INLINE Value both(float g) {
    const Logistic s = logistic(g, 0.0f);
    return {s.value, s.value * s.complement};
  }
};

struct Identity : Plain {
  GATEUP_INLINE float value(float g) { return g; }
  GATEUP_INLINE Value both(float g) { return {g, 1.0f}; }
};

struct GptOss {
  static constexpr float kLimit = 7.0f, kAlpha = 1.702f;

  GATEUP_INLINE float factor(float up) {
    const float above = up < -kLimit ? -kLimit : up;
    return (above > kLimit ? kLimit : above) + 1.0f;
  }
  // torch's clamp passes the gradient on at the limit itself.
  GATEUP_INLINE float d_up(float up, float d_factor) {
    return magnitude_of(up) <= kLimit ? d_factor : 0.0f;
  }
  GATEUP_INLINE float d_gate(float gate, float d_act, float slope) {
    return gate <= kLimit ? d_act * slope : 0.0f;
  }
  GATEUP_INLINE float bounded(float g) { return g > kLimit ? kLimit : g; }
  GATEUP_INLINE float value(float g) {
    const float b = bounded(g);
    return logistic(kAlpha * b, b).product;
  }
  GATEUP_INLINE Value both(float g) {
    const float b = bounded(g);
    const Logistic s = logistic(kAlpha * b, b);
    return {s.product, fmadd(kAlpha, s.product * s.complement, s.value)};
  }
};

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
