// Which kernels serve a type of weights on the instruction set in use.
#include "matrix.hpp"

#include "dense.hpp"
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
    case kF32:
    case kF16:
    case kBF16:
      return &dense_matrix_kernels();
    default:
      return nullptr;
  }
}

}  // namespace gateup
