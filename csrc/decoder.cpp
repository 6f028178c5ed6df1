#include "decoder.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "act_and_mul.hpp"
#include "decoder_products.hpp"
#include "decoder_rows.hpp"
#include "isa.hpp"
#include "parallel.hpp"

namespace gateup {
namespace {

using i64 = std::int64_t;

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

void require_matrix(const Matrix& w, i64 n, i64 k, const char* what) {
  require(w.n == n && w.k == k && w.data != nullptr, what);
  if (matrix_kernels(w.type) == nullptr) {
    throw std::invalid_argument("no kernels for the type " + std::to_string(w.type));
  }
}

void require_mlp(const GatedMLP& mlp, i64 hidden) {
  require_matrix(mlp.gate, mlp.gate.n, hidden, "gate is not [I, H]");
  require_matrix(mlp.up, mlp.gate.n, hidden, "up is not [I, H]");
  require_matrix(mlp.down, hidden, mlp.gate.n, "down is not [H, I]");
  require(mlp.act >= 0 && mlp.act < kActs, "unknown activation");
}

void require_layer(const Layer& layer, const DecoderParts& parts) {
  const AttentionShape& a = layer.attention;
  const i64 hidden = parts.hidden_size;
  require(a.head_dim > 0 && a.kv_heads > 0 && a.heads > 0, "no heads");
  require(a.heads % a.kv_heads == 0, "query heads are not a multiple of KV heads");
  require(a.window >= 0, "negative window");
  require_matrix(layer.q, i64{a.heads} * a.head_dim, hidden, "q is not [Q, H]");
  require_matrix(layer.k, i64{a.kv_heads} * a.head_dim, hidden, "k is not [K, H]");
  require_matrix(layer.v, i64{a.kv_heads} * a.head_dim, hidden, "v is not [K, H]");
  require_matrix(layer.o, hidden, i64{a.heads} * a.head_dim, "o is not [H, Q]");
  require(layer.input_norm != nullptr && layer.mlp_norm != nullptr, "no norm");
  require(layer.rope >= -1 && layer.rope < static_cast<int>(parts.ropes.size()), "no such rope");
  if (layer.rope >= 0) {
    const auto pairs = parts.ropes[static_cast<std::size_t>(layer.rope)].inv_freq.size();
    require(static_cast<i64>(2 * pairs) <= a.head_dim, "rope turns more than head_dim");
  }
  if (layer.experts == nullptr) return require_mlp(layer.mlp, hidden);
  const Experts& experts = *layer.experts;
  const i64 count = static_cast<i64>(experts.mlps.size());
  require(experts.router != nullptr, "no router");
  require(experts.top_k >= 1 && experts.top_k <= count, "top_k is not within 1..E");
  for (const GatedMLP& mlp : experts.mlps) require_mlp(mlp, hidden);
}

using Clock = std::chrono::steady_clock;

}  // namespace

Decoder::Decoder(DecoderParts parts) : parts_(std::move(parts)) {
  require(parts_.hidden_size > 0 && parts_.vocab_size > 0 && !parts_.layers.empty(), "no model");
  require(parts_.norm != nullptr, "no norm");
  require_matrix(parts_.embed, parts_.vocab_size, parts_.hidden_size, "embed is not [V, H]");
  require_matrix(parts_.head, parts_.vocab_size, parts_.hidden_size, "head is not [V, H]");
  for (const Layer& layer : parts_.layers) require_layer(layer, parts_);
}

const char* Decoder::part_name(int part) {
  static constexpr const char* names[kParts] = {"embed",     "norm",   "qkv", "rope",
                                                "attention", "output", "mlp", "head"};
  return names[part];
}

// One forward pass.
struct Decoder::Pass {
  Decoder& decoder;
  const Tokens& tokens;
  const Cache& cache;
  float* logits;
  int threads;
  const RowKernels& kernels;
  Clock::time_point since = Clock::now();

