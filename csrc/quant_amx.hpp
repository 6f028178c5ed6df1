// The quantised kernels with AMX: a tile of 8 or 16 rows times 16 columns takes 32 or 64 along k in one
// instruction. Its int32 results pass through memory to the vector registers, where the float32
// part is that of quant_avx512.hpp: the same bits.
//
// That detour is what costs, so K-quants take it seldom: their scales are whole numbers and are
// multiplied into the weights, which are then too wide for a byte and go in two parts.
#pragma once

#include <immintrin.h>

#include "amx_config.hpp"
#include "quant_avx512.hpp"

namespace gateup {
namespace {

constexpr int kMostDots = 16 * kPanel;  // int32 in a result

// Tiles 0-3: results [rows][16] int32; 4-5: activations [rows][k]; 6-7: weights [k / 4][16][4].
constexpr TileConfig tile_config(int rows, int k) {
  TileConfig c{};
  for (int i = 0; i < 8; ++i) {
    const bool weights = i >= 6, result = i < 4;
    c.rows[i] = static_cast<u8>(weights ? k / 4 : rows);
    c.row_bytes[i] = static_cast<std::uint16_t>(weights || result ? 64 : k);
  }
  return c;
}

constexpr TileConfig kTileConfigs[2][2] = {{tile_config(8, 32), tile_config(8, 64)},
                                           {tile_config(16, 32), tile_config(16, 64)}};

// The thread's tiles hold the shapes for weights of this format until tiles_end.
GATEUP_INLINE void tiles_begin(const QuantFormat& f, int lead) {
  if (lead >= 8) _tile_loadconfig(&kTileConfigs[lead == 16][f.super()]);
}
GATEUP_INLINE void tiles_end(int lead) {
  if (lead >= 8) _tile_release();
}

// ---- a scale to a block -----------------------------------------------------------------------

// One block's dot products into `dot`, by tile T with A and B as operands. The compiler's
// intrinsics want the numbers of tiles as literals.
#define GATEUP_TILE_DOT(T, A, B, x, codes, dot) \
  do {                                          \
    _tile_zero(T);                              \
    _tile_loadd(A, x, kBlockK);                 \
    _tile_loadd(B, codes, 64);                  \
    _tile_dpbssd(T, A, B);                      \
    _tile_stored(T, dot, 64);                   \
  } while (false)

// Two blocks in tiles 0 and 1, or 2 and 3.
template <int R>
GATEUP_INLINE void tile_pair(const i8* x, const u8* codes, i32* dot, bool upper) {
  const i8* second = x + R * kBlockK;
  if (upper) {
    GATEUP_TILE_DOT(2, 4, 6, x, codes, dot);
    GATEUP_TILE_DOT(3, 5, 7, second, codes + 512, dot + kMostDots);
  } else {
    GATEUP_TILE_DOT(0, 4, 6, x, codes, dot);
    GATEUP_TILE_DOT(1, 5, 7, second, codes + 512, dot + kMostDots);
  }
}

// total[r] += one block's products, and its minimums.
template <Kind K, int R>
GATEUP_INLINE void add_block(const Chunk& chunk, const TileInput& in, int b, const i32* dot,
                             __m512* total) {
  const __m512 w = _mm512_load_ps(chunk.scale[b]), m = _mm512_load_ps(chunk.min[b]);
  const float* scale = in.scale + b * R;
  const float* sums = in.sums + b * R;
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const __m512 factor = _mm512_mul_ps(w, _mm512_set1_ps(scale[r]));
    const __m512 value = _mm512_cvtepi32_ps(_mm512_load_si512(dot + kPanel * r));
    total[r] = _mm512_fmadd_ps(value, factor, total[r]);
    if (K == Kind::kMin) total[r] = _mm512_fmadd_ps(m, _mm512_set1_ps(sums[r]), total[r]);
  }
}

template <Kind K, int R>
void tile_blocks_amx(const Chunk& chunk, const TileInput& in, int blocks, float* acc) {
  alignas(64) i32 dots[4][kMostDots];
  __m512 total[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) total[r] = _mm512_load_ps(acc + kPanel * r);
  tile_pair<R>(in.codes, chunk.codes[0], dots[0], false);
  for (int b = 0; b < blocks; b += 2) {
    // The next two are on their way while these are added up: a tile's result takes longer from
    // the multiplication to the vector registers than the additions of two.
    const bool upper = b % 4 != 0;
    if (b + 2 < blocks) {
      tile_pair<R>(in.codes + (b + 2) * R * kBlockK, chunk.codes[b + 2],
                dots[upper ? 0 : 2], !upper);
    }
    add_block<K, R>(chunk, in, b, dots[upper ? 2 : 0], total);
    add_block<K, R>(chunk, in, b + 1, dots[upper ? 3 : 1], total);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) _mm512_store_ps(acc + kPanel * r, total[r]);
}

#undef GATEUP_TILE_DOT

// ---- K-quants -----------------------------------------------------------------------------------

// A weight without its super-block's scale is code · scale = upper · 2^shift + lower.
//
// Q4_K, Q5_K: the scale's 6 bits are cut into 3 and 3, and code · 7 <= 217 is a byte; two bytes
// are multiplied at once, as the lower one's product cannot run over. Q6_K: the product has 13
// bits and a sign; it is cut into [-64, 63] and the rest.
constexpr int split_shift(Kind k) { return k == Kind::kSuper16 ? 7 : 3; }

// One number to each 16 bits of the four codes of a column.
GATEUP_INLINE __m512i doubled(__m512i whole) {
  return _mm512_or_si512(_mm512_and_si512(whole, _mm512_set1_epi32(0xffff)),
                         _mm512_slli_epi32(whole, 16));
}

GATEUP_INLINE __m128i sixteen_bytes(const u8* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

// A column's scales, ready to be multiplied with codes.
struct Split6 {
  __m512i upper, lower;
  explicit Split6(const u8* scale) {
    const __m512i whole = _mm512_cvtepu8_epi32(sixteen_bytes(scale));
    upper = doubled(_mm512_srli_epi32(whole, 3));
    lower = doubled(_mm512_and_si512(whole, _mm512_set1_epi32(7)));
  }
  void store(__m512i codes, u8* at, u8* more) const {
    _mm512_store_si512(at, _mm512_mullo_epi16(codes, upper));
    _mm512_store_si512(more, _mm512_mullo_epi16(codes, lower));
  }
};

struct Split8 {
  __m512i factor;
  explicit Split8(const u8* scale) {
    factor = doubled(_mm512_cvtepi8_epi32(sixteen_bytes(scale)));
  }
  // Codes from 0 to 63, 32 more than what they stand for.
  void store(__m512i codes, u8* at, u8* more) const {
    const __m512i offset = _mm512_set1_epi16(32), half = _mm512_set1_epi16(64);
    const __m512i low = _mm512_set1_epi16(0xff);
    const __m512i even = _mm512_sub_epi16(_mm512_and_si512(codes, low), offset);
    const __m512i odd = _mm512_sub_epi16(_mm512_srli_epi16(codes, 8), offset);
    const __m512i w0 = _mm512_mullo_epi16(even, factor), w1 = _mm512_mullo_epi16(odd, factor);
    const __m512i up0 = _mm512_srai_epi16(_mm512_add_epi16(w0, half), 7);
    const __m512i up1 = _mm512_srai_epi16(_mm512_add_epi16(w1, half), 7);
    const __m512i low0 = _mm512_sub_epi16(w0, _mm512_slli_epi16(up0, 7));
    const __m512i low1 = _mm512_sub_epi16(w1, _mm512_slli_epi16(up1, 7));
    const __m512i upper = _mm512_ternarylogic_epi64(_mm512_slli_epi16(up1, 8), low, up0, 0xf8);
    const __m512i lower = _mm512_ternarylogic_epi64(_mm512_slli_epi16(low1, 8), low, low0, 0xf8);
    _mm512_store_si512(at, upper);
    _mm512_store_si512(more, lower);
  }
};

template <int F>
void unpack_split(const u8* packed, int blocks, Chunk& chunk) {
  constexpr QuantFormat f = kFormats[F];
  unpack_scales512<F>(packed, 0, chunk);
  const u8* scale = packed + f.scale_at();
  for (int b = 0; b < blocks; ++b) {
    u8* at = chunk.codes[b];
    u8* more = chunk.more[b];
    if constexpr (f.sub_k == 16) {
      const Split8 first(scale + 2 * b * kPanel), last(scale + (2 * b + 1) * kPanel);
      unpack_ahead<F, Codes::kUnsigned>(packed, b, [&](int g, __m512i codes) {
        (g < 4 ? first : last).store(codes, at + 64 * g, more + 64 * g);
      });
    } else {
      const Split6 split(scale + b * kPanel);
      unpack_ahead<F, Codes::kUnsigned>(packed, b, [&](int g, __m512i codes) {
        split.store(codes, at + 64 * g, more + 64 * g);
      });
    }
  }
}

// 64 along k: activations times both parts, onto tiles U and L.
#define GATEUP_TILE_SPLIT(dot, U, L, A, pair)               \
  do {                                                      \
    _tile_loadd(A, in.codes + (pair) * 64 * R, 64); \
    _tile_loadd(6, chunk.codes[2 * (pair)], 64);            \
    dot(U, A, 6);                                           \
    _tile_loadd(7, chunk.more[2 * (pair)], 64);             \
    dot(L, A, 7);                                           \
  } while (false)

// total[r] (+)= upper · 2^shift + lower.
template <Kind K, int R, bool First>
GATEUP_INLINE void add_split(const i32* dots, __m512* total) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const __m512i upper = _mm512_slli_epi32(_mm512_load_si512(dots + kPanel * r), split_shift(K));
    const __m512i sum = _mm512_add_epi32(upper, _mm512_load_si512(dots + kMostDots + kPanel * r));
    const __m512 value = _mm512_cvtepi32_ps(sum);
    total[r] = First ? value : _mm512_add_ps(total[r], value);
  }
}

