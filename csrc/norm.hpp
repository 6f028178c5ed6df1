// What a decoder does to the rows between its products: RMS norm, rotary positions, sums.
#pragma once

#include <cstdint>

namespace gateup {

// The same source compiled for one instruction set. Rows are float32.
struct RowKernels {
  // y = x / sqrt(mean(x^2) + epsilon) * weight over n numbers; y may be x.
  void (*rms_norm)(const float* x, const float* weight, float epsilon, std::int64_t n, float* y);
  // x += scale * d
  void (*add)(float* x, const float* d, float scale, std::int64_t n);
  float (*dot)(const float* a, const float* b, std::int64_t n);
  // Pair j of a head, numbers j and j + half, turned by the angle of these cosines and sines.
  void (*rope)(float* x, const float* cosine, const float* sine, std::int64_t half);
  // x = cap * tanh(x / cap)
  void (*softcap)(float* x, float cap, std::int64_t n);
};

// For current_isa().
const RowKernels& row_kernels();

namespace generic {
const RowKernels& row_kernels();
}
#ifdef GATEUP_HAVE_AVX2
namespace avx2 {
const RowKernels& row_kernels();
}
#endif
#ifdef GATEUP_HAVE_AVX512
namespace avx512 {
const RowKernels& row_kernels();
}
#endif

}  // namespace gateup
