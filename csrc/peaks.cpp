#include "peaks.hpp"

#if defined(__AVX2__)
#include <immintrin.h>
#endif
#if defined(__AMX_INT8__)
#include "amx_config.hpp"
#endif

namespace gateup {
namespace GATEUP_ISA {
namespace {

using i64 = std::int64_t;

// Independent sums in flight: latency times throughput of a fused multiply-add is 8 to 10.
constexpr int kSums = 12;

// Keeps a result that nobody reads.
template <class T>
inline void keep(T& value) {
#if defined(__GNUC__)
#if defined(__x86_64__)
  asm volatile("" : "+x"(value));
#else
  asm volatile("" : : "m"(value));
#endif
#else
  static volatile T sink;
  sink = value;
#endif
}

#if defined(__AVX512F__)
using Vector = __m512;
inline Vector spread(float x) { return _mm512_set1_ps(x); }
inline Vector fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
#elif defined(__AVX2__)
using Vector = __m256;
inline Vector spread(float x) { return _mm256_set1_ps(x); }
inline Vector fma(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
#else
using Vector = float;
inline Vector spread(float x) { return x; }
inline Vector fma(Vector a, Vector b, Vector c) { return a * b + c; }
#endif

i64 fp32(i64 rounds) {
  Vector sums[kSums];
  for (Vector& s : sums) s = spread(0.0f);
  Vector a = spread(0.5f), b = spread(0.25f);
  for (i64 r = 0; r < rounds; ++r) {
    for (Vector& s : sums) s = fma(a, b, s);
    keep(a);
  }
  for (Vector& s : sums) keep(s);
  return rounds * kSums * static_cast<i64>(sizeof(Vector) / sizeof(float)) * 2;
}

#if defined(__AMX_INT8__)

// Eight whole tiles of 16 rows of 64 bytes.
constexpr TileConfig whole_tiles() {
  TileConfig c{};
  for (int t = 0; t < 8; ++t) {
    c.row_bytes[t] = 64;
    c.rows[t] = 16;
  }
  return c;
}

constexpr TileConfig kWholeTiles = whole_tiles();

void configure() {
  _tile_loadconfig(&kWholeTiles);
  alignas(64) static const std::uint8_t zeros[1024] = {};
  _tile_loadd(4, zeros, 64);
  _tile_loadd(5, zeros, 64);
  _tile_loadd(6, zeros, 64);
  _tile_loadd(7, zeros, 64);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

i64 int8(i64 rounds) {
  configure();
  for (i64 r = 0; r < rounds; ++r) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  _tile_release();
  return rounds * 4 * 16 * 16 * 64 * 2;
}

i64 bf16(i64 rounds) {
  configure();
  for (i64 r = 0; r < rounds; ++r) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return rounds * 4 * 16 * 16 * 32 * 2;
}

#else

#if defined(__AVX512VNNI__)
i64 int8(i64 rounds) {
  __m512i sums[kSums];
  for (__m512i& s : sums) s = _mm512_setzero_si512();
  __m512i a = _mm512_set1_epi8(1), b = _mm512_set1_epi8(2);
  for (i64 r = 0; r < rounds; ++r) {
    for (__m512i& s : sums) s = _mm512_dpbusd_epi32(s, a, b);
    keep(a);
  }
  for (__m512i& s : sums) keep(s);
  return rounds * kSums * 64 * 2;
}
#endif

#if defined(__AVX512BF16__)
i64 bf16(i64 rounds) {
  __m512 sums[kSums];
  for (__m512& s : sums) s = _mm512_setzero_ps();
  __m512i a = _mm512_set1_epi16(0x3f00), b = _mm512_set1_epi16(0x3e80);
  for (i64 r = 0; r < rounds; ++r) {
    for (__m512& s : sums) {
      s = _mm512_dpbf16_ps(s, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
    }
    keep(a);
  }
  for (__m512& s : sums) keep(s);
  return rounds * kSums * 32 * 2;
}
#endif

#endif  // AMX

i64 read(const std::uint8_t* data, i64 nbytes) {
#if defined(__AVX512F__)
  __m512i sums[4] = {};
  for (i64 i = 0; i < nbytes; i += 256) {
    for (int j = 0; j < 4; ++j) {
      sums[j] = _mm512_xor_si512(sums[j], _mm512_loadu_si512(data + i + 64 * j));
    }
  }
  for (__m512i& s : sums) keep(s);
#elif defined(__AVX2__)
  __m256i sums[4] = {};
  for (i64 i = 0; i < nbytes; i += 128) {
    for (int j = 0; j < 4; ++j) {
      const __m256i* from = reinterpret_cast<const __m256i*>(data + i + 32 * j);
      sums[j] = _mm256_xor_si256(sums[j], _mm256_loadu_si256(from));
    }
  }
  for (__m256i& s : sums) keep(s);
#else
  const std::uint64_t* words = reinterpret_cast<const std::uint64_t*>(data);
  std::uint64_t sum = 0;
  for (i64 i = 0; i < nbytes / 8; ++i) sum ^= words[i];
  volatile std::uint64_t sink = sum;
  (void)sink;
#endif
  return nbytes;
}

}  // namespace

const PeakKernels& peak_kernels() {
  static const PeakKernels kernels = {
      fp32,
#if defined(__AVX512BF16__) || defined(__AMX_BF16__)
      bf16,
#else
      nullptr,
#endif
#if defined(__AVX512VNNI__) || defined(__AMX_INT8__)
      int8,
#else
      nullptr,
#endif
      read};
  return kernels;
}

}  // namespace GATEUP_ISA
}  // namespace gateup