template <Kind K, int R>
void tile_super_amx(const Chunk& chunk, const TileInput& in, int, float* acc) {
  alignas(64) i32 dots[8][kMostDots];
  __m512 total[R];
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  if constexpr (K != Kind::kSuper16) {
    GATEUP_TILE_SPLIT(_tile_dpbsud, 0, 1, 4, 0);
    GATEUP_TILE_SPLIT(_tile_dpbsud, 0, 1, 5, 1);
    _tile_stored(0, dots[0], 64);
    _tile_stored(1, dots[1], 64);
    GATEUP_TILE_SPLIT(_tile_dpbsud, 2, 3, 4, 2);
    GATEUP_TILE_SPLIT(_tile_dpbsud, 2, 3, 5, 3);
    _tile_stored(2, dots[2], 64);
    _tile_stored(3, dots[3], 64);
  } else {
    GATEUP_TILE_SPLIT(_tile_dpbssd, 0, 1, 4, 0);
    _tile_stored(0, dots[0], 64);
    _tile_stored(1, dots[1], 64);
    GATEUP_TILE_SPLIT(_tile_dpbssd, 2, 3, 5, 1);
    _tile_stored(2, dots[2], 64);
    _tile_stored(3, dots[3], 64);
    _tile_zero(0);
    _tile_zero(1);
    GATEUP_TILE_SPLIT(_tile_dpbssd, 0, 1, 4, 2);
    _tile_stored(0, dots[4], 64);
    _tile_stored(1, dots[5], 64);
    _tile_zero(2);
    _tile_zero(3);
    GATEUP_TILE_SPLIT(_tile_dpbssd, 2, 3, 5, 3);
    _tile_stored(2, dots[6], 64);
    _tile_stored(3, dots[7], 64);
  }
  add_split<K, R, true>(dots[0], total);
  add_split<K, R, false>(dots[2], total);
  if (K == Kind::kSuper16) {
    add_split<K, R, false>(dots[4], total);
    add_split<K, R, false>(dots[6], total);
  }
  add_super<K, 8>(chunk, in, 0, total, acc);
  if constexpr (R == 16) add_super<K, 8>(chunk, in, 8, total + 8, acc + 8 * kPanel);
}

#undef GATEUP_TILE_SPLIT

}  // namespace
}  // namespace gateup
