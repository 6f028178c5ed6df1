#include "decoder_products.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "isa.hpp"
#include "parallel.hpp"

namespace gateup {
namespace {

using i64 = std::int64_t;

const Kernels& act_kernels() {
  const Isa isa = current_isa();
  (void)isa;
#ifdef GATEUP_HAVE_AVX512
  if (isa >= Isa::kAvx512Vnni) return avx512::kernels();
#endif
#ifdef GATEUP_HAVE_AVX2
  if (isa >= Isa::kAvx2) return avx2::kernels();
#endif
  return generic::kernels();
}

// gate = act(gate) * up
void act_and_mul(std::int32_t act, float* gate, float* up, i64 n, int threads) {
  Job job{};
  job.rows = 1;
  job.cols = n;
  job.blocks_per_row = (n + kBlock - 1) / kBlock;
  job.act = act;
  job.gate = {reinterpret_cast<char*>(gate), n, 1, kFloat32};
  job.up = {reinterpret_cast<char*>(up), n, 1, kFloat32};
  job.h = job.gate;
  const auto part = [](void* context, i64 begin, i64 end) {
    act_kernels().forward(*static_cast<const Job*>(context), begin, end);
  };
  parallel_for(job.blocks_per_row, threads, part, &job);
}

// Gate, up and down one by one.
void mlp_by_parts(const GatedMLP& mlp, const Rows& x, i64 t, const Rows& y, Buffer& memory,
                  int threads) {
  const i64 width = mlp.gate.n;
  float* gate = memory.floats(2 * t * width);
  float* up = gate + t * width;
  const Product products[] = {{mlp.gate, mlp.gate_bias, rows_at(gate, width)},
                              {mlp.up, mlp.up_bias, rows_at(up, width)}};
  linear(products, 2, x, t, threads);
  act_and_mul(mlp.act, gate, up, t * width, threads);
  const Product down{mlp.down, mlp.down_bias, y};
  linear(&down, 1, rows_at(gate, width), t, threads);
}

// Products that are worth a second thread.
constexpr i64 kGrain = 16384;

// The router's logits [t, count], one after the other.
struct Routing {
  const float *router, *x;
  float* logits;
  i64 count, width;
  const RowKernels& kernels;

  static void body(void* context, i64 begin, i64 end) {
    const Routing& r = *static_cast<const Routing*>(context);
    for (i64 i = begin; i < end; ++i) {
      r.logits[i] = r.kernels.dot(r.x + i / r.count * r.width, r.router + i % r.count * r.width,
                                  r.width);
    }
  }
};

// A row's choice: expert and weight.
struct Choice {
  i64 row;
  float weight;
};

// The softmax of a row's logits, its top_k largest by expert; the first of equal ones.
void choose(const Experts& experts, const float* logits, i64 row,
            std::vector<std::vector<Choice>>& chosen) {
  const std::size_t count = experts.mlps.size();
  const float most = *std::max_element(logits, logits + count);
  std::vector<float> weights(count);
  float sum = 0.0f;
  for (std::size_t e = 0; e < count; ++e) sum += weights[e] = std::exp(logits[e] - most);
  std::vector<std::size_t> order(count);
  for (std::size_t e = 0; e < count; ++e) order[e] = e;
  const auto kept = order.begin() + experts.top_k;
  // Weights that are not numbers come last: a comparison that is no order must not be sorted by.
  const auto rank = [&](std::size_t e) { return weights[e] == weights[e] ? weights[e] : -1.0f; };
  std::partial_sort(order.begin(), kept, order.end(), [&](std::size_t a, std::size_t b) {
    return rank(a) > rank(b) || (rank(a) == rank(b) && a < b);
  });
  if (experts.normalise) {
    sum = 0.0f;
    for (auto e = order.begin(); e != kept; ++e) sum += weights[*e];
  }
  for (auto e = order.begin(); e != kept; ++e) chosen[*e].push_back({row, weights[*e] / sum});
}

}  // namespace

void linear(const Product* products, int count, const Rows& x, i64 t, int threads) {
  for (int first = 0; first < count;) {
    const MatrixKernels* family = matrix_kernels(products[first].w.type);
    int last = first + 1;
    while (last < count && matrix_kernels(products[last].w.type) == family) ++last;
    family->linear(products + first, last - first, x, t, threads);
    first = last;
  }
}

void gated_mlp(const GatedMLP& mlp, const Rows& x, i64 t, const Rows& y, Buffer& memory,
               int threads) {
  const MatrixKernels* family = matrix_kernels(mlp.gate.type);
  if (matrix_kernels(mlp.up.type) == family && matrix_kernels(mlp.down.type) == family) {
    family->gated_mlp(mlp, x, t, y, threads);
  } else {
    mlp_by_parts(mlp, x, t, y, memory, threads);
  }
}

void mixture(const Experts& experts, const float* x, i64 t, i64 width, float* y, Buffer& memory,
             int threads) {
  const i64 count = static_cast<i64>(experts.mlps.size());
  Buffer rows;
  float* logits = rows.floats(t * std::max(count, 2 * width));
  const RowKernels& kernels = row_kernels();
  Routing routing{experts.router, x, logits, count, width, kernels};
  parallel_for(t * count, t * count * width < kGrain ? 1 : threads, Routing::body, &routing);
  std::vector<std::vector<Choice>> chosen(experts.mlps.size());
  for (i64 row = 0; row < t; ++row) choose(experts, logits + row * count, row, chosen);
  float *in = logits, *out = logits + t * width;  // the logits are done with
  std::fill(y, y + t * width, 0.0f);
  for (std::size_t e = 0; e < experts.mlps.size(); ++e) {
    const std::vector<Choice>& mine = chosen[e];
    if (mine.empty()) continue;
    for (std::size_t i = 0; i < mine.size(); ++i) {
      std::memcpy(in + static_cast<i64>(i) * width, x + mine[i].row * width,
                  static_cast<std::size_t>(width) * sizeof(float));
    }
    const i64 n = static_cast<i64>(mine.size());
    gated_mlp(experts.mlps[e], rows_at(in, width), n, rows_at(out, width), memory, threads);
    for (std::size_t i = 0; i < mine.size(); ++i) {
      kernels.add(y + mine[i].row * width, out + static_cast<i64>(i) * width, mine[i].weight,
                  width);
    }
  }
}

}  // namespace gateup
