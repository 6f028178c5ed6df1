// Activations quantised to int8, in the order in which the tile kernels read them.
//
// A scale serves 32 elements of a row (for the formats with blocks of 32) or 256 (K-quants), as
// in ggml's q8_0 and q8_K; it stays float32. Rows form tiles of `lead` rows (1, 2, 4, 8 or 16;
// rows beyond the last are zero). Everything is stored in the order in which it is read: a chunk of
// 8 blocks along k, in it tile by tile. With whole
// rows apart instead, a batch of 256 rows takes 2 to 6% longer.
//
// Included by sources compiled several times: internal linkage, no standard templates.
#pragma once

#include <cstdint>
#include <cstring>

#include "act_and_mul.hpp"
#include "elementary.hpp"
#include "quant_format.hpp"

namespace gateup {
namespace {

using i8 = std::int8_t;
using u8 = std::uint8_t;
using u16 = std::uint16_t;
using i64 = std::int64_t;

// Offsets of codes (QuantFormat::offset) whose product with the sum of a block's activations is
// wanted: an integer dot product starts at it.
constexpr int kOffsets[] = {8, 16, 128, 32};
constexpr int kStarts = 4;

constexpr int start_index(int offset) {
  for (int i = 0; i < kStarts; ++i) {
    if (kOffsets[i] == offset) return i;
  }
  return -1;
}

constexpr int kChunkBlocks = 8;

struct Input {
  bool super;       // scales for 256, otherwise for 32
  int terms;        // rows that stand for one row of activations: 1 or 2 (Matrix::terms)
  int lead;         // rows of a tile; a multiple of `terms`
  i64 rows, tiles;  // `terms` times the activations' rows
  i64 blocks;       // of 32 along k; even, and a multiple of 8 where super
  i8* codes;        // [chunk][tile][block][lead][32], where super …[block / 2][lead][64]
  float* scale;     // [chunk][tile][block unless super][lead]
  float* sums;      // [chunk][tile][block][lead]: of codes; unless super times the scale
  // [chunk][tile][lead][32] bfloat16, where super and a format with minimums multiplies with AMX:
  // the 8 blocks' sums in two parts each, a multiple of 256 and the rest; 16 zeros. Or nullptr.
  u16* parts;
  i32* starts[kStarts];  // [chunk][tile][sub-block][lead]: -offset · sum of codes, or nullptr

