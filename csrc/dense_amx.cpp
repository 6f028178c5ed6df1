// bfloat16 products on the tile unit: sums [weight rows, tokens] of W xᵀ.
//
// A tile of 16 rows and 32 columns of W is an operand as it lies in memory. x, which is small, is
// rearranged once per call to the other operand's form: [group of 16 tokens][pair of k][token][2].
// Sums go through memory between blocks of k, in float32 and in a fixed order, so a result's bits
// depend on nothing but its own row and its own token.
#include "act_and_mul.hpp"
#include "dense.hpp"
#include "dense_amx.hpp"
#include "dense_amx_multiply.hpp"
#include "dense_amx_rows.hpp"
#include "parallel.hpp"

namespace gateup {
namespace amx {
namespace {

// Tokens that go through all weights together. x and the product of so many, in blocks of k, and
// the sums of a group of rows fit the second-level cache; half as many doubled the weights'
// traffic, which then limits (T = 512 at H 4096, I 14336).
constexpr i64 kChunk = 512;
constexpr i64 kGroup = 16;        // pairs of 16 rows whose sums a thread holds
// Steps along k in a block: 2 KiB of each row. Weights stream as they are multiplied, and the
// processor's own prefetching does best: fetching the next rows by instructions made T = 1 to 32
// 1.5 times slower, whole rows instead of blocks 1.15 times, a copy into neighbouring tiles cost
// as much as it saved (H 4096, I 14336). From 17 tokens on the sums' loads and stores count: blocks
// of 8 KiB take 0.95 of the time at 32 tokens and 0.9 at 64 (one thread).
constexpr i64 kBlockSteps = 32, kBlockStepsMore = 128;
// With more than 64 tokens weights are used several times. Rows a multiple of 4 KiB apart share a
// set of the first-level cache, so a piece of 32 rows is copied out of them, and that of the next
// 32 rows is fetched meanwhile. Eight steps (16 KiB) leave room for a step's tiles of x and sums;
// up to 128 tokens four are faster by 0.92 to 0.95 in time, at 512 slower by 1.18 (one thread,
// H 4096, I 14336).
constexpr i64 kStagedSteps = 8, kStagedStepsFew = 4;
constexpr i64 kFewBlocks = 4;  // of 32 tokens

constexpr i64 kSums = 1024;       // floats: 2 panels x 2 groups of tokens x 16 x 16

// Panels of 16 rows; the last one, where it is short, in a copy padded with zeros.
struct Panels {
  const char* data;
  i64 stride, n;  // bytes, rows
  const char* last;
  i64 last_stride;
};

Panel panel_of(const Panels& w, i64 index) {
  const bool whole = (index + 1) * kTile <= w.n;
  return whole ? Panel{w.data + index * kTile * w.stride, w.stride} : Panel{w.last, w.last_stride};
}

// One matrix product, or gate and up with the product of both behind it.
struct Phase {
  Panels a, b;  // the same matrix, or gate and up
  bool gated;
  i64 k, pairs, group, items;
  Operand x;
  i64 first_token;  // of the chunk, in y and the rows kept
  const float *bias_a, *bias_b;
  Rows y;                           // linear
  const Kernels* act_kernels;       // gated, as the next
  std::int32_t act;
  Operand h;
  Rows pre_gate, pre_up, product;

