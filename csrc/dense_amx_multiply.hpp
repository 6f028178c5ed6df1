// Four sums of tiles along k: two panels of 16 rows of weights times two groups of 16 tokens.
#pragma once

#include "dense_amx_rows.hpp"

namespace gateup {
namespace amx {
namespace {

constexpr i64 kTileBytes = 1024;

// c: [panel a, b][group 0, 1][16 rows][16 tokens].
template <bool kTwo>
GATEUP_INLINE void load_sums(const float* c, bool resume) {
  if (resume) {
    GATEUP_TILE_LOAD(0, c, 64);
    GATEUP_TILE_LOAD(1, c + 512, 64);
    if (kTwo) {
      GATEUP_TILE_LOAD(2, c + 256, 64);
      GATEUP_TILE_LOAD(3, c + 768, 64);
    }
  } else {
    GATEUP_TILE_ZERO(0);
    GATEUP_TILE_ZERO(1);
    if (kTwo) {
      GATEUP_TILE_ZERO(2);
      GATEUP_TILE_ZERO(3);
    }
  }
}

template <bool kTwo>
GATEUP_INLINE void store_sums(float* c) {
  GATEUP_TILE_STORE(0, c, 64);
  GATEUP_TILE_STORE(1, c + 512, 64);
  if (kTwo) {
    GATEUP_TILE_STORE(2, c + 256, 64);
    GATEUP_TILE_STORE(3, c + 768, 64);
  }
}

struct Panel {
  const char* data;
  i64 stride;  // bytes
};

struct Weights {
  const char *a, *b;
  i64 stride_a, stride_b;  // bytes
};

// Weights as they lie; `tail`: one padded step behind the whole ones.
template <bool kTwo>
GATEUP_INLINE void multiply(const Weights& w, i64 steps, const Weights* tail, const char* x0,
                            const char* x1, i64 x_step, float* c, bool resume) {
  const i64 x_stride = x_step / 16;
  load_sums<kTwo>(c, resume);
  const char *a = w.a, *b = w.b;
  i64 stride_a = w.stride_a, stride_b = w.stride_b;
  for (;;) {
    for (i64 i = 0; i < steps; ++i) {
      GATEUP_TILE_LOAD(4, a, stride_a);
      GATEUP_TILE_LOAD(6, x0, x_stride);
      GATEUP_TILE_BF16(0, 4, 6);
      GATEUP_TILE_LOAD(5, b, stride_b);
      GATEUP_TILE_BF16(1, 5, 6);
      if (kTwo) {
        GATEUP_TILE_LOAD(7, x1, x_stride);
        GATEUP_TILE_BF16(2, 4, 7);
        GATEUP_TILE_BF16(3, 5, 7);
        x1 += x_step;
      }
      a += 64;
      b += 64;
      x0 += x_step;
    }
    if (tail == nullptr) break;
    a = tail->a;
    b = tail->b;
    stride_a = stride_b = 64;
    steps = 1;
    tail = nullptr;
  }
  store_sums<kTwo>(c);
}

// One panel of weights as they lie times three or four groups of tokens, whose operands are
// `group` bytes apart: weights go from memory to the tiles once.
// c: [group / 2][2 panels][group % 2].
template <int kGroups>
GATEUP_INLINE void multiply_wide(const Panel& panel, i64 steps, const char* tail, const char* x,
                                 i64 group, float* c, bool resume) {
  static_assert(kGroups == 3 || kGroups == 4, "three or four sums");
  if (resume) {
    GATEUP_TILE_LOAD(0, c, 64);
    GATEUP_TILE_LOAD(1, c + 256, 64);
    GATEUP_TILE_LOAD(2, c + 1024, 64);
    if (kGroups == 4) GATEUP_TILE_LOAD(3, c + 1280, 64);
  } else {
    GATEUP_TILE_ZERO(0);
    GATEUP_TILE_ZERO(1);
    GATEUP_TILE_ZERO(2);
    GATEUP_TILE_ZERO(3);
  }
  const char* w = panel.data;
  i64 stride = panel.stride;
  for (;;) {
    for (i64 i = 0; i < steps; ++i) {
      GATEUP_TILE_LOAD(4, w, stride);
      GATEUP_TILE_LOAD(5, x, 64);
      GATEUP_TILE_BF16(0, 4, 5);
      GATEUP_TILE_LOAD(6, x + group, 64);
      GATEUP_TILE_BF16(1, 4, 6);
      GATEUP_TILE_LOAD(7, x + 2 * group, 64);
      GATEUP_TILE_BF16(2, 4, 7);
      if (kGroups == 4) {
        GATEUP_TILE_LOAD(5, x + 3 * group, 64);
        GATEUP_TILE_BF16(3, 4, 5);
      }
      w += 64;
      x += kTileBytes;
    }
    if (tail == nullptr) break;
    w = tail;
    stride = 64;
    steps = 1;
    tail = nullptr;
  }
  GATEUP_TILE_STORE(0, c, 64);
  GATEUP_TILE_STORE(1, c + 256, 64);
  GATEUP_TILE_STORE(2, c + 1024, 64);
  if (kGroups == 4) GATEUP_TILE_STORE(3, c + 1280, 64);
}

// Pieces of 32 rows of weights, fetched row by row into the second-level cache while others are
// multiplied: a few lines at each step. Weights that several blocks of tokens use would otherwise
// leave the memory idle during all of them but the first.
struct Ahead {
  const char *at, *second;  // the next line; the second panel
  i64 stride_a, stride_b;   // bytes
  i64 lines;                // in a row's piece
  i64 quota;                // lines at a step
  i64 column, row;

