// Dense products over tensors where they lie, as Python sees them: addresses and strides.
#include "bind_dense.hpp"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <tuple>
#include <vector>

#include "act_and_mul.hpp"
#include "dense.hpp"

namespace nb = nanobind;

namespace gateup {
namespace {

using i64 = std::int64_t;
// (ggml type, n, k, address, row stride in elements)
using MatrixArgs = std::tuple<std::int32_t, i64, i64, std::uintptr_t, i64>;
// (address, row stride in elements, dtype); an address of 0: not wanted
using RowsArgs = std::tuple<std::uintptr_t, i64, std::int32_t>;

DenseMatrix matrix_of(const MatrixArgs& args) {
  const auto [type, n, k, address, stride] = args;
  if (type != kF32 && type != kF16 && type != kBF16) throw std::invalid_argument("unknown type");
  if (n < 1 || k < 1 || stride < k) throw std::invalid_argument("impossible sizes");
  return {type, n, k, reinterpret_cast<const std::uint8_t*>(address), stride};
}

Rows rows_of(const RowsArgs& args) {
  const auto [address, stride, dtype] = args;
  if (dtype < kFloat32 || dtype > kFloat16) throw std::invalid_argument("unknown dtype");
  return {reinterpret_cast<char*>(address), stride, dtype};
}

const float* floats(std::uintptr_t address) { return reinterpret_cast<const float*>(address); }

void linear(const MatrixArgs& w, std::uintptr_t bias, const RowsArgs& x, i64 t, const RowsArgs& y,
            int threads) {
  if (t < 0) throw std::invalid_argument("negative size");
  const DenseProduct product{matrix_of(w), floats(bias), rows_of(y)};
  const Rows input = rows_of(x);
  nb::gil_scoped_release released;
  dense_kernels().linear(&product, 1, input, t, threads);
}

// weights and biases: gate, up and, for the whole MLP, down. kept: gate, up, product.
void gated_mlp(const std::vector<MatrixArgs>& weights, const std::vector<std::uintptr_t>& biases,
               int act, const RowsArgs& x, i64 t, const std::vector<RowsArgs>& kept,
               const RowsArgs& y, int threads) {
  if (t < 0) throw std::invalid_argument("negative size");
  if (act < 0 || act >= kActs) throw std::invalid_argument("unknown activation");
  if (weights.size() < 2 || weights.size() > 3 || biases.size() != 3 || kept.size() != 3) {
    throw std::invalid_argument("not gate, up and down");
  }
  DenseMLP mlp{};
  mlp.gate = matrix_of(weights[0]);
  mlp.up = matrix_of(weights[1]);
  if (weights.size() == 3) mlp.down = matrix_of(weights[2]);
  if (mlp.up.n != mlp.gate.n || mlp.up.k != mlp.gate.k ||
      (weights.size() == 3 && mlp.down.k != mlp.gate.n)) {
    throw std::invalid_argument("gate, up and down do not fit together");
  }
  mlp.act = act;
  mlp.gate_bias = floats(biases[0]);
  mlp.up_bias = floats(biases[1]);
  mlp.down_bias = floats(biases[2]);
  mlp.pre_gate = rows_of(kept[0]);
  mlp.pre_up = rows_of(kept[1]);
  mlp.product = rows_of(kept[2]);
  const Rows input = rows_of(x), output = rows_of(y);
  nb::gil_scoped_release released;
  dense_kernels().gated_mlp(mlp, input, t, output, threads);
}

}  // namespace

void bind_dense(nb::module_& m) {
  m.def("dense_linear", &linear, "y = x Wᵀ + bias with W as it lies");
  m.def("dense_gated_mlp", &gated_mlp, "The gated MLP with weights as they lie");
}

}  // namespace gateup
