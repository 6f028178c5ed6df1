// Products with float32, float16 and bfloat16 weights, read where they lie.
//
// The weights are plain rows [n, k], as files and torch's parameters have them: nothing is
// packed. Both operands of a dot product are contiguous along k, so a row of weights is a row of
// a matrix tile (AMX) or a run of vectors as it is, and streams from memory as fast as a packed
// panel did (measured: 15 to 16 GB/s a thread, packed 11 to 15).
//
// float16 weights are widened in registers and multiplied in float32, as bfloat16 ones are where
// the instruction set has no products of them; otherwise x is rounded to bfloat16 once per call.
#pragma once

#include <cstdint>

#include "matrix.hpp"

namespace gateup {

// Rows of weights; the stride from row to row is in elements.
struct DenseMatrix {
  std::int32_t type;  // kF32, kF16 or kBF16
  std::int64_t n, k;
  const std::uint8_t* data;
  std::int64_t stride;
};

struct DenseProduct {
  DenseMatrix w;
  const float* bias;  // [n] or nullptr
  Rows y;             // [t, n]
};

// The gated MLP, or its first half where down.data is nullptr. What a backward pass may want is
// written where its address is not nullptr: gate and up before the activation, and the product.
struct DenseMLP {
  DenseMatrix gate, up, down;
  std::int32_t act;
  const float *gate_bias, *up_bias, *down_bias;
  Rows pre_gate, pre_up, product;  // [t, I]
};

struct DenseKernels {
  void (*linear)(const DenseProduct* products, int count, const Rows& x, std::int64_t t,
                 int threads);
  void (*gated_mlp)(const DenseMLP& mlp, const Rows& x, std::int64_t t, const Rows& y,
                    int threads);
};

// For current_isa().
const DenseKernels& dense_kernels();

// The same, behind the interface of matrix.hpp.
const MatrixKernels& dense_matrix_kernels();

// ---- what the kernels' sources share; defined in dense.cpp, once and for the plainest
// instruction set, because a linker may merge an inline function's copies --------------------

// Memory of one call, aligned to cache lines, not initialised.
class Buffer {
 public:
  explicit Buffer(std::int64_t bytes);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  char* get() const { return data_; }

 private:
  char* data_;
};

// A piece of scratch for each thread at work, allocated before they start: an exception must not
// leave a thread of OpenMP's team.
class Slots {
 public:
  Slots(int count, std::int64_t bytes);
  char* take();
  void give(char* slot);

 private:
  int count_;
  std::int64_t bytes_;
  Buffer memory_, busy_;
};

namespace generic {
const DenseKernels& dense();
}
#ifdef GATEUP_HAVE_AVX2
namespace avx2 {
const DenseKernels& dense();
}
#endif
#ifdef GATEUP_HAVE_AVX512
namespace avx512vnni {
const DenseKernels& dense();
}
namespace avx512bf16 {
const DenseKernels& dense();
}
#endif
#ifdef GATEUP_HAVE_AMX
namespace amx {
const DenseKernels& dense();
}
#endif

}  // namespace gateup
