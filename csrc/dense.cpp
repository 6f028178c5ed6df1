// The dense family behind the interface of matrix.hpp: the choice of kernels, and rows in and out.
#include "dense.hpp"

#include <cstring>
#include <new>

#include "act_and_mul.hpp"
#include "elementary.hpp"
#include "isa.hpp"
#include "parallel.hpp"

namespace gateup {
namespace {

using i64 = std::int64_t;

i64 itemsize(std::int32_t type) {
  switch (type) {
    case kF32:
      return 4;
    case kF16:
    case kBF16:
      return 2;
    default:
      return 0;
  }
}

i64 packed_nbytes(std::int32_t type, i64 n, i64 k) { return itemsize(type) * n * k; }

struct Copy {
  const std::uint8_t* from;
  std::uint8_t* to;
  i64 bytes;
};

constexpr i64 kPiece = 1 << 20;

void copy_pieces(void* context, i64 begin, i64 end) {
  const Copy& copy = *static_cast<const Copy*>(context);
  const i64 from = begin * kPiece, to = end * kPiece < copy.bytes ? end * kPiece : copy.bytes;
  std::memcpy(copy.to + from, copy.from + from, static_cast<std::size_t>(to - from));
}

// The packed form is the file's: rows as they are.
void pack(std::int32_t type, i64 n, i64 k, const std::uint8_t* source, std::uint8_t* packed,
          int threads) {
  Copy copy{source, packed, packed_nbytes(type, n, k)};
  parallel_for((copy.bytes + kPiece - 1) / kPiece, threads, copy_pieces, &copy);
}

DenseMatrix rows_of(const Matrix& w) { return {w.type, w.n, w.k, w.data, w.k}; }

void linear(const Product* products, int count, const Rows& x, i64 t, int threads) {
  constexpr int kAtOnce = 8;
  for (int first = 0; first < count; first += kAtOnce) {
    DenseProduct dense[kAtOnce];
    const int n = count - first < kAtOnce ? count - first : kAtOnce;
    for (int i = 0; i < n; ++i) {
      const Product& p = products[first + i];
      dense[i] = {rows_of(p.w), p.bias, p.y};
    }
    dense_kernels().linear(dense, n, x, t, threads);
  }
}

void gated_mlp(const GatedMLP& mlp, const Rows& x, i64 t, const Rows& y, int threads) {
  const Rows none{nullptr, 0, kFloat32};
  const DenseMLP dense{rows_of(mlp.gate), rows_of(mlp.up), rows_of(mlp.down), mlp.act,
                       mlp.gate_bias,     mlp.up_bias,     mlp.down_bias,     none,
                       none,              none};
  dense_kernels().gated_mlp(dense, x, t, y, threads);
}

// ---- unpack -----------------------------------------------------------------------------------

template <class W, class Y>
void convert(const std::uint8_t* from, char* to, i64 k) {
  const W* w = reinterpret_cast<const W*>(from);
  Y* y = reinterpret_cast<Y*>(to);
  for (i64 i = 0; i < k; ++i) narrow(widen(w[i]), y[i]);
}

using Convert = void (*)(const std::uint8_t*, char*, i64);

template <class W>
Convert converter(std::int32_t dtype) {
  switch (dtype) {
    case kBFloat16:
      return convert<W, BFloat16>;
    case kFloat16:
      return convert<W, Float16>;
    default:
      return convert<W, float>;
  }
}

struct Unpack {
  const Matrix& w;
  const i64* rows;
  const Rows& out;
  Convert convert;
};

void unpack_rows(void* context, i64 begin, i64 end) {
  const Unpack& job = *static_cast<const Unpack*>(context);
  const i64 row_bytes = itemsize(job.w.type) * job.w.k;
  const i64 out_bytes = job.out.stride * (job.out.dtype == kFloat32 ? 4 : 2);
  for (i64 i = begin; i < end; ++i) {
    const i64 row = job.rows != nullptr ? job.rows[i] : i;
    job.convert(job.w.data + row * row_bytes, job.out.data + i * out_bytes, job.w.k);
  }
}

void unpack(const Matrix& w, const i64* rows, i64 count, const Rows& out, int threads) {
  const Convert convert = w.type == kF32   ? converter<float>(out.dtype)
                          : w.type == kF16 ? converter<Float16>(out.dtype)
                                           : converter<BFloat16>(out.dtype);
  Unpack job{w, rows, out, convert};
  parallel_for(count, threads, unpack_rows, &job);
}

constexpr MatrixKernels kMatrixKernels = {packed_nbytes, pack, linear, gated_mlp, unpack};

}  // namespace

const DenseKernels& dense_kernels() {
  switch (current_isa()) {
#ifdef GATEUP_HAVE_AMX
    case Isa::kAmx:
      return amx::dense();
#endif
#ifdef GATEUP_HAVE_AVX512
    case Isa::kAvx512Bf16:
      return avx512bf16::dense();
    case Isa::kAvx512Vnni:
      return avx512vnni::dense();
#endif
#ifdef GATEUP_HAVE_AVX2
    case Isa::kAvx2:
      return avx2::dense();
#endif
    default:
      return generic::dense();
  }
}

const MatrixKernels& dense_matrix_kernels() { return kMatrixKernels; }

// ---- scratch ----------------------------------------------------------------------------------

Buffer::Buffer(i64 bytes)
    : data_(static_cast<char*>(::operator new(static_cast<std::size_t>(bytes < 64 ? 64 : bytes),
                                              std::align_val_t{64}))) {}

Buffer::~Buffer() { ::operator delete(data_, std::align_val_t{64}); }

Slots::Slots(int count, i64 bytes)
    : count_(count < 1 ? 1 : count),
      bytes_((bytes + 63) / 64 * 64),
      memory_(count_ * bytes_),
      busy_(count_) {
  std::memset(busy_.get(), 0, static_cast<std::size_t>(count_));
}

char* Slots::take() {
  for (int i = 0;; i = i + 1 == count_ ? 0 : i + 1) {
    if (!__atomic_test_and_set(busy_.get() + i, __ATOMIC_ACQUIRE)) {
      return memory_.get() + i * bytes_;
    }
  }
}

void Slots::give(char* slot) {
  __atomic_clear(busy_.get() + (slot - memory_.get()) / bytes_, __ATOMIC_RELEASE);
}

}  // namespace gateup
