// Dense products on vectors, for the instruction set GATEUP_ISA is compiled for.
//
// A tile of 4 rows of weights and a few tokens keeps its sums in registers while it walks along
// k; each sum is a vector of partial sums, added up in a fixed order at the end. A result's bits
// depend on nothing but its own row and its own token.
#include "dense_vectors.hpp"

#include "act_and_mul.hpp"
#include "dense.hpp"
#include "parallel.hpp"

namespace gateup {
namespace GATEUP_ISA {
namespace {

using i64 = std::int64_t;

constexpr int kRows = 4;    // of weights in a tile, at most
constexpr int kUnit = 64;   // rows of weights a thread takes at a time
// Tokens that go through all weights together. A unit of 64 rows of 4096 bfloat16 is 512 KiB and
// stays in the second-level cache while x streams past it.
constexpr i64 kChunk = 256;
// Bytes of a row of x in a block of k: 6 tokens' worth stays in a first-level cache.
constexpr i64 kBlockBytes = 4096;

i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }

i64 at_most(i64 a, i64 b) { return a < b ? a : b; }

i64 itemsize(const Rows& rows) { return rows.dtype == kFloat32 ? 4 : 2; }

// ---- activations ------------------------------------------------------------------------------

// Rows of x or of the product, [tokens, padded k]: zeros behind k, so that the last step is whole.
// The stride is an odd number of cache lines: rows a power of two apart would share a few sets.
struct Operand {
  char* data;
  i64 stride;  // bytes
  bool paired;  // bfloat16 rather than float32
};

i64 operand_stride(i64 k, bool paired) {
  const i64 lines = ceil_div(ceil_div(k, 2 * kLanes) * 2 * kLanes * (paired ? 2 : 4), 64);
  return (lines | 1) * 64;
}

bool paired(const DenseMatrix& w) {
#if defined(__AVX512BF16__)
  return w.type == kBF16;
#else
  return (void)w, false;
#endif
}

template <class From, class To>
void convert(const char* from, char* to, i64 n) {
  const From* a = reinterpret_cast<const From*>(from);
  To* b = reinterpret_cast<To*>(to);
  for (i64 i = 0; i < n; ++i) narrow(widen(a[i]), b[i]);
}

using Convert = void (*)(const char*, char*, i64);

// [from][to], in the order of enum DType.
constexpr Convert kConvert[3][3] = {
    {convert<float, float>, convert<float, BFloat16>, convert<float, Float16>},
    {convert<BFloat16, float>, convert<BFloat16, BFloat16>, convert<BFloat16, Float16>},
    {convert<Float16, float>, convert<Float16, BFloat16>, convert<Float16, Float16>},
};

void fill(const Rows& x, i64 first, i64 tokens, i64 k, const Operand& out) {
  const Convert to = kConvert[x.dtype][out.paired ? kBFloat16 : kFloat32];
  const i64 used = k * (out.paired ? 2 : 4);
  for (i64 t = 0; t < tokens; ++t) {
    char* row = out.data + t * out.stride;
    to(x.data + (first + t) * x.stride * itemsize(x), row, k);
    __builtin_memset(row + used, 0, out.stride - used);
  }
}

// ---- one tile ---------------------------------------------------------------------------------

struct Walk {
  const char* w[kRows];  // at the block's first k
  const char* x;         // likewise, of the first token
  i64 x_stride;
  i64 steps;      // whole ones
  i64 rest;       // numbers behind them, in the row's last block
  i64 ahead;      // bytes of a row fetched ahead of their use; 0 where weights are in a cache
  bool first, last;
};

// The short step at a row's end: weights behind it belong to somebody else.
template <class S>
GATEUP_INLINE typename S::Operand short_step(const char* w, i64 rest) {
  typename S::Weight padded[S::kWidth] = {};
  __builtin_memcpy(padded, w, static_cast<std::size_t>(rest) * sizeof padded[0]);
  return S::weights(padded);
}

// Rows in a tile of so many tokens, whose sums fit the registers.
constexpr int rows_for(int tokens) { return tokens <= 6 ? 4 : 2; }

// The sums of a tile's vectors, [kRows][N]: out[token * kUnit + row].
template <int kRows, int N>
GATEUP_INLINE void write_sums(const Vector (&sum)[kRows][N], float* out) {
  if constexpr (kRows == 4) {
    for (int t = 0; t < N; ++t) sums(sum[0][t], sum[1][t], sum[2][t], sum[3][t], out + t * kUnit);
  } else {
    for (int t = 0; t < N; t += 2) {
      const int u = t + 1 < N ? t + 1 : t;
      float four[4];
      sums(sum[0][t], sum[1][t], sum[0][u], sum[1][u], four);
      __builtin_memcpy(out + t * kUnit, four, 8);
      __builtin_memcpy(out + u * kUnit, four + 2, 8);
    }
  }
}

// carry: the sums between blocks of k, [kRows][tokens] vectors. out[token * kUnit + row].
template <class S, int N>
void tile(const Walk& walk, float* carry, float* out) {
  using Weight = typename S::Weight;
  using X = typename S::X;
  constexpr int kRows = rows_for(N);
  Vector sum[kRows][N], total[kRows][N];
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < N; ++t) {
      total[r][t] = walk.first ? zeros() : load(carry + (r * N + t) * kLanes);
      sum[r][t] = kRun != 0 ? zeros() : total[r][t];
    }
  }
  constexpr i64 w_bytes = S::kWidth * sizeof(Weight), x_bytes = S::kWidth * sizeof(X);
  i64 at = 0, at_x = 0;
  for (i64 i = 0, left = kRun; i < walk.steps; ++i, at += w_bytes, at_x += x_bytes) {
    if (kRun != 0 && left-- == 0) {
      left = kRun - 1;
      for (int r = 0; r < kRows; ++r) {
        for (int t = 0; t < N; ++t) {
          total[r][t] = add(total[r][t], sum[r][t]);
          sum[r][t] = zeros();
        }
      }
    }
    typename S::Operand w[kRows];
    for (int r = 0; r < kRows; ++r) {
      w[r] = S::weights(reinterpret_cast<const Weight*>(walk.w[r] + at));
      if (N <= 2) __builtin_prefetch(walk.w[r] + at + walk.ahead);
    }
    for (int t = 0; t < N; ++t) {
      const auto x = S::x(reinterpret_cast<const X*>(walk.x + t * walk.x_stride + at_x));
      for (int r = 0; r < kRows; ++r) sum[r][t] = S::step(w[r], x, sum[r][t]);
    }
  }
  if (walk.rest != 0) {
    for (int r = 0; r < kRows; ++r) {
      const auto w = short_step<S>(walk.w[r] + at, walk.rest);
      for (int t = 0; t < N; ++t) {
        const auto x = S::x(reinterpret_cast<const X*>(walk.x + t * walk.x_stride + at_x));
        sum[r][t] = S::step(w, x, sum[r][t]);
      }
    }
  }
  for (int r = 0; r < kRows && kRun != 0; ++r) {
    for (int t = 0; t < N; ++t) sum[r][t] = add(total[r][t], sum[r][t]);
  }
  if (walk.last) {
    write_sums(sum, out);
    return;
  }
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < N; ++t) store(carry + (r * N + t) * kLanes, sum[r][t]);
  }
}

