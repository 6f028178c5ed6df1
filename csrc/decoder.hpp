// A whole forward pass in one call: what a decoder holds, and the tokens it is given.
//
// Letters: T tokens of all sequences together, H hidden_size, I intermediate_size, V vocab_size,
// D head_dim, E experts, Q = heads * D, K = kv_heads * D. Everything between products is float32.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attention.hpp"
#include "buffer.hpp"
#include "matrix.hpp"
#include "norm.hpp"

namespace gateup {

// A pair j of a head's numbers, j and j + inv_freq.size(), turns by position * inv_freq[j].
struct Rope {
  std::vector<float> inv_freq;  // empty: no positions
  float scale;                  // of cosine and sine

  bool operator==(const Rope& other) const {
    return scale == other.scale && inv_freq == other.inv_freq;
  }
};

// softmax over the router's logits, the top_k largest kept, their sum made 1 where `normalise`.
struct Experts {
  const float* router;  // [E, H]
  std::vector<GatedMLP> mlps;
  int top_k;
  bool normalise;
};

// nullptr where a layer has no such vector. Norms multiply as they are stored.
struct Layer {
  AttentionShape attention;  // its capacity and dtype come with the cache
  Matrix q, k, v, o;
  const float *q_bias, *k_bias, *v_bias, *o_bias;
  const float *q_norm, *k_norm;  // [D]
  const float *input_norm, *attention_post_norm, *mlp_norm, *mlp_post_norm;  // [H]
  int rope;                      // index into DecoderParts::ropes, -1: none
  GatedMLP mlp;
  std::unique_ptr<Experts> experts;  // instead of mlp
};

struct DecoderParts {
  std::int64_t hidden_size, vocab_size;
  float norm_epsilon, embedding_scale, residual_scale, logit_scale, logit_softcap;
  Matrix embed, head;
  const float* norm;
  std::vector<Layer> layers;
  std::vector<Rope> ropes;
};

// One layer's cache: sequence s begins at s * stride bytes.
struct LayerCache {
  char *keys, *values;
  std::int64_t stride;
};

struct Cache {
  const LayerCache* layers;
  std::int64_t capacity;
  std::int32_t dtype;
};

// Tokens of several sequences, one sequence after the other.
struct Tokens {
  struct Span {
    std::int64_t slot, rows, position;  // the sequence's place in the cache; its next position
  };
  const std::int64_t* ids;  // [T], or nullptr:
  const float* embeddings;  // [T, H], already scaled
  std::vector<Span> spans;
  std::vector<std::int64_t> wanted;  // rows whose logits are asked for, ascending
};

class Decoder {
 public:
  // Throws std::invalid_argument for sizes that do not fit together.
  explicit Decoder(DecoderParts parts);

  // Fills the cache at the tokens' positions and writes logits [wanted, V].
  void forward(const Tokens& tokens, const Cache& cache, float* logits, int threads);

  // Seconds spent so far, by part.
  enum Part { kEmbed, kNorm, kQkv, kRope, kAttention, kOutput, kMlp, kHead, kParts };
  static const char* part_name(int part);
  const std::array<double, kParts>& seconds() const { return seconds_; }
  const DecoderParts& parts() const { return parts_; }

 private:
  struct Pass;
  DecoderParts parts_;
  std::array<double, kParts> seconds_{};
  // Rows by purpose, kept from pass to pass.
  Buffer residual_, normed_, q_, k_, v_, mixed_, delta_, angles_, attention_, gathered_, moe_;
};

}  // namespace gateup