  // Rows that are still computed: all of them, from the last layer's attention on the wanted ones.
  i64 rows = 0;
  std::vector<i64> position_of = {};
  std::vector<Tokens::Span> spans = {};  // of the rows that are still computed
  float *x = nullptr, *h = nullptr;

  static void run(void* self) { static_cast<Pass*>(self)->all(); }
  const DecoderParts& parts() const { return decoder.parts_; }
  i64 hidden() const { return parts().hidden_size; }
  RowTeam team() const { return {kernels, threads}; }

  void done(Part part) {
    const Clock::time_point now = Clock::now();
    decoder.seconds_[part] += std::chrono::duration<double>(now - since).count();
    since = now;
  }

  void all() {
    start();
    const std::size_t count = parts().layers.size();
    for (std::size_t i = 0; i < count; ++i) {
      const bool last = i + 1 == count;
      layer(parts().layers[i], cache.layers[i], last);
      if (rows == 0) return;
      const float* next = last ? parts().norm : parts().layers[i + 1].input_norm;
      residual(parts().layers[i].mlp_post_norm, next);
    }
    head();
  }

  void start() {
    for (const Tokens::Span& span : tokens.spans) {
      for (i64 i = 0; i < span.rows; ++i) position_of.push_back(span.position + i);
    }
    spans = tokens.spans;
    rows = static_cast<i64>(position_of.size());
    x = decoder.residual_.floats(rows * hidden());
    h = decoder.normed_.floats(rows * hidden());
    if (tokens.ids != nullptr) {
      const MatrixKernels* family = matrix_kernels(parts().embed.type);
      family->unpack(parts().embed, tokens.ids, rows, rows_at(x, hidden()), threads);
      const float scale = parts().embedding_scale;
      if (scale != 1.0f) team().scale(x, rows * hidden(), scale);
    } else {
      std::memcpy(x, tokens.embeddings, static_cast<std::size_t>(rows * hidden()) * sizeof(float));
    }
    angles();
    done(kEmbed);
    team().norm(x, rows, hidden(), parts().layers.front().input_norm, parts().norm_epsilon, h);
    done(kNorm);
  }

  // Cosines and sines of every rope at every row: [ropes][rows][2 * pairs].
  void angles() {
    i64 floats = 0;
    for (const Rope& rope : parts().ropes) floats += 2 * static_cast<i64>(rope.inv_freq.size());
    float* at = decoder.angles_.floats(rows * floats);
    for (const Rope& rope : parts().ropes) {
      team().angles(position_of.data(), rows, rope, at);
      at += rows * 2 * static_cast<i64>(rope.inv_freq.size());
    }
  }

  i64 pairs(int rope) const {
    return static_cast<i64>(parts().ropes[static_cast<std::size_t>(rope)].inv_freq.size());
  }

  HeadRows heads_of(const Layer& layer, const float* norm, int heads) const {
    HeadRows out{norm, parts().norm_epsilon, heads, layer.attention.head_dim, nullptr, 0};
    if (layer.rope < 0) return out;
    const float* at = decoder.angles_.floats(0);
    for (int i = 0; i < layer.rope; ++i) at += rows * 2 * pairs(i);
    out.angles = at;
    out.pairs = pairs(layer.rope);
    return out;
  }

  std::vector<Sequence> sequences(const LayerCache& at) const {
    std::vector<Sequence> out;
    i64 row = 0;
    for (const Tokens::Span& span : spans) {
      out.push_back({row, span.rows, span.position, at.keys + span.slot * at.stride,
                     at.values + span.slot * at.stride});
      row += span.rows;
    }
    return out;
  }