// ---- a unit of rows times a few tokens ----------------------------------------------------------

using Tile = void (*)(const Walk&, float*, float*);

struct Steps {
  i64 width, weight_bytes;
  Tile tiles[kTokens];
};

template <class S>
constexpr Steps steps_of() {
#if defined(__AVX512F__)
  return {S::kWidth, sizeof(typename S::Weight),
          {tile<S, 1>, tile<S, 2>, tile<S, 3>, tile<S, 4>, tile<S, 5>, tile<S, 6>, tile<S, 7>,
           tile<S, 8>, tile<S, 9>, tile<S, 10>, tile<S, 11>, tile<S, 12>}};
#elif defined(__AVX2__)
  return {S::kWidth, sizeof(typename S::Weight), {tile<S, 1>, tile<S, 2>}};
#else
  return {S::kWidth, sizeof(typename S::Weight), {tile<S, 1>}};
#endif
}

constexpr Steps kF32Steps = steps_of<Widened<float>>();
constexpr Steps kF16Steps = steps_of<Widened<Float16>>();
constexpr Steps kBF16Steps = steps_of<BFloat16Step>();

const Steps& steps_for(std::int32_t type) {
  return type == kF32 ? kF32Steps : type == kF16 ? kF16Steps : kBF16Steps;
}

using Carry = float[kUnit * kTokens * kLanes];