  Panel first(i64 pair) const { return panel_of(a, gated ? pair : 2 * pair); }
  // Of an odd number of panels the last one counts twice.
  Panel second(i64 pair) const {
    const bool alone = !gated && (2 * pair + 1) * kTile >= b.n;
    return panel_of(b, gated ? pair : 2 * pair + (alone ? 0 : 1));
  }
  i64 blocks() const { return ceil_div(x.groups(), 2); }
  i64 block_steps() const { return x.groups() > 1 ? kBlockStepsMore : kBlockSteps; }
  i64 staged_steps() const { return blocks() <= kFewBlocks ? kStagedStepsFew : kStagedSteps; }
  i64 scratch() const {
    return group * blocks() * kSums * 4 + kStagedSteps * 2 * kTileBytes;
  }
};

// ---- x into tiles -----------------------------------------------------------------------------

void pack_x(const Rows& x, i64 first_token, i64 k, const Operand& out, int threads) {
  const i64 parts = ceil_div(out.steps, 16), groups = out.groups();
  const auto body = [&](i64 begin, i64 end) {
    for (i64 i = begin; i < end; ++i) {
      const i64 step = i % parts * 16;
      pack_group(x, first_token, k, out, i / parts, step, at_most(step + 16, out.steps));
    }
  };
  // Below 64 Ki numbers starting the threads costs more than the work.
  const bool few = out.tokens * k < (1 << 16);
  parallel_for(
      parts * groups, few ? 1 : threads,
      [](void* context, i64 begin, i64 end) {
        (*static_cast<decltype(&body)>(context))(begin, end);
      },
      const_cast<void*>(static_cast<const void*>(&body)));
}

// The last, short step of a panel, padded with zeros.
void copy_tail(const Panel& from, i64 k, char* to) {
  const i64 k0 = k / kStep * kStep;
  const u32 mask = (1u << (k - k0)) - 1;
  for (int r = 0; r < kTile; ++r) {
    _mm512_store_si512(to + r * 64,
                       _mm512_maskz_loadu_epi16(mask, from.data + r * from.stride + k0 * 2));
  }
}

// ---- results ----------------------------------------------------------------------------------

void finish_linear(const Phase& p, i64 pair, i64 block, float* c) {
  for (int side = 0; side < 2; ++side) {
    const i64 n0 = (2 * pair + side) * kTile, n = p.a.n - n0;
    if (n <= 0) break;
    for (i64 half = 0; half < 2; ++half) {
      const i64 t0 = (2 * block + half) * kTile;
      if (t0 >= p.x.tokens) break;
      float* tile = c + side * 512 + half * 256;
      if (p.bias_a != nullptr) add_bias(tile, p.bias_a + n0, n);
      store_tile(tile, p.y, p.first_token + t0, p.x.tokens - t0, n0, n);
    }
  }
}

void keep(const Rows& rows, const Phase& p, const float* tiles, i64 block, i64 n0) {
  if (rows.data == nullptr) return;
  for (i64 half = 0; half < 2; ++half) {
    const i64 t0 = (2 * block + half) * kTile;
    if (t0 >= p.x.tokens) break;
    store_tile(tiles + half * 256, rows, p.first_token + t0, p.x.tokens - t0, n0, p.a.n - n0);
  }
}

void finish_gated(const Phase& p, i64 panel, i64 block, float* c) {
  const i64 n0 = panel * kTile, n = p.a.n - n0;
  const i64 halves = at_most(p.x.groups() - 2 * block, 2);
  float *gate = c, *up = c + 512;
  for (i64 half = 0; half < halves; ++half) {
    if (p.bias_a != nullptr) add_bias(gate + half * 256, p.bias_a + n0, n);
    if (p.bias_b != nullptr) add_bias(up + half * 256, p.bias_b + n0, n);
  }
  keep(p.pre_gate, p, gate, block, n0);
  keep(p.pre_up, p, up, block, n0);
  Job job{};
  job.rows = 1;
  job.cols = halves * 256;
  job.blocks_per_row = ceil_div(job.cols, kBlock);
  job.act = p.act;
  job.gate = {reinterpret_cast<char*>(gate), 0, 1, kFloat32};
  job.up = {reinterpret_cast<char*>(up), 0, 1, kFloat32};
  job.h = job.gate;
  p.act_kernels->forward(job, 0, job.blocks_per_row);
  keep(p.product, p, gate, block, n0);
  if (p.h.data == nullptr) return;
  for (i64 half = 0; half < halves; ++half) {
    char* to = p.h.group(2 * block + half) + panel * 8 * 4 * p.h.width;
    store_operand(gate + half * 256, to, p.h.width);
  }
}

// ---- one item: a group of pairs of panels, all tokens of the chunk, all of k -------------------

// Three or four groups of tokens, one panel after the other: weights go to the tiles once. 0.7 to
// 0.8 of the time of copying pieces as below, where reading, copying and multiplying hardly
// overlap; for five to eight groups, in two goes, it was no faster (one thread, H 4096, I 14336).
void run_wide(const Phase& p, i64 pair, char* scratch) {
  const i64 whole = p.k / kStep, group = p.x.steps * p.x.step_bytes();
  float* c = reinterpret_cast<float*>(scratch);
  char* tails = scratch + 2 * kSums * 4;
  const bool short_step = p.k % kStep != 0;
  const Panel panels[] = {p.first(pair), p.second(pair)};
  for (int side = 0; side < 2 && short_step; ++side) {
    copy_tail(panels[side], p.k, tails + side * kTileBytes);
  }
  for (i64 s0 = 0; s0 == 0 || s0 < whole; s0 += p.block_steps()) {
    const i64 steps = at_most(p.block_steps(), whole - s0);
    const bool last = s0 + steps == whole;
    const char* x = p.x.group(0) + s0 * p.x.step_bytes();
    for (int side = 0; side < 2; ++side) {
      const Panel w{panels[side].data + s0 * 64, panels[side].stride};
      const char* tail = last && short_step ? tails + side * kTileBytes : nullptr;
      (p.x.groups() == 4 ? multiply_wide<4> : multiply_wide<3>)(w, steps, tail, x, group,
                                                                c + side * 512, s0 > 0);
    }
  }
  for (i64 block = 0; block < 2; ++block) {
    (p.gated ? finish_gated : finish_linear)(p, pair, block, c + block * kSums);
  }
}

// Up to two groups of tokens, one pair of panels: weights go from memory to the tiles once.
void run_streamed(const Phase& p, i64 pair, char* scratch) {
  const i64 whole = p.k / kStep;
  float* c = reinterpret_cast<float*>(scratch);
  char* tail_tiles = scratch + kSums * 4;
  const Weights tail{tail_tiles, tail_tiles + kTileBytes, 64, 64};
  const Panel a = p.first(pair), b = p.second(pair);
  const bool short_step = p.k % kStep != 0;
  if (short_step) {
    copy_tail(a, p.k, tail_tiles);
    copy_tail(b, p.k, tail_tiles + kTileBytes);
  }
  for (i64 s0 = 0; s0 == 0 || s0 < whole; s0 += p.block_steps()) {
    const i64 steps = at_most(p.block_steps(), whole - s0);
    const bool last = s0 + steps == whole;
    const Weights w{a.data + s0 * 64, b.data + s0 * 64, a.stride, b.stride};
    const char* x0 = p.x.group(0) + s0 * p.x.step_bytes();
    const char* x1 = x0 + p.x.steps * p.x.step_bytes();
    (p.x.groups() > 1 ? multiply<true> : multiply<false>)(w, steps,
                                                          last && short_step ? &tail : nullptr, x0,
                                                          x1, p.x.step_bytes(), c, s0 > 0);
  }
  (p.gated ? finish_gated : finish_linear)(p, pair, 0, c);
}

// The piece of weights that run_staged multiplies after that of `pair` at step s0.
Ahead ahead_of(const Phase& p, i64 item, i64 pair, i64 s0) {
  const i64 begin = item * p.group, end = at_most(begin + p.group, p.pairs);
  i64 next = pair + 1;
  if (next == end) {
    s0 += p.staged_steps();
    if (s0 < p.x.steps) {
      next = begin;
    } else {
      s0 = 0;  // of the next item
    }
  }
  Ahead ahead{};
  ahead.row = Ahead::kRows;
  if (next == p.pairs) return ahead;
  const Panel a = p.first(next), b = p.second(next);
  ahead = {a.data + s0 * 64, b.data + s0 * 64, a.stride, b.stride, 0, 0, 0, 0};
  ahead.lines = at_most(p.staged_steps(), p.k / kStep - s0);
  if (ahead.lines < 1) ahead.lines = 1;
  ahead.quota = ceil_div(Ahead::kRows, p.blocks());
  return ahead;
}

void multiply_blocks(const Phase& p, i64 pair, i64 s0, i64 steps, const char* staged, float* sums,
                     Ahead& ahead) {
  const i64 blocks = p.blocks(), step = p.x.step_bytes();
  for (i64 block = 0; block < blocks; ++block) {
    const bool two = 2 * block + 1 < p.x.groups();
    const char* x0 = p.x.group(2 * block) + s0 * step;
    float* c = sums + block * kSums;
    (two ? multiply_staged<true> : multiply_staged<false>)(staged, steps, x0,
                                                           x0 + p.x.steps * step, c, s0 > 0, ahead);
    if (s0 + steps == p.x.steps) (p.gated ? finish_gated : finish_linear)(p, pair, block, c);
  }
}

// The same for more than four groups of tokens: the same sums in the same order.
void run_staged(const Phase& p, i64 item, char* scratch) {
  const i64 begin = item * p.group, end = at_most(begin + p.group, p.pairs);
  const i64 whole = p.k / kStep, blocks = p.blocks(), total = p.x.steps;
  const i64 piece = p.staged_steps();
  float* sums = reinterpret_cast<float*>(scratch);
  char* staged = scratch + p.group * blocks * kSums * 4;
  for (i64 s0 = 0; s0 < total; s0 += piece) {
    const i64 steps = at_most(piece, total - s0), full = at_most(steps, whole - s0);
    for (i64 pair = begin; pair < end; ++pair) {
      const Panel a = p.first(pair), b = p.second(pair);
      Ahead ahead = ahead_of(p, item, pair, s0);
      stage(a.data + s0 * 64, a.stride, full, staged);
      stage(b.data + s0 * 64, b.stride, full, staged + kTileBytes);
      if (full < steps) {
        copy_tail(a, p.k, staged + full * 2 * kTileBytes);
        copy_tail(b, p.k, staged + full * 2 * kTileBytes + kTileBytes);
      }
      multiply_blocks(p, pair, s0, steps, staged, sums + (pair - begin) * blocks * kSums, ahead);
    }
  }
}

struct Work {
  const Phase* phases;
  int count;
  Slots* slots;
};

void run_part(void* context, i64 begin, i64 end) {
  const Work& work = *static_cast<const Work*>(context);
  char* scratch = work.slots->take();
  {
    const Tiles tiles(work.phases[0].x.width);
    for (i64 item = begin; item < end; ++item) {
      i64 index = item;
      const Phase* phase = work.phases;
      while (index >= phase->items) index -= phase++->items;
      const i64 blocks = phase->blocks();
      (blocks == 1 ? run_streamed : blocks == 2 ? run_wide : run_staged)(*phase, index, scratch);
    }
  }
  work.slots->give(scratch);
}

void run(const Phase* phases, int count, int threads) {
  i64 items = 0, scratch = 0;
  for (int i = 0; i < count; ++i) {
    items += phases[i].items;
    if (phases[i].scratch() > scratch) scratch = phases[i].scratch();
  }
  Slots slots(threads, scratch);
  Work work{phases, count, &slots};
  parallel_for(items, threads, run_part, &work);
}

// ---- calls ------------------------------------------------------------------------------------

i64 last_bytes(const DenseMatrix& w) { return w.n % kTile != 0 ? kTile * w.k * 2 : 0; }

Panels panels(const DenseMatrix& w, char* last) {
  const i64 rows = w.n % kTile, stride = w.stride * 2;
  const char* data = reinterpret_cast<const char*>(w.data);
  if (rows != 0) {
    for (i64 r = 0; r < kTile; ++r) {
      char* to = last + r * w.k * 2;
      if (r < rows) {
        __builtin_memcpy(to, data + (w.n - rows + r) * stride, w.k * 2);
      } else {
        __builtin_memset(to, 0, w.k * 2);
      }
    }
  }
  return {data, stride, w.n, last, w.k * 2};
}

void share(Phase& p, i64 pairs, int threads) {
  p.pairs = pairs;
  // Enough items for every thread to have several; few tokens need no groups at all.
  const i64 group = p.blocks() > 2 ? at_most(pairs / (4 * threads), kGroup) : 1;
  p.group = group < 1 ? 1 : group;
  p.items = ceil_div(p.pairs, p.group);
}

// Tokens in a chunk: equal shares, whole blocks of 32.
i64 chunk_of(i64 t) {
  const i64 chunks = ceil_div(t, kChunk);
  return chunks == 1 ? t : ceil_div(ceil_div(t, chunks), 32) * 32;
}

constexpr int kProducts = 8;

void linear(const DenseProduct* products, int count, const Rows& x, i64 t, int threads) {
  if (t == 0 || count == 0) return;
  const i64 k = products[0].w.k, chunk = chunk_of(t);
  i64 bytes = 0;
  for (int i = 0; i < count; ++i) bytes += last_bytes(products[i].w);
  Buffer last(bytes), memory(operand_bytes(chunk, k));
  Phase phases[kProducts] = {};
  char* copy = last.get();
  for (int i = 0; i < count; ++i) {
    Phase& p = phases[i];
    p.a = p.b = panels(products[i].w, copy);
    copy += last_bytes(products[i].w);
    p.k = k;
    p.bias_a = products[i].bias;
    p.y = products[i].y;
  }
  for (i64 t0 = 0; t0 < t; t0 += chunk) {
    const Operand operand_x = operand(memory.get(), at_most(chunk, t - t0), k);
    pack_x(x, t0, k, operand_x, threads);
    for (int i = 0; i < count; ++i) {
      phases[i].x = operand_x;
      phases[i].first_token = t0;
      share(phases[i], ceil_div(phases[i].a.n, 2 * kTile), threads);
    }
    run(phases, count, threads);
  }
}

void zero_padding(const Operand& h, i64 k) {
  const i64 written = ceil_div(k, kTile) * 8, pairs = h.steps * 16;
  for (i64 g = 0; g < h.groups() && written < pairs; ++g) {
    __builtin_memset(h.group(g) + written * 4 * h.width, 0, (pairs - written) * 4 * h.width);
  }
}

void gated_mlp(const DenseMLP& mlp, const Rows& x, i64 t, const Rows& y, int threads) {
  if (t == 0) return;
  const i64 k = mlp.gate.k, width = mlp.gate.n, chunk = chunk_of(t);
  const bool down = mlp.down.data != nullptr;
  const i64 gate_bytes = last_bytes(mlp.gate), down_bytes = down ? last_bytes(mlp.down) : 0;
  Buffer last(2 * gate_bytes + down_bytes), memory(operand_bytes(chunk, k)),
      product(down ? operand_bytes(chunk, width) : 0);
  Phase first_phase{}, second{};
  first_phase.a = panels(mlp.gate, last.get());
  first_phase.b = panels(mlp.up, last.get() + gate_bytes);
  first_phase.gated = true;
  first_phase.k = k;
  first_phase.bias_a = mlp.gate_bias;
  first_phase.bias_b = mlp.up_bias;
  first_phase.act_kernels = &avx512::kernels();
  first_phase.act = mlp.act;
  first_phase.pre_gate = mlp.pre_gate;
  first_phase.pre_up = mlp.pre_up;
  first_phase.product = mlp.product;
  if (down) {
    second.a = second.b = panels(mlp.down, last.get() + 2 * gate_bytes);
    second.k = width;
    second.bias_a = mlp.down_bias;
    second.y = y;
  }
  for (i64 t0 = 0; t0 < t; t0 += chunk) {
    const i64 tokens = at_most(chunk, t - t0);
    first_phase.x = operand(memory.get(), tokens, k);
    pack_x(x, t0, k, first_phase.x, threads);
    first_phase.first_token = second.first_token = t0;
    if (down) {
      second.x = first_phase.h = operand(product.get(), tokens, width);
      zero_padding(first_phase.h, width);
    }
    share(first_phase, ceil_div(width, kTile), threads);
    run(&first_phase, 1, threads);
    if (!down) continue;
    share(second, ceil_div(mlp.down.n, 2 * kTile), threads);
    run(&second, 1, threads);
  }
}

}  // namespace

// What is not bfloat16 throughout runs on vectors.
const DenseKernels& dense() {
  static constexpr DenseKernels kernels = {
      [](const DenseProduct* products, int count, const Rows& x, i64 t, int threads) {
        bool tiles = true;
        for (int i = 0; i < count; ++i) tiles = tiles && products[i].w.type == kBF16;
        (tiles ? linear : avx512bf16::dense().linear)(products, count, x, t, threads);
      },
      [](const DenseMLP& mlp, const Rows& x, i64 t, const Rows& y, int threads) {
        const bool tiles = mlp.gate.type == kBF16 && mlp.up.type == kBF16 &&
                           (mlp.down.data == nullptr || mlp.down.type == kBF16);
        (tiles ? gated_mlp : avx512bf16::dense().gated_mlp)(mlp, x, t, y, threads);
      }};
  return kernels;
}

}  // namespace amx
}  // namespace gateup
