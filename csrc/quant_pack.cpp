// Quantised weights from the file's order into the kernels', and back to numbers.
#include <cstring>

#include "act_and_mul.hpp"
#include "elementary.hpp"
#include "parallel.hpp"
#include "quant_format.hpp"

namespace gateup {
namespace {

using i64 = std::int64_t;
using u8 = std::uint8_t;

// One group of one row, as bytes: codes, scales and minimums with their factors.
struct Group {
  u8 codes[kSuperK];
  u8 scales[32];  // float16 for blocks of 32, else one byte for each sub-block
  u8 mins[16];
  u8 d[2], dmin[2];
};

// ---- the file's blocks --------------------------------------------------------------------

// 32 codes of 4 bits, k and k + 16 in a byte, and of 5 with a word of high bits.
void nibbles(const u8* q, u8* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = q[i] & 15;
    codes[i + 16] = q[i] >> 4;
  }
}

void fifth_bits(const u8* h, u8* codes) {
  for (int i = 0; i < 32; ++i) codes[i] |= static_cast<u8>((h[i / 8] >> (i % 8) & 1) << 4);
}

void read_block32(const QuantFormat& f, const u8* block, int index, Group& g) {
  u8* codes = g.codes + kBlockK * index;
  std::memcpy(g.scales + 2 * index, block, 2);
  if (f.has_min) std::memcpy(g.mins + 2 * index, block + 2, 2);
  const u8* q = block + (f.has_min ? 4 : 2);
  if (f.bits == 8) {
    for (int i = 0; i < 32; ++i) codes[i] = q[i] ^ 0x80;
    return;
  }
  nibbles(f.bits == 5 ? q + 4 : q, codes);
  if (f.bits == 5) fifth_bits(q, codes);
}

// Eight scales and eight minimums of 6 bits in 12 bytes: the low 6 bits of the first four of
// each, whose upper bits hold the last two of the others.
void read_scales6(const u8* s, Group& g) {
  for (int i = 0; i < 4; ++i) {
    g.scales[i] = s[i] & 63;
    g.mins[i] = s[i + 4] & 63;
    g.scales[i + 4] = static_cast<u8>((s[i + 8] & 15) | (s[i] >> 6 << 4));
    g.mins[i + 4] = static_cast<u8>((s[i + 8] >> 4) | (s[i + 4] >> 6 << 4));
  }
}

void read_q45_k(const QuantFormat& f, const u8* block, Group& g) {
  std::memcpy(g.d, block, 2);
  std::memcpy(g.dmin, block + 2, 2);
  read_scales6(block + 4, g);
  const u8* high = block + 16;
  const u8* q = f.bits == 5 ? high + 32 : high;
  for (int pair = 0; pair < 4; ++pair) {
    for (int i = 0; i < 32; ++i) {
      g.codes[64 * pair + i] = q[32 * pair + i] & 15;
      g.codes[64 * pair + 32 + i] = q[32 * pair + i] >> 4;
    }
  }
  if (f.bits == 4) return;
  for (int b = 0; b < 8; ++b) {
    for (int i = 0; i < 32; ++i) {
      g.codes[32 * b + i] |= static_cast<u8>((high[i] >> b & 1) << 4);
    }
  }
}

void read_q6_k(const u8* block, Group& g) {
  for (int half = 0; half < 2; ++half) {
    const u8* low = block + 64 * half;
    const u8* high = block + 128 + 32 * half;
    for (int part = 0; part < 4; ++part) {
      u8* codes = g.codes + 128 * half + 32 * part;
      for (int i = 0; i < 32; ++i) {
        const int nibble = low[32 * (part % 2) + i] >> (part < 2 ? 0 : 4) & 15;
        codes[i] = static_cast<u8>(nibble | (high[i] >> (2 * part) & 3) << 4);
      }
    }
  }
  std::memcpy(g.scales, block + 192, 16);
  std::memcpy(g.d, block + 208, 2);
}

// Group `index` of a row of k weights; what lies beyond k is zero, with scales of zero.
void read_group(const QuantFormat& f, const u8* row, i64 k, i64 index, Group& g) {
  if (f.super()) {
    const u8* block = row + index * f.block_bytes;
    f.type == kQ6_K ? read_q6_k(block, g) : read_q45_k(f, block, g);
    return;
  }
  for (int b = 0; b < f.blocks(); ++b) {
    const i64 block = index * f.blocks() + b;
    if (block * kBlockK < k) {
      read_block32(f, row + block * f.block_bytes, b, g);
    } else {
      std::memset(g.codes + kBlockK * b, 0, kBlockK);
      std::memset(g.scales + 2 * b, 0, 2);
      std::memset(g.mins + 2 * b, 0, 2);
    }
  }
}

// ---- the kernels' order -------------------------------------------------------------------

// The place of code k of row r of a block: [k / 4][r][k % 4].
constexpr int place(int k, int r) { return k / 4 * 64 + r * 4 + k % 4; }

void write_codes(const QuantFormat& f, const u8* codes, int row, u8* at) {
  if (f.bits == 8) {
    for (int g = 0; g < 8; ++g) std::memcpy(at + g * 64 + row * 4, codes + 4 * g, 4);
    return;
  }
  for (int g = 0; g < 4; ++g) {
    u8 four[4];
    for (int i = 0; i < 4; ++i) {
      four[i] = static_cast<u8>((codes[4 * g + i] & 15) | (codes[4 * g + 16 + i] & 15) << 4);
    }
    std::memcpy(at + g * 64 + row * 4, four, 4);
  }
}

// High bits are gathered over the 16 rows: the caller has cleared them.
void write_high(const QuantFormat& f, const u8* codes, int row, u8* at) {
  for (int k = 0; k < kBlockK; ++k) {
    const int high = codes[k] >> 4, lane = row * 4 + k % 4, g = k / 4;
    if (f.bits == 5) {
      at[g * 8 + lane / 8] |= static_cast<u8>(high << (lane % 8));
    } else {
      at[g % 2 * 64 + lane] |= static_cast<u8>(high << (2 * (g / 2)));
    }
  }
}

void write_group(const QuantFormat& f, const Group& g, int row, u8* at) {
  for (int b = 0; b < f.blocks(); ++b) {
    write_codes(f, g.codes + kBlockK * b, row, at + b * f.code_bytes());
    if (f.high_bytes() != 0) {
      write_high(f, g.codes + kBlockK * b, row, at + f.high_at() + b * f.high_bytes());
    }
  }
  const int size = f.scale_bytes();
  for (int s = 0; s < f.group_k() / f.sub_k; ++s) {
    std::memcpy(at + f.scale_at() + (s * kPanel + row) * size, g.scales + s * size, size);
  }
  for (int b = 0; f.has_min && b < f.blocks(); ++b) {
    std::memcpy(at + f.min_at() + (b * kPanel + row) * size, g.mins + b * size, size);
  }
  if (!f.super()) return;
  std::memcpy(at + f.d_at() + 2 * row, g.d, 2);
  if (f.has_min) std::memcpy(at + f.dmin_at() + 2 * row, g.dmin, 2);
}

struct PackJob {
  const QuantFormat& f;
  i64 n, k;
  const u8* source;
  u8* packed;
};

void pack_panels(void* context, i64 begin, i64 end) {
  const PackJob& job = *static_cast<const PackJob*>(context);
  const QuantFormat& f = job.f;
  const i64 row_bytes = job.k / f.block_k * f.block_bytes, groups = groups_of(f, job.k);
  Group g;
  for (i64 panel = begin; panel < end; ++panel) {
    u8* at = job.packed + panel * panel_bytes(f, job.k);
    std::memset(at, 0, static_cast<std::size_t>(panel_bytes(f, job.k)));
    for (i64 index = 0; index < groups; ++index, at += f.group_bytes()) {
      for (int row = 0; row < kPanel && panel * kPanel + row < job.n; ++row) {
        read_group(f, job.source + (panel * kPanel + row) * row_bytes, job.k, index, g);
        write_group(f, g, row, at);
      }
    }
  }
}

// ---- back to numbers ----------------------------------------------------------------------

float half_at(const u8* p) {
  Float16 h;
  std::memcpy(&h.bits, p, 2);
  return widen(h);
}

int code_at(const QuantFormat& f, const u8* group, int k, int row) {
  const int b = k / kBlockK, i = k % kBlockK, lane = row * 4 + i % 4, g = i / 4;
  const u8* codes = group + b * f.code_bytes();
  if (f.bits == 8) return codes[place(i, row)];
  const int low = codes[place(i % 16, row)] >> (i < 16 ? 0 : 4) & 15;
  const u8* high = group + f.high_at() + b * f.high_bytes();
  if (f.bits == 5) return low | (high[g * 8 + lane / 8] >> (lane % 8) & 1) << 4;
  if (f.bits == 6) return low | (high[g % 2 * 64 + lane] >> (2 * (g / 2)) & 3) << 4;
  return f.type == kIQ4_NL ? kNonLinear[low] + f.offset : low;
}

// The products are rounded one by one in the order of gguf's own dequantisation.
void weights_of(const QuantFormat& f, const u8* group, int row, float* out) {
  for (int s = 0; s < f.group_k() / f.sub_k; ++s) {
    const int at = s * kPanel + row;
    float scale, min = 0.0f;
    if (f.super()) {
      const u8 whole = group[f.scale_at() + at];
      const int factor = f.type == kQ6_K ? static_cast<std::int8_t>(whole) : whole;
      scale = half_at(group + f.d_at() + 2 * row) * static_cast<float>(factor);
      if (f.has_min) {
        min = -(half_at(group + f.dmin_at() + 2 * row) *
                static_cast<float>(group[f.min_at() + at]));
      }
    } else {
      scale = half_at(group + f.scale_at() + 2 * at);
      if (f.has_min) min = half_at(group + f.min_at() + 2 * at);
    }
    for (int i = 0; i < f.sub_k; ++i) {
      const int code = code_at(f, group, s * f.sub_k + i, row) - f.offset;
      const float product = scale * static_cast<float>(code);
      out[s * f.sub_k + i] = f.has_min ? product + min : product;
    }
  }
}

struct UnpackJob {
  const QuantFormat& f;
  const Matrix& w;
  const i64* rows;
  const Rows& out;
};

void store(float value, const Rows& out, i64 index) {
  if (out.dtype == kFloat32) {
    reinterpret_cast<float*>(out.data)[index] = value;
  } else if (out.dtype == kBFloat16) {
    narrow(value, reinterpret_cast<BFloat16*>(out.data)[index]);
  } else {
    narrow(value, reinterpret_cast<Float16*>(out.data)[index]);
  }
}

void unpack_rows(void* context, i64 begin, i64 end) {
  const UnpackJob& job = *static_cast<const UnpackJob*>(context);
  const QuantFormat& f = job.f;
  float weights[kSuperK];
  for (i64 i = begin; i < end; ++i) {
    const i64 row = job.rows != nullptr ? job.rows[i] : i;
    const u8* group = job.w.data + row / kPanel * panel_bytes(f, job.w.k);
    for (i64 k = 0; k < job.w.k; k += f.group_k(), group += f.group_bytes()) {
      weights_of(f, group, static_cast<int>(row % kPanel), weights);
      for (int j = 0; j < f.group_k() && k + j < job.w.k; ++j) {
        store(weights[j], job.out, i * job.out.stride + k + j);
      }
    }
  }
}

}  // namespace

i64 quant_packed_nbytes(std::int32_t type, i64 n, i64 k) {
  const QuantFormat* f = quant_format(type);
  if (f == nullptr || n < 0 || k <= 0 || k % f->block_k != 0) return 0;
  return panels_of(n) * panel_bytes(*f, k);
}

void quant_pack(std::int32_t type, i64 n, i64 k, const u8* source, u8* packed, int threads) {
  PackJob job{*quant_format(type), n, k, source, packed};
  parallel_for(panels_of(n), threads, pack_panels, &job);
}

void quant_unpack(const Matrix& w, const i64* rows, i64 count, const Rows& out, int threads) {
  UnpackJob job{*quant_format(w.type), w, rows, out};
  parallel_for(count, threads, unpack_rows, &job);
}

}  // namespace gateup
