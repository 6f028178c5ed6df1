// Quantised linear and gated MLP for the instruction set GATEUP_ISA is compiled for.
//
// Rows are taken in batches of at most kBatch, which bounds the memory of a call. Within a batch
// a piece of work is a few panels (16 columns) of the result for all rows: chunk by chunk along k
// the weights are unpacked into the first-level cache and multiplied with every tile of rows.
#include "families.hpp"
#include "parallel.hpp"
#include "quant_compute.hpp"
#include "scratch.hpp"

namespace gateup {
namespace GATEUP_ISA {
namespace {

enum Slot { kInput32, kInput256, kHidden, kWorkers };

constexpr i64 kMaxProducts = 32;

// Up to this number of activations the calling thread quantises alone: at 0.65 ns each, that is
// no longer than a parallel loop's own beginning and end.
constexpr i64 kSerial = 1 << 12;

// ---- the batch's activations ----------------------------------------------------------------

struct Quantising {
  const Input& in;
  const Rows& x;
  i64 k;
};

void quantise_tiles(void* context, i64 begin, i64 end) {
  const Quantising& q = *static_cast<const Quantising*>(context);
  for (i64 tile = begin; tile < end; ++tile) quantise_tile(q.in, q.x, q.k, tile);
}

Input quantise(Slot slot, bool super, int terms, const Rows& x, i64 rows, i64 k, unsigned wants,
               int threads) {
  const i64 lines = terms * rows;
  const Input in =
      make_input(scratch(slot, input_bytes(super, lines, k)), super, terms, lines, k, wants);
  Quantising q{in, x, k};
  parallel_for(in.tiles, rows * k <= kSerial ? 1 : threads, quantise_tiles, &q);
  return in;
}

Rows from_row(const Rows& rows, i64 row) {
  return {rows.data + row * rows.stride * (rows.dtype == kFloat32 ? 4 : 2), rows.stride,
          rows.dtype};
}

GATEUP_INLINE int terms_of(const Matrix& w) { return w.terms == 2 ? 2 : 1; }

// x in the forms that the matrices need: by 32, by 256, or both.
struct Inputs {
  Input by32, by256;
  const Input& of(const Matrix& w) const { return quant_format(w.type)->super() ? by256 : by32; }
};

Inputs quantise_for(const Matrix* const* w, int count, const Rows& x, i64 rows, int threads) {
  unsigned wants[2] = {0, 0};
  bool used[2] = {false, false};
  for (int i = 0; i < count; ++i) {
    const QuantFormat& f = *quant_format(w[i]->type);
    wants[f.super()] |= wants_of(f);
    used[f.super()] = true;
  }
  Inputs in{};
  const i64 k = w[0]->k;
  const int terms = terms_of(*w[0]);
  if (used[0]) in.by32 = quantise(kInput32, false, terms, x, rows, k, wants[0], threads);
  if (used[1]) in.by256 = quantise(kInput256, true, terms, x, rows, k, wants[1], threads);
  return in;
}

// ---- linear -----------------------------------------------------------------------------------

struct LinearJob {
  const Product* products;
  int count;
  const Inputs* in;
  i64 row;                     // of the batch's first
  i64 first[kMaxProducts + 1];  // pieces of work before each product
  i64 tiles_apart;             // tiles in a piece
  int panels_apart;            // panels in a piece
  Pieces workers;
};

void linear_piece(const LinearJob& job, const Product& p, i64 piece, float* acc, Chunk* chunks) {
  const Input& in = job.in->of(p.w);
  const i64 tile_pieces = (in.tiles + job.tiles_apart - 1) / job.tiles_apart;
  const i64 panel = piece / tile_pieces * job.panels_apart;
  const i64 tile = piece % tile_pieces * job.tiles_apart;
  const i64 last_tile = smaller(tile + job.tiles_apart, in.tiles);
  const int panels = static_cast<int>(smaller(job.panels_apart, panels_of(p.w.n) - panel));
  multiply(p.w, panel, panels, in, tile, last_tile, chunks, acc);
  for (i64 t = tile; t < last_tile; ++t) {
    const i64 row = t * in.lead / in.terms;
    const i64 rows = smaller(in.lead, in.rows - t * in.lead) / in.terms;
    const Rows y = from_row(p.y, job.row + row);
    for (int i = 0; i < panels; ++i, acc += in.lead * kPanel) {
      add_terms(acc, in);
      store_panel(acc, rows, (panel + i) * kPanel, p.w.n, p.bias, y);
    }
  }
}

void linear_part(void* context, i64 begin, i64 end) {
  LinearJob& job = *static_cast<LinearJob*>(context);
  u8* piece = take(job.workers);
  Chunk* chunks = reinterpret_cast<Chunk*>(piece);
  float* acc = reinterpret_cast<float*>(piece + kMaxPanels * sizeof(Chunk));
  int p = 0;
  for (i64 i = begin; i < end; ++i) {
    while (i >= job.first[p + 1]) ++p;
    linear_piece(job, job.products[p], i - job.first[p], acc, chunks);
  }
  give_back(job.workers, piece);
}

// Pieces of work: several panels, so that a tile of activations is read once for all of them;
// fewer where there would be too few pieces for the threads; rows apart where still too few.
void share(LinearJob& job, i64 tiles, int threads) {
  i64 panels = 0;
  for (int i = 0; i < job.count; ++i) panels += panels_of(job.products[i].w.n);
  const i64 wanted = 6 * static_cast<i64>(threads);
  job.panels_apart = tiles > 1 ? kMaxPanels : 1;
  while (job.panels_apart > 1 && panels / job.panels_apart < wanted) job.panels_apart /= 2;
  job.tiles_apart = tiles;
  if (threads > 1 && panels / job.panels_apart < wanted) {
    const i64 parts = (wanted * job.panels_apart + panels - 1) / panels;
    job.tiles_apart = (tiles + parts - 1) / parts;
  }
  const i64 tile_pieces = (tiles + job.tiles_apart - 1) / job.tiles_apart;
  job.first[0] = 0;
  for (int i = 0; i < job.count; ++i) {
    const i64 n = panels_of(job.products[i].w.n);
    job.first[i + 1] = job.first[i] + (n + job.panels_apart - 1) / job.panels_apart * tile_pieces;
  }
}

void linear_batch(const Product* products, int count, const Rows& x, i64 row, i64 rows,
                  int threads) {
  const Matrix* w[kMaxProducts];
  for (int i = 0; i < count; ++i) w[i] = &products[i].w;
  const Inputs in = quantise_for(w, count, from_row(x, row), rows, threads);
  LinearJob job{};
  job.products = products;
  job.count = count;
  job.in = &in;
  job.row = row;
  const Input& any = in.of(*w[0]);
  share(job, any.tiles, threads);
  const i64 acc = job.panels_apart * job.tiles_apart * any.lead * kPanel * 4;
  job.workers = pieces(kWorkers, kMaxPanels * sizeof(Chunk) + static_cast<std::size_t>(acc),
                       threads);
  parallel_for(job.first[count], threads, linear_part, &job);
}

void linear(const Product* products, int count, const Rows& x, i64 t, int threads) {
  for (int first = 0; first < count; first += kMaxProducts) {
    const int some = static_cast<int>(smaller(count - first, kMaxProducts));
    const i64 batch = kBatch / terms_of(products[first].w);
    for (i64 row = 0; row < t; row += batch) {
      linear_batch(products + first, some, x, row, smaller(batch, t - row), threads);
    }
  }
}

// ---- gated MLP --------------------------------------------------------------------------------

constexpr int kHiddenPanels = 2;  // panels of gate and of up at a time: a block of 32 of h

struct HiddenJob {
  const GatedMLP* mlp;
  const Inputs* in;
  const Input* h;
  ActBlock act;
  Pieces workers;
};

// gate and up [tile][panel][row][16]. Where they are streamed, the beginning of each is fetched at
// the end of the other: 1 to 3% at 4096 x 14336, one round of measurement.
void multiply_both(const GatedMLP& mlp, i64 panel, const Inputs& inputs, Chunk* chunks, float* gate,
                   float* up) {
  const Input &in_gate = inputs.of(mlp.gate), &in_up = inputs.of(mlp.up);
  if (const StreamPanel stream = stream_of(mlp.gate, in_gate)) {
    multiply_stream(stream, mlp.gate, panel, kHiddenPanels, in_gate, panel_at(mlp.up, panel), gate);
    multiply_stream(stream_of(mlp.up, in_up), mlp.up, panel, kHiddenPanels, in_up,
                    panel_at(mlp.gate, panel + kHiddenPanels), up);
    return;
  }
  multiply(mlp.gate, panel, kHiddenPanels, in_gate, 0, in_gate.tiles, chunks, gate);
  multiply(mlp.up, panel, kHiddenPanels, in_up, 0, in_up.tiles, chunks, up);
}

// Columns [32·block, 32·block + 32) of h for all rows, into h [row][apart].
void hidden_block(const HiddenJob& job, i64 block, Chunk* chunks, float* acc, float* h, i64 apart) {
  const GatedMLP& mlp = *job.mlp;
  const Input& any = job.in->of(mlp.gate);
  const i64 panel = block * kHiddenPanels, size = any.lead * kPanel;
  float* gate = acc;
  float* up = acc + any.tiles * kHiddenPanels * size;
  multiply_both(mlp, panel, *job.in, chunks, gate, up);
  const i64 rows = any.lead / any.terms;
  for (i64 tile = 0; tile < any.tiles; ++tile, h += rows * apart) {
    for (int p = 0; p < kHiddenPanels; ++p, gate += size, up += size) {
      add_terms(gate, any);
      add_terms(up, any);
      add_bias(gate, rows, mlp.gate_bias, (panel + p) * kPanel);
      add_bias(up, rows, mlp.up_bias, (panel + p) * kPanel);
      job.act(gate, up, rows, h + p * kPanel, apart);
    }
  }
}

// As many columns as share a scale of h, quantised at once.
void hidden_part(void* context, i64 begin, i64 end) {
  HiddenJob& job = *static_cast<HiddenJob*>(context);
  u8* piece = take(job.workers);
  Chunk* chunks = reinterpret_cast<Chunk*>(piece);
  const Input& h = *job.h;
  const int blocks = h.super ? 8 : 1;
  const i64 apart = blocks * kBlockK, rows = h.tiles * h.lead;
  float* acc = reinterpret_cast<float*>(piece + kMaxPanels * sizeof(Chunk));
  float* values = acc + 2 * kHiddenPanels * rows * kPanel;
  for (i64 i = begin; i < end; ++i) {
    for (int b = 0; b < blocks; ++b) {
      hidden_block(job, i * blocks + b, chunks, acc, values + b * kBlockK, apart);
    }
    for (i64 row = 0; row < h.rows; row += h.terms) {
      quantise_terms(h, row / h.lead, static_cast<int>(row % h.lead), i * blocks,
                     values + row / h.terms * apart);
    }
  }
  give_back(job.workers, piece);
}

void mlp_batch(const GatedMLP& mlp, const Rows& x, i64 rows, const Rows& y, int threads) {
  const Matrix* w[] = {&mlp.gate, &mlp.up};
  const Inputs in = quantise_for(w, 2, x, rows, threads);
  const QuantFormat& f = *quant_format(mlp.down.type);
  const i64 inner = mlp.down.k;
  const int terms = terms_of(mlp.gate);
  const i64 lines = terms * rows;
  const Input h = make_input(scratch(kHidden, input_bytes(f.super(), lines, inner)), f.super(),
                             terms, lines, inner, wants_of(f));
  for (i64 tile = 0; tile < h.tiles; ++tile) zero_padding(h, tile, inner);
  const i64 floats = h.tiles * h.lead * (2 * kHiddenPanels * kPanel + f.block_k);
  HiddenJob job{&mlp, &in, &h, kActBlocks[mlp.act],
                pieces(kWorkers, kMaxPanels * sizeof(Chunk) + static_cast<std::size_t>(floats) * 4,
                       threads)};
  parallel_for(inner / f.block_k, threads, hidden_part, &job);

  const Product down{mlp.down, mlp.down_bias, y};
  const Inputs hidden{h, h};
  LinearJob last{};
  last.products = &down;
  last.count = 1;
  last.in = &hidden;
  share(last, h.tiles, threads);
  const i64 acc = last.panels_apart * last.tiles_apart * h.lead * kPanel * 4;
  last.workers = pieces(kWorkers, kMaxPanels * sizeof(Chunk) + static_cast<std::size_t>(acc),
                        threads);
  parallel_for(last.first[1], threads, linear_part, &last);
}

void gated_mlp(const GatedMLP& mlp, const Rows& x, i64 t, const Rows& y, int threads) {
  const i64 batch = kBatch / terms_of(mlp.gate);
  for (i64 row = 0; row < t; row += batch) {
    mlp_batch(mlp, from_row(x, row), smaller(batch, t - row), from_row(y, row), threads);
  }
}

}  // namespace

const MatrixKernels& quant_kernels() {
  static constexpr MatrixKernels k = {quant_packed_nbytes, quant_pack, linear, gated_mlp,
                                      quant_unpack};
  return k;
}

}  // namespace GATEUP_ISA
}  // namespace gateup
