// The quantised kernels with AVX-512 VNNI: one int8 dot product of 64 lanes takes 4 along k of all
// 16 columns, the activations' 4 bytes broadcast from memory.
#pragma once

#include <immintrin.h>

#include "quant_tile.hpp"

namespace gateup {
namespace {

// What becomes of codes on the way: as they are for VNNI, or made signed for AMX, whose dot
// products then need no start.
enum class Codes { kUnsigned, kSigned };

template <int F, Codes S>
GATEUP_INLINE __m512i finish(__m512i codes, __m512i table) {
  constexpr QuantFormat f = kFormats[F];
  if (f.type == kIQ4_NL) return _mm512_shuffle_epi8(table, codes);
  if (S == Codes::kUnsigned || f.offset == 0) return codes;
  return f.bits == 8 ? _mm512_xor_si512(codes, table) : _mm512_sub_epi8(codes, table);
}

template <int F, Codes S>
GATEUP_INLINE __m512i finishing_table() {
  constexpr QuantFormat f = kFormats[F];
  if (f.type != kIQ4_NL) return _mm512_set1_epi8(static_cast<char>(f.offset));
  const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kNonLinear));
  const __m512i all = _mm512_broadcast_i32x4(values);
  return S == Codes::kSigned ? all : _mm512_xor_si512(all, _mm512_set1_epi8(-128));
}

// One block's codes, vector by vector of 4 along k: sink(g, codes).
template <int F, Codes S, class Sink>
GATEUP_INLINE void unpack_block(const u8* low, const u8* high, __m512i table, Sink sink) {
  constexpr QuantFormat f = kFormats[F];
  if (f.bits == 8) {
    for (int g = 0; g < 8; ++g) sink(g, finish<F, S>(_mm512_load_si512(low + 64 * g), table));
    return;
  }
  const __m512i nibble = _mm512_set1_epi8(15), sixteen = _mm512_set1_epi8(16);
  const __m512i two = _mm512_set1_epi8(0x30);
  for (int g = 0; g < 4; ++g) {
    const __m512i both = _mm512_load_si512(low + 64 * g);
    __m512i a = _mm512_and_si512(both, nibble);
    __m512i b = _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble);
    if (f.bits == 5) {
      std::uint64_t bits[2];
      std::memcpy(&bits[0], high + 8 * g, 8);
      std::memcpy(&bits[1], high + 32 + 8 * g, 8);
      a = _mm512_mask_add_epi8(a, bits[0], a, sixteen);
      b = _mm512_mask_add_epi8(b, bits[1], b, sixteen);
    }
    if (f.bits == 6) {
      // Bits 2·(g / 2) for the first four groups, 4 more for the last four; to bits 4 and 5.
      const __m512i h = _mm512_load_si512(high + 64 * (g % 2));
      const __m512i first = g < 2 ? _mm512_slli_epi16(h, 4) : _mm512_slli_epi16(h, 2);
      const __m512i last = g < 2 ? h : _mm512_srli_epi16(h, 2);
      a = _mm512_ternarylogic_epi64(a, first, two, 0xf8);  // a | (first & two)
      b = _mm512_ternarylogic_epi64(b, last, two, 0xf8);
    }
    sink(g, finish<F, S>(a, table));
    sink(g + 4, finish<F, S>(b, table));
  }
}

// Block b of a group: sink(g, codes), while what will be read is fetched.
template <int F, Codes S, class Sink>
GATEUP_INLINE void unpack_ahead(const u8* group, int b, int ahead, Sink sink) {
  constexpr QuantFormat f = kFormats[F];
  constexpr int part = f.group_bytes() / 64 / f.blocks() * 64;
  const int end = b + 1 < f.blocks() ? (b + 1) * part : f.group_bytes();
  for (int i = b * part; i < end; i += 64) _mm_prefetch(group + ahead + i, _MM_HINT_T0);
  unpack_block<F, S>(group + b * f.code_bytes(), group + f.high_at() + b * f.high_bytes(),
                     finishing_table<F, S>(), sink);
}

GATEUP_INLINE __m512 halves(const u8* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

GATEUP_INLINE __m512 bytes(const u8* p) {
  const __m128i whole = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(whole));
}

