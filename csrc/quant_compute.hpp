// From packed panels and quantised rows to float32, and from there to results: what linear and
// gated MLP are made of.
#pragma once

#include "activations.hpp"
#if defined(__AMX_INT8__)
#include "quant_amx.hpp"
#include "quant_stream.hpp"
#elif defined(__AVX512VNNI__)
#include "quant_stream.hpp"
#else
#include "quant_plain.hpp"
#endif

namespace gateup {
namespace {

constexpr int kMaxPanels = 4;  // unpacked side by side, 4 to 9 KiB each; 2 or 8 are no faster
constexpr i64 kBatch = 256;    // rows

GATEUP_INLINE i64 smaller(i64 a, i64 b) { return a < b ? a : b; }

constexpr int kFormatCount = sizeof kFormats / sizeof kFormats[0];

// A format's kernels by the rows of a tile: 1, 2, 4, 8, 16. Where there is a `stream`, the others
// are not needed.
struct FormatKernels {
  UnpackChunk unpack[5];
  TileProduct tile[5];
  StreamPanel stream[5];
};

template <int F>
constexpr FormatKernels kernels_of() {
  constexpr Kind k = kind_of(kFormats[F]);
#if defined(__AMX_INT8__)
  constexpr bool super = kFormats[F].super();
  return {{nullptr, nullptr, nullptr, nullptr,
           super ? unpack_split<F> : unpack_chunk512<F, Codes::kSigned>},
          {nullptr, nullptr, nullptr, nullptr, super ? tile_super_amx<k> : tile_blocks_amx<k>},
          {stream512<F, 1>, stream512<F, 2>, stream512<F, 4>, stream512<F, 8>}};
#elif defined(__AVX512VNNI__)
  return {{nullptr, nullptr, nullptr, nullptr, unpack_chunk512<F, Codes::kUnsigned>},
          {nullptr, nullptr, nullptr, nullptr, tile_product512<k>},
          {stream512<F, 1>, stream512<F, 2>, stream512<F, 4>, stream512<F, 8>}};
#else
  constexpr UnpackChunk unpack = unpack_chunk<F>;
  return {{unpack, unpack, unpack, unpack, unpack},
          {tile_product<k, 1>, tile_product<k, 2>, tile_product<k, 4>, tile_product<k, 8>,
           tile_product<k, 16>},
          {}};
#endif
}

#if !defined(__AMX_INT8__)
GATEUP_INLINE void tiles_begin(const QuantFormat&) {}
GATEUP_INLINE void tiles_end() {}
#endif

// In the order of kFormats.
constexpr FormatKernels kKernels[] = {kernels_of<0>(), kernels_of<1>(), kernels_of<2>(),
                                      kernels_of<3>(), kernels_of<4>(), kernels_of<5>(),
                                      kernels_of<6>(), kernels_of<7>(), kernels_of<8>()};
static_assert(sizeof kKernels / sizeof kKernels[0] == kFormatCount, "one entry a format");

GATEUP_INLINE int lead_index(int lead) { return lead == 16 ? 4 : lead == 8 ? 3 : lead / 2; }

// acc [tile][panel][row][16] = the tiles times panels [panel, panel + panels) of w.
void multiply_together(const Matrix& w, i64 panel, int panels, const Input& in, i64 tile, i64 last,
                       Chunk* chunks, float* acc) {
  const QuantFormat& f = *quant_format(w.type);
  const FormatKernels& kernels = kKernels[&f - kFormats];
  const TileProduct product = kernels.tile[lead_index(in.lead)];
  const UnpackChunk unpack = kernels.unpack[lead_index(in.lead)];
  const i64 apart = panel_bytes(f, w.k), tile_size = in.lead * kPanel;
  std::memset(acc, 0, static_cast<std::size_t>((last - tile) * panels * tile_size) * sizeof(float));
  // A single tile leaves no time to fetch the next chunk: its weights are fetched while they are
  // unpacked. With more tiles they have come to the second-level cache by then.
  const i64 tiles = last - tile;
  const int distance = tiles > 1 ? 1024 : f.bits == 8 ? 4096 : 2048;
  const i64 bytes = kChunkBlocks / f.blocks() * f.group_bytes();
  for (i64 block = 0; block < in.blocks; block += kChunkBlocks) {
    const int blocks = static_cast<int>(smaller(kChunkBlocks, in.blocks - block));
    const bool more = block + kChunkBlocks < in.blocks;
    const int lines = static_cast<int>((bytes / 64 + tiles * blocks - 1) / (tiles * blocks));
    Ahead ahead[kMaxPanels];
    for (int p = 0; p < panels; ++p) {
      const u8* packed = w.data + (panel + p) * apart + block / f.blocks() * f.group_bytes();
      unpack(packed, blocks, distance, chunks[p]);
      const u8* next = more ? packed + bytes : w.data + (panel + panels + p) * apart;
      ahead[p] = {next, tiles > 1 ? next + bytes : next, lines};
    }
    const TileInput rows = tile_input(in, f, tile, block);
    product(chunks, panels, rows, tiles, blocks, ahead, acc);
  }
}

// How a single tile of so few rows streams w; nullptr: by chunks.
StreamPanel stream_of(const Matrix& w, const Input& in) {
  return kKernels[quant_format(w.type) - kFormats].stream[lead_index(in.lead)];
}

const u8* panel_at(const Matrix& w, i64 panel) {
  return w.data + panel * panel_bytes(*quant_format(w.type), w.k);
}

// acc [panel][row][16] = the only tile times panels of w; at `next` begins what is read then.
void multiply_stream(StreamPanel stream, const Matrix& w, i64 panel, int panels, const Input& in,
                     const u8* next, float* acc) {
  const TileInput rows = tile_input(in, *quant_format(w.type), 0, 0);
  for (int p = 1; p <= panels; ++p, acc += in.lead * kPanel) {
    const u8* end = panel_at(w, panel + p);
    stream(panel_at(w, panel + p - 1), {end, p < panels ? end : next}, rows, acc);
  }
}

// The same; a single tile takes one panel after another, so that memory sees one stream.
void multiply(const Matrix& w, i64 panel, int panels, const Input& in, i64 tile, i64 last,
              Chunk* chunks, float* acc) {
  if (const StreamPanel stream = stream_of(w, in)) {
    multiply_stream(stream, w, panel, panels, in, panel_at(w, panel + panels), acc);
    return;
  }
  const int step = last - tile == 1 ? 1 : panels;
  tiles_begin(*quant_format(w.type));
  for (int p = 0; p < panels; p += step, acc += in.lead * kPanel) {
    multiply_together(w, panel + p, step, in, tile, last, chunks, acc);
  }
  tiles_end();
}

// The rows that stand for one, added: lead / terms rows are left at the front of acc [lead][16].
void add_terms(float* acc, const Input& in) {
  if (in.terms == 1) return;
  for (i64 row = 0; row < in.lead / 2; ++row) {
    for (int c = 0; c < kPanel; ++c) {
      acc[row * kPanel + c] = acc[2 * row * kPanel + c] + acc[(2 * row + 1) * kPanel + c];
    }
  }
}

// ---- results --------------------------------------------------------------------------------

template <class T>
void narrow_all(const float* __restrict from, char* to, i64 index, int n) {
  T* p = reinterpret_cast<T*>(to) + index;
  for (int i = 0; i < n; ++i) narrow(from[i], p[i]);
}

using NarrowAll = void (*)(const float*, char*, i64, int);

// In the order of enum DType.
constexpr NarrowAll kNarrowAll[] = {narrow_all<float>, narrow_all<BFloat16>,
                                    narrow_all<Float16>};

void add_bias(float* acc, i64 rows, const float* bias, i64 column) {
  if (bias == nullptr) return;
  for (i64 row = 0; row < rows; ++row) {
    for (int c = 0; c < kPanel; ++c) acc[row * kPanel + c] += bias[column + c];
  }
}

// acc [rows][16] as columns [column, column + 16) of y, as far as it has them.
void store_panel(const float* acc, i64 rows, i64 column, i64 n, const float* bias, const Rows& y) {
  const int columns = static_cast<int>(smaller(kPanel, n - column));
  const NarrowAll narrow_row = kNarrowAll[y.dtype];
  for (i64 row = 0; row < rows; ++row) {
    float sum[kPanel];
    for (int c = 0; c < kPanel; ++c) sum[c] = acc[row * kPanel + c];
    for (int c = 0; bias != nullptr && c < columns; ++c) sum[c] += bias[column + c];
    narrow_row(sum, y.data, row * y.stride + column, columns);
  }
}

// h [row][apart] = act(gate) ⊙ up for 16 columns.
using ActBlock = void (*)(const float* gate, const float* up, i64 rows, float* h, i64 apart);

template <class A>
void act_block(const float* __restrict gate, const float* __restrict up, i64 rows,
               float* __restrict h, i64 apart) {
  for (i64 row = 0; row < rows; ++row) {
    for (int c = 0; c < kPanel; ++c) {
      const i64 i = row * kPanel + c;
      h[row * apart + c] = A::value(gate[i]) * A::factor(up[i]);
    }
  }
}

// In the order of enum Act.
constexpr ActBlock kActBlocks[kActs] = {
    act_block<Silu>,  act_block<Gelu>,    act_block<GeluTanh>, act_block<Relu>,
    act_block<Relu2>, act_block<Sigmoid>, act_block<Identity>, act_block<GptOss>,
};

}  // namespace
}  // namespace gateup