  // The place of a block; of a scale.
  i64 at(i64 tile, i64 block) const {
    const i64 first = block / kChunkBlocks * kChunkBlocks, left = blocks - first;
    return first * tiles + tile * (left < kChunkBlocks ? left : kChunkBlocks) + block - first;
  }
  i64 scale_at(i64 tile, i64 block) const {
    return super ? block / kChunkBlocks * tiles + tile : at(tile, block);
  }
  i8* codes_at(i64 tile, int r, i64 block) const {
    if (!super) return codes + (at(tile, block) * lead + r) * kBlockK;
    return codes + (at(tile, block / 2 * 2) * lead + 2 * r + block % 2) * kBlockK;
  }
};

constexpr int kPartK = 32;  // numbers in a row of Input::parts

#if defined(__AMX_INT8__)
constexpr bool kSumsInParts = true;
#else
constexpr bool kSumsInParts = false;
#endif

// Rows of a tile: as few as hold t, so that one token pays for one.
GATEUP_INLINE int lead_of(i64 t) { return t <= 1 ? 1 : t <= 2 ? 2 : t <= 4 ? 4 : t <= 8 ? 8 : 16; }

GATEUP_INLINE i64 padded_blocks(i64 k) { return (k + 2 * kBlockK - 1) / (2 * kBlockK) * 2; }

// What a format asks of its input, as bits: 1 << start index, and kWantSums.
constexpr unsigned kWantSums = 1u << kStarts;

GATEUP_INLINE unsigned wants_of(const QuantFormat& f) {
  return f.has_min ? kWantSums : 1u << start_index(f.offset);
}

GATEUP_INLINE std::size_t input_bytes(bool super, i64 rows, i64 k) {
  const int lead = lead_of(rows);
  const i64 padded = (rows + lead - 1) / lead * lead, blocks = padded_blocks(k);
  const i64 numbers = blocks * (super ? 1 + 1 + 2 + 2 : 1 + 1 + 3);
  return static_cast<std::size_t>(padded * (blocks * kBlockK + numbers * 4) + 64 * 8);
}

GATEUP_INLINE u8* carve(u8*& at, i64 bytes) {
  u8* found = at;
  at += (bytes + 63) / 64 * 64;
  return found;
}

// Lays an Input of `rows` rows of k elements into memory of input_bytes().
GATEUP_INLINE Input make_input(u8* memory, bool super, int terms, i64 rows, i64 k,
                               unsigned wants) {
  Input in{};
  in.super = super;
  in.terms = terms;
  in.lead = lead_of(rows);
  in.rows = rows;
  in.tiles = (rows + in.lead - 1) / in.lead;
  in.blocks = padded_blocks(k);
  const i64 padded = in.tiles * in.lead;
  in.codes = reinterpret_cast<i8*>(carve(memory, padded * in.blocks * kBlockK));
  const i64 scales = padded * in.blocks / (super ? kChunkBlocks : 1);
  in.scale = reinterpret_cast<float*>(carve(memory, scales * 4));
  in.sums = reinterpret_cast<float*>(carve(memory, padded * in.blocks * 4));
  if (kSumsInParts && super && in.lead == 16 && (wants & kWantSums) != 0) {
    const i64 numbers = padded * in.blocks / kChunkBlocks * kPartK;
    in.parts = reinterpret_cast<u16*>(carve(memory, numbers * 2));
  }
  for (int i = 0; i < kStarts; ++i) {
    if ((wants >> i & 1) == 0) continue;
    in.starts[i] = reinterpret_cast<i32*>(carve(memory, padded * in.blocks * (super ? 8 : 4)));
  }
  return in;
}

// ---- one block of one row -------------------------------------------------------------------

GATEUP_INLINE u32 largest_bits(const float* x, int n) {
  u32 largest = 0;
  for (int i = 0; i < n; ++i) {
    const u32 magnitude = bits_of(x[i]) & 0x7fffffffu;
    largest = largest > magnitude ? largest : magnitude;
  }
  return largest;
}

struct Scale {
  float scale, inverse;
};

// 127 steps to the largest magnitude. An infinity or NaN makes the scale NaN, and so every result
// of the block; magnitudes below 2^-100, whose inverse would overflow, count as zero.
GATEUP_INLINE Scale scale_of(u32 largest) {
  if (largest >= 0x7f800000u) return {float_of(0x7fc00000u), 0.0f};
  if (largest < (27u << 23)) return {0.0f, 0.0f};
  const float amax = float_of(largest);
  return {amax / 127.0f, 127.0f / amax};
}

// Rounds to nearest even by adding 1.5·2^23; `sums` gets the sum of each 16.
GATEUP_INLINE void quantise32(const float* __restrict x, float inverse, i8* __restrict codes,
                              i32* __restrict sums) {
  for (int half = 0; half < 2; ++half) {
    i32 sum = 0;
    for (int i = 16 * half; i < 16 * half + 16; ++i) {
      const i32 q = static_cast<i32>(bits_of(x[i] * inverse + 12582912.0f) - 0x4b400000u);
      const i8 code = static_cast<i8>(q);
      codes[i] = code;
      sum += code;
    }
    sums[half] = sum;
  }
}

// bfloat16 of a whole number with 8 significant bits at most.
GATEUP_INLINE u16 brief(i32 whole) {
  return static_cast<u16>(bits_of(static_cast<float>(whole)) >> 16);
}

// `x` holds one row's 32 elements (super: 256) from block `block` on; row `r` of tile `tile`.
static void quantise_block(const Input& in, i64 tile, int r, i64 block, const float* x) {
  const int n = in.super ? 8 : 1;
  const Scale s = scale_of(largest_bits(x, n * kBlockK));
  const i64 scale_at = in.scale_at(tile, block) * in.lead + r;
  in.scale[scale_at] = s.scale;
  u16* parts = in.parts == nullptr ? nullptr : in.parts + scale_at * kPartK;
  if (parts != nullptr) std::memset(parts, 0, 2 * kPartK);
  for (int b = 0; b < n; ++b) {
    const i64 place = in.at(tile, block + b), at = place * in.lead + r;
    i32 sums[2];
    quantise32(x + b * kBlockK, s.inverse, in.codes_at(tile, r, block + b), sums);
    const i32 sum = sums[0] + sums[1];
    in.sums[at] = in.super ? static_cast<float>(sum) : s.scale * static_cast<float>(sum);
    if (parts != nullptr) {
      const i32 rest = static_cast<i8>(sum);
      parts[2 * b] = brief(sum - rest);
      parts[2 * b + 1] = brief(rest);
    }
    for (int i = 0; i < kStarts; ++i) {
      if (in.starts[i] == nullptr) continue;
      if (in.super) {
        in.starts[i][2 * place * in.lead + r] = -kOffsets[i] * sums[0];
        in.starts[i][(2 * place + 1) * in.lead + r] = -kOffsets[i] * sums[1];
      } else {
        in.starts[i][at] = -kOffsets[i] * sum;
      }
    }
  }
}

// The same for `terms` rows from `r` on that stand for one: each but the first is what the ones
// before it leave. Overwrites x.
static void quantise_terms(const Input& in, i64 tile, int r, i64 block, float* x) {
  quantise_block(in, tile, r, block, x);
  if (in.terms == 1) return;
  const int n = in.super ? 8 : 1;
  const float scale = in.scale[in.scale_at(tile, block) * in.lead + r];
  for (int b = 0; b < n; ++b) {
    const i8* codes = in.codes_at(tile, r, block + b);
    for (int i = 0; i < kBlockK; ++i) {
      x[b * kBlockK + i] = fmadd(-scale, static_cast<float>(codes[i]), x[b * kBlockK + i]);
    }
  }
  quantise_block(in, tile, r + 1, block, x);
}

GATEUP_INLINE void zero_block(const Input& in, i64 tile, int r, i64 block) {
  float zeros[kSuperK];
  for (int i = 0; i < kSuperK; ++i) zeros[i] = 0.0f;
  quantise_block(in, tile, r, block, zeros);
}

// Rows beyond the last, and the block that evens out their number.
static void zero_padding(const Input& in, i64 tile, i64 k) {
  const int step = in.super ? 8 : 1;
  const i64 left = in.rows - tile * in.lead;
  for (int r = 0; r < in.lead; ++r) {
    for (i64 b = r < left ? k / kBlockK : 0; b < in.blocks; b += step) zero_block(in, tile, r, b);
  }
}

// ---- rows -----------------------------------------------------------------------------------

template <class T>
void widen_all(const char* from, i64 index, float* __restrict to, int n) {
  const T* p = reinterpret_cast<const T*>(from) + index;
  for (int i = 0; i < n; ++i) to[i] = widen(p[i]);
}

using WidenAll = void (*)(const char*, i64, float*, int);

// In the order of enum DType.
constexpr WidenAll kWidenAll[] = {widen_all<float>, widen_all<BFloat16>, widen_all<Float16>};

// Tile `tile` of x, whose row 0 is the input's; k elements.
static void quantise_tile(const Input& in, const Rows& x, i64 k, i64 tile) {
  alignas(64) float block[kSuperK];
  const int n = in.super ? kSuperK : kBlockK;
  const WidenAll widen_block = kWidenAll[x.dtype];
  for (int r = 0; r < in.lead && tile * in.lead + r < in.rows; r += in.terms) {
    const i64 row = (tile * in.lead + r) / in.terms * x.stride;
    for (i64 at = 0; at < k; at += n) {
      widen_block(x.data, row + at, block, n);
      quantise_terms(in, tile, r, at / kBlockK, block);
    }
  }
  zero_padding(in, tile, k);
}

}  // namespace
}  // namespace gateup
