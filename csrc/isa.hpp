// Which instruction set runs: what this build was compiled for, this processor and this operating
// system have, and the environment variable GATEUP_ISA allows.
#pragma once

#include <string>
#include <vector>

namespace gateup {

// From the plainest to the widest; each includes the ones before it.
enum class Isa : int {
  kGeneric = 0,
  kAvx2 = 1,        // AVX2, FMA, F16C
  kAvx512Vnni = 2,  // AVX-512 F, BW, VL, DQ and VNNI: int8 dot products
  kAvx512Bf16 = 3,  // and BF16: bfloat16 dot products
  kAmx = 4,         // and AMX tiles for int8 and bfloat16, where the kernel grants them
};

// "generic", "avx2", "avx512vnni", "avx512bf16", "amx".
const char* isa_name(Isa isa);

// What can run here, the widest first; always ends with kGeneric.
std::vector<Isa> usable_isas();

// The one in use: the widest usable, or the one that GATEUP_ISA or use_isa named.
// Throws std::invalid_argument for a GATEUP_ISA that is unknown or cannot run here.
Isa current_isa();

// Use another of usable_isas() from now on; throws std::invalid_argument for any other name.
void use_isa(const std::string& name);

}  // namespace gateup
