// The quantised kernels for any machine, and what the others are tested against; with AVX2 the
// integer dot products are by hand, as compilers do not find them.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "quant_tile.hpp"

namespace gateup {
namespace {

template <int F>
void unpack_chunk(const u8* packed, int blocks, int, Chunk& chunk) {
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
      for (int part = 0; f.bits == 6 && part < 4; ++part) {
        for (int i = 0; i < 128; ++i) {
          codes[128 * part + i] |= static_cast<u8>((high[i] >> (2 * part) & 3) << 4);
        }
      }
      for (int i = 0; f.type == kIQ4_NL && i < 512; ++i) {
        codes[i] = static_cast<u8>(kNonLinear[codes[i]] + 128);
      }
    }
    unpack_scales<F>(packed, first, chunk);
  }
}

// dot [16] = start + 16 rows of `groups`·4 codes times one row of activations.
#if defined(__AVX2__)
GATEUP_INLINE void dot16(const u8* codes, const i8* x, int groups, i32 start, bool wide, i32* dot) {
  const __m256i ones = _mm256_set1_epi16(1), high = _mm256_set1_epi8(-128);
  // Products are added in pairs of 16 bits. Two of 8 bits without sign would not fit: those are
  // taken with sign, the weight's magnitude times the activation with the weight's sign, and
  // need no start (128 · 127 · 2 = 32,512).
  __m256i sums[2];
  for (__m256i& sum : sums) sum = wide ? _mm256_setzero_si256() : _mm256_set1_epi32(start);
  for (int g = 0; g < groups; ++g) {
    i32 four;
    std::memcpy(&four, x + 4 * g, 4);
    const __m256i all = _mm256_set1_epi32(four);
    for (int half = 0; half < 2; ++half) {
      const __m256i* at = reinterpret_cast<const __m256i*>(codes + 64 * g + 32 * half);
      __m256i w = _mm256_load_si256(at), a = all;
      if (wide) {
        w = _mm256_xor_si256(w, high);
        a = _mm256_sign_epi8(all, w);
        w = _mm256_abs_epi8(w);
      }
      const __m256i pairs = _mm256_maddubs_epi16(w, a);
      sums[half] = _mm256_add_epi32(sums[half], _mm256_madd_epi16(pairs, ones));
    }
  }
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(dot), sums[0]);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(dot + 8), sums[1]);
}
#else
GATEUP_INLINE void dot16(const u8* __restrict codes, const i8* __restrict x, int groups, i32 start,
                         bool, i32* __restrict dot) {
  for (int c = 0; c < kPanel; ++c) dot[c] = start;
  for (int g = 0; g < groups; ++g) {
    for (int c = 0; c < kPanel; ++c) {
      i32 sum = 0;
      for (int i = 0; i < 4; ++i) sum += codes[64 * g + 4 * c + i] * x[4 * g + i];
      dot[c] += sum;
    }
  }
}
#endif

// One row, for formats with a scale to a block. The order of the roundings is the same in every
// kernel.
template <Kind K>
void block_row(const Chunk& chunk, const TileInput& in, int r, int blocks, float* __restrict acc) {
  for (int b = 0; b < blocks; ++b) {
    const int at = b * in.lead + r;
    i32 dot[kPanel];
    dot16(chunk.codes[b], in.codes + at * kBlockK, 8, K == Kind::kMin ? 0 : in.start[at], in.wide,
          dot);
    for (int c = 0; c < kPanel; ++c) {
      const float factor = chunk.scale[b][c] * in.scale[at];
      acc[c] = fmadd(static_cast<float>(dot[c]), factor, acc[c]);
      if (K == Kind::kMin) acc[c] = fmadd(chunk.min[b][c], in.sums[at], acc[c]);
    }
  }
}

// One row and one super-block. Whole numbers below 2^24 are exact in float32: a sub-block's
// product with its scale, and the sum of two of them (Q5_K: 2·32·31·127·63 = 15.9 million; Q6_K
// 2·16·32·127·128 = 16.6 million; Q4_K: 4·32·15·127·63 = 15.4 million even for four). Two such
// sums added are rounded once, as if four sub-blocks had been added as integers: kernels are free
// to do that. The minimums' sum is exact, too.
template <Kind K>
void super_row(const Chunk& chunk, const TileInput& in, int r, float* __restrict acc) {
  constexpr int subs = K == Kind::kSuper16 ? 2 : 1, groups = 8 / subs;
  float total[kPanel], mins[kPanel] = {};
  for (int first = 0; first < 8 * subs; first += 4) {
    float part[2][kPanel] = {};
    for (int i = 0; i < 4; ++i) {
      const int n = first + i, b = n / subs, s = n % subs;
      i32 dot[kPanel];
      const i32 start = K == Kind::kSuper16 ? in.start[n * in.lead + r] : 0;
      const i8* x = in.codes + (b / 2 * in.lead + r) * 2 * kBlockK + b % 2 * kBlockK;
      dot16(chunk.codes[b] + 64 * groups * s, x + 4 * groups * s, groups, start, false, dot);
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
void tile_product(const Chunk* chunks, int panels, const TileInput& in, i64 tiles, int blocks,
                  Ahead*, float* acc) {
  constexpr bool super = K != Kind::kPlain && K != Kind::kMin;
  TileInput rows = in;
  for (i64 t = 0; t < tiles; ++t, rows = next_tile(rows, blocks, super)) {
    for (int i = 0; i < panels * R; ++i, acc += kPanel) {
      if constexpr (super) {
        super_row<K>(chunks[i / R], rows, i % R, acc);
      } else {
        block_row<K>(chunks[i / R], rows, i % R, blocks, acc);
      }
    }
  }
}

}  // namespace
}  // namespace gateup
