// The quantised kernels with AMX: a tile of 16 rows times 16 columns takes 32 or 64 along k in one
// instruction. Its int32 results pass through memory to the vector registers, where the float32
// part is that of quant_avx512.hpp: the same bits.
//
// Vector instructions are what costs: while tiles are in use a core does one of 512 bits a cycle
// instead of two (48 of them take 26 cycles alone, 52 beside nothing more than a `tilezero`), and a
// scale every 32 weights asks for three a row of results. So K-quants' scales, whole numbers, are
// multiplied into the weights, which are then too wide for a byte and go in two parts; and their
// minimums are multiplied with the activations' sums by bfloat16 tiles, exactly.
#pragma once

#include <immintrin.h>

#include "amx_config.hpp"
#include "quant_avx512.hpp"

namespace gateup {
namespace {

constexpr int kTileRows = 16;
constexpr int kMostDots = kTileRows * kPanel;  // int32 in a result

// Tiles 0-3: results [16][16] int32; 4-5: activations [16][k]; 6-7: weights [k / 4][16][4].
constexpr TileConfig tile_config(int k) {
  TileConfig c{};
  for (int i = 0; i < 8; ++i) {
    const bool weights = i >= 6, result = i < 4;
    c.rows[i] = static_cast<u8>(weights ? k / 4 : kTileRows);
    c.row_bytes[i] = static_cast<std::uint16_t>(weights || result ? 64 : k);
  }
  return c;
}

constexpr TileConfig kTileConfigs[2] = {tile_config(32), tile_config(64)};

// The thread's tiles hold the shapes for weights of this format until tiles_end.
GATEUP_INLINE void tiles_begin(const QuantFormat& f) { _tile_loadconfig(&kTileConfigs[f.super()]); }
GATEUP_INLINE void tiles_end() { _tile_release(); }

// Block b's share of what comes next: weights, and panel p's of the next tile of rows, into the
// first-level cache.
GATEUP_INLINE void fetch_ahead(Ahead* ahead, int p, int panels, const TileInput& in, int blocks,
                               int b) {
  Ahead& a = ahead[p];
  for (int i = 0; i < a.lines && a.weights < a.end; ++i, a.weights += 64) {
    _mm_prefetch(a.weights, _MM_HINT_T1);
  }
  const int lines = kTileRows / 2 / panels;
  const i8* x = in.codes + (blocks * kTileRows * kBlockK) + (p * blocks + b) * lines * 64;
  for (int i = 0; i < lines; ++i) _mm_prefetch(x + 64 * i, _MM_HINT_T0);
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
template <Kind K>
GATEUP_INLINE void add_block(const Chunk& chunk, const TileInput& in, int b, const i32* dot,
                             __m512* total) {
  const __m512 w = _mm512_load_ps(chunk.scale[b]), m = _mm512_load_ps(chunk.min[b]);
  const float* scale = in.scale + b * kTileRows;
  const float* sums = in.sums + b * kTileRows;
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
    const __m512 factor = _mm512_mul_ps(w, _mm512_set1_ps(scale[r]));
    const __m512 value = _mm512_cvtepi32_ps(_mm512_load_si512(dot + kPanel * r));
    total[r] = _mm512_fmadd_ps(value, factor, total[r]);
    if (K == Kind::kMin) total[r] = _mm512_fmadd_ps(m, _mm512_set1_ps(sums[r]), total[r]);
  }
}

// 256 along k. While one block's sums are added up, the next one's are on their way to memory and
// the one after that is multiplied: at the end those of the next product, if there is any.
template <Kind K>
GATEUP_INLINE void whole_chunk(const Chunk& chunk, const TileInput& in, const Chunk& next_chunk,
                               const i8* next_x, Ahead* ahead, int p, int panels,
                               i32 (*dots)[kMostDots], float* acc) {
  __m512 total[kTileRows];
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) total[r] = _mm512_load_ps(acc + kPanel * r);
#pragma GCC unroll 8
  for (int b = 0; b < kChunkBlocks; ++b) {
    const int on = b + 2, at = on - kChunkBlocks;
    if (on < kChunkBlocks) {
      multiply_block(on, in.codes + on * kTileRows * kBlockK, chunk.codes[on]);
    } else if (next_x != nullptr) {
      multiply_block(on, next_x + at * kTileRows * kBlockK, next_chunk.codes[at]);
    }
    if (b + 1 < kChunkBlocks || next_x != nullptr) store_block(b + 1, dots[(b + 1) % 4]);
    fetch_ahead(ahead, p, panels, in, kChunkBlocks, b);
    _mm_prefetch(in.scale + (kChunkBlocks + b) * kTileRows, _MM_HINT_T0);
    add_block<K>(chunk, in, b, dots[b % 4], total);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) _mm512_store_ps(acc + kPanel * r, total[r]);
}

// What is left at the end of k: an even number of blocks.
template <Kind K>
GATEUP_INLINE void part_chunk(const Chunk& chunk, const TileInput& in, int blocks,
                              i32 (*dots)[kMostDots], float* acc) {
  __m512 total[kTileRows];
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) total[r] = _mm512_load_ps(acc + kPanel * r);
  for (int b = 0; b < blocks; b += 2) {
    multiply_block(0, in.codes + b * kTileRows * kBlockK, chunk.codes[b]);
    multiply_block(1, in.codes + (b + 1) * kTileRows * kBlockK, chunk.codes[b + 1]);
    store_block(0, dots[0]);
    store_block(1, dots[1]);
    add_block<K>(chunk, in, b, dots[0], total);
    add_block<K>(chunk, in, b + 1, dots[1], total);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) _mm512_store_ps(acc + kPanel * r, total[r]);
}