// out [tokens][kUnit]: rows [row, row + kUnit) of w times `tokens` rows of x.
void unit(const DenseMatrix& w, i64 row, const Operand& x, i64 token, int tokens, bool streams,
          float* carry, float* out) {
  const Steps& s = steps_for(w.type);
  const i64 row_bytes = w.stride * s.weight_bytes, x_bytes = x.paired ? 2 : 4;
  const char* data = reinterpret_cast<const char*>(w.data);
  const i64 whole = w.k / s.width, rows = at_most(w.n - row, kUnit), step = rows_for(tokens);
  // While weights stream, whole rows: x, of a few tokens, stays in the caches anyway.
  const i64 block = streams ? whole + 1 : kBlockBytes / (s.width * x_bytes);
  for (i64 s0 = 0; s0 == 0 || s0 < whole; s0 += block) {
    Walk walk;
    walk.steps = at_most(block, whole - s0);
    walk.first = s0 == 0;
    walk.last = s0 + walk.steps == whole;
    walk.rest = walk.last ? w.k % s.width : 0;
    walk.ahead = streams ? 1024 : 0;
    walk.x = x.data + token * x.stride + s0 * s.width * x_bytes;
    walk.x_stride = x.stride;
    for (i64 r0 = 0; r0 < rows; r0 += step) {
      for (i64 r = 0; r < step; ++r) {
        // A row short of a tile: the last one again.
        const i64 from = at_most(row + r0 + r, w.n - 1);
        walk.w[r] = data + from * row_bytes + s0 * s.width * s.weight_bytes;
      }
      s.tiles[tokens - 1](walk, carry + r0 * tokens * kLanes, out + r0);
    }
  }
}

void add_bias(float* out, int tokens, const float* bias, i64 rows) {
  if (bias == nullptr) return;
  for (int t = 0; t < tokens; ++t) {
    for (i64 r = 0; r < rows; ++r) out[t * kUnit + r] += bias[r];
  }
}

void write(const float* out, int tokens, i64 rows, const Rows& y, i64 token, i64 column) {
  if (y.data == nullptr) return;
  const Convert to = kConvert[kFloat32][y.dtype];
  for (int t = 0; t < tokens; ++t) {
    to(reinterpret_cast<const char*>(out + t * kUnit),
       y.data + ((token + t) * y.stride + column) * itemsize(y), rows);
  }
}

// Equal shares of at most kTokens.
int share(i64 tokens) {
  return static_cast<int>(ceil_div(tokens, ceil_div(tokens, kTokens)));
}

// ---- calls ------------------------------------------------------------------------------------

template <class F>
void parallel(i64 items, int threads, const F& body) {
  parallel_for(
      items, threads,
      [](void* context, i64 begin, i64 end) {
        const F& run = *static_cast<const F*>(context);
        for (i64 i = begin; i < end; ++i) run(i);
      },
      const_cast<void*>(static_cast<const void*>(&body)));
}

// x in the two forms that weights multiply, those that are needed.
class Inputs {
 public:
  Inputs(i64 tokens, i64 k, bool plain, bool pairs)
      : k_(k),
        plain_(plain ? tokens * operand_stride(k, false) : 0),
        pairs_(pairs ? tokens * operand_stride(k, true) : 0),
        has_plain_(plain),
        has_pairs_(pairs) {}

  Operand of(const DenseMatrix& w) const { return form(paired(w)); }
  Operand form(bool paired) const {
    return {(paired ? pairs_ : plain_).get(), operand_stride(k_, paired), paired};
  }

  void read(const Rows& x, i64 first, i64 tokens, int threads) {
    const i64 step = ceil_div(tokens, 4 * threads);
    const bool few = tokens * k_ < (1 << 16);
    parallel(ceil_div(tokens, step), few ? 1 : threads, [&](i64 i) {
      const i64 from = i * step, n = at_most(step, tokens - from);
      for (int p = 0; p < 2; ++p) {
        if (!(p == 1 ? has_pairs_ : has_plain_)) continue;
        Operand out = form(p == 1);
        out.data += from * out.stride;
        fill(x, first + from, n, k_, out);
      }
    });
  }

 private:
  i64 k_;
  Buffer plain_, pairs_;
  bool has_plain_, has_pairs_;
};

i64 chunk_of(i64 t) { return ceil_div(t, ceil_div(t, kChunk)); }

void linear_unit(const DenseProduct& p, i64 row, const Operand& x, i64 first, i64 tokens) {
  alignas(64) Carry carry;
  alignas(64) float out[kTokens * kUnit];
  const i64 rows = at_most(p.w.n - row, kUnit);
  const int step = share(tokens);
  for (i64 t = 0; t < tokens; t += step) {
    const int n = static_cast<int>(at_most(step, tokens - t));
    unit(p.w, row, x, t, n, tokens <= kTokens, carry, out);
    add_bias(out, n, p.bias == nullptr ? nullptr : p.bias + row, rows);
    write(out, n, rows, p.y, first + t, row);
  }
}