  void layer(const Layer& layer, const LayerCache& at, bool last) {
    AttentionShape shape = layer.attention;
    shape.capacity = cache.capacity;
    shape.dtype = cache.dtype;
    const i64 width = i64{shape.heads} * shape.head_dim, kv = i64{shape.kv_heads} * shape.head_dim;
    const bool fewer = last && static_cast<i64>(tokens.wanted.size()) < rows;
    float* q = decoder.q_.floats(rows * width);
    float* k = decoder.k_.floats(rows * kv);
    float* v = decoder.v_.floats(rows * kv);
    const Product products[] = {{layer.k, layer.k_bias, rows_at(k, kv)},
                                {layer.v, layer.v_bias, rows_at(v, kv)},
                                {layer.q, layer.q_bias, rows_at(q, width)}};
    linear(products, fewer ? 2 : 3, rows_at(h, hidden()), rows, threads);
    done(kQkv);
    team().heads(heads_of(layer, layer.k_norm, shape.kv_heads), k, rows);
    team().append(shape, sequences(at), k, v, rows);
    done(kRope);
    if (fewer) {
      keep_wanted();
      if (rows == 0) return;
      linear(products + 2, 1, rows_at(h, hidden()), rows, threads);
      done(kQkv);
    }
    team().heads(heads_of(layer, layer.q_norm, shape.heads), q, rows);
    done(kRope);
    float* mixed = decoder.mixed_.floats(rows * width);
    const std::vector<Sequence> own = sequences(at);
    attend({shape, own.data(), static_cast<int>(own.size()), q, width, mixed, width}, threads,
           decoder.attention_);
    done(kAttention);
    float* delta = decoder.delta_.floats(rows * hidden());
    const Product out{layer.o, layer.o_bias, rows_at(delta, hidden())};
    linear(&out, 1, rows_at(mixed, width), rows, threads);
    done(kOutput);
    residual(layer.attention_post_norm, layer.mlp_norm);
    if (layer.experts != nullptr) {
      mixture(*layer.experts, h, rows, hidden(), delta, decoder.moe_, threads);
    } else {
      gated_mlp(layer.mlp, rows_at(h, hidden()), rows, rows_at(delta, hidden()), decoder.moe_,
                threads);
    }
    done(kMlp);
  }

  // x += scale * post(delta), h = norm(x).
  void residual(const float* post, const float* next) {
    team().residual({post, next, parts().norm_epsilon, parts().residual_scale, hidden()},
                    decoder.delta_.floats(0), x, h, rows);
    done(kNorm);
  }

  // Only the wanted rows from here on: of x, of h, of the angles and of the sequences.
  void keep_wanted() {
    const auto& wanted = tokens.wanted;
    const i64 count = static_cast<i64>(wanted.size());
    std::vector<i64> kept;
    std::vector<Tokens::Span> runs;
    i64 row = 0, next = 0;
    for (const Tokens::Span& span : spans) {
      for (i64 before = -2; next < count; ++next) {
        const i64 at = wanted[static_cast<std::size_t>(next)];
        if (at >= row + span.rows) break;
        const i64 position = span.position + at - row;
        if (at == before + 1) {
          ++runs.back().rows;
        } else {
          runs.push_back({span.slot, 1, position});
        }
        before = at;
        kept.push_back(position);
        const std::size_t bytes = static_cast<std::size_t>(hidden()) * sizeof(float);
        std::memmove(x + next * hidden(), x + at * hidden(), bytes);
        std::memmove(h + next * hidden(), h + at * hidden(), bytes);
      }
      row += span.rows;
    }
    spans = std::move(runs);
    position_of = std::move(kept);
    rows = count;
    angles();
  }

  void head() {
    const Product product{parts().head, nullptr, rows_at(logits, parts().vocab_size)};
    linear(&product, 1, rows_at(h, hidden()), rows, threads);
    const i64 n = rows * parts().vocab_size;
    if (parts().logit_scale != 1.0f) team().scale(logits, n, parts().logit_scale);
    if (parts().logit_softcap != 0.0f) team().softcap(logits, n, parts().logit_softcap);
    done(kHead);
  }
};

void Decoder::forward(const Tokens& tokens, const Cache& cache, float* logits, int threads) {
  Pass pass{*this, tokens, cache, logits, threads, row_kernels()};
  with_team(threads, Pass::run, &pass);
}

}  // namespace gateup
