// The kernels of norm.hpp, for the instruction set GATEUP_ISA is compiled for.
#include "norm.hpp"

#include "softmax_lanes.hpp"

namespace gateup {
namespace GATEUP_ISA {
namespace {

// Four sums, because one would wait for its own last addition.
float dot(const float* a, const float* b, i64 n) {
  Lanes sums[4] = {};
  i64 i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) {
      const i64 at = i + j * kLanes;
      sums[j] = fmadd(load_lanes(a + at), load_lanes(b + at), sums[j]);
    }
  }
  float rest = 0.0f;
  for (; i < n; ++i) rest = fmadd(a[i], b[i], rest);
  return sum_of((sums[0] + sums[1]) + (sums[2] + sums[3])) + rest;
}

void rms_norm(const float* x, const float* weight, float epsilon, i64 n, float* y) {
  const float mean = dot(x, x, n) / static_cast<float>(n);
  const float scale = 1.0f / __builtin_sqrtf(mean + epsilon);
  for (i64 i = 0; i < n; ++i) y[i] = x[i] * scale * weight[i];
}

void add(float* __restrict x, const float* __restrict d, float scale, i64 n) {
  for (i64 i = 0; i < n; ++i) x[i] = fmadd(d[i], scale, x[i]);
}

void rope(float* __restrict x, const float* __restrict cosine, const float* __restrict sine,
          i64 half) {
  float* __restrict y = x + half;
  for (i64 i = 0; i < half; ++i) {
    const float a = x[i], b = y[i];
    x[i] = a * cosine[i] - b * sine[i];
    y[i] = b * cosine[i] + a * sine[i];
  }
}

void softcap(float* x, float cap, i64 n) {
  const float inverse = 1.0f / cap;
  for (i64 i = 0; i < n; i += kLanes) {
    alignas(64) float part[kLanes] = {};
    const i64 left = n - i < kLanes ? n - i : kLanes;
    for (i64 j = 0; j < left; ++j) part[j] = x[i + j];
    store_lanes(part, tanh_of(load_lanes(part) * inverse) * cap);
    for (i64 j = 0; j < left; ++j) x[i + j] = part[j];
  }
}

}  // namespace

const RowKernels& row_kernels() {
  static constexpr RowKernels k = {rms_norm, add, dot, rope, softcap};
  return k;
}

}  // namespace GATEUP_ISA
}  // namespace gateup
