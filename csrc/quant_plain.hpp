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

// One row. The order of the roundings is the same in every kernel: block by block; for a
// super-block's 8 blocks without, and then with the activations' scale.
template <Kind K>
void row_product(const Chunk& chunk, const TileInput& in, int r, int blocks,
                 float* __restrict acc) {
  constexpr bool super = K == Kind::kSuperMin || K == Kind::kSuper16;
  constexpr bool min = K == Kind::kMin || K == Kind::kSuperMin;
  constexpr int subs = K == Kind::kSuper16 ? 2 : 1, groups = 8 / subs;
  float inner[kPanel] = {};
  float* total = super ? inner : acc;
  for (int b = 0; b < blocks; ++b) {
    const int at = b * in.lead + r;
    for (int s = 0; s < subs; ++s) {
      i32 dot[kPanel];
      const i32 start = min ? 0 : in.start[super ? (subs * b + s) * in.lead + r : at];
      for (int c = 0; c < kPanel; ++c) dot[c] = start;
      dot16(chunk.codes[b] + 64 * groups * s, in.codes + at * kBlockK + 4 * groups * s, groups,
            dot);
      const float* scale = chunk.scale[subs * b + s];
      for (int c = 0; c < kPanel; ++c) {
        const float factor = super ? scale[c] : scale[c] * in.scale[at];
        total[c] = fmadd(static_cast<float>(dot[c]), factor, total[c]);
      }
    }
    for (int c = 0; min && c < kPanel; ++c) {
      total[c] = fmadd(chunk.min[b][c], in.sums[at], total[c]);
    }
  }
  for (int c = 0; super && c < kPanel; ++c) acc[c] = fmadd(inner[c], in.scale[r], acc[c]);
}

template <Kind K, int R>
void tile_product(const Chunk& chunk, const TileInput& in, int blocks, float* acc) {
  for (int r = 0; r < R; ++r) row_product<K>(chunk, in, r, blocks, acc + r * kPanel);
}

}  // namespace
}  // namespace gateup
