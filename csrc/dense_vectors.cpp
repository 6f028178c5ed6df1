// Dense products on vectors, for the instruction set GATEUP_ISA is compiled for.
//
// A tile of a few rows of weights and a few tokens keeps its sums in registers while it walks along
// k; each sum is a vector of partial sums, added up in a fixed order at the end. A result's bits
// depend on nothing but its own row and its own token.
#include "act_and_mul.hpp"
#include "dense.hpp"
#include "dense_vectors_tile.hpp"
#include "parallel.hpp"

namespace gateup {
namespace GATEUP_ISA {
namespace {

// Tokens that go through all weights together. Their sums between blocks of k, of a unit of rows,
// are 384 KiB; blocks of x and of weights, with those that are fetched ahead, 448: together they
// stay in a second-level cache of 1 MiB.
constexpr i64 kChunk = 96;
// Numbers along k in a block: those of 12 tokens in bfloat16, or 6 in float32, are 24 KiB and
// stay in a first-level cache.
constexpr i64 kBlockK = 1024;
// Up to so many times the tokens of a tile, each share takes a tile's rows to their end, while
// these are in the caches; more tokens take blocks of k, which cost loads and stores of the sums.
constexpr i64 kWholeRows = 2;

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

// What all tokens of a chunk share, and what of the weights is used after them.
struct Pass {
  const DenseMatrix& w;
  i64 row;
  const Operand& x;
  i64 tokens;
  const char* next;  // rows that are multiplied next, fetched meanwhile, or nullptr
};

// Equal shares of tokens that go through a block of k one after the other. Of float32 as many as
// a tile of 4 rows takes: blocks of k are shorter then, and their sums' loads and stores count.
int share(i64 tokens, bool paired) {
  const i64 most = tokens <= kTokens || paired ? kTokens : at_most(kTokens, 6);
  return static_cast<int>(ceil_div(tokens, ceil_div(tokens, most)));
}

i64 carry_bytes(i64 tokens) { return tokens * kUnit * kLanes * 4; }

// The tile of rows [r0, r0 + rows_for(n)) of the unit and tokens [t, t + n).
void one_tile(const Pass& p, const Steps& s, i64 s0, i64 block, i64 r0, i64 t, bool fetch,
              float* carry, float* out) {
  const i64 x_bytes = p.x.paired ? 2 : 4, whole = p.w.k / s.width;
  const i64 row_bytes = p.w.stride * s.weight_bytes, step_bytes = s.width * s.weight_bytes;
  const int n = static_cast<int>(at_most(share(p.tokens, p.x.paired), p.tokens - t));
  const int rows = rows_for(n);
  Walk walk;
  walk.steps = at_most(block, whole - s0);
  walk.first = s0 == 0;
  walk.last = s0 + walk.steps == whole;
  walk.rest = walk.last ? p.w.k % s.width : 0;
  walk.x = p.x.data + t * p.x.stride + s0 * s.width * x_bytes;
  walk.x_stride = p.x.stride;
  const char* data = reinterpret_cast<const char*>(p.w.data);
  for (i64 r = 0; r < rows; ++r) {
    // A row short of a tile: the last one again.
    walk.w[r] = data + at_most(p.row + r0 + r, p.w.n - 1) * row_bytes + s0 * step_bytes;
  }
  walk.ahead = 0;
  if (fetch) {
    if (block > whole) {
      walk.ahead = n <= 2 ? 1024 : rows * row_bytes;
    } else if (!walk.last) {
      walk.ahead = block * step_bytes;
    } else if (p.next != nullptr) {
      walk.ahead = p.next + r0 * row_bytes - walk.w[0];
    }
  }
  s.tiles[n - 1](walk, carry + (t * kUnit + r0 * n) * kLanes, out + t * kUnit + r0);
}

// out [tokens][kUnit]: rows [row, row + kUnit) of w times the rows of x.
void unit(const Pass& p, float* carry, float* out) {
  const Steps& s = steps_for(p.w.type);
  const i64 whole = p.w.k / s.width, rows = at_most(p.w.n - p.row, kUnit);
  const i64 n = share(p.tokens, p.x.paired), groups = ceil_div(p.tokens, n);
  const i64 step = rows_for(static_cast<int>(n));
  if (p.tokens <= kWholeRows * kTokens) {
    for (i64 r0 = 0; r0 < rows; r0 += step) {
      for (i64 t = 0; t < p.tokens; t += n) {
        // A last share of fewer tokens may take more rows in a tile.
        const int fewer = static_cast<int>(at_most(n, p.tokens - t));
        if (r0 % rows_for(fewer) != 0) continue;
        one_tile(p, s, 0, whole + 1, r0, t, t == 0, carry, out);
      }
    }
    return;
  }
  const i64 block = kBlockK / s.width;
  for (i64 s0 = 0; s0 == 0 || s0 < whole; s0 += block) {
    for (i64 t = 0, g = 0; t < p.tokens; t += n, ++g) {
      const i64 own = rows_for(static_cast<int>(at_most(n, p.tokens - t)));
      for (i64 r0 = 0; r0 < rows; r0 += own) {
        one_tile(p, s, s0, block, r0, t, (r0 / own - g) % groups == 0, carry, out);
      }
    }
  }
}

void add_bias(float* out, i64 tokens, const float* bias, i64 rows) {
  if (bias == nullptr) return;
  for (i64 t = 0; t < tokens; ++t) {
    for (i64 r = 0; r < rows; ++r) out[t * kUnit + r] += bias[r];
  }
}

void write(const float* out, i64 tokens, i64 rows, const Rows& y, i64 token, i64 column) {
  if (y.data == nullptr) return;
  const Convert to = kConvert[kFloat32][y.dtype];
  for (i64 t = 0; t < tokens; ++t) {
    to(reinterpret_cast<const char*>(out + t * kUnit),
       y.data + ((token + t) * y.stride + column) * itemsize(y), rows);
  }
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

// Scratch of one unit: sums between blocks of k, and results.
struct Room {
  float *carry, *first, *second;
  Room(char* memory, i64 tokens)
      : carry(reinterpret_cast<float*>(memory)),
        first(carry + carry_bytes(tokens) / 4),
        second(first + tokens * kUnit) {}
  static i64 bytes(i64 tokens) { return carry_bytes(tokens) + 2 * tokens * kUnit * 4; }
};

const char* row_of(const DenseMatrix& w, i64 row) {
  if (row >= w.n) return nullptr;
  return reinterpret_cast<const char*>(w.data) + row * w.stride * (w.type == kF32 ? 4 : 2);
}

void linear_unit(const DenseProduct& p, i64 row, const Operand& x, i64 first, i64 tokens,
                 const Room& room) {
  const i64 rows = at_most(p.w.n - row, kUnit);
  unit({p.w, row, x, tokens, row_of(p.w, row + kUnit)}, room.carry, room.first);
  add_bias(room.first, tokens, p.bias == nullptr ? nullptr : p.bias + row, rows);
  write(room.first, tokens, rows, p.y, first, row);
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
  Slots slots(threads, Room::bytes(chunk));
  for (i64 t0 = 0; t0 < t; t0 += chunk) {
    const i64 tokens = at_most(chunk, t - t0);
    inputs.read(x, t0, tokens, threads);
    parallel(units, threads, [&](i64 i) {
      const DenseProduct* p = products;
      for (; i >= ceil_div(p->w.n, kUnit); ++p) i -= ceil_div(p->w.n, kUnit);
      char* memory = slots.take();
      linear_unit(*p, i * kUnit, inputs.of(p->w), t0, tokens, Room(memory, tokens));
      slots.give(memory);
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
                const Operand& h, const Room& room) {
  float *gate = room.first, *up = room.second;
  const i64 rows = at_most(mlp.gate.n - row, kUnit);
  // Rows that a short unit has not: 0, whose activation is finite.
  if (rows < kUnit) {
    __builtin_memset(gate, 0, tokens * kUnit * 4);
    __builtin_memset(up, 0, tokens * kUnit * 4);
  }
  unit({mlp.gate, row, x.of(mlp.gate), tokens, row_of(mlp.up, row)}, room.carry, gate);
  unit({mlp.up, row, x.of(mlp.up), tokens, row_of(mlp.gate, row + kUnit)}, room.carry, up);
  add_bias(gate, tokens, mlp.gate_bias == nullptr ? nullptr : mlp.gate_bias + row, rows);
  add_bias(up, tokens, mlp.up_bias == nullptr ? nullptr : mlp.up_bias + row, rows);
  write(gate, tokens, rows, mlp.pre_gate, first, row);
  write(up, tokens, rows, mlp.pre_up, first, row);
  act_and_mul(mlp.act, gate, up, tokens * kUnit);
  write(gate, tokens, rows, mlp.product, first, row);
  if (h.data == nullptr) return;
  const i64 bytes = h.paired ? 2 : 4;
  write(gate, tokens, rows, {h.data, h.stride / bytes, h.paired ? kBFloat16 : kFloat32}, 0, row);
}

void gated_mlp(const DenseMLP& mlp, const Rows& x, i64 t, const Rows& y, int threads) {
  if (t == 0) return;
  const bool pairs[] = {paired(mlp.gate), paired(mlp.up)};
  const i64 width = mlp.gate.n, chunk = chunk_of(t);
  Inputs inputs(chunk, mlp.gate.k, !pairs[0] || !pairs[1], pairs[0] || pairs[1]);
  const bool down = mlp.down.data != nullptr;
  const i64 stride = operand_stride(width, paired(mlp.down));
  Buffer product(down ? chunk * stride : 0);
  Slots slots(threads, Room::bytes(chunk));
  const Operand h{down ? product.get() : nullptr, stride, paired(mlp.down)};
  const DenseProduct last{mlp.down, mlp.down_bias, y};
  for (i64 t0 = 0; t0 < t; t0 += chunk) {
    const i64 tokens = at_most(chunk, t - t0), used = width * (h.paired ? 2 : 4);
    inputs.read(x, t0, tokens, threads);
    for (i64 i = 0; i < tokens && down; ++i) {
      __builtin_memset(h.data + i * stride + used, 0, stride - used);
    }
    parallel(ceil_div(width, kUnit), threads, [&](i64 i) {
      char* memory = slots.take();
      gated_unit(mlp, i * kUnit, inputs, t0, tokens, h, Room(memory, tokens));
      slots.give(memory);
    });
    if (!down) continue;
    parallel(ceil_div(mlp.down.n, kUnit), threads, [&](i64 i) {
      char* memory = slots.take();
      linear_unit(last, i * kUnit, h, t0, tokens, Room(memory, tokens));
      slots.give(memory);
    });
  }
}

}  // namespace

const DenseKernels& dense() {
  static constexpr DenseKernels kernels = {linear, gated_mlp};
  return kernels;
}

}  // namespace GATEUP_ISA
}  // namespace gateup
