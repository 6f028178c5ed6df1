#include "isa.hpp"

#include <atomic>
#include <cstdlib>
#include <stdexcept>

#if defined(GATEUP_HAVE_AVX2) || defined(GATEUP_HAVE_AVX512)
#include <cpuid.h>
#endif
#if defined(GATEUP_HAVE_AMX) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace gateup {
namespace {

constexpr const char* kNames[] = {"generic", "avx2", "avx512vnni", "avx512bf16", "amx"};

#ifdef GATEUP_HAVE_AVX2
bool has_avx2() {
  unsigned a, b, c, d;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & (1u << 29)) != 0;  // F16C
}
#endif

#ifdef GATEUP_HAVE_AVX512
bool has_vnni() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}

bool has_bf16() {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & (1u << 5)) != 0;
}
#endif

#ifdef GATEUP_HAVE_AMX
// Linux hands out the tiles' 8 KiB of state only to processes that ask.
bool has_amx() {
  unsigned a, b, c, d;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  const unsigned tile = 1u << 24, int8 = 1u << 25, bf16 = 1u << 22;
  if ((d & tile) == 0 || (d & int8) == 0 || (d & bf16) == 0) return false;
#ifdef __linux__
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#endif

bool usable(Isa isa) {
  switch (isa) {
    case Isa::kGeneric:
      return true;
    case Isa::kAvx2:
#ifdef GATEUP_HAVE_AVX2
      return has_avx2();
#else
      return false;
#endif
    case Isa::kAvx512Vnni:
#ifdef GATEUP_HAVE_AVX512
      return usable(Isa::kAvx2) && has_vnni();
#else
      return false;
#endif
    case Isa::kAvx512Bf16:
#ifdef GATEUP_HAVE_AVX512
      return usable(Isa::kAvx512Vnni) && has_bf16();
#else
      return false;
#endif
    case Isa::kAmx:
#ifdef GATEUP_HAVE_AMX
      return usable(Isa::kAvx512Bf16) && has_amx();
#else
      return false;
#endif
  }
  return false;
}

Isa named(const std::string& name) {
  std::string known;
  for (const Isa isa : usable_isas()) {
    if (name == isa_name(isa)) return isa;
    known += (known.empty() ? "" : ", ") + std::string(isa_name(isa));
  }
  throw std::invalid_argument("this processor or build has no instruction set " + name +
                              "; it has " + known);
}

std::atomic<int> g_isa{-1};

}  // namespace

const char* isa_name(Isa isa) { return kNames[static_cast<int>(isa)]; }

std::vector<Isa> usable_isas() {
  std::vector<Isa> found;
  for (int i = static_cast<int>(Isa::kAmx); i >= 0; --i) {
    if (usable(static_cast<Isa>(i))) found.push_back(static_cast<Isa>(i));
  }
  return found;
}

Isa current_isa() {
  int isa = g_isa.load();
  if (isa < 0) {
    const char* wish = std::getenv("GATEUP_ISA");
    isa = static_cast<int>(wish != nullptr && *wish != '\0' ? named(wish) : usable_isas().front());
    g_isa = isa;
  }
  return static_cast<Isa>(isa);
}

void use_isa(const std::string& name) { g_isa = static_cast<int>(named(name)); }

}  // namespace gateup
