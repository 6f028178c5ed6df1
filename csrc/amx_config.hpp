// What the tiles of AMX are configured with: 64 bytes, as `ldtilecfg` reads them.
//
// GCC 12's _tile_loadconfig knows of 8 of them and drops stores to the others: a configuration that
// it loads must be a constant.
#pragma once

#include <cstdint>

namespace {

struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

}  // namespace
