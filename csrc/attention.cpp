// The kernels of attention.hpp, for the instruction set GATEUP_ISA is compiled for.
//
// Scores: a vector holds one key number of kLanes keys, so that q·k is a chain of fused
// multiply-adds over the head's numbers, in their order. Values: a vector holds kLanes numbers of
// one value, the chain runs over the keys. Rows (tokens and heads of one group) share the loads.
#include "attention.hpp"

#include "softmax_lanes.hpp"

namespace gateup {
namespace GATEUP_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kTile = 6, kAccumulators = 24;  // of 32 registers
#elif defined(__AVX2__)
constexpr int kTile = 6, kAccumulators = 12;  // of 16
#else
constexpr int kTile = 4, kAccumulators = 16;
#endif
constexpr int kVectors = kPanel / kLanes;  // of one number of a panel's keys

const float kNone = -__builtin_inff();

// Most vectors, a power of two up to `limit`, that R rows leave accumulators for.
constexpr int vectors_for(int rows, int limit) {
  int n = 1;
  while (2 * n * rows <= kAccumulators && 2 * n <= limit) n *= 2;
  return n;
}

// ---- scores -----------------------------------------------------------------------------------

// S[r, 0..N*kPanel) of N panels of keys; q [dim, R].
template <int R, int N, class E>
GATEUP_INLINE void score_panels(const float* q, const E* keys, i64 dim, float* scores) {
  Lanes sums[R][N * kVectors] = {};
  for (i64 d = 0; d < dim; ++d) {
    Lanes k[N * kVectors];
    for (int n = 0; n < N; ++n) {
      for (int v = 0; v < kVectors; ++v) {
        k[n * kVectors + v] = load_lanes(keys + (n * dim + d) * kPanel + v * kLanes);
      }
    }
    for (int r = 0; r < R; ++r) {
      const Lanes x = lanes_of(q[d * R + r]);
      for (int v = 0; v < N * kVectors; ++v) sums[r][v] = fmadd(x, k[v], sums[r][v]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < N * kVectors; ++v) {
      store_lanes(scores + r * kChunk + v * kLanes, sums[r][v]);
    }
  }
}

template <int R, class E>
void score(const float* q, const E* keys, i64 dim, i64 from, i64 to, float* scores) {
  constexpr int kMost = vectors_for(R, 8 * kVectors) / kVectors;
  constexpr int kPanels = kMost > 0 ? kMost : 1;
  i64 panel = from / kPanel;
  const i64 end = (to + kPanel - 1) / kPanel;
  for (; panel + kPanels <= end; panel += kPanels) {
    score_panels<R, kPanels>(q, keys + panel * dim * kPanel, dim, scores + panel * kPanel);
  }
  for (; panel < end; ++panel) {
    score_panels<R, 1>(q, keys + panel * dim * kPanel, dim, scores + panel * kPanel);
  }
}

// ---- values -----------------------------------------------------------------------------------

template <int R, int N, class E>
GATEUP_INLINE void weigh_slice(const float* weights, const E* values, i64 dim, i64 from, i64 to,
                               float* out) {
  Lanes sums[R][N] = {};
  for (i64 key = from; key < to; ++key) {
    Lanes v[N];
    for (int n = 0; n < N; ++n) v[n] = load_lanes(values + key * dim + n * kLanes);
    for (int r = 0; r < R; ++r) {
      const Lanes w = lanes_of(weights[r * kChunk + key]);
      for (int n = 0; n < N; ++n) sums[r][n] = fmadd(w, v[n], sums[r][n]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) store_lanes(out + r * dim + n * kLanes, sums[r][n]);
  }
}

template <int R, class E>
void weigh(const float* weights, const E* values, i64 dim, i64 from, i64 to, float* out) {
  constexpr int kMost = vectors_for(R, 8);
  i64 d = 0;
  for (; d + kMost * kLanes <= dim; d += kMost * kLanes) {
    weigh_slice<R, kMost>(weights, values + d, dim, from, to, out + d);
  }
  for (; d < dim; d += kLanes) weigh_slice<R, 1>(weights, values + d, dim, from, to, out + d);
}

template <class E>
struct Tile {
  void (*score)(const float*, const E*, i64, i64, i64, float*);
  void (*weigh)(const float*, const E*, i64, i64, i64, float*);
};

template <class E>
const Tile<E>& tile_of(int rows) {
  static constexpr Tile<E> tiles[] = {
      {score<1, E>, weigh<1, E>}, {score<2, E>, weigh<2, E>}, {score<3, E>, weigh<3, E>},
      {score<4, E>, weigh<4, E>}, {score<5, E>, weigh<5, E>}, {score<6, E>, weigh<6, E>},
      {score<7, E>, weigh<7, E>}, {score<8, E>, weigh<8, E>},
  };
  return tiles[rows - 1];
}

// ---- softmax ----------------------------------------------------------------------------------

// Scores of keys [from, to) of a chunk, of which the row sees [low, high), into weights; all of
// the panels they lie in. Returns the maximum (or none) and the sum of weights.
struct Peak {
  float maximum, sum;
};

Peak softmax(float* scores, i64 from, i64 to, i64 low, i64 high, float cap) {
  const i64 begin = from / kPanel * kPanel, end = (to + kPanel - 1) / kPanel * kPanel;
  if (cap != 0.0f) {
    const float inverse = 1.0f / cap;
    for (i64 i = begin; i < end; i += kLanes) {
      store_lanes(scores + i, tanh_of(load_lanes(scores + i) * inverse) * cap);
    }
  }
  for (i64 i = begin; i < low; ++i) scores[i] = kNone;
  for (i64 i = high; i < end; ++i) scores[i] = kNone;
  Lanes most = lanes_of(kNone);
  for (i64 i = begin; i < end; i += kLanes) most = larger(most, load_lanes(scores + i));
  const float maximum = largest_of(most);
  const Lanes base = lanes_of(maximum == kNone ? 0.0f : maximum);
  Lanes sum = {};
  for (i64 i = begin; i < end; i += kLanes) {
    const Lanes weight = exp_negative(load_lanes(scores + i) - base);
    store_lanes(scores + i, weight);
    sum = sum + weight;
  }
  return {maximum, sum_of(sum)};
}

// ---- chunks -----------------------------------------------------------------------------------

struct RowSet {
  i64 count, group, dim;
};

RowSet rows_of(const AttentionShape& shape, const AttentionBlock& block) {
  return {(block.last - block.first) * shape.group(), shape.group(), shape.padded_dim()};
}

void widen_all(const Float16* from, i64 n, float* to) {
  for (i64 i = 0; i < n; i += kLanes) store_lanes(to + i, load_lanes(from + i));
}

template <class E>
void chunk_rows(const AttentionJob& job, const AttentionBlock& block, i64 begin, i64 end,
                const float* queries, const E* keys, const E* values, float* state) {
  const RowSet rows = rows_of(job.shape, block);
  float* sums = state + rows.count * rows.dim;
  float* maxima = sums + rows.count;
  const i64 base = block.sequence->position + block.first;
  const i64 window = job.shape.window > 0 ? job.shape.window : base + rows.count + 1;
  alignas(64) float scores[kTile * kChunk];
  for (i64 row = 0; row < rows.count; row += kTile) {
    const int r = static_cast<int>(rows.count - row < kTile ? rows.count - row : kTile);
    // Keys of this chunk that any row of the tile sees, counted from its begin.
    const i64 oldest = base + row / rows.group - window + 1 - begin;
    const i64 newest = base + (row + r - 1) / rows.group + 1;
    const i64 from = oldest > 0 ? oldest : 0, to = (newest < end ? newest : end) - begin;
    if (from >= to) {
      for (int i = 0; i < r; ++i) sums[row + i] = 0.0f, maxima[row + i] = kNone;
      continue;
    }
    const Tile<E>& tile = tile_of<E>(r);
    tile.score(queries + row * rows.dim, keys, rows.dim, from, to, scores);
    for (int i = 0; i < r; ++i) {
      const i64 high = base + (row + i) / rows.group + 1 - begin, low = high - window;
      const Peak peak = softmax(scores + i * kChunk, from, to, low > to ? to : low,
                                high < to ? (high > 0 ? high : 0) : to, job.shape.softcap);
      maxima[row + i] = peak.maximum;
      sums[row + i] = peak.sum;
    }
    tile.weigh(scores, values, rows.dim, from, to, state + row * rows.dim);
  }
}

void chunk(const AttentionJob& job, const AttentionBlock& block, i64 index, const float* queries,
           float* state, float* panels) {
  const AttentionShape& shape = job.shape;
  const RowSet rows = rows_of(shape, block);
  const i64 begin = index * kChunk, tokens = block.sequence->position + block.last;
  const i64 end = begin + kChunk < tokens ? begin + kChunk : tokens;
  const i64 offset = block.kv_head * shape.head_nbytes() + begin * rows.dim * shape.item();
  const char* keys = block.sequence->keys + offset;
  const char* values = block.sequence->values + offset;
  if (shape.dtype == 0) {
    chunk_rows(job, block, begin, end, queries, reinterpret_cast<const float*>(keys),
               reinterpret_cast<const float*>(values), state);
  } else if (rows.count <= kTile) {
    chunk_rows(job, block, begin, end, queries, reinterpret_cast<const Float16*>(keys),
               reinterpret_cast<const Float16*>(values), state);
  } else {
    float* wide = panels + kChunk * rows.dim;
    widen_all(reinterpret_cast<const Float16*>(keys), round_up(end - begin, kPanel) * rows.dim,
              panels);
    widen_all(reinterpret_cast<const Float16*>(values), (end - begin) * rows.dim, wide);
    chunk_rows<float>(job, block, begin, end, queries, panels, wide, state);
  }
}

void pack(const AttentionJob& job, const AttentionBlock& block, float* queries) {
  const RowSet rows = rows_of(job.shape, block);
  const i64 dim = job.shape.head_dim;
  for (i64 row = 0; row < rows.count; ++row) {
    const i64 token = block.sequence->row + block.first + row / rows.group;
    const i64 head = block.kv_head * rows.group + row % rows.group;
    const float* q = job.q + token * job.q_stride + head * dim;
    const i64 tile = row / kTile * kTile;
    const i64 step = rows.count - tile < kTile ? rows.count - tile : kTile;
    float* to = queries + tile * rows.dim + (row - tile);
    for (i64 d = 0; d < dim; ++d) to[d * step] = q[d] * job.shape.scale;
    for (i64 d = dim; d < rows.dim; ++d) to[d * step] = 0.0f;
  }
}

void merge(i64 rows, i64 dim, float* state, const float* next) {
  float *sums = state + rows * dim, *maxima = sums + rows;
  const float *next_sums = next + rows * dim, *next_maxima = next_sums + rows;
  for (i64 row = 0; row < rows; ++row) {
    const float a = maxima[row], b = next_maxima[row];
    if (b == kNone) continue;
    const float most = a > b ? a : b;
    alignas(64) float scales[kLanes] = {a - most, b - most};
    store_lanes(scales, exp_negative(load_lanes(scales)));
    const Lanes keep = lanes_of(a == kNone ? 0.0f : scales[0]), gain = lanes_of(scales[1]);
    for (i64 d = row * dim; d < (row + 1) * dim; d += kLanes) {
      const Lanes old = a == kNone ? Lanes{} : load_lanes(state + d) * keep;
      store_lanes(state + d, fmadd(load_lanes(next + d), gain, old));
    }
    sums[row] = (a == kNone ? 0.0f : sums[row] * scales[0]) + next_sums[row] * scales[1];
    maxima[row] = most;
  }
}

void finish(const AttentionJob& job, const AttentionBlock& block, const float* state) {
  const RowSet rows = rows_of(job.shape, block);
  const float* sums = state + rows.count * rows.dim;
  const i64 dim = job.shape.head_dim;
  for (i64 row = 0; row < rows.count; ++row) {
    const i64 token = block.sequence->row + block.first + row / rows.group;
    const i64 head = block.kv_head * rows.group + row % rows.group;
    float* out = job.out + token * job.out_stride + head * dim;
    const float scale = 1.0f / sums[row];
    for (i64 d = 0; d < dim; ++d) out[d] = state[row * rows.dim + d] * scale;
  }
}

// ---- cache ------------------------------------------------------------------------------------

template <class E>
void append_as(const AttentionShape& shape, char* keys, char* values, i64 position,
               const float* key, const float* value) {
  const i64 dim = shape.head_dim, padded = shape.padded_dim();
  E* k = reinterpret_cast<E*>(keys) + position / kPanel * kPanel * padded + position % kPanel;
  E* v = reinterpret_cast<E*>(values) + position * padded;
  for (i64 d = 0; d < dim; ++d) narrow(value[d], v[d]);
  for (i64 d = dim; d < padded; ++d) narrow(0.0f, v[d]);
  E narrowed[256];
  for (i64 from = 0; from < padded; from += 256) {
    const i64 n = padded - from < 256 ? padded - from : 256;
    for (i64 d = 0; d < n; ++d) narrow(from + d < dim ? key[from + d] : 0.0f, narrowed[d]);
    for (i64 d = 0; d < n; ++d) k[(from + d) * kPanel] = narrowed[d];
  }
}

void append(const AttentionShape& shape, const Sequence& sequence, int kv_head, i64 position,
            const float* key, const float* value) {
  char* keys = sequence.keys + kv_head * shape.head_nbytes();
  char* values = sequence.values + kv_head * shape.head_nbytes();
  if (shape.dtype == 0) {
    append_as<float>(shape, keys, values, position, key, value);
  } else {
    append_as<Float16>(shape, keys, values, position, key, value);
  }
}

}  // namespace

const AttentionKernels& attention_kernels() {
  static constexpr AttentionKernels k = {kTile, append, pack, chunk, merge, finish};
  return k;
}

}  // namespace GATEUP_ISA
}  // namespace gateup
