// The quantised kernels with AMX: a tile of 16 rows times 16 columns takes a block of 32 along k
// (16 where a scale serves 16) in one instruction. Its int32 results pass through memory to the
// vector registers, where the float32 part is that of quant_avx512.hpp: the same bits.
#pragma once

#include <immintrin.h>

#include "quant_avx512.hpp"

namespace gateup {
namespace {

constexpr int kTileRows = 16;
constexpr int kFlight = 4;  // results on their way at a time, in tiles 0 to 3

struct alignas(64) TileConfig {
  u8 palette, start_row, reserved[14];
  std::uint16_t row_bytes[16];
  u8 rows[16];
};

// Tiles 0-3: results [16][16] int32; 4-5: activations [16][k]; 6-7: weights [k / 4][16][4].
constexpr TileConfig tile_config(int k) {
  TileConfig c{};
  c.palette = 1;
  for (int i = 0; i < 8; ++i) {
    const bool weights = i >= 6, result = i < 4;
    c.rows[i] = static_cast<u8>(weights ? k / 4 : kTileRows);
    c.row_bytes[i] = static_cast<std::uint16_t>(weights || result ? 64 : k);
  }
  return c;
}

constexpr TileConfig kTileConfigs[] = {tile_config(32), tile_config(16)};

// The thread's tiles hold the shapes for weights of this format until tiles_end.
GATEUP_INLINE void tiles_begin(const QuantFormat& f) {
  _tile_loadconfig(&kTileConfigs[f.sub_k == 16]);
}
GATEUP_INLINE void tiles_end() { _tile_release(); }

// One sub-block's dot products into `dot`, by tile T with A and B as operands. The compiler's
// intrinsics want the numbers of tiles as literals.
#define GATEUP_TILE_DOT(T, A, B, x, codes, dot) \
  do {                                          \
    _tile_zero(T);                              \
    _tile_loadd(A, x, kBlockK);                 \
    _tile_loadd(B, codes, 64);                  \
    _tile_dpbssd(T, A, B);                      \
    _tile_stored(T, dot, 64);                   \
  } while (false)

// Steps s and s + 1 (sub-blocks) in tiles T and T + 1.
template <int Step>
GATEUP_INLINE void tile_pair(const i8* x, const u8* codes, i32* dot, bool upper) {
  constexpr int per_block = kBlockK / Step;
  const i8* second = per_block == 2 ? x + Step : x + kTileRows * kBlockK;
  if (upper) {
    GATEUP_TILE_DOT(2, 4, 6, x, codes, dot);
    GATEUP_TILE_DOT(3, 5, 7, second, codes + Step * kPanel, dot + 256);
  } else {
    GATEUP_TILE_DOT(0, 4, 6, x, codes, dot);
    GATEUP_TILE_DOT(1, 5, 7, second, codes + Step * kPanel, dot + 256);
  }
}

// total[r] += one sub-block's products and its share of the minimum.
template <Kind K>
GATEUP_INLINE void add_dots(const i32* dot, __m512 w, const float* scale, __m512* total) {
  constexpr bool super = K == Kind::kSuperMin || K == Kind::kSuper16;
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
    const __m512 factor = super ? w : _mm512_mul_ps(w, _mm512_set1_ps(scale[r]));
    const __m512 value = _mm512_cvtepi32_ps(_mm512_load_si512(dot + kPanel * r));
    total[r] = _mm512_fmadd_ps(value, factor, total[r]);
  }
}

template <Kind K>
void tile_product_amx(const Chunk& chunk, const TileInput& in, int blocks, float* acc) {
  constexpr bool super = K == Kind::kSuperMin || K == Kind::kSuper16;
  constexpr bool min = K == Kind::kMin || K == Kind::kSuperMin;
  constexpr int subs = K == Kind::kSuper16 ? 2 : 1, step = kBlockK / subs;
  alignas(64) i32 dots[kFlight][kTileRows * kPanel];
  __m512 total[kTileRows];
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
    total[r] = super ? _mm512_setzero_ps() : _mm512_load_ps(acc + kPanel * r);
  }
  const int steps = blocks * subs;
  const u8* codes = chunk.codes[0];
  tile_pair<step>(in.codes, codes, dots[0], false);
  for (int s = 0; s < steps; s += 2) {
    // The next two are on their way while these are added up: a tile's result takes longer from
    // the multiplication to the vector registers than the additions of two.
    const bool upper = s / 2 % 2 != 0;
    const i32* dot = dots[upper ? 2 : 0];
    if (s + 2 < steps) {
      tile_pair<step>(in.codes + (s + 2) / subs * kTileRows * kBlockK,
                      codes + (s + 2) * step * kPanel, dots[upper ? 0 : 2], !upper);
    }
    for (int i = 0; i < 2; ++i) {
      const int b = (s + i) / subs;
      add_dots<K>(dot + i * 256, _mm512_load_ps(chunk.scale[s + i]), in.scale + b * kTileRows,
                  total);
      if (min) {
        const __m512 m = _mm512_load_ps(chunk.min[b]);
#pragma GCC unroll 16
        for (int r = 0; r < kTileRows; ++r) {
          total[r] = _mm512_fmadd_ps(m, _mm512_set1_ps(in.sums[b * kTileRows + r]), total[r]);
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
    if (super) {
      const __m512 before = _mm512_load_ps(acc + kPanel * r);
      total[r] = _mm512_fmadd_ps(total[r], _mm512_set1_ps(in.scale[r]), before);
    }
    _mm512_store_ps(acc + kPanel * r, total[r]);
  }
}

#undef GATEUP_TILE_DOT

}  // namespace
}  // namespace gateup