template <Kind K>
void tile_blocks_amx(const Chunk* chunks, int panels, const TileInput& in, i64 tiles, int blocks,
                     Ahead* ahead, float* acc) {
  alignas(64) i32 dots[4][kMostDots];
  TileInput rows = in;
  if (blocks == kChunkBlocks) {
    multiply_block(0, rows.codes, chunks[0].codes[0]);
    multiply_block(1, rows.codes + kTileRows * kBlockK, chunks[0].codes[1]);
    store_block(0, dots[0]);
  }
  for (i64 t = 0; t < tiles; ++t) {
    const TileInput next = next_tile(rows, blocks, false);
    for (int p = 0; p < panels; ++p, acc += kTileRows * kPanel) {
      if (blocks != kChunkBlocks) {
        part_chunk<K>(chunks[p], rows, blocks, dots, acc);
        continue;
      }
      const bool last = p + 1 == panels;
      const i8* x = !last ? rows.codes : t + 1 < tiles ? next.codes : nullptr;
      whole_chunk<K>(chunks[p], rows, chunks[last ? 0 : p + 1], x, ahead, p, panels, dots, acc);
    }
    rows = next;
  }
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

// Minimums, whole numbers below 64, have their bfloat16 in a float32's upper half.
GATEUP_INLINE void unpack_pairs(Chunk& chunk) {
  for (int b = 0; b < kChunkBlocks; ++b) {
    const __m512i wide = _mm512_castps_si512(_mm512_load_ps(chunk.min[b]));
    _mm512_store_si512(chunk.pairs[b], _mm512_or_si512(wide, _mm512_srli_epi32(wide, 16)));
    _mm512_store_si512(chunk.pairs[kChunkBlocks + b], _mm512_setzero_si512());
  }
}

template <int F>
void unpack_split(const u8* packed, int blocks, int ahead, Chunk& chunk) {
  constexpr QuantFormat f = kFormats[F];
  unpack_scales512<F>(packed, 0, chunk);
  if constexpr (f.has_min) unpack_pairs(chunk);
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
#define GATEUP_TILE_SPLIT(dot, U, L, A, x, codes, more)                                          \
  __asm__ volatile("tileloadd (%0,%3,1), %%tmm" #A "\n\ttileloadd (%1,%3,1), %%tmm6\n\t" #dot    \
                   " %%tmm6, %%tmm" #A ", %%tmm" #U "\n\ttileloadd (%2,%3,1), %%tmm7\n\t" #dot   \
                   " %%tmm7, %%tmm" #A ", %%tmm" #L ::"r"(x),                                    \
                   "r"(codes), "r"(more), "r"(64L)                                               \
                   : "memory")
#define GATEUP_TILE_ZERO(T) __asm__ volatile("tilezero %%tmm" #T ::: "memory")

// Sums of a super-block: upper and lower parts by turns, of 128 along k (Q6_K: of 64); then of the
// minimums, whole numbers in float32.
template <Kind K>
struct SuperDots {
  static constexpr int pairs = K == Kind::kSuper16 ? 4 : 2;
  alignas(64) i32 split[2 * pairs][kMostDots];
  alignas(64) float mins[has_min(K) ? kMostDots : kPanel];
};

// Pair of blocks `pair`, onto tiles 0 and 1 or 2 and 3.
template <Kind K>
GATEUP_INLINE void multiply_pair(const Chunk& chunk, const i8* codes, int pair, bool upper) {
  const i8* x = codes + pair * 2 * kBlockK * kTileRows;
  const u8* low = chunk.codes[2 * pair];
  const u8* more = chunk.more[2 * pair];
  if (K == Kind::kSuper16) {
    if (upper) {
      GATEUP_TILE_SPLIT(tdpbssd, 2, 3, 5, x, low, more);
    } else {
      GATEUP_TILE_SPLIT(tdpbssd, 0, 1, 4, x, low, more);
    }
  } else {
    if (upper) {
      GATEUP_TILE_SPLIT(tdpbsud, 2, 3, 5, x, low, more);
    } else {
      GATEUP_TILE_SPLIT(tdpbsud, 0, 1, 4, x, low, more);
    }
  }
}

// Rows [4·quarter, 4·quarter + 4); as add_super, from the sums.
template <Kind K>
GATEUP_INLINE void add_dots(const Chunk& chunk, const TileInput& in, const SuperDots<K>& dots,
                            int quarter, float* acc) {
  const __m512 d = _mm512_load_ps(chunk.d), dmin = _mm512_load_ps(chunk.dmin);
#pragma GCC unroll 4
  for (int r = 4 * quarter; r < 4 * quarter + 4; ++r) {
    __m512 total;
#pragma GCC unroll 4
    for (int n = 0; n < dots.pairs; ++n) {
      const __m512i upper = _mm512_load_si512(dots.split[2 * n] + kPanel * r);
      const __m512i lower = _mm512_load_si512(dots.split[2 * n + 1] + kPanel * r);
      const __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(upper, split_shift(K)), lower);
      const __m512 value = _mm512_cvtepi32_ps(sum);
      total = n == 0 ? value : _mm512_add_ps(total, value);
    }
    const __m512 scale = _mm512_set1_ps(in.scale[r]);
    __m512 sum = _mm512_load_ps(acc + kPanel * r);
    sum = _mm512_fmadd_ps(total, _mm512_mul_ps(d, scale), sum);
    if (has_min(K)) {
      const __m512 mins = _mm512_load_ps(dots.mins + kPanel * r);
      sum = _mm512_fmadd_ps(mins, _mm512_mul_ps(dmin, scale), sum);
    }
    _mm512_store_ps(acc + kPanel * r, sum);
  }
}

// A super-block's sums into `dots`, in four steps; `between` is called after each.
template <Kind K, class Between>
GATEUP_INLINE void multiply_super(const Chunk& chunk, const TileInput& in, SuperDots<K>& dots,
                                  Between between) {
  GATEUP_TILE_ZERO(0);
  GATEUP_TILE_ZERO(1);
  multiply_pair<K>(chunk, in.codes, 0, false);
  between(0);
  GATEUP_TILE_ZERO(2);
  GATEUP_TILE_ZERO(3);
  if constexpr (K == Kind::kSuper16) {
    multiply_pair<K>(chunk, in.codes, 1, true);
    GATEUP_TILE_STORE(0, dots.split[0]);
    GATEUP_TILE_STORE(1, dots.split[1]);
    between(1);
    GATEUP_TILE_ZERO(0);
    GATEUP_TILE_ZERO(1);
    multiply_pair<K>(chunk, in.codes, 2, false);
    GATEUP_TILE_STORE(2, dots.split[2]);
    GATEUP_TILE_STORE(3, dots.split[3]);
    between(2);
    GATEUP_TILE_ZERO(2);
    GATEUP_TILE_ZERO(3);
    multiply_pair<K>(chunk, in.codes, 3, true);
    GATEUP_TILE_STORE(0, dots.split[4]);
    GATEUP_TILE_STORE(1, dots.split[5]);
    between(3);
    GATEUP_TILE_STORE(2, dots.split[6]);
    GATEUP_TILE_STORE(3, dots.split[7]);
    return;
  }
  // No tile is wanted twice in a row: a product waits 50 cycles for the one before it.
  multiply_pair<K>(chunk, in.codes, 2, true);
  between(1);
  multiply_pair<K>(chunk, in.codes, 1, false);
  between(2);
  multiply_pair<K>(chunk, in.codes, 3, true);
  GATEUP_TILE_STORE(0, dots.split[0]);
  GATEUP_TILE_STORE(1, dots.split[1]);
  if constexpr (has_min(K)) {
    GATEUP_TILE_ZERO(0);
    __asm__ volatile(
        "tileloadd (%0,%2,1), %%tmm4\n\ttileloadd (%1,%2,1), %%tmm6\n\t"
        "tdpbf16ps %%tmm6, %%tmm4, %%tmm0" ::"r"(in.parts),
        "r"(chunk.pairs), "r"(64L)
        : "memory");
  }
  between(3);
  GATEUP_TILE_STORE(2, dots.split[2]);
  GATEUP_TILE_STORE(3, dots.split[3]);
  if constexpr (has_min(K)) GATEUP_TILE_STORE(0, dots.mins);
}

// While one product's sums are added up, the next one's are multiplied.
template <Kind K>
void tile_super_amx(const Chunk* chunks, int panels, const TileInput& in, i64 tiles, int blocks,
                    Ahead* ahead, float* acc) {
  SuperDots<K> dots[2];
  TileInput rows = in;
  int now = 0;
  multiply_super<K>(chunks[0], rows, dots[now], [](int) {});
  for (i64 t = 0; t < tiles; ++t) {
    const TileInput next = next_tile(rows, blocks, true);
    for (int p = 0; p < panels; ++p, acc += kMostDots, now ^= 1) {
      const auto add = [&](int quarter) {
        fetch_ahead(ahead, p, panels, rows, blocks, 2 * quarter);
        fetch_ahead(ahead, p, panels, rows, blocks, 2 * quarter + 1);
        add_dots<K>(chunks[p], rows, dots[now], quarter, acc);
      };
      const bool last = p + 1 == panels;
      if (last && t + 1 == tiles) {
        for (int quarter = 0; quarter < 4; ++quarter) add(quarter);
      } else {
        multiply_super<K>(chunks[last ? 0 : p + 1], last ? next : rows, dots[now ^ 1], add);
      }
    }
    rows = next;
  }
}

#undef GATEUP_TILE_SPLIT
#undef GATEUP_TILE_STORE
#undef GATEUP_TILE_ZERO

}  // namespace
}  // namespace gateup
