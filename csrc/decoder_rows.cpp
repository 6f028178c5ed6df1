#include "decoder_rows.hpp"

#include <cmath>

#include "isa.hpp"
#include "parallel.hpp"

namespace gateup {
namespace {

using i64 = std::int64_t;

// Numbers that are worth a second thread: below, entering a loop takes longer than the work.
constexpr i64 kGrain = 8192;

template <class F>
void run_part(void* context, i64 begin, i64 end) {
  (*static_cast<F*>(context))(begin, end);
}

// f(begin, end) over rows of `width` numbers.
template <class F>
void over_rows(i64 rows, i64 width, int threads, F f) {
  const i64 most = rows * width / kGrain + 1;
  parallel_for(rows, most < threads ? static_cast<int>(most) : threads, run_part<F>, &f);
}

}  // namespace

const RowKernels& row_kernels() {
  const Isa isa = current_isa();
  (void)isa;
#ifdef GATEUP_HAVE_AVX512
  if (isa >= Isa::kAvx512Vnni) return avx512::row_kernels();
#endif
#ifdef GATEUP_HAVE_AVX2
  if (isa >= Isa::kAvx2) return avx2::row_kernels();
#endif
  return generic::row_kernels();
}

void RowTeam::norm(const float* x, i64 rows, i64 width, const float* weight, float epsilon,
                   float* y) const {
  over_rows(rows, width, threads, [&](i64 begin, i64 end) {
    for (i64 r = begin; r < end; ++r) {
      kernels.rms_norm(x + r * width, weight, epsilon, width, y + r * width);
    }
  });
}

void RowTeam::residual(const Residual& a, float* delta, float* x, float* h, i64 rows) const {
  over_rows(rows, a.width, threads, [&](i64 begin, i64 end) {
    for (i64 i = begin * a.width; i < end * a.width; i += a.width) {
      if (a.post != nullptr) {
        kernels.rms_norm(delta + i, a.post, a.epsilon, a.width, delta + i);
      }
      kernels.add(x + i, delta + i, a.scale, a.width);
      kernels.rms_norm(x + i, a.next, a.epsilon, a.width, h + i);
    }
  });
}

void RowTeam::heads(const HeadRows& a, float* x, i64 rows) const {
  if (a.norm == nullptr && a.angles == nullptr) return;
  over_rows(rows, a.heads * a.dim, threads, [&](i64 begin, i64 end) {
    for (i64 r = begin; r < end; ++r) {
      const float* cosine = a.angles == nullptr ? nullptr : a.angles + r * 2 * a.pairs;
      for (i64 i = r * a.heads; i < (r + 1) * a.heads; ++i) {
        float* head = x + i * a.dim;
        if (a.norm != nullptr) kernels.rms_norm(head, a.norm, a.epsilon, a.dim, head);
        if (cosine != nullptr) kernels.rope(head, cosine, cosine + a.pairs, a.pairs);
      }
    }
  });
}

// The angle is rounded to float32 as in transformers: position 5000 times a frequency is off by
// up to 2e-4 of a radian, and the models were trained with that.
void RowTeam::angles(const i64* positions, i64 rows, const Rope& rope, float* out) const {
  const i64 pairs = static_cast<i64>(rope.inv_freq.size());
  over_rows(rows, 32 * pairs, threads, [&](i64 begin, i64 end) {
    for (i64 r = begin; r < end; ++r) {
      float* row = out + r * 2 * pairs;
      for (i64 j = 0; j < pairs; ++j) {
        const float frequency = rope.inv_freq[static_cast<std::size_t>(j)];
        const float angle = static_cast<float>(positions[r]) * frequency;
        row[j] = std::cos(angle) * rope.scale;
        row[pairs + j] = std::sin(angle) * rope.scale;
      }
    }
  });
}

void RowTeam::append(const AttentionShape& shape, const std::vector<Sequence>& sequences,
                     const float* k, const float* v, i64 rows) const {
  const AttentionKernels& attention = attention_kernels();
  const i64 dim = shape.head_dim, width = shape.kv_heads * dim;
  over_rows(rows, 2 * width, threads, [&](i64 begin, i64 end) {
    for (const Sequence& s : sequences) {
      const i64 first = begin > s.row ? begin : s.row;
      const i64 last = end < s.row + s.rows ? end : s.row + s.rows;
      for (i64 r = first; r < last; ++r) {
        for (int g = 0; g < shape.kv_heads; ++g) {
          attention.append(shape, s, g, s.position + r - s.row, k + r * width + g * dim,
                           v + r * width + g * dim);
        }
      }
    }
  });
}

void RowTeam::scale(float* x, i64 n, float factor) const {
  over_rows(n, 1, threads, [&](i64 begin, i64 end) {
    for (i64 i = begin; i < end; ++i) x[i] *= factor;
  });
}

void RowTeam::softcap(float* x, i64 n, float cap) const {
  over_rows(n, 8, threads,
            [&](i64 begin, i64 end) { kernels.softcap(x + begin, cap, end - begin); });
}

}  // namespace gateup
