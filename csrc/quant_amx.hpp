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

// A block's share of what comes next.
template <int R>
GATEUP_INLINE void fetch_ahead(Ahead& ahead, const TileInput& in, int blocks, int b) {
  for (int i = 0; i < ahead.lines && ahead.weights < ahead.end; ++i, ahead.weights += 64) {
    _mm_prefetch(ahead.weights, _MM_HINT_T1);
  }
  for (int i = 0; i < ahead.x_lines; ++i, ahead.x += 64) _mm_prefetch(ahead.x, _MM_HINT_T0);
  _mm_prefetch(in.scale + (blocks + b) * R, _MM_HINT_T0);
}

// ---- a scale to a block -----------------------------------------------------------------------

// The compiler's intrinsics declare no memory operands.
#define GATEUP_TILE_DOT(T, A, B, x, codes)                                                        \
  __asm__ volatile(                                                                               \
      "tileloadd (%0,%2,1), %%tmm" #A "\n\ttileloadd (%1,%3,1), %%tmm" #B "\n\ttilezero %%tmm" #T \
      "\n\ttdpbssd %%tmm" #B ", %%tmm" #A ", %%tmm" #T ::"r"(x),                                  \
      "r"(codes), "r"(static_cast<long>(kBlockK)), "r"(64L)                                       \
      : "memory")
#define GATEUP_TILE_STORE(T, dot) \
  __asm__ volatile("tilestored %%tmm" #T ", (%0,%1,1)" ::"r"(dot), "r"(64L) : "memory")

// Block b in a step of its own: its products go to tile b % 4, and two blocks later its sums from
// there to memory.
template <int R>
GATEUP_INLINE void multiply_block(int b, const i8* x, const u8* codes) {
  switch (b % 4) {
    case 0: GATEUP_TILE_DOT(0, 4, 6, x, codes); break;
    case 1: GATEUP_TILE_DOT(1, 5, 7, x, codes); break;
    case 2: GATEUP_TILE_DOT(2, 4, 6, x, codes); break;
    default: GATEUP_TILE_DOT(3, 5, 7, x, codes);
  }
}

GATEUP_INLINE void store_block(int b, i32* dot) {
  switch (b % 4) {
    case 0: GATEUP_TILE_STORE(0, dot); break;
    case 1: GATEUP_TILE_STORE(1, dot); break;
    case 2: GATEUP_TILE_STORE(2, dot); break;
    default: GATEUP_TILE_STORE(3, dot);
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

// Blocks [first, first + N). While one block's sums are added up, the next one's are on their way
// to memory and the one after that is multiplied.
template <Kind K, int R, int N>
GATEUP_INLINE void tile_run(const Chunk& chunk, const TileInput& in, int first, int blocks,
                            Ahead& ahead, float* acc) {
  alignas(64) i32 dots[4][kMostDots];
  __m512 total[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) total[r] = _mm512_load_ps(acc + kPanel * r);
#pragma GCC unroll 16
  for (int b = -2; b < N; ++b) {
    const int at = first + b + 2;
    if (b + 2 < N) {
      multiply_block<R>(b + 2, in.codes + at * R * kBlockK, chunk.codes[at]);
    }
    if (b >= -1 && b + 1 < N) store_block(b + 1, dots[(b + 1) % 4]);
    if (b < 0) continue;
    fetch_ahead<R>(ahead, in, blocks, first + b);
    add_block<K, R>(chunk, in, first + b, dots[b % 4], total);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) _mm512_store_ps(acc + kPanel * r, total[r]);
}

template <Kind K, int R>
void tile_blocks_amx(const Chunk& chunk, const TileInput& in, int blocks, Ahead& ahead,
                     float* acc) {
  if (blocks == kChunkBlocks) {
    tile_run<K, R, kChunkBlocks>(chunk, in, 0, blocks, ahead, acc);
    return;
  }
  for (int b = 0; b < blocks; b += 2) tile_run<K, R, 2>(chunk, in, b, blocks, ahead, acc);
}

#undef GATEUP_TILE_DOT
#undef GATEUP_TILE_STORE

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
void unpack_split(const u8* packed, int blocks, int ahead, Chunk& chunk) {
  constexpr QuantFormat f = kFormats[F];
  unpack_scales512<F>(packed, 0, chunk);
  const u8* scale = packed + f.scale_at();
  for (int b = 0; b < blocks; ++b) {
    u8* at = chunk.codes[b];
    u8* more = chunk.more[b];
    if constexpr (f.sub_k == 16) {
      const Split8 first(scale + 2 * b * kPanel), last(scale + (2 * b + 1) * kPanel);
      unpack_ahead<F, Codes::kUnsigned>(packed, b, ahead, [&](int g, __m512i codes) {
        (g < 4 ? first : last).store(codes, at + 64 * g, more + 64 * g);
      });
    } else {
      const Split6 split(scale + b * kPanel);
      unpack_ahead<F, Codes::kUnsigned>(packed, b, ahead, [&](int g, __m512i codes) {
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
void tile_super_amx(const Chunk& chunk, const TileInput& in, int blocks, Ahead& ahead,
                    float* acc) {
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
  for (int b = 0; b < 8; ++b) fetch_ahead<R>(ahead, in, blocks, b);
  for (int b = 0; b < 16; ++b) _mm_prefetch(acc + (16 + b) * 16, _MM_HINT_T0);
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