GATEUP_INLINE __m512 signed_bytes(const u8* p) {
  const __m128i whole = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(whole));
}

// As unpack_scales.
template <int F>
GATEUP_INLINE void unpack_scales512(const u8* group, int first, Chunk& chunk) {
  constexpr QuantFormat f = kFormats[F];
  constexpr int scales = f.group_k() / f.sub_k;
  const u8* scale = group + f.scale_at();
  const u8* min = group + f.min_at();
  for (int s = 0; s < scales; ++s) {
    if (f.super()) {
      const u8* at = scale + kPanel * s;
      _mm512_store_ps(chunk.scale[s], f.type == kQ6_K ? signed_bytes(at) : bytes(at));
      if (f.has_min) _mm512_store_ps(chunk.min[s], bytes(min + kPanel * s));
    } else {
      _mm512_store_ps(chunk.scale[first + s], halves(scale + 32 * s));
      if (f.has_min) _mm512_store_ps(chunk.min[first + s], halves(min + 32 * s));
    }
  }
  if (!f.super()) return;
  _mm512_store_ps(chunk.d, halves(group + f.d_at()));
  if (!f.has_min) return;
  const __m512 sign = _mm512_set1_ps(-0.0f);
  _mm512_store_ps(chunk.dmin, _mm512_xor_ps(sign, halves(group + f.dmin_at())));
}

template <int F, Codes S>
void unpack_chunk512(const u8* packed, int blocks, int ahead, Chunk& chunk) {
  constexpr QuantFormat f = kFormats[F];
  for (int first = 0; first < blocks; first += f.blocks(), packed += f.group_bytes()) {
    for (int b = 0; b < f.blocks(); ++b) {
      u8* out = chunk.codes[first + b];
      unpack_ahead<F, S>(packed, b, ahead, [out](int g, __m512i codes) {
        _mm512_store_si512(out + 64 * g, codes);
      });
    }
    unpack_scales512<F>(packed, first, chunk);
  }
}

// dot[r] += `groups`·4 along k for 16 columns and R rows.
template <int R>
GATEUP_INLINE void dot512(const u8* codes, const i8* x, int lead_bytes, int groups,
                          __m512i* dot) {
  for (int g = 0; g < groups; ++g) {
    const __m512i w = _mm512_load_si512(codes + 64 * g);
    for (int r = 0; r < R; ++r) {
      i32 four;
      std::memcpy(&four, x + r * lead_bytes + 4 * g, 4);
      dot[r] = _mm512_dpbusd_epi32(dot[r], w, _mm512_set1_epi32(four));
    }
  }
}

// As block_row of quant_plain.hpp, R rows at once.
template <Kind K, int R>
GATEUP_INLINE void block_rows(const Chunk& chunk, const TileInput& in, int first, int blocks,
                              float* acc) {
  __m512 total[R];
  for (int r = 0; r < R; ++r) total[r] = _mm512_load_ps(acc + kPanel * r);
  const i64 lead = in.lead;
  const i8* x = in.codes + first * kBlockK;
  const float* scale = in.scale + first;
  const float* sums = in.sums + first;
  const i32* start = K == Kind::kMin ? nullptr : in.start + first;
  for (int b = 0; b < blocks; ++b, x += lead * kBlockK, scale += lead, sums += lead) {
    __m512i dot[R];
    for (int r = 0; r < R; ++r) {
      dot[r] = K == Kind::kMin ? _mm512_setzero_si512() : _mm512_set1_epi32(start[r]);
    }
    if (K != Kind::kMin) start += lead;
    dot512<R>(chunk.codes[b], x, kBlockK, 8, dot);
    const __m512 w = _mm512_load_ps(chunk.scale[b]);
    for (int r = 0; r < R; ++r) {
      const __m512 factor = _mm512_mul_ps(w, _mm512_set1_ps(scale[r]));
      total[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r]), factor, total[r]);
    }
    if (K != Kind::kMin) continue;
    const __m512 m = _mm512_load_ps(chunk.min[b]);
    for (int r = 0; r < R; ++r) total[r] = _mm512_fmadd_ps(m, _mm512_set1_ps(sums[r]), total[r]);
  }
  for (int r = 0; r < R; ++r) _mm512_store_ps(acc + kPanel * r, total[r]);
}