  static constexpr i64 kRows = 2 * kTile;
};

GATEUP_INLINE void fetch(Ahead& f) {
  for (i64 n = 0; n < f.quota && f.row < Ahead::kRows; ++n) {
    __builtin_prefetch(f.at, 0, 1);
    f.at += 64;
    if (++f.column < f.lines) continue;
    f.column = 0;
    ++f.row;
    f.at = f.row == kTile ? f.second
                          : f.at - f.lines * 64 + (f.row < kTile ? f.stride_a : f.stride_b);
  }
}

GATEUP_INLINE void fetch_tile(const char* tile) {
  for (int i = 0; i < kTile; ++i) __builtin_prefetch(tile + i * 64, 0, 3);
}

// w: [step][panel a, b][16 rows][32 k] in the first-level cache; x streams from the second, so the
// next step's tiles are asked for a step ahead.
template <bool kTwo>
GATEUP_INLINE void multiply_staged(const char* w, i64 steps, const char* x0, const char* x1,
                                   float* c, bool resume, Ahead& ahead) {
  load_sums<kTwo>(c, resume);
  for (i64 i = 0; i < steps; ++i) {
    GATEUP_TILE_LOAD(4, w, 64);
    GATEUP_TILE_LOAD(6, x0, 64);
    fetch_tile(x0 + kTileBytes);
    GATEUP_TILE_BF16(0, 4, 6);
    GATEUP_TILE_LOAD(5, w + kTileBytes, 64);
    GATEUP_TILE_BF16(1, 5, 6);
    fetch(ahead);
    if (kTwo) {
      GATEUP_TILE_LOAD(7, x1, 64);
      fetch_tile(x1 + kTileBytes);
      GATEUP_TILE_BF16(2, 4, 7);
      GATEUP_TILE_BF16(3, 5, 7);
      x1 += kTileBytes;
    }
    w += 2 * kTileBytes;
    x0 += kTileBytes;
  }
  store_sums<kTwo>(c);
}

// 16 rows' whole steps into tiles, every second of which is this panel's.
GATEUP_INLINE void stage(const char* rows, i64 stride, i64 steps, char* to) {
  for (int r = 0; r < kTile; ++r, rows += stride, to += 64) {
    for (i64 i = 0; i < steps; ++i) {
      _mm512_store_si512(to + i * 2 * kTileBytes, _mm512_loadu_si512(rows + i * 64));
    }
  }
}

}  // namespace
}  // namespace amx
}  // namespace gateup
