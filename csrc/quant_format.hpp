// The quantised formats: as GGUF files store them, and packed for the kernels.
//
// Packed, a matrix is a sequence of panels of 16 rows (columns of the product). A panel is a
// sequence of groups along k: 256 weights of each row for the K-quants, 64 for the others, and a
// group is
//
//   codes   per block of 32 along k: 512 codes in the order [8][16][4] = [k / 4][row][k % 4],
//           which an int8 dot product of 64 lanes takes as they are. 4 bits of a code: one byte
//           holds k and k + 16.
//   high    further bits, per block: 1 bit (8 words of 64 bits, bit = place in [16][4]), or
//           2 bits (2 vectors of 64 bytes; group g of 4 along k in vector g % 2, bits 2·(g / 2)).
//   scales  float16 [block][16]; for K-quants whole numbers [sub-block][16], unpacked to bytes
//   mins    the same, where the format has them
//   d, dmin float16 [16] each, K-quants only
//
// which keeps a packed file within 3% of the original (Q4_K 148 bytes for 144). Rows beyond n and
// weights beyond k are zero.
#pragma once

#include <cstdint>

#include "matrix.hpp"

namespace gateup {

constexpr int kPanel = 16;    // rows of the matrix in a panel
constexpr int kBlockK = 32;   // weights along k that share a scale (Q6_K: two)
constexpr int kSuperK = 256;  // the K-quants' super-block

struct QuantFormat {
  std::int32_t type;
  int block_k;      // weights in one block of the file
  int block_bytes;  // and its bytes
  int bits;         // of a code
  int offset;       // a weight is scale · (code - offset) [+ min]
  bool has_min;
  int sub_k;        // weights that share a scale

  constexpr bool super() const { return block_k == kSuperK; }
  constexpr int group_k() const { return super() ? kSuperK : 2 * kBlockK; }
  constexpr int blocks() const { return group_k() / kBlockK; }
  constexpr int code_bytes() const { return bits == 8 ? 512 : 256; }             // per block
  constexpr int high_bytes() const { return bits == 5 ? 64 : bits == 6 ? 128 : 0; }
  constexpr int scale_bytes() const { return super() ? 1 : 2; }                  // of one scale
  // Where the parts of a group begin.
  constexpr int high_at() const { return blocks() * code_bytes(); }
  constexpr int scale_at() const { return high_at() + blocks() * high_bytes(); }
  constexpr int min_at() const {
    return scale_at() + group_k() / sub_k * kPanel * scale_bytes();
  }
  constexpr int d_at() const {
    return min_at() + (has_min ? blocks() * kPanel * scale_bytes() : 0);
  }
  constexpr int dmin_at() const { return d_at() + (super() ? 2 * kPanel : 0); }
  constexpr int end() const { return dmin_at() + (super() && has_min ? 2 * kPanel : 0); }
  // A multiple of a cache line.
  constexpr int group_bytes() const { return (end() + 63) / 64 * 64; }
};

// IQ4_NL's codes count steps of this table; 128 added, they are bytes without sign.
constexpr std::int8_t kNonLinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                        1,    13,   25,  38,  53,  69,  89,  113};

constexpr QuantFormat kFormats[] = {
    {kQ8_0, 32, 34, 8, 128, false, 32},    // the file's int8, 128 added
    {kQ4_0, 32, 18, 4, 8, false, 32},
    {kQ4_1, 32, 20, 4, 0, true, 32},
    {kQ5_0, 32, 22, 5, 16, false, 32},
    {kQ5_1, 32, 24, 5, 0, true, 32},
    {kIQ4_NL, 32, 18, 4, 128, false, 32},  // the offset is that of the table's values
    {kQ4_K, 256, 144, 4, 0, true, 32},
    {kQ5_K, 256, 176, 5, 0, true, 32},
    {kQ6_K, 256, 210, 6, 32, false, 16},
};

constexpr const QuantFormat* quant_format(std::int32_t type) {
  for (const QuantFormat& f : kFormats) {
    if (f.type == type) return &f;
  }
  return nullptr;
}

constexpr std::int64_t groups_of(const QuantFormat& f, std::int64_t k) {
  return (k + f.group_k() - 1) / f.group_k();
}

constexpr std::int64_t panel_bytes(const QuantFormat& f, std::int64_t k) {
  return groups_of(f, k) * f.group_bytes();
}

constexpr std::int64_t panels_of(std::int64_t n) { return (n + kPanel - 1) / kPanel; }

// The same for every instruction set (quant_pack.cpp); see MatrixKernels.
std::int64_t quant_packed_nbytes(std::int32_t type, std::int64_t n, std::int64_t k);
void quant_pack(std::int32_t type, std::int64_t n, std::int64_t k, const std::uint8_t* source,
                std::uint8_t* packed, int threads);
void quant_unpack(const Matrix& w, const std::int64_t* rows, std::int64_t count, const Rows& out,
                  int threads);

}  // namespace gateup
