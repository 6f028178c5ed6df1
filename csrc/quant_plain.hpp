// The quantised kernels without intrinsics: any machine, and what the others are tested against.
#pragma once

#include "quant_tile.hpp"

namespace gateup {
namespace {

template <int F>
void unpack_chunk(const u8* packed, int blocks, Chunk& chunk) {
  constexpr QuantFormat f = kFormats[F];
  for (int first = 0; first < blocks; first += f.blocks(), packed += f.group_bytes()) {
    for (int b = 0; b < f.blocks(); ++b) {
      u8* codes = chunk.codes[first + b];
      const u8* low = packed + b * f.code_bytes();
      const u8* high = packed + f.high_at() + b * f.high_bytes();
      for (int i = 0; f.bits == 8 && i < 512; ++i) codes[i] = low[i];
      for (int i = 0; f.bits != 8 && i < 256; ++i) {
        codes[i] = low[i] & 15;
        codes[256 + i] = low[i] >> 4;
      }
      for (int i = 0; f.bits == 5 && i < 512; ++i) {
        codes[i] |= static_cast<u8>((high[i / 8] >> (i % 8) & 1) << 4);
      }
      for (int i = 0; f.bits == 6 && i < 512; ++i) {
        codes[i] |= static_cast<u8>((high[i % 128] >> (i / 128 * 2) & 3) << 4);
      }
      for (int i = 0; f.type == kIQ4_NL && i < 512; ++i) {
        codes[i] = static_cast<u8>(kNonLinear[codes[i]] + 128);
      }
    }
    unpack_scales<F>(packed, first, chunk);
  }
}

// dot [16] += 16 rows of `groups`·4 codes times one row of activations.
GATEUP_INLINE void dot16(const u8* __restrict codes, const i8* __restrict x, int groups,
                         i32* __restrict dot) {
  for (int g = 0; g < groups; ++g) {
    for (int c = 0; c < kPanel; ++c) {
      i32 sum = 0;
      for (int i = 0; i < 4; ++i) sum += codes[64 * g + 4 * c + i] * x[4 * g + i];
      dot[c] += sum;
    }
  }
}

// One row, for formats with a scale to a block. The order of the roundings is the same in every
// kernel.
template <Kind K>
void block_row(const Chunk& chunk, const TileInput& in, int r, int blocks, float* __restrict acc) {
  for (int b = 0; b < blocks; ++b) {
    const int at = b * in.lead + r;
    i32 dot[kPanel];
    for (int c = 0; c < kPanel; ++c) dot[c] = K == Kind::kMin ? 0 : in.start[at];
    dot16(chunk.codes[b], in.codes + at * kBlockK, 8, dot);
    for (int c = 0; c < kPanel; ++c) {
      const float factor = chunk.scale[b][c] * in.scale[at];
      acc[c] = fmadd(static_cast<float>(dot[c]), factor, acc[c]);
      if (K == Kind::kMin) acc[c] = fmadd(chunk.min[b][c], in.sums[at], acc[c]);
    }
  }
}

// One row and one super-block. Whole numbers below 2^24 are exact in float32: a sub-block's
// product with its scale, and the sum of two of them (Q5_K: 2·32·31·127·63 = 15.9 million; Q6_K
// 2·16·32·127·128 = 16.6 million; Q4_K: 4·32·15·127·63 = 15.4 million even for four). Two such sums added are rounded once, as if four sub-blocks
// had been added as integers: kernels are free to do that. The minimums' sum is exact, too.
template <Kind K>
void super_row(const Chunk& chunk, const TileInput& in, int r, float* __restrict acc) {
  constexpr int subs = K == Kind::kSuper16 ? 2 : 1, groups = 8 / subs;
  float total[kPanel], mins[kPanel] = {};
  for (int first = 0; first < 8 * subs; first += 4) {
    float part[2][kPanel] = {};
    for (int i = 0; i < 4; ++i) {
      const int n = first + i, b = n / subs, s = n % subs;
      i32 dot[kPanel];
      for (int c = 0; c < kPanel; ++c) {
        dot[c] = K == Kind::kSuper16 ? in.start[n * in.lead + r] : 0;
      }
      const i8* x = in.codes + (b / 2 * in.lead + r) * 2 * kBlockK + b % 2 * kBlockK;
      dot16(chunk.codes[b] + 64 * groups * s, x + 4 * groups * s, groups, dot);
      for (int c = 0; c < kPanel; ++c) {
        part[i / 2][c] = fmadd(static_cast<float>(dot[c]), chunk.scale[n][c], part[i / 2][c]);
      }
    }
    for (int c = 0; c < kPanel; ++c) {
      const float sum = part[0][c] + part[1][c];
      total[c] = first == 0 ? sum : total[c] + sum;
    }
  }
  for (int c = 0; c < kPanel; ++c) acc[c] = fmadd(total[c], chunk.d[c] * in.scale[r], acc[c]);
  if (!has_min(K)) return;
  for (int b = 0; b < 8; ++b) {
    const float sum = in.sums[b * in.lead + r];
    for (int c = 0; c < kPanel; ++c) mins[c] = fmadd(chunk.min[b][c], sum, mins[c]);
  }
  for (int c = 0; c < kPanel; ++c) acc[c] = fmadd(mins[c], chunk.dmin[c] * in.scale[r], acc[c]);
}

template <Kind K, int R>
void tile_product(const Chunk& chunk, const TileInput& in, int blocks, float* acc) {
  for (int r = 0; r < R; ++r) {
    if constexpr (K == Kind::kPlain || K == Kind::kMin) {
      block_row<K>(chunk, in, r, blocks, acc + r * kPanel);
    } else {
      super_row<K>(chunk, in, r, acc + r * kPanel);
    }
  }
}

}  // namespace
}  // namespace gateup
