// Packed matrices for Python: addresses in, checked as far as addresses can be.
#include "bind_matrix.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "act_and_mul.hpp"
#include "matrix.hpp"
#include "scratch.hpp"

namespace nb = nanobind;

namespace gateup {
namespace {

// (type, address, n, k), (address, row stride, dtype), and (matrix, bias or 0, y).
using MatrixArgs = std::tuple<std::int32_t, std::uintptr_t, std::int64_t, std::int64_t>;
using RowsArgs = std::tuple<std::uintptr_t, std::int64_t, std::int32_t>;
using ProductArgs = std::tuple<MatrixArgs, std::uintptr_t, RowsArgs>;

const MatrixKernels& kernels_for(std::int32_t type) {
  const MatrixKernels* kernels = matrix_kernels(type);
  if (kernels == nullptr) {
    throw std::invalid_argument("no kernels for type " + std::to_string(type));
  }
  return *kernels;
}

Matrix matrix_of(const MatrixArgs& args) {
  const auto [type, address, n, k] = args;
  if (n < 1 || kernels_for(type).packed_nbytes(type, n, k) == 0) {
    throw std::invalid_argument("a matrix that cannot be packed");
  }
  if (address == 0 || address % 64 != 0) {
    throw std::invalid_argument("a packed matrix is not aligned to 64 bytes");
  }
  return {type, n, k, reinterpret_cast<const std::uint8_t*>(address)};
}

Rows rows_of(const RowsArgs& args) {
  const auto [address, stride, dtype] = args;
  if (dtype < kFloat32 || dtype > kFloat16) throw std::invalid_argument("unknown dtype");
  return {reinterpret_cast<char*>(address), stride, dtype};
}

const float* bias_of(std::uintptr_t address) { return reinterpret_cast<const float*>(address); }

void require_counts(std::int64_t t, int threads) {
  if (t < 0) throw std::invalid_argument("negative number of rows");
  if (threads < 1) throw std::invalid_argument("fewer than one thread");
}

// The kernels that both matrices have in common: a family serves its own types alone.
void require_same(const MatrixKernels& a, const Matrix& w) {
  if (&a != &kernels_for(w.type)) {
    throw std::invalid_argument("types of two families in one call");
  }
}

std::int64_t packed_nbytes(std::int32_t type, std::int64_t n, std::int64_t k) {
  const MatrixKernels* kernels = matrix_kernels(type);
  return kernels == nullptr ? 0 : kernels->packed_nbytes(type, n, k);
}

void pack(const MatrixArgs& packed, std::uintptr_t source, int threads) {
  const Matrix w = matrix_of(packed);
  require_counts(0, threads);
  nb::gil_scoped_release released;
  kernels_for(w.type).pack(w.type, w.n, w.k, reinterpret_cast<const std::uint8_t*>(source),
                           const_cast<std::uint8_t*>(w.data), threads);
}

void linear(const std::vector<ProductArgs>& args, const RowsArgs& x, std::int64_t t,
            int threads) {
  require_counts(t, threads);
  std::vector<Product> products;
  for (const auto& [w, bias, y] : args) {
    products.push_back({matrix_of(w), bias_of(bias), rows_of(y)});
    require_same(kernels_for(products.front().w.type), products.back().w);
    if (products.back().w.k != products.front().w.k) {
      throw std::invalid_argument("products of one x differ in k");
    }
  }
  if (products.empty()) return;
  const Rows rows = rows_of(x);
  nb::gil_scoped_release released;
  kernels_for(products.front().w.type)
      .linear(products.data(), static_cast<int>(products.size()), rows, t, threads);
}

void gated_mlp(const std::tuple<MatrixArgs, MatrixArgs, MatrixArgs>& weights,
               const std::tuple<std::uintptr_t, std::uintptr_t, std::uintptr_t>& biases, int act,
               const RowsArgs& x, std::int64_t t, const RowsArgs& y, int threads) {
  require_counts(t, threads);
  if (act < 0 || act >= kActs) throw std::invalid_argument("unknown activation");
  const auto& [gate, up, down] = weights;
  const auto [gate_bias, up_bias, down_bias] = biases;
  const GatedMLP mlp{matrix_of(gate),    matrix_of(up),    matrix_of(down),   act,
                     bias_of(gate_bias), bias_of(up_bias), bias_of(down_bias)};
  const MatrixKernels& kernels = kernels_for(mlp.gate.type);
  require_same(kernels, mlp.up);
  require_same(kernels, mlp.down);
  if (mlp.gate.k != mlp.up.k || mlp.gate.n != mlp.up.n || mlp.gate.n != mlp.down.k) {
    throw std::invalid_argument("gate, up and down do not fit together");
  }
  const Rows in = rows_of(x), out = rows_of(y);
  nb::gil_scoped_release released;
  kernels.gated_mlp(mlp, in, t, out, threads);
}

// `rows`: address of int64 numbers, or 0 for the first `count`.
void unpack(const MatrixArgs& packed, std::uintptr_t rows, std::int64_t count,
            const RowsArgs& out, int threads) {
  const Matrix w = matrix_of(packed);
  require_counts(count, threads);
  const std::int64_t* numbers = reinterpret_cast<const std::int64_t*>(rows);
  for (std::int64_t i = 0; numbers != nullptr && i < count; ++i) {
    if (numbers[i] < 0 || numbers[i] >= w.n) throw std::invalid_argument("no such row");
  }
  if (numbers == nullptr && count > w.n) throw std::invalid_argument("no such row");
  const Rows to = rows_of(out);
  nb::gil_scoped_release released;
  kernels_for(w.type).unpack(w, numbers, count, to, threads);
}

}  // namespace

void bind_matrix(nb::module_& m) {
  m.def("packed_nbytes", &packed_nbytes, "Bytes of a packed matrix [n, k]; 0: not possible");
  m.def("pack", &pack, "The file's rows at an address into a packed matrix");
  m.def("linear", &linear, "y = x·Wᵀ + bias for several matrices and one x");
  m.def("gated_mlp", &gated_mlp, "y = down(act(gate(x)) * up(x))");
  m.def("use_huge_pages", [](std::uintptr_t address, std::size_t bytes) {
    use_huge_pages(reinterpret_cast<std::uint8_t*>(address), bytes);
  }, "Ask for huge pages under memory not yet touched");
  m.def("unpack", &unpack, "Rows of a packed matrix as numbers");
}

}  // namespace gateup
