// One tile of a dense product: a few rows of weights times a few tokens, along k.
#pragma once

#include "dense_vectors.hpp"

namespace gateup {
namespace GATEUP_ISA {
namespace {

using i64 = std::int64_t;

constexpr int kRows = 4;   // of weights in a tile, at most
constexpr int kUnit = 64;  // rows of weights a thread takes at a time

struct Walk {
  const char* w[kRows];  // at the block's first k
  const char* x;         // likewise, of the first token
  i64 x_stride;
  i64 steps;  // whole ones
  i64 rest;   // numbers behind them, in the row's last block
  i64 ahead;  // from the weights at hand to those fetched into the second-level cache, in bytes
  bool first, last;
};

// The short step at a row's end: weights behind it belong to somebody else. Not inline: a call
// in between would send the tile's sums through memory.
template <class S, int R>
__attribute__((noinline)) void pad(const Walk& walk, i64 at, typename S::Weight (*to)[S::kWidth]) {
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < S::kWidth; ++i) to[r][i] = typename S::Weight{};
    __builtin_memcpy(to[r], walk.w[r] + at, static_cast<std::size_t>(walk.rest) * sizeof to[r][0]);
  }
}

// Rows in a tile of so many tokens, whose sums fit the registers.
constexpr int rows_for(int tokens) { return tokens <= 6 ? 4 : 2; }

// The sums of a tile's vectors, [kRows][N]: out[token * kUnit + row].
template <int kRows, int N>
GATEUP_INLINE void write_sums(const Vector (&sum)[kRows][N], float* out) {
  if constexpr (kRows == 4) {
#pragma GCC unroll 12
    for (int t = 0; t < N; ++t) sums(sum[0][t], sum[1][t], sum[2][t], sum[3][t], out + t * kUnit);
  } else {
#pragma GCC unroll 6
    for (int t = 0; t < N; t += 2) {
      const int u = t + 1 < N ? t + 1 : t;
      float four[4];
      sums(sum[0][t], sum[1][t], sum[0][u], sum[1][u], four);
      __builtin_memcpy(out + t * kUnit, four, 8);
      __builtin_memcpy(out + u * kUnit, four + 2, 8);
    }
  }
}

// With one or two tokens memory alone limits, and the next lines of the same rows are fetched;
// with more, a whole row ahead (8 tokens: 42 ms by the processor's own prefetching, 38 with
// 1 KiB ahead, 32 with the next tile's rows; one thread, H 4096, I 14336).
template <int N>
constexpr bool kNear = N <= 2;

// carry: the sums between blocks of k, [kRows][tokens] vectors. out[token * kUnit + row].
template <class S, int N>
void tile(const Walk& walk, float* carry, float* out) {
  using Weight = typename S::Weight;
  using X = typename S::X;
  constexpr int kRows = rows_for(N);
  Vector sum[kRows][N], total[kRows][N];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 12
    for (int t = 0; t < N; ++t) {
      total[r][t] = walk.first ? zeros() : load(carry + (r * N + t) * kLanes);
      sum[r][t] = kRun != 0 ? zeros() : total[r][t];
    }
  }
  constexpr i64 w_bytes = S::kWidth * sizeof(Weight), x_bytes = S::kWidth * sizeof(X);
  i64 at = 0, at_x = 0;
  for (i64 i = 0, left = kRun; i < walk.steps; ++i, at += w_bytes, at_x += x_bytes) {
    if (kRun != 0 && left-- == 0) {
      left = kRun - 1;
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 12
        for (int t = 0; t < N; ++t) {
          total[r][t] = add(total[r][t], sum[r][t]);
          sum[r][t] = zeros();
        }
      }
    }
    typename S::Operand w[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      w[r] = S::weights(reinterpret_cast<const Weight*>(walk.w[r] + at));
      __builtin_prefetch(walk.w[r] + at + walk.ahead, 0, kNear<N> ? 3 : 2);
    }
#pragma GCC unroll 12
    for (int t = 0; t < N; ++t) {
      const auto x = S::x(reinterpret_cast<const X*>(walk.x + t * walk.x_stride + at_x));
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sum[r][t] = S::step(w[r], x, sum[r][t]);
    }
  }
  if (walk.rest != 0) {
    alignas(64) Weight padded[kRows][S::kWidth];
    pad<S, kRows>(walk, at, padded);
    typename S::Operand w[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) w[r] = S::weights(padded[r]);
#pragma GCC unroll 12
    for (int t = 0; t < N; ++t) {
      const auto x = S::x(reinterpret_cast<const X*>(walk.x + t * walk.x_stride + at_x));
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sum[r][t] = S::step(w[r], x, sum[r][t]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows && kRun != 0; ++r) {
#pragma GCC unroll 12
    for (int t = 0; t < N; ++t) sum[r][t] = add(total[r][t], sum[r][t]);
  }
  if (walk.last) {
    write_sums(sum, out);
    return;
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 12
    for (int t = 0; t < N; ++t) store(carry + (r * N + t) * kLanes, sum[r][t]);
  }
}

}  // namespace
}  // namespace GATEUP_ISA
}  // namespace gateup