// acc[r] += a super-block's sums times its scales, and its minimums (see super_row).
template <Kind K, int R>
GATEUP_INLINE void add_super(const Chunk& chunk, const TileInput& in, int first,
                             const __m512* total, float* acc) {
  __m512 mins[R];
  for (int r = 0; r < R; ++r) mins[r] = _mm512_setzero_ps();
  const float* sums = in.sums + first;
  for (int b = 0; has_min(K) && b < 8; ++b, sums += in.lead) {
    const __m512 m = _mm512_load_ps(chunk.min[b]);
    for (int r = 0; r < R; ++r) mins[r] = _mm512_fmadd_ps(m, _mm512_set1_ps(sums[r]), mins[r]);
  }
  const __m512 d = _mm512_load_ps(chunk.d), dmin = _mm512_load_ps(chunk.dmin);
  for (int r = 0; r < R; ++r) {
    const __m512 scale = _mm512_set1_ps(in.scale[first + r]);
    __m512 sum = _mm512_load_ps(acc + kPanel * r);
    sum = _mm512_fmadd_ps(total[r], _mm512_mul_ps(d, scale), sum);
    if (has_min(K)) sum = _mm512_fmadd_ps(mins[r], _mm512_mul_ps(dmin, scale), sum);
    _mm512_store_ps(acc + kPanel * r, sum);
  }
}

// As super_row of quant_plain.hpp, R rows at once. Q4_K's four sub-blocks are exact in one sum.
template <Kind K, int R>
GATEUP_INLINE void super_rows(const Chunk& chunk, const TileInput& in, int first, float* acc) {
  constexpr int subs = K == Kind::kSuper16 ? 2 : 1, groups = 8 / subs;
  __m512 total[R];
  for (int n = 0; n < 8 * subs; n += 4) {
    __m512 part[2][R];
    for (int i = 0; i < 4; ++i) {
      const int to = K == Kind::kSuper4 ? 0 : i / 2;
      const bool begins = K == Kind::kSuper4 ? i == 0 : i % 2 == 0;
      const int b = (n + i) / subs, s = (n + i) % subs;
      __m512i dot[R];
      for (int r = 0; r < R; ++r) {
        dot[r] = K == Kind::kSuper16 ? _mm512_set1_epi32(in.start[(n + i) * in.lead + first + r])
                                     : _mm512_setzero_si512();
      }
      const i8* x = in.codes + (b / 2 * in.lead + first) * 2 * kBlockK + b % 2 * kBlockK;
      dot512<R>(chunk.codes[b] + 64 * groups * s, x + 4 * groups * s, 2 * kBlockK, groups, dot);
      const __m512 w = _mm512_load_ps(chunk.scale[n + i]);
      for (int r = 0; r < R; ++r) {
        const __m512 value = _mm512_cvtepi32_ps(dot[r]);
        part[to][r] = begins ? _mm512_mul_ps(value, w) : _mm512_fmadd_ps(value, w, part[to][r]);
      }
    }
    for (int r = 0; r < R; ++r) {
      const __m512 sum =
          K == Kind::kSuper4 ? part[0][r] : _mm512_add_ps(part[0][r], part[1][r]);
      total[r] = n == 0 ? sum : _mm512_add_ps(total[r], sum);
    }
  }
  add_super<K, R>(chunk, in, first, total, acc);
}

// 8 rows at a time: their 8 integer and 8 float32 accumulators leave registers for the weights.
template <Kind K>
void tile_product512(const Chunk* chunks, int panels, const TileInput& in, i64 tiles, int blocks,
                     Ahead*, float* acc) {
  constexpr bool super = K != Kind::kPlain && K != Kind::kMin;
  constexpr int rows_of = 16, step = 8;
  TileInput rows = in;
  for (i64 t = 0; t < tiles; ++t, rows = next_tile(rows, blocks, super)) {
    for (int first = 0; first < panels * rows_of; first += step, acc += kPanel * step) {
      if constexpr (super) {
        super_rows<K, step>(chunks[first / rows_of], rows, first % rows_of, acc);
      } else {
        block_rows<K, step>(chunks[first / rows_of], rows, first % rows_of, blocks, acc);
      }
    }
  }
}

}  // namespace
}  // namespace gateup