void linear(const DenseProduct* products, int count, const Rows& x, i64 t, int threads) {
  if (t == 0 || count == 0) return;
  bool plain = false, pairs = false;
  i64 units = 0;
  for (int i = 0; i < count; ++i) {
    (paired(products[i].w) ? pairs : plain) = true;
    units += ceil_div(products[i].w.n, kUnit);
  }
  const i64 chunk = chunk_of(t);
  Inputs inputs(chunk, products[0].w.k, plain, pairs);
  for (i64 t0 = 0; t0 < t; t0 += chunk) {
    const i64 tokens = at_most(chunk, t - t0);
    inputs.read(x, t0, tokens, threads);
    parallel(units, threads, [&](i64 i) {
      const DenseProduct* p = products;
      for (; i >= ceil_div(p->w.n, kUnit); ++p) i -= ceil_div(p->w.n, kUnit);
      linear_unit(*p, i * kUnit, inputs.of(p->w), t0, tokens);
    });
  }
}

const Kernels& act_kernels() {
#if defined(__AVX512F__)
  return avx512::kernels();
#elif defined(__AVX2__)
  return avx2::kernels();
#else
  return generic::kernels();
#endif
}

void act_and_mul(std::int32_t act, float* gate, float* up, i64 n) {
  Job job{};
  job.rows = 1;
  job.cols = n;
  job.blocks_per_row = ceil_div(n, kBlock);
  job.act = act;
  job.gate = {reinterpret_cast<char*>(gate), 0, 1, kFloat32};
  job.up = {reinterpret_cast<char*>(up), 0, 1, kFloat32};
  job.h = job.gate;
  act_kernels().forward(job, 0, job.blocks_per_row);
}

void gated_unit(const DenseMLP& mlp, i64 row, const Inputs& x, i64 first, i64 tokens,
                const Operand& h) {
  alignas(64) Carry carry;
  alignas(64) float gate[kTokens * kUnit], up[kTokens * kUnit];
  const i64 rows = at_most(mlp.gate.n - row, kUnit);
  const int step = share(tokens);
  for (i64 t = 0; t < tokens; t += step) {
    const int n = static_cast<int>(at_most(step, tokens - t));
    // Rows that a short unit has not: 0, whose activation is finite.
    if (rows < kUnit) {
      __builtin_memset(gate, 0, sizeof gate);
      __builtin_memset(up, 0, sizeof up);
    }
    unit(mlp.gate, row, x.of(mlp.gate), t, n, tokens <= kTokens, carry, gate);
    unit(mlp.up, row, x.of(mlp.up), t, n, tokens <= kTokens, carry, up);
    add_bias(gate, n, mlp.gate_bias == nullptr ? nullptr : mlp.gate_bias + row, rows);
    add_bias(up, n, mlp.up_bias == nullptr ? nullptr : mlp.up_bias + row, rows);
    write(gate, n, rows, mlp.pre_gate, first + t, row);
    write(up, n, rows, mlp.pre_up, first + t, row);
    act_and_mul(mlp.act, gate, up, n * kUnit);
    write(gate, n, rows, mlp.product, first + t, row);
    if (h.data == nullptr) continue;
    const i64 bytes = h.paired ? 2 : 4;
    write(gate, n, rows, {h.data, h.stride / bytes, h.paired ? kBFloat16 : kFloat32}, t, row);
  }
}

void gated_mlp(const DenseMLP& mlp, const Rows& x, i64 t, const Rows& y, int threads) {
  if (t == 0) return;
  const bool pairs[] = {paired(mlp.gate), paired(mlp.up)};
  const i64 width = mlp.gate.n, chunk = chunk_of(t);
  Inputs inputs(chunk, mlp.gate.k, !pairs[0] || !pairs[1], pairs[0] || pairs[1]);
  const bool down = mlp.down.data != nullptr;
  const i64 stride = operand_stride(width, paired(mlp.down));
  Buffer product(down ? chunk * stride : 0);
  const Operand h{down ? product.get() : nullptr, stride, paired(mlp.down)};
  const DenseProduct last{mlp.down, mlp.down_bias, y};
  for (i64 t0 = 0; t0 < t; t0 += chunk) {
    const i64 tokens = at_most(chunk, t - t0), used = width * (h.paired ? 2 : 4);
    inputs.read(x, t0, tokens, threads);
    for (i64 i = 0; i < tokens && down; ++i) {
      __builtin_memset(h.data + i * stride + used, 0, stride - used);
    }
    parallel(ceil_div(width, kUnit), threads,
             [&](i64 i) { gated_unit(mlp, i * kUnit, inputs, t0, tokens, h); });
    if (!down) continue;
    parallel(ceil_div(mlp.down.n, kUnit), threads,
             [&](i64 i) { linear_unit(last, i * kUnit, h, t0, tokens); });
  }
}

}  // namespace

const DenseKernels& dense() {
  static constexpr DenseKernels kernels = {linear, gated_mlp};
  return kernels;
}

}  // namespace GATEUP_ISA
}  // namespace gateup
