// Vectors of the instruction set this is compiled for, and one step of a dot product for each
// type of weights: kWidth neighbours along k, into a vector of partial sums.
#pragma once

#include <cstdint>

#include "elementary.hpp"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)

constexpr int kLanes = 16;
constexpr int kTokens = 12;  // 24 sums of 6 tokens and 4 rows or 12 and 2: 29 of 32 registers
constexpr int kRun = 0;     // no runs: with 16 partial sums each is short enough

using Vector = __m512;
GATEUP_INLINE Vector zeros() { return _mm512_setzero_ps(); }
GATEUP_INLINE Vector load(const float* p) { return _mm512_loadu_ps(p); }
GATEUP_INLINE void store(float* p, Vector v) { _mm512_storeu_ps(p, v); }
GATEUP_INLINE Vector madd(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
GATEUP_INLINE Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
GATEUP_INLINE Vector load(const Float16* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
GATEUP_INLINE Vector load(const BFloat16* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

// The sums of four vectors.
GATEUP_INLINE void sums(Vector a, Vector b, Vector c, Vector d, float* out) {
  const Vector ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const Vector cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const Vector s = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}

#elif defined(__AVX2__)

constexpr int kLanes = 8;
constexpr int kTokens = 2;  // 8 sums, 4 vectors of weights, 1 of x: 13 of 16 registers
// Steps whose products are summed before they join the total: with 8 partial sums alone the
// float32 error is 1.4 times that of torch on AVX-512, with runs at most 1.05 times.
constexpr int kRun = 4;

using Vector = __m256;
GATEUP_INLINE Vector zeros() { return _mm256_setzero_ps(); }
GATEUP_INLINE Vector load(const float* p) { return _mm256_loadu_ps(p); }
GATEUP_INLINE void store(float* p, Vector v) { _mm256_storeu_ps(p, v); }
GATEUP_INLINE Vector madd(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
GATEUP_INLINE Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
GATEUP_INLINE Vector load(const Float16* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
GATEUP_INLINE Vector load(const BFloat16* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

GATEUP_INLINE void sums(Vector a, Vector b, Vector c, Vector d, float* out) {
  const Vector s = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1)));
}

#else

// As many partial sums as with AVX-512, which the compiler keeps in what registers there are.
constexpr int kLanes = 16;
constexpr int kTokens = 1;
constexpr int kRun = 4;

struct Vector {
  float lane[kLanes];
};
GATEUP_INLINE Vector zeros() { return {}; }
template <class T>
GATEUP_INLINE Vector load(const T* p) {
  Vector v;
  for (int i = 0; i < kLanes; ++i) v.lane[i] = widen(p[i]);
  return v;
}
GATEUP_INLINE void store(float* p, const Vector& v) { std::memcpy(p, &v, sizeof v); }
GATEUP_INLINE Vector madd(const Vector& a, const Vector& b, Vector c) {
#if defined(__ARM_FEATURE_FMA)
  for (int i = 0; i < kLanes; ++i) c.lane[i] = __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]);
#else
  // A product of two floats is exact in double: with one rounding a step the float32 error is
  // torch's, with two it was up to 1.14 times that.
  for (int i = 0; i < kLanes; ++i) {
    const double product = static_cast<double>(a.lane[i]) * b.lane[i];
    c.lane[i] = static_cast<float>(product + c.lane[i]);
  }
#endif
  return c;
}
GATEUP_INLINE Vector add(const Vector& a, Vector b) {
  for (int i = 0; i < kLanes; ++i) b.lane[i] += a.lane[i];
  return b;
}
GATEUP_INLINE float sum(Vector v) {
  for (int n = kLanes / 2; n > 0; n /= 2) {
    for (int i = 0; i < n; ++i) v.lane[i] += v.lane[i + n];
  }
  return v.lane[0];
}
GATEUP_INLINE void sums(const Vector& a, const Vector& b, const Vector& c, const Vector& d,
                        float* out) {
  out[0] = sum(a);
  out[1] = sum(b);
  out[2] = sum(c);
  out[3] = sum(d);
}

#endif

// ---- one step ---------------------------------------------------------------------------------

// Weights of type W widened to float32, x in float32.
template <class W>
struct Widened {
  using Weight = W;
  using X = float;
  using Operand = Vector;
  static constexpr int kWidth = kLanes;
  GATEUP_INLINE Operand weights(const W* p) { return load(p); }
  GATEUP_INLINE Operand x(const float* p) { return load(p); }
  GATEUP_INLINE Vector step(Operand w, Operand x, Vector sum) { return madd(w, x, sum); }
};

#if defined(__AVX512BF16__)
// Products of pairs of bfloat16, summed in float32; subnormal numbers count as 0.
struct Paired {
  using Weight = BFloat16;
  using X = BFloat16;
  using Operand = __m512bh;
  static constexpr int kWidth = 2 * kLanes;
  GATEUP_INLINE Operand weights(const BFloat16* p) {
    return reinterpret_cast<Operand>(_mm512_loadu_si512(p));
  }
  GATEUP_INLINE Operand x(const BFloat16* p) { return weights(p); }
  GATEUP_INLINE Vector step(Operand w, Operand x, Vector sum) {
    return _mm512_dpbf16_ps(sum, w, x);
  }
};
using BFloat16Step = Paired;
#else
using BFloat16Step = Widened<BFloat16>;
#endif

}  // namespace
