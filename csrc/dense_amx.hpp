// The tile unit: 16 x 16 float32 sums of products of 32 pairs' worth of bfloat16 at a time.
//
// GCC's intrinsics tell the compiler nothing about the memory that tiles are read from and
// written to (GCC 12), so the instructions are written out here.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "amx_config.hpp"
#include "elementary.hpp"

#define GATEUP_TILE_LOAD(tile, address, stride)                                              \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(static_cast<const void*>(address)), \
                   "r"(static_cast<long>(stride))                                             \
                   : "memory")
#define GATEUP_TILE_STORE(tile, address, stride)                                        \
  __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(static_cast<void*>(address)), \
                   "r"(static_cast<long>(stride))                                       \
                   : "memory")
#define GATEUP_TILE_ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile ::: "memory")
#define GATEUP_TILE_BF16(sum, a, b) \
  __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #sum ::: "memory")

namespace {

constexpr int kTile = 16;  // rows of weights, and tokens, in a tile
constexpr int kStep = 32;  // bfloat16 numbers along k in a tile's row

// The tiles of this thread for `tokens` columns, until the end of the scope: 0-3 sums, 4 and 5
// weights [16 rows][32 k], 6 and 7 x [16 pairs of k][tokens][2].
class Tiles {
 public:
  explicit Tiles(int tokens) {
    TileConfig config;
    for (int i = 0; i < 8; ++i) {
      config.rows[i] = kTile;
      config.row_bytes[i] = static_cast<std::uint16_t>(i == 4 || i == 5 ? 64 : 4 * tokens);
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(config));
  }
  ~Tiles() { __asm__ volatile("tilerelease" ::: "memory"); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

// Rows become columns, of 16 x 16 numbers of 32 bits.
GATEUP_INLINE void transpose(__m512i r[16]) {
  __m512i t[16];
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  // Now 128-bit lane l of r[4q + c] holds rows 4q..4q+3 of column 4l + c.
  for (int c = 0; c < 4; ++c) {
    t[c] = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88);
    t[4 + c] = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xdd);
    t[8 + c] = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
    t[12 + c] = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xdd);
  }
  for (int c = 0; c < 4; ++c) {
    r[c] = _mm512_shuffle_i32x4(t[c], t[8 + c], 0x88);
    r[8 + c] = _mm512_shuffle_i32x4(t[c], t[8 + c], 0xdd);
    r[4 + c] = _mm512_shuffle_i32x4(t[4 + c], t[12 + c], 0x88);
    r[12 + c] = _mm512_shuffle_i32x4(t[4 + c], t[12 + c], 0xdd);
  }
}

GATEUP_INLINE __mmask16 first(std::int64_t n) {
  return n >= 16 ? 0xffffu : n <= 0 ? 0 : static_cast<__mmask16>((1u << n) - 1);
}

}  // namespace
