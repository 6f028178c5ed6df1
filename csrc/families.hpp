// The quantised kernels behind matrix_kernels(), for every instruction set they are built for.
#pragma once

#include "matrix.hpp"

namespace gateup {

#define GATEUP_FAMILIES(isa)              \
  namespace isa {                         \
  const MatrixKernels& quant_kernels();   \
  }

GATEUP_FAMILIES(generic)
GATEUP_FAMILIES(avx2)
GATEUP_FAMILIES(avx512vnni)
GATEUP_FAMILIES(avx512bf16)
GATEUP_FAMILIES(amx)
#undef GATEUP_FAMILIES

}  // namespace gateup
