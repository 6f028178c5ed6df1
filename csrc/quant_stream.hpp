// One tile of 1, 2, 4 or 8 rows: the weights go from memory straight into dot products.
//
// A chunk in the first-level cache costs a store and a load of each 64 codes, which is worth it
// when several tiles share them. For few rows memory sets the pace, and the fewer instructions
// stand between one line of weights and the next, the more lines are under way: from the caches a
// thread takes 70 GB/s of Q4_K, by chunks 34. The roundings are those of quant_avx512.hpp, in the
// same order: the same bits.
#pragma once

#include "quant_avx512.hpp"

namespace gateup {
namespace {

#define GATEUP_MEMBER inline __attribute__((always_inline))

// Bytes between what is fetched and what is multiplied: one thread, 2048 x 8192, one token's time
// over that of reading alone, with 512, 1024, 1536 and 2048 bytes (4096 is worse for all):
//   Q4_0 1.00 1.00 0.99 0.98    Q4_K 1.06 1.10 1.13 1.17    Q6_K 1.16 1.16 1.13 1.13
// and with four tokens
//   Q4_0 1.27 1.25 1.23 1.18    Q4_K 1.30 1.27 1.30 1.41    Q6_K 1.33 1.27 1.29 1.31
// Q8_0 does not mind. With 768 bytes Q4_K takes 1.08 and 1.27.
constexpr int stream_ahead(const QuantFormat& f) {
  if (!f.super()) return 2048;
  return f.bits == 6 ? 1536 : 768;
}

// Integer sums over the first and the last four groups of a block; over all of them in `first`
// where nothing asks for two, as registers for 8 rows are few. Where 4 bits are all of a code, a
// byte's upper four are multiplied in their place, and their sums are 16 times too large.
template <int F, int R>
struct BlockDots {
  static constexpr QuantFormat f = kFormats[F];
  static constexpr bool in_place = f.bits == 4 && f.type != kIQ4_NL;
  static constexpr bool one = !in_place && f.sub_k == kBlockK;
  __m512i first[R], last[R];

  // x of row r begins at x + r · lead_bytes.
  GATEUP_MEMBER void add(const u8* low, const u8* high, const i8* x, int lead_bytes) {
    const auto dot = [x, lead_bytes](__m512i* sums, int g, __m512i w) {
      for (int r = 0; r < R; ++r) {
        i32 four;
        std::memcpy(&four, x + r * lead_bytes + 4 * g, 4);
        sums[r] = _mm512_dpbusd_epi32(sums[r], w, _mm512_set1_epi32(four));
      }
    };
    if constexpr (in_place) {
      const __m512i nibble = _mm512_set1_epi8(15);
      for (int g = 0; g < 4; ++g) {
        const __m512i both = _mm512_load_si512(low + 64 * g);
        dot(first, g, _mm512_and_si512(both, nibble));
        dot(last, g + 4, _mm512_andnot_si512(nibble, both));
      }
    } else {
      unpack_block<F, Codes::kUnsigned>(low, high, finishing_table<F, Codes::kUnsigned>(),
                                        [&](int g, __m512i w) {
                                          dot(one || g < 4 ? first : last, g, w);
                                        });
    }
  }

