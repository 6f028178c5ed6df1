// Which kernels serve a type of weights on the instruction set in use.
#include "matrix.hpp"

#include "families.hpp"
#include "isa.hpp"

namespace gateup {
namespace {

// int8 dot products have nothing of BF16: that set runs VNNI's kernels.
const MatrixKernels* quantised() {
  switch (current_isa()) {
#ifdef GATEUP_HAVE_AMX
    case Isa::kAmx:
      return &amx::quant_kernels();
#endif
#ifdef GATEUP_HAVE_AVX512
    case Isa::kAvx512Bf16:
    case Isa::kAvx512Vnni:
      return &avx512vnni::quant_kernels();
#endif
#ifdef GATEUP_HAVE_AVX2
    case Isa::kAvx2:
      return &avx2::quant_kernels();
#endif
    default:
      return &generic::quant_kernels();
  }
}

#ifdef GATEUP_HAVE_DENSE
const MatrixKernels* dense() {
  switch (current_isa()) {
#ifdef GATEUP_HAVE_AMX
    case Isa::kAmx:
      return &amx::dense_kernels();
#endif
#ifdef GATEUP_HAVE_AVX512
    case Isa::kAvx512Bf16:
      return &avx512bf16::dense_kernels();
    case Isa::kAvx512Vnni:
      return &avx512vnni::dense_kernels();
#endif
#ifdef GATEUP_HAVE_AVX2
    case Isa::kAvx2:
      return &avx2::dense_kernels();
#endif
    default:
      return &generic::dense_kernels();
  }
}
#endif

}  // namespace

const MatrixKernels* matrix_kernels(std::int32_t type) {
  switch (type) {
    case kQ4_0:
    case kQ4_1:
    case kQ5_0:
    case kQ5_1:
    case kQ8_0:
    case kQ4_K:
    case kQ5_K:
    case kQ6_K:
    case kIQ4_NL:
      return quantised();
#ifdef GATEUP_HAVE_DENSE
    case kF32:
    case kF16:
    case kBF16:
      return dense();
#endif
    default:
      return nullptr;
  }
}

}  // namespace gateup
