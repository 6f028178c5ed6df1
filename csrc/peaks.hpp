// What one core reaches at best: loops of nothing but the instruction that counts.
#pragma once

#include <cstdint>

namespace gateup {

// Each runs `rounds` rounds and returns the operations done (a multiply-add is two) or the bytes
// read; nullptr where the instruction set has no such instruction.
struct PeakKernels {
  std::int64_t (*fp32)(std::int64_t rounds);
  std::int64_t (*bf16)(std::int64_t rounds);
  std::int64_t (*int8)(std::int64_t rounds);
  // The bytes at `data`, a multiple of 4 KiB; their sum goes nowhere.
  std::int64_t (*read)(const std::uint8_t* data, std::int64_t nbytes);
};

namespace generic {
const PeakKernels& peak_kernels();
}
#ifdef GATEUP_HAVE_AVX2
namespace avx2 {
const PeakKernels& peak_kernels();
}
#endif
#ifdef GATEUP_HAVE_AVX512
namespace avx512vnni {
const PeakKernels& peak_kernels();
}
namespace avx512bf16 {
const PeakKernels& peak_kernels();
}
#endif
#ifdef GATEUP_HAVE_AMX
namespace amx {
const PeakKernels& peak_kernels();
}
#endif

}  // namespace gateup
