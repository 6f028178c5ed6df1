// h = act(gate) * up and its backward over rows of elements: what the binding hands to a kernel.
#pragma once

#include <cstdint>

namespace gateup {

// The numbers are part of the interface: gateup/ops/native.py passes them.
enum DType : std::int32_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };

enum Act : std::int32_t {
  kSilu = 0,
  kGelu = 1,      // by the error function
  kGeluTanh = 2,  // by its tanh approximation
  kRelu = 3,
  kRelu2 = 4,
  kSigmoid = 5,
  kIdentity = 6,
  kGptOss = 7,  // both factors clamped, one added to up
  kActs = 8
};

// One matrix [rows, cols]. `step` is 1, or 2 for one half of interleaved gate and up.
// Strides are in elements. data == nullptr: an output nobody asked for.
struct View {
  char* data;
  std::int64_t row_stride;
  std::int64_t step;
  std::int32_t dtype;
};

// Elements that a kernel holds in registers and L1 at a time. Every block is computed in full
// length, padded with zeros, so that an element's result never depends on where its row ends.
constexpr int kBlock = 256;

struct Job {
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t blocks_per_row;
  std::int32_t act;
  View dy, gate, up;
  View h, d_gate, d_up;
};

// The same source compiled for one instruction set. Ranges count blocks, row by row.
struct Kernels {
  const char* name;
  void (*forward)(const Job&, std::int64_t begin, std::int64_t end);
  void (*backward)(const Job&, std::int64_t begin, std::int64_t end);
  void (*exp)(const float* in, float* out, std::int64_t n);  // of arguments <= 0
};

namespace generic {
const Kernels& kernels();
}
#ifdef GATEUP_HAVE_AVX2
namespace avx2 {
const Kernels& kernels();
}
#endif
#ifdef GATEUP_HAVE_AVX512
namespace avx512 {
const Kernels& kernels();
}
#endif

}  // namespace gateup
