// What the kernels of every instruction set have in common: a chunk of unpacked weights, and the
// product of a tile of rows with it.
//
// Included by sources compiled several times: internal linkage, no standard templates.
#pragma once

#include "quant_input.hpp"

namespace gateup {
namespace {

// Weights of 16 rows and 256 along k, which are unpacked at a time: ready for dot products.
//
// K-quants keep their whole numbers, whose sums of products are exact (see super_row): a scale for
// each sub-block, two to a block for Q6_K. The other formats have a scale for each block.
struct alignas(64) Chunk {
  u8 codes[kChunkBlocks][512];  // [k / 4][row][k % 4]
  u8 more[kChunkBlocks][512];   // a second part of each weight (quant_amx.hpp)
  float scale[2 * kChunkBlocks][kPanel];
  float min[kChunkBlocks][kPanel];
  u32 pairs[16][kPanel];  // K-quants' minimums as bfloat16, each twice; 8 rows of zeros (AMX)
  float d[kPanel], dmin[kPanel];  // of a super-block: its scale; its minimums' scale, negative
};

// Formats whose products are computed alike.
enum class Kind { kPlain, kMin, kSuper4, kSuper5, kSuper16 };

constexpr bool has_min(Kind k) {
  return k == Kind::kMin || k == Kind::kSuper4 || k == Kind::kSuper5;
}

constexpr Kind kind_of(const QuantFormat& f) {
  return f.sub_k == 16 ? Kind::kSuper16
         : f.super()   ? (f.bits == 4 ? Kind::kSuper4 : Kind::kSuper5)
         : f.has_min   ? Kind::kMin
                       : Kind::kPlain;
}

// Where a tile's rows stand: the input's arrays from one block on.
struct TileInput {
  const i8* codes;
  const float* scale;
  const float* sums;
  const i32* start;
  const u16* parts;
  int lead;
  bool wide;  // codes of 8 bits, not of 6 at most
};

GATEUP_INLINE TileInput tile_input(const Input& in, const QuantFormat& f, i64 tile, i64 block) {
  const i64 at = in.at(tile, block) * in.lead;
  const i32* start = f.has_min ? nullptr : in.starts[start_index(f.offset)];
  return {in.codes_at(tile, 0, block), in.scale + in.scale_at(tile, block) * in.lead,
          in.sums + at, start == nullptr ? nullptr : start + at * (in.super ? 2 : 1),
          in.parts == nullptr ? nullptr : in.parts + in.scale_at(tile, block) * in.lead * kPartK,
          in.lead, f.offset == 128};
}

// The packed weights of a panel's next chunk: fetched into the second-level cache, a few lines at a
// block, while tiles are multiplied.
struct Ahead {
  const u8 *weights, *end;  // what is left of them
  int lines;                // to a block
};

// The same for the tile after it: within a chunk one follows the other.
GATEUP_INLINE TileInput next_tile(const TileInput& in, int blocks, bool super) {
  TileInput next = in;
  next.codes += blocks * in.lead * kBlockK;
  next.scale += (super ? 1 : blocks) * in.lead;
  next.sums += blocks * in.lead;
  if (in.start != nullptr) next.start += blocks * in.lead * (super ? 2 : 1);
  if (in.parts != nullptr) next.parts += in.lead * kPartK;
  return next;
}

// Groups at `packed` -> `blocks` blocks of `chunk`; what lies `ahead` bytes further on is fetched.
using UnpackChunk = void (*)(const u8* packed, int blocks, int ahead, Chunk& chunk);
// acc [tile][panel][rows of the tile][16] += tiles of rows, of which `in` is the first, times the
// chunks' weights, one a panel.
using TileProduct = void (*)(const Chunk* chunks, int panels, const TileInput& in, i64 tiles,
                             int blocks, Ahead* ahead, float* acc);

// What follows in memory's stream: a panel's end, and where the panel after it begins.
struct Fetch {
  const u8* end;
  const u8* next;
};

// acc [rows][16] = the rows of a single tile times a panel, without a chunk in between.
using StreamPanel = void (*)(const u8* panel, const Fetch& fetch, const TileInput& in, float* acc);

// A group's scales and minimums as float32, for blocks first.. of the chunk.
template <int F>
GATEUP_INLINE void unpack_scales(const u8* group, int first, Chunk& chunk) {
  constexpr QuantFormat f = kFormats[F];
  constexpr int scales = f.group_k() / f.sub_k;
  const u8* whole = group + f.scale_at();
  const Float16* scale = reinterpret_cast<const Float16*>(whole);
  const Float16* min = reinterpret_cast<const Float16*>(group + f.min_at());
  for (int s = 0; s < scales; ++s) {
    for (int c = 0; c < kPanel; ++c) {
      const int at = s * kPanel + c;
      if (f.super()) {
        const int number = f.type == kQ6_K ? static_cast<i8>(whole[at]) : whole[at];
        chunk.scale[s][c] = static_cast<float>(number);
        if (f.has_min) chunk.min[s][c] = static_cast<float>(group[f.min_at() + at]);
      } else {
        chunk.scale[first + s][c] = widen(scale[at]);
        if (f.has_min) chunk.min[first + s][c] = widen(min[at]);
      }
    }
  }
  if (!f.super()) return;
  const Float16* factors = reinterpret_cast<const Float16*>(group + f.d_at());
  for (int c = 0; c < kPanel; ++c) {
    chunk.d[c] = widen(factors[c]);
    if (f.has_min) chunk.dmin[c] = -widen(factors[kPanel + c]);
  }
}

}  // namespace
}  // namespace gateup
