// The decoder's work on rows between products, shared among threads where there is enough of it.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.hpp"
#include "decoder.hpp"
#include "norm.hpp"

namespace gateup {

// Heads [rows, heads, dim] that are normed where there is a norm, and turned where there are
// angles [rows, 2 * pairs]: a row's cosines, then its sines.
struct HeadRows {
  const float* norm;
  float epsilon;
  int heads;
  std::int64_t dim;
  const float* angles;
  std::int64_t pairs;
};

struct Residual {
  const float *post, *next;  // norms [width]; post may be nullptr
  float epsilon, scale;
  std::int64_t width;
};

struct RowTeam {
  const RowKernels& kernels;
  int threads;

  void norm(const float* x, std::int64_t rows, std::int64_t width, const float* weight,
            float epsilon, float* y) const;
  // x += scale * post(delta), h = next(x). delta is overwritten.
  void residual(const Residual& r, float* delta, float* x, float* h, std::int64_t rows) const;
  void heads(const HeadRows& h, float* x, std::int64_t rows) const;
  void angles(const std::int64_t* positions, std::int64_t rows, const Rope& rope, float* out) const;
  void append(const AttentionShape& shape, const std::vector<Sequence>& sequences, const float* k,
              const float* v, std::int64_t rows) const;
  void scale(float* x, std::int64_t n, float factor) const;
  void softcap(float* x, std::int64_t n, float cap) const;
};

}  // namespace gateup
