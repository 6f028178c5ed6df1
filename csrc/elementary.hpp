// Conversions and elementary functions, branch-free so that a compiler can vectorise them.
//
// Included by sources that are compiled several times for different instruction sets. Everything
// has internal linkage, and no standard template is used: the linker merges equal templates, and
// an AVX-512 copy must never stand in for the generic one.
//
// Products and sums are contracted only where fmadd() says so (-ffp-contract=off), so a vector's
// lane and a scalar remainder give the same bits.
#pragma once

#include <cstdint>
#include <cstring>

#define GATEUP_INLINE static inline __attribute__((always_inline))

namespace {

using u16 = std::uint16_t;
using u32 = std::uint32_t;
using i32 = std::int32_t;

GATEUP_INLINE u32 bits_of(float x) {
  u32 u;
  std::memcpy(&u, &x, sizeof u);
  return u;
}

GATEUP_INLINE float float_of(u32 u) {
  float x;
  std::memcpy(&x, &u, sizeof x);
  return x;
}

GATEUP_INLINE float fmadd(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

// ---- storage types ------------------------------------------------------------------------

struct BFloat16 {
  u16 bits;
};

struct Float16 {
  u16 bits;
};

GATEUP_INLINE float widen(float x) { return x; }

GATEUP_INLINE float widen(BFloat16 x) { return float_of(static_cast<u32>(x.bits) << 16); }

GATEUP_INLINE float widen(Float16 x) {
  const u32 bias = 112u << 23;  // float's exponent bias less half's
  const u32 sign = static_cast<u32>(x.bits & 0x8000u) << 16;
  const u32 magnitude = static_cast<u32>(x.bits & 0x7fffu) << 13;
  const u32 exponent = magnitude & (0x7c00u << 13);
  const u32 normal = magnitude + bias;
  // A subnormal m·2^-24 as (2^-14 + m·2^-24) - 2^-14: no subnormal float on the way.
  const u32 subnormal = bits_of(float_of(normal + (1u << 23)) - float_of(113u << 23));
  const u32 special = normal + bias;
  const u32 finite = exponent == 0 ? subnormal : normal;
  return float_of(sign | (exponent == (0x7c00u << 13) ? special : finite));
}

// Rounding to nearest, ties to even; NaN stays NaN.
GATEUP_INLINE void narrow(float x, float& y) { y = x; }

GATEUP_INLINE void narrow(float x, BFloat16& y) {
  const u32 u = bits_of(x);
  const u32 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const u32 quiet = (u >> 16) | 0x40u;
  y.bits = static_cast<u16>((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

GATEUP_INLINE void narrow(float x, Float16& y) {
  const u32 u = bits_of(x);
  const u32 sign = (u >> 16) & 0x8000u;
  const u32 a = u & 0x7fffffffu;
  // From 65520 on the carry below runs into the exponent and makes infinity by itself.
  const u32 normal = (a + 0xfffu + ((a >> 13) & 1u) - (112u << 23)) >> 13;
  // Below 2^-14: adding 1/2 leaves a multiple of 2^-24 in the mantissa, rounded by the adder.
  const u32 subnormal = bits_of(float_of(a) + 0.5f) - bits_of(0.5f);
  const u32 special = a > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const u32 finite = a < 0x38800000u ? subnormal : normal;
  y.bits = static_cast<u16>(sign | (a >= 0x47800000u ? special : finite));
}

// ---- elementary functions -----------------------------------------------------------------

// e^(x + tail) for -106 <= x <= 0 and a small tail; less than 1 ulp off for a tail of 0,
// subnormal results included.
//
// x = n·ln 2 + r with |r| <= ln 2 / 2; ln 2 is split so that n·high is exact. The polynomial is
// a minimax fit of (e^r - 1 - r)/r² of degree 4: relative error 3.1e-9 of e^r.
GATEUP_INLINE float exp_bounded(float x, float tail) {
  const float log2e = 1.44269502f, high = 0.693145751953125f, low = 1.42860677e-06f;
  const float shift = 12582912.0f;  // 1.5·2^23: adding it rounds to a whole number
  const float shifted = fmadd(x, log2e, shift);
  const float n = shifted - shift;
  const float r = fmadd(n, -low, fmadd(n, -high, x)) + tail;
  float p = 1.38145406e-3f;
  p = fmadd(p, r, 8.36874545e-3f);
  p = fmadd(p, r, 4.16683890e-2f);
  p = fmadd(p, r, 1.66665211e-1f);
  p = fmadd(p, r, 4.99999940e-1f);
  const float y = fmadd(r * r, p, r) + 1.0f;
  // 2^n in two factors: n reaches -152, where one factor could not be a normal number.
  const i32 k = static_cast<i32>(bits_of(shifted) - bits_of(shift));
  const i32 half = k >> 1;
  const float scale = float_of(static_cast<u32>(half + 127) << 23);
  const float rest = float_of(static_cast<u32>(k - half + 127) << 23);
  return y * scale * rest;
}

// e^x for x <= 0. NaN gives NaN, -inf gives 0.
GATEUP_INLINE float exp_negative(float x) { return exp_bounded(x < -105.0f ? -105.0f : x, 0.0f); }

GATEUP_INLINE float magnitude_of(float x) { return float_of(bits_of(x) & 0x7fffffffu); }

// The logistic function, its complement, and its product with `factor`, each with full relative
// precision: 1/(1 + e) and e/(1 + e) for e = e^-|x|.
//
// The product is one quotient, f/(1 + e) or f·e/(1 + e). For small e the former is computed as
// f - f·e/(1 + e), whose parts' roundings hardly count: 1 + e, just above 1, is off by up to a
// whole ulp of a result just below 1. (Not for e = 0: f may be infinite.)
struct Logistic {
  float value, complement, product;
};

GATEUP_INLINE Logistic logistic(float x, float factor) {
  const float e = exp_negative(-magnitude_of(x));
  const float sum = 1.0f + e;
  const float near = 1.0f / sum, far = e * near;
  const bool negative = x < 0.0f, small = (e < 0.5f) & (e > 0.0f);
  const float quotient = ((negative | small) ? factor * e : factor) / sum;
  const float product = (small & !negative) ? factor - quotient : quotient;
  return {negative ? far : near, negative ? near : far, product};
}

// The normal distribution: Phi(x), and its density times sqrt(2·pi).
//
// Phi(-a) = e^(-a²/2)·Q(a) for a >= 0 with Q(a) = erfcx(a/sqrt 2)/2, a minimax fit of Q/t in
// t = 1/(1 + 0.3·a) of degree 9 on [0, 15]: relative error 3.5e-9. a² is split into the square
// of a's upper 12 bits, which is exact, and a rest: e^(-a²/2) keeps its precision in the tail.
// From 14.5 on Phi(-a) is 0 in float32. NaN ends there too: callers multiply by x.
struct Normal {
  float cumulative, density;
};

GATEUP_INLINE Normal normal(float x) {
  // As whole numbers, because a float minimum that respects NaN is a branch to GCC, which then
  // computes all of the below a second time for the bound, in subnormals, at 8 times the cost.
  const u32 magnitude = bits_of(x) & 0x7fffffffu, bound = bits_of(14.5f);
  const float a = float_of(magnitude < bound ? magnitude : bound);
  const float upper = float_of(bits_of(a) & 0xfffff000u);
  const float e = exp_bounded(-0.5f * upper * upper, -0.5f * (a - upper) * (a + upper));
  const float t = 1.0f / fmadd(0.3f, a, 1.0f);
  float q = -0.020628640f;
  q = fmadd(q, t, 0.11246468f);
  q = fmadd(q, t, -0.22828454f);
  q = fmadd(q, t, 0.19188297f);
  q = fmadd(q, t, -0.079508908f);
  q = fmadd(q, t, 0.096204795f);
  q = fmadd(q, t, 0.078372262f);
  q = fmadd(q, t, 0.11023934f);
  q = fmadd(q, t, 0.11957132f);
  q = fmadd(q, t, 0.11968672f);
  const float below = e * (q * t);
  return {x < 0.0f ? below : 1.0f - below, e};
}

}  // namespace
