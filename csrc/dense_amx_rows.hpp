// Rows of numbers into the tiles' second operand, and tiles of sums into rows.
#pragma once

#include "dense_amx.hpp"
#include "matrix.hpp"

namespace gateup {
namespace amx {
namespace {

using i64 = std::int64_t;

inline i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }

inline i64 at_most(i64 a, i64 b) { return a < b ? a : b; }

// x or the product, as the tiles' second operand.
struct Operand {
  char* data;
  i64 steps;   // of 32 along k, zeros behind the last number
  i64 tokens;
  int width;   // tokens in a group
  i64 groups() const { return ceil_div(tokens, kTile); }
  i64 step_bytes() const { return 64 * static_cast<i64>(width); }
  char* group(i64 index) const { return data + index * steps * step_bytes(); }
};

inline i64 operand_bytes(i64 tokens, i64 k) {
  const i64 width = at_most(tokens, kTile);
  return ceil_div(tokens, kTile) * ceil_div(k, kStep) * 64 * width;
}

inline Operand operand(char* data, i64 tokens, i64 k) {
  return {data, ceil_div(k, kStep), tokens, static_cast<int>(at_most(tokens, kTile))};
}

inline i64 itemsize(const Rows& rows) { return rows.dtype == kFloat32 ? 4 : 2; }

GATEUP_INLINE __m512i as_pairs(__m512 low, __m512 high) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

GATEUP_INLINE __m512i load_pairs(const char* row, std::int32_t dtype, i64 k0, i64 left) {
  const __mmask16 m0 = first(left), m1 = first(left - 16);
  if (dtype == kFloat32) {
    const float* p = reinterpret_cast<const float*>(row) + k0;
    return as_pairs(_mm512_maskz_loadu_ps(m0, p), _mm512_maskz_loadu_ps(m1, p + 16));
  }
  const u16* p = reinterpret_cast<const u16*>(row) + k0;
  const __m512i bits = _mm512_maskz_loadu_epi16(static_cast<u32>(m1) << 16 | m0, p);
  if (dtype == kBFloat16) return bits;
  return as_pairs(_mm512_cvtph_ps(_mm512_castsi512_si256(bits)),
                  _mm512_cvtph_ps(_mm512_extracti64x4_epi64(bits, 1)));
}

inline void pack_group(const Rows& x, i64 first_token, i64 k, const Operand& out, i64 group,
                       i64 begin, i64 end) {
  const i64 t0 = group * kTile;
  const i64 valid = at_most(out.tokens - t0, kTile);
  const i64 row_bytes = x.stride * itemsize(x);
  const char* row = x.data + (first_token + t0) * row_bytes;
  const __mmask16 mask = first(out.width);
  for (i64 step = begin; step < end; ++step) {
    const i64 k0 = step * kStep;
    char* to = out.group(group) + step * out.step_bytes();
    __m512i r[16];
    for (i64 t = 0; t < 16; ++t) {
      r[t] = t < valid ? load_pairs(row + t * row_bytes, x.dtype, k0, k - k0)
                       : _mm512_setzero_si512();
    }
    if (out.width == 1) {
      _mm512_storeu_si512(to, r[0]);
      continue;
    }
    transpose(r);
    for (int j = 0; j < 16; ++j) _mm512_mask_storeu_epi32(to + j * 4 * out.width, mask, r[j]);
  }
}

inline void add_bias(float* tile, const float* bias, i64 n) {
  for (i64 r = 0; r < at_most(n, kTile); ++r) {
    const __m512 b = _mm512_set1_ps(bias[r]);
    _mm512_store_ps(tile + r * 16, _mm512_add_ps(_mm512_load_ps(tile + r * 16), b));
  }
}

// tile [16 rows][16 tokens] to y[token, n0 + row].
inline void store_tile(const float* tile, const Rows& y, i64 token, i64 tokens, i64 n0, i64 n) {
  __m512i r[16];
  for (int i = 0; i < 16; ++i) r[i] = _mm512_load_si512(tile + i * 16);
  transpose(r);
  const __mmask16 mask = first(n);
  for (i64 t = 0; t < at_most(tokens, kTile); ++t) {
    const __m512 v = _mm512_castsi512_ps(r[t]);
    char* to = y.data + ((token + t) * y.stride + n0) * itemsize(y);
    if (y.dtype == kFloat32) {
      _mm512_mask_storeu_ps(to, mask, v);
    } else {
      const __m256i half = y.dtype == kBFloat16
                               ? reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v))
                               : _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
      _mm256_mask_storeu_epi16(to, mask, half);
    }
  }
}

// tile [16 rows][16 tokens] as 8 pairs of k of the next product's operand.
inline void store_operand(const float* tile, char* to, int width) {
  const __mmask16 mask = first(width);
  for (int j = 0; j < 8; ++j) {
    const __m512bh both = _mm512_cvtne2ps_pbh(_mm512_load_ps(tile + j * 32 + 16),
                                              _mm512_load_ps(tile + j * 32));
    const __m512i bits = reinterpret_cast<__m512i>(both);
    const __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(bits));
    const __m512i high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(bits, 1));
    const __m512i pairs = _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
    _mm512_mask_storeu_epi32(to + j * 4 * width, mask, pairs);
  }
}

}  // namespace
}  // namespace amx
}  // namespace gateup
