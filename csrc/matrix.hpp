// Products with packed weight matrices: what the binding and the decoder call, and what a family
// of kernels (quantised, dense) provides for one instruction set.
//
// A weight matrix [n, k] is packed once into an order that the kernels stream. The packed form is
// the same for every instruction set. T rows of activations go through the same entry whatever T
// is, and a row's bits depend neither on T nor on the threads: the order over k is fixed.
#pragma once

#include <cstdint>

namespace gateup {

// The numbers of ggml's ggml_type, which GGUF files store.
enum Type : std::int32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kBF16 = 30,
};

// A packed matrix [n, k]; `data` is aligned to 64 bytes.
//
// `terms`: how a quantised matrix takes activations. 1 (or 0): in int8. 2: as the sum of two
// int8 numbers with a scale each, the second for what the first leaves, which is as good as
// int16; twice the multiplications, the weights are still read once. Matrices that share an x
// have the same.
struct Matrix {
  std::int32_t type;
  std::int64_t n, k;
  const std::uint8_t* data;
  std::int32_t terms;
};

// Rows of activations or results: float32, bfloat16 or float16 (enum DType), neighbours in a row;
// the stride from row to row is in elements.
struct Rows {
  char* data;
  std::int64_t stride;
  std::int32_t dtype;
};

// One of several products of the same x.
struct Product {
  Matrix w;
  const float* bias;  // [n] or nullptr
  Rows y;             // [t, n], overwritten
};

// down(act(gate(x)) * up(x)): gate and up [I, H], down [H_out, I], each of its own type.
struct GatedMLP {
  Matrix gate, up, down;
  std::int32_t act;               // enum Act
  const float* gate_bias;         // [I] or nullptr, as the next
  const float* up_bias;
  const float* down_bias;         // [H_out] or nullptr
};

// A family of kernels for one instruction set.
struct MatrixKernels {
  // Bytes of the packed form; 0 where (type, n, k) is not the family's.
  std::int64_t (*packed_nbytes)(std::int32_t type, std::int64_t n, std::int64_t k);
  // `source`: the rows as a file stores them, n times the type's bytes of k elements.
  void (*pack)(std::int32_t type, std::int64_t n, std::int64_t k, const std::uint8_t* source,
               std::uint8_t* packed, int threads);
  // x [t, k] is read (and quantised) once for all products, which have the same k.
  void (*linear)(const Product* products, int count, const Rows& x, std::int64_t t, int threads);
  void (*gated_mlp)(const GatedMLP& mlp, const Rows& x, std::int64_t t, const Rows& y, int threads);
  // The weights of `rows` (nullptr: rows 0..count-1) dequantised into out [count, k]: exact in
  // float32, rounded to nearest otherwise.
  void (*unpack)(const Matrix& w, const std::int64_t* rows, std::int64_t count, const Rows& out,
                 int threads);
};

// The kernels for current_isa(); nullptr where a family does not know the type.
const MatrixKernels* matrix_kernels(std::int32_t type);

}  // namespace gateup