  GATEUP_MEMBER __m512 all(int r) const {
    if (one) return _mm512_cvtepi32_ps(first[r]);
    const __m512i upper = in_place ? _mm512_srai_epi32(last[r], 4) : last[r];
    return _mm512_cvtepi32_ps(_mm512_add_epi32(first[r], upper));
  }
};

// What lies stream_ahead() on, and beyond the panel's end at the beginning of what comes next.
template <int F>
GATEUP_INLINE const u8* fetched_with(const u8* group, const Fetch& fetch) {
  const u8* at = group + stream_ahead(kFormats[F]);
  return at < fetch.end ? at : fetch.next + (at - fetch.end);
}

// A block's part of a group's lines: all at once they would hold up what is read now.
template <int F>
GATEUP_INLINE void fetch_part(const u8* from, int b) {
  constexpr QuantFormat f = kFormats[F];
  constexpr int lines = f.group_bytes() / 64, n = f.blocks();
  const int end = (b + 1) * lines / n;
  for (int i = b * lines / n; i < end; ++i) _mm_prefetch(from + 64 * i, _MM_HINT_T0);
}

// As block_rows, over a panel.
template <int F, int R>
GATEUP_INLINE void stream_blocks(const u8* group, const Fetch& fetch, const TileInput& in,
                                 float* acc) {
  constexpr QuantFormat f = kFormats[F];
  __m512 total[R];
  for (int r = 0; r < R; ++r) total[r] = _mm512_setzero_ps();
  const i8* x = in.codes;
  const float* scale = in.scale;
  const float* sums = in.sums;
  const i32* start = in.start;
  for (; group < fetch.end; group += f.group_bytes()) {
    const u8* from = fetched_with<F>(group, fetch);
    for (int b = 0; b < f.blocks(); ++b, x += R * kBlockK, scale += R, sums += R) {
      fetch_part<F>(from, b);
      BlockDots<F, R> dots;
      for (int r = 0; r < R; ++r) {
        dots.first[r] = f.has_min ? _mm512_setzero_si512() : _mm512_set1_epi32(start[r]);
        dots.last[r] = _mm512_setzero_si512();
      }
      if (!f.has_min) start += R;
      dots.add(group + b * f.code_bytes(), group + f.high_at() + b * f.high_bytes(), x, kBlockK);
      const __m512 w = halves(group + f.scale_at() + 2 * kPanel * b);
      for (int r = 0; r < R; ++r) {
        const __m512 factor = _mm512_mul_ps(w, _mm512_set1_ps(scale[r]));
        total[r] = _mm512_fmadd_ps(dots.all(r), factor, total[r]);
      }
      if (!f.has_min) continue;
      const __m512 m = halves(group + f.min_at() + 2 * kPanel * b);
      for (int r = 0; r < R; ++r) {
        total[r] = _mm512_fmadd_ps(m, _mm512_set1_ps(sums[r]), total[r]);
      }
    }
  }
  for (int r = 0; r < R; ++r) _mm512_store_ps(acc + kPanel * r, total[r]);
}

// A super-block's sums: of its sub-blocks times their scales, and of its minimums.
template <int R>
struct SuperSums {
  __m512 part[2][R], total[R], mins[R];
};

// Block b's share, its two halves with a scale each (Q6_K).
template <int R>
GATEUP_INLINE void add_halves(const u8* scales, int b, const __m512i* first, const __m512i* last,
                              SuperSums<R>& s) {
  const __m512 w0 = signed_bytes(scales + 2 * b * kPanel);
  const __m512 w1 = signed_bytes(scales + (2 * b + 1) * kPanel);
  for (int r = 0; r < R; ++r) {
    const __m512 product = _mm512_mul_ps(_mm512_cvtepi32_ps(first[r]), w0);
    s.part[b % 2][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(last[r]), w1, product);
  }
}

// The same with one scale, and a minimum. Q4_K's four are exact in one sum, Q5_K's in pairs.
template <int F, int R>
GATEUP_INLINE void add_whole(const u8* group, int b, const BlockDots<F, R>& dots,
                             const float* sums, SuperSums<R>& s) {
  constexpr QuantFormat f = kFormats[F];
  const int to = f.bits == 4 ? 0 : b % 4 / 2;
  const bool begins = f.bits == 4 ? b % 4 == 0 : b % 2 == 0;
  const __m512 w = bytes(group + f.scale_at() + b * kPanel);
  const __m512 m = bytes(group + f.min_at() + b * kPanel);
  for (int r = 0; r < R; ++r) {
    const __m512 value = dots.all(r), sum = _mm512_set1_ps(sums[b * R + r]);
    s.part[to][r] = begins ? _mm512_mul_ps(value, w) : _mm512_fmadd_ps(value, w, s.part[to][r]);
    s.mins[r] = b == 0 ? _mm512_mul_ps(m, sum) : _mm512_fmadd_ps(m, sum, s.mins[r]);
  }
}

// As add_super.
template <int F, int R>
GATEUP_INLINE void add_sums(const u8* group, const float* scale, const SuperSums<R>& s,
                            __m512* sum) {
  constexpr QuantFormat f = kFormats[F];
  const __m512 d = halves(group + f.d_at());
  for (int r = 0; r < R; ++r) {
    sum[r] = _mm512_fmadd_ps(s.total[r], _mm512_mul_ps(d, _mm512_set1_ps(scale[r])), sum[r]);
  }
  if (!f.has_min) return;
  const __m512 dmin = _mm512_xor_ps(_mm512_set1_ps(-0.0f), halves(group + f.dmin_at()));
  for (int r = 0; r < R; ++r) {
    sum[r] = _mm512_fmadd_ps(s.mins[r], _mm512_mul_ps(dmin, _mm512_set1_ps(scale[r])), sum[r]);
  }
}

// As super_rows, over a panel.
template <int F, int R>
GATEUP_INLINE void stream_super(const u8* group, const Fetch& fetch, const TileInput& in,
                                float* acc) {
  constexpr QuantFormat f = kFormats[F];
  constexpr bool two = f.sub_k == 16;
  constexpr int run = two ? 2 : 4;  // blocks of four sub-blocks
  __m512 sum[R];
  for (int r = 0; r < R; ++r) sum[r] = _mm512_setzero_ps();
  const i8* x = in.codes;
  const float* scale = in.scale;
  const float* sums = in.sums;
  const i32* start = in.start;
  for (; group < fetch.end; group += f.group_bytes()) {
    const u8* from = fetched_with<F>(group, fetch);
    SuperSums<R> s;
#pragma GCC unroll 8
    for (int b = 0; b < 8; ++b) {
      fetch_part<F>(from, b);
      BlockDots<F, R> dots;
      for (int r = 0; r < R; ++r) {
        dots.first[r] = two ? _mm512_set1_epi32(start[r]) : _mm512_setzero_si512();
        dots.last[r] = two ? _mm512_set1_epi32(start[R + r]) : _mm512_setzero_si512();
      }
      if (two) start += 2 * R;
      dots.add(group + b * f.code_bytes(), group + f.high_at() + b * f.high_bytes(),
               x + (b / 2 * R * 2 + b % 2) * kBlockK, 2 * kBlockK);
      if constexpr (two) {
        add_halves<R>(group + f.scale_at(), b, dots.first, dots.last, s);
      } else {
        add_whole<F, R>(group, b, dots, sums, s);
      }
      if (b % run != run - 1) continue;
      for (int r = 0; r < R; ++r) {
        const __m512 four =
            f.bits == 4 ? s.part[0][r] : _mm512_add_ps(s.part[0][r], s.part[1][r]);
        s.total[r] = b < run ? four : _mm512_add_ps(s.total[r], four);
      }
    }
    add_sums<F, R>(group, scale, s, sum);
    x += R * kSuperK;
    scale += R;
    sums += R * kChunkBlocks;
  }
  for (int r = 0; r < R; ++r) _mm512_store_ps(acc + kPanel * r, sum[r]);
}

template <int F, int R>
void stream512(const u8* panel, const Fetch& fetch, const TileInput& in, float* acc) {
  if constexpr (kFormats[F].super()) {
    stream_super<F, R>(panel, fetch, in, acc);
  } else {
    stream_blocks<F, R>(panel, fetch, in, acc);
  }
}

#undef GATEUP_MEMBER

}  // namespace
}  // namespace gateup
