// Attention of new tokens over a KV cache: causal, grouped queries, sliding window, softcap.
//
// Softmax runs over chunks of kChunk keys that start at multiples of kChunk, each with its own
// maximum and sum; chunks are then merged from the first to the last. So a token's bits depend
// neither on how many tokens come in one call nor on the threads, and no T × T matrix exists.
#pragma once

#include <cstdint>

namespace gateup {

class Buffer;

constexpr int kChunk = 128;  // keys
constexpr int kPanel = 16;   // keys that lie side by side in the cache; head_dim's step as well

// Always inlined, as all that sources for several instruction sets share: the linker merges equal
// functions, and an AVX-512 copy must never stand in for the generic one.
#define GATEUP_SHARED __attribute__((always_inline)) inline

GATEUP_SHARED constexpr std::int64_t round_up(std::int64_t n, std::int64_t step) {
  return (n + step - 1) / step * step;
}

// Sizes of one layer, and what is done to its scores.
struct AttentionShape {
  std::int32_t heads, kv_heads, head_dim;
  std::int64_t capacity;    // positions of the cache, a multiple of kPanel
  std::int32_t dtype;       // of the cache: kFloat32 or kFloat16
  float scale, softcap;     // softcap 0: none
  std::int64_t window;      // keys a token sees, itself included; 0: all before it

  GATEUP_SHARED std::int64_t padded_dim() const { return round_up(head_dim, kPanel); }
  GATEUP_SHARED std::int64_t item() const { return dtype == 0 ? 4 : 2; }
  GATEUP_SHARED std::int64_t head_nbytes() const { return capacity * padded_dim() * item(); }
  GATEUP_SHARED std::int32_t group() const { return heads / kv_heads; }
};

// New tokens of one sequence: rows [row, row + rows) at positions [position, position + rows).
//
// keys    [kv_heads, capacity / kPanel, padded_dim, kPanel]: a vector holds one number of several
//         keys, and a score needs no sum over lanes
// values  [kv_heads, capacity, padded_dim]
struct Sequence {
  std::int64_t row, rows, position;
  char* keys;
  char* values;
};

// q and out [rows, heads * head_dim] float32, with strides in elements.
struct AttentionJob {
  AttentionShape shape;
  const Sequence* sequences;
  int count;
  const float* q;
  std::int64_t q_stride;
  float* out;
  std::int64_t out_stride;
};

// Tokens [first, last) of one sequence and the query heads of one KV head: group * (last - first)
// rows, token by token.
struct AttentionBlock {
  const Sequence* sequence;
  int kv_head;
  std::int64_t first, last;
};

// The same source compiled for one instruction set. Memory is float32, aligned to 64 bytes.
//
// A state holds per row the values weighted by e^(score - maximum) [rows, padded_dim], the sum of
// these weights [rows], and the maximum [rows].
struct AttentionKernels {
  // Most rows that share a load from the cache.
  int tile_rows;
  // One head's key and value [head_dim] into the cache.
  void (*append)(const AttentionShape& shape, const Sequence& sequence, int kv_head,
                 std::int64_t position, const float* key, const float* value);
  // The block's queries, scaled, in the order that `chunk` reads: [rows, padded_dim] floats.
  void (*pack)(const AttentionJob& job, const AttentionBlock& block, float* queries);
  // The state of the keys of one chunk. `panels`: 2 * kChunk * padded_dim floats of scratch.
  void (*chunk)(const AttentionJob& job, const AttentionBlock& block, std::int64_t chunk,
                const float* queries, float* state, float* panels);
  // Add the state of the next chunk.
  void (*merge)(std::int64_t rows, std::int64_t padded_dim, float* state, const float* next);
  // Weighted values over sums, into the job's output.
  void (*finish)(const AttentionJob& job, const AttentionBlock& block, const float* state);
};

// For current_isa().
const AttentionKernels& attention_kernels();

namespace generic {
const AttentionKernels& attention_kernels();
}
#ifdef GATEUP_HAVE_AVX2
namespace avx2 {
const AttentionKernels& attention_kernels();
}
#endif
#ifdef GATEUP_HAVE_AVX512
namespace avx512 {
const AttentionKernels& attention_kernels();
}
#endif

// The whole job; keys and values of its tokens are in the cache already. `memory` grows as needed.
void attend(const AttentionJob& job, int threads, Buffer& memory);

}  // namespace gateup
