// A vector of floats as wide as the instruction set that a source is compiled for.
//
// For sources that are compiled several times; internal linkage throughout, as in elementary.hpp.
#pragma once

#include "elementary.hpp"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

using i64 = std::int64_t;

#if defined(__AVX512F__)
constexpr int kLanes = 16;
using Lanes = __m512;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
using Lanes = __m256;
#else
constexpr int kLanes = 4;  // every 64-bit processor has these
typedef float Lanes __attribute__((vector_size(16)));
#endif

GATEUP_INLINE Lanes lanes_of(float x) { return Lanes{} + x; }

GATEUP_INLINE Lanes fmadd(Lanes a, Lanes b, Lanes c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

GATEUP_INLINE Lanes larger(Lanes a, Lanes b) {
#if defined(__AVX512F__)
  return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}

GATEUP_INLINE Lanes load_lanes(const float* p) {
  Lanes x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

GATEUP_INLINE Lanes load_lanes(const Float16* p) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__AVX2__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  Lanes x;
  for (int i = 0; i < kLanes; ++i) x[i] = widen(p[i]);
  return x;
#endif
}

GATEUP_INLINE void store_lanes(float* p, Lanes x) { std::memcpy(p, &x, sizeof x); }

GATEUP_INLINE void store_lanes(Float16* p, Lanes x) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__AVX2__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
  for (int i = 0; i < kLanes; ++i) narrow(static_cast<float>(x[i]), p[i]);
#endif
}

// Over the lanes in halves, so that the order does not depend on the compiler.
GATEUP_INLINE float sum_of(Lanes x) {
  alignas(64) float a[kLanes];
  store_lanes(a, x);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) a[i] += a[i + half];
  }
  return a[0];
}

GATEUP_INLINE float largest_of(Lanes x) {
  alignas(64) float a[kLanes];
  store_lanes(a, x);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) a[i] = a[i] > a[i + half] ? a[i] : a[i + half];
  }
  return a[0];
}

}  // namespace
