// What the kernels of every instruction set have in common: a chunk of unpacked weights, and the
// product of a tile of rows with it.
//
// Included by sources compiled several times: internal linkage, no standard templates.
#pragma once

#include "quant_input.hpp"

namespace gateup {
namespace {

constexpr int kChunkBlocks = 8;  // blocks of 32 along k that are unpacked at a time: 4 KiB of codes

// Weights of 16 rows and 256 along k, ready for dot products. For 16 weights to a scale, `scale`
// has two rows to a block.
struct alignas(64) Chunk {
  u8 codes[kChunkBlocks][512];  // [k / 4][row][k % 4]
  float scale[2 * kChunkBlocks][kPanel];
  float min[kChunkBlocks][kPanel];  // to be added
};

// Formats whose products are computed alike.
enum class Kind { kPlain, kMin, kSuperMin, kSuper16 };

constexpr Kind kind_of(const QuantFormat& f) {
  return f.sub_k == 16 ? Kind::kSuper16
         : f.super()   ? Kind::kSuperMin
         : f.has_min   ? Kind::kMin
                       : Kind::kPlain;
}

// Where a tile's rows stand: the input's arrays from one block on.
struct TileInput {
  const i8* codes;
  const float* scale;
  const float* sums;
  const i32* start;
  int lead;
};

GATEUP_INLINE TileInput tile_input(const Input& in, const QuantFormat& f, i64 tile, i64 block) {
  const i64 at = (tile * in.blocks + block) * in.lead;
  const i32* start = f.has_min ? nullptr : in.starts[start_index(f.offset)];
  return {in.codes + at * kBlockK,
          in.scale + tile * in.scales_per_tile() + (in.super ? block / 8 : block) * in.lead,
          in.sums + at, start == nullptr ? nullptr : start + at * (in.super ? 2 : 1), in.lead};
}

// Groups at `packed` -> `blocks` blocks of `chunk`.
using UnpackChunk = void (*)(const u8* packed, int blocks, Chunk& chunk);
// acc [rows of the tile][16] += the tile's rows times the chunk's weights.
using TileProduct = void (*)(const Chunk& chunk, const TileInput& in, int blocks, float* acc);

// A group's scales and minimums as float32, for blocks first.. of the chunk. The factors of a
// super-block are multiplied in here: the same product whoever uses the chunk.
template <int F>
GATEUP_INLINE void unpack_scales(const u8* group, int first, Chunk& chunk) {
  constexpr QuantFormat f = kFormats[F];
  constexpr int per_block = kBlockK / f.sub_k, scales = f.blocks() * per_block;
  if (!f.super()) {
    const Float16* scale = reinterpret_cast<const Float16*>(group + f.scale_at());
    const Float16* min = reinterpret_cast<const Float16*>(group + f.min_at());
    for (int i = 0; i < scales; ++i) {
      for (int c = 0; c < kPanel; ++c) {
        chunk.scale[first + i][c] = widen(scale[i * kPanel + c]);
        if (f.has_min) chunk.min[first + i][c] = widen(min[i * kPanel + c]);
      }
    }
    return;
  }
  const Float16* halves = reinterpret_cast<const Float16*>(group + f.d_at());
  float d[2 * kPanel];
  for (int i = 0; i < (f.has_min ? 2 : 1) * kPanel; ++i) d[i] = widen(halves[i]);
  const u8* whole = group + f.scale_at();
  for (int s = 0; s < scales; ++s) {
    for (int c = 0; c < kPanel; ++c) {
      const u8 w = whole[s * kPanel + c];
      const int factor = f.type == kQ6_K ? static_cast<i8>(w) : w;
      chunk.scale[s][c] = d[c] * static_cast<float>(factor);
    }
  }
  for (int b = 0; f.has_min && b < f.blocks(); ++b) {
    for (int c = 0; c < kPanel; ++c) {
      const int factor = group[f.min_at() + b * kPanel + c];
      chunk.min[b][c] = -(d[kPanel + c] * static_cast<float>(factor));
    }
  }
}

}  // namespace
}  // namespace gateup
