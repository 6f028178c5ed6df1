// The decoder for Python: built from plain dictionaries of numbers and addresses.
//
// Tensors stay Python's (gateup/engine/native.py keeps them alive as long as the decoder).
#include "bind_decoder.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "act_and_mul.hpp"
#include "decoder.hpp"

namespace nb = nanobind;

namespace gateup {
namespace {

using i64 = std::int64_t;

template <class T>
T number(const nb::dict& from, const char* key) {
  return nb::cast<T>(from[key]);
}

// An address of float32 numbers; 0 is none.
const float* vector_at(const nb::dict& from, const char* key) {
  return reinterpret_cast<const float*>(number<std::uintptr_t>(from, key));
}

// (type, address, n, k, terms)
Matrix matrix_of(const nb::handle& from) {
  const auto [type, address, n, k, terms] =
      nb::cast<std::tuple<std::int32_t, std::uintptr_t, i64, i64, std::int32_t>>(from);
  return {type, n, k, reinterpret_cast<const std::uint8_t*>(address), terms};
}

GatedMLP mlp_of(const nb::dict& from) {
  return {matrix_of(from["gate"]),
          matrix_of(from["up"]),
          matrix_of(from["down"]),
          number<std::int32_t>(from, "act"),
          vector_at(from, "gate_bias"),
          vector_at(from, "up_bias"),
          vector_at(from, "down_bias")};
}

AttentionShape attention_of(const nb::dict& from) {
  AttentionShape shape{};
  shape.heads = number<std::int32_t>(from, "heads");
  shape.kv_heads = number<std::int32_t>(from, "kv_heads");
  shape.head_dim = number<std::int32_t>(from, "head_dim");
  shape.scale = number<float>(from, "scale");
  shape.softcap = number<float>(from, "softcap");
  shape.window = number<i64>(from, "window");
  return shape;
}

Layer layer_of(const nb::dict& from) {
  Layer layer{};
  layer.attention = attention_of(from);
  layer.q = matrix_of(from["q"]);
  layer.k = matrix_of(from["k"]);
  layer.v = matrix_of(from["v"]);
  layer.o = matrix_of(from["o"]);
  layer.q_bias = vector_at(from, "q_bias");
  layer.k_bias = vector_at(from, "k_bias");
  layer.v_bias = vector_at(from, "v_bias");
  layer.o_bias = vector_at(from, "o_bias");
  layer.q_norm = vector_at(from, "q_norm");
  layer.k_norm = vector_at(from, "k_norm");
  layer.input_norm = vector_at(from, "input_norm");
  layer.attention_post_norm = vector_at(from, "attention_post_norm");
  layer.mlp_norm = vector_at(from, "mlp_norm");
  layer.mlp_post_norm = vector_at(from, "mlp_post_norm");
  layer.rope = number<int>(from, "rope");
  if (!from.contains("router")) {
    layer.mlp = mlp_of(nb::cast<nb::dict>(from["mlp"]));
    return layer;
  }
  layer.experts = std::make_unique<Experts>();
  layer.experts->router = vector_at(from, "router");
  layer.experts->top_k = number<int>(from, "top_k");
  layer.experts->normalise = number<bool>(from, "normalise");
  for (const nb::handle mlp : from["experts"]) {
    layer.experts->mlps.push_back(mlp_of(nb::cast<nb::dict>(mlp)));
  }
  return layer;
}

DecoderParts parts_of(const nb::dict& from) {
  DecoderParts parts{};
  parts.hidden_size = number<i64>(from, "hidden_size");
  parts.vocab_size = number<i64>(from, "vocab_size");
  parts.norm_epsilon = number<float>(from, "norm_eps");
  parts.embedding_scale = number<float>(from, "embedding_scale");
  parts.residual_scale = number<float>(from, "residual_scale");
  parts.logit_scale = number<float>(from, "logit_scale");
  parts.logit_softcap = number<float>(from, "logit_softcap");
  parts.embed = matrix_of(from["embed"]);
  parts.head = matrix_of(from["head"]);
  parts.norm = vector_at(from, "norm");
  for (const nb::handle rope : from["ropes"]) {
    auto [inv_freq, scale] = nb::cast<std::pair<std::vector<float>, float>>(rope);
    parts.ropes.push_back({std::move(inv_freq), scale});
  }
  for (const nb::handle layer : from["layers"]) {
    parts.layers.push_back(layer_of(nb::cast<nb::dict>(layer)));
  }
  return parts;
}

struct DecoderCache {
  std::vector<LayerCache> layers;
  i64 capacity, slots;
  std::int32_t dtype;
};

// Per layer (address of keys, address of values, bytes from sequence to sequence).
using CacheLayers = std::vector<std::tuple<std::uintptr_t, std::uintptr_t, i64>>;

void make_cache(DecoderCache* self, const CacheLayers& layers, i64 capacity, i64 slots,
                std::int32_t dtype) {
  if (capacity <= 0 || capacity % kPanel != 0) throw std::invalid_argument("ragged capacity");
  if (dtype != kFloat32 && dtype != kFloat16) throw std::invalid_argument("unknown dtype");
  new (self) DecoderCache{{}, capacity, slots, dtype};
  for (const auto& [keys, values, stride] : layers) {
    self->layers.push_back(
        {reinterpret_cast<char*>(keys), reinterpret_cast<char*>(values), stride});
  }
}

using Spans = std::vector<std::tuple<i64, i64, i64>>;

void require_tokens(const Decoder& decoder, const DecoderCache& cache, const Tokens& tokens) {
  if (cache.layers.size() != decoder.parts().layers.size()) {
    throw std::invalid_argument("the cache has another number of layers");
  }
  i64 rows = 0;
  for (const Tokens::Span& s : tokens.spans) {
    if (s.slot < 0 || s.slot >= cache.slots || s.rows < 1 || s.position < 0 ||
        s.position + s.rows > cache.capacity) {
      throw std::invalid_argument("tokens outside the cache");
    }
    rows += s.rows;
  }
  i64 last = -1;
  for (const i64 row : tokens.wanted) {
    if (row <= last || row >= rows) throw std::invalid_argument("wanted rows out of order");
    last = row;
  }
  if (tokens.ids == nullptr && tokens.embeddings == nullptr) {
    throw std::invalid_argument("no tokens");
  }
  for (i64 i = 0; tokens.ids != nullptr && i < rows; ++i) {
    if (tokens.ids[i] < 0 || tokens.ids[i] >= decoder.parts().vocab_size) {
      throw std::invalid_argument("a token outside the vocabulary");
    }
  }
}

void forward(Decoder& self, const DecoderCache& cache, std::uintptr_t ids,
             std::uintptr_t embeddings, const Spans& spans, std::vector<i64> wanted,
             std::uintptr_t logits, int threads) {
  Tokens tokens{reinterpret_cast<const i64*>(ids), reinterpret_cast<const float*>(embeddings),
                {}, std::move(wanted)};
  for (const auto& [slot, rows, position] : spans) tokens.spans.push_back({slot, rows, position});
  require_tokens(self, cache, tokens);
  nb::gil_scoped_release released;
  self.forward(tokens, {cache.layers.data(), cache.capacity, cache.dtype},
               reinterpret_cast<float*>(logits), threads);
}

nb::dict seconds(const Decoder& self) {
  nb::dict out;
  for (int i = 0; i < Decoder::kParts; ++i) {
    out[Decoder::part_name(i)] = self.seconds()[static_cast<std::size_t>(i)];
  }
  return out;
}

}  // namespace

void bind_decoder(nb::module_& m) {
  m.attr("CACHE_PANEL") = kPanel;
  nb::class_<DecoderCache>(m, "DecoderCache")
      .def("__init__", &make_cache, "Per layer (keys, values, stride); capacity, slots, dtype");
  nb::class_<Decoder>(m, "Decoder")
      .def("__init__",
           [](Decoder* self, const nb::dict& parts) { new (self) Decoder(parts_of(parts)); })
      .def("forward", &forward,
           "Cache, addresses of ids or embeddings, (slot, rows, position) of each sequence, rows "
           "whose logits are wanted, address of the logits, threads")
      .def("seconds", &seconds, "Spent so far, by part");
}

}  // namespace gateup
