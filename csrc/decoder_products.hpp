// Products whose matrices may be of several families, and the mixture of experts.
#pragma once

#include <cstdint>

#include "act_and_mul.hpp"
#include "buffer.hpp"
#include "decoder.hpp"
#include "matrix.hpp"

namespace gateup {

// Float32 rows that lie one after the other.
inline Rows rows_at(const float* data, std::int64_t width) {
  return {reinterpret_cast<char*>(const_cast<float*>(data)), width, kFloat32};
}

// As MatrixKernels::linear, with each family's products in one call.
void linear(const Product* products, int count, const Rows& x, std::int64_t t, int threads);

// As MatrixKernels::gated_mlp; where gate, up and down are of different families, by parts.
void gated_mlp(const GatedMLP& mlp, const Rows& x, std::int64_t t, const Rows& y, Buffer& memory,
               int threads);

// y [t, width] = sum over each row's experts of weight * mlp(x).
void mixture(const Experts& experts, const float* x, std::int64_t t, std::int64_t width, float* y,
             Buffer& memory, int threads);

}  // namespace gateup
