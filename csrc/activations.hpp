// The activations of enum Act: value, and value with derivative.
//
// As elementary.hpp, included by sources compiled several times: internal linkage throughout.
#pragma once

#include "elementary.hpp"

namespace {

struct Value {
  float value, slope;
};

// What an activation does unless it says otherwise: up enters the product as it is, and the
// gradient of act(gate) passes by the slope. Bounds select rather than multiply by 0, as torch's
// do: beyond them even an infinite gradient counts for nothing.
struct Plain {
  GATEUP_INLINE float factor(float up) { return up; }
  GATEUP_INLINE float d_up(float up, float d_factor) { return (void)up, d_factor; }
  GATEUP_INLINE float d_gate(float gate, float d_act, float slope) {
    return (void)gate, d_act * slope;
  }
};

struct Silu : Plain {
  GATEUP_INLINE float value(float g) { return logistic(g, g).product; }
  GATEUP_INLINE Value both(float g) {
    const Logistic s = logistic(g, g);
    return {s.product, s.value * fmadd(g, s.complement, 1.0f)};
  }
};

struct Gelu : Plain {
  GATEUP_INLINE float value(float g) { return g * normal(g).cumulative; }
  GATEUP_INLINE Value both(float g) {
    const Normal n = normal(g);
    return {g * n.cumulative, fmadd(g * n.density, 0.398942292f, n.cumulative)};  // 1/sqrt(2·pi)
  }
};

// 0.5·(1 + tanh w) is the logistic function of 2w: no cancellation for negative gates.
// 2w = g·(root + cubic·g²) with root = 2·sqrt(2/pi) and cubic = 0.044715·root.
struct GeluTanh : Plain {
  static constexpr float kRoot = 1.59576912f, kCubic = 0.0713548163f;

  // Beyond 20 the logistic is 0 or 1; the bound keeps g³ from overflowing.
  GATEUP_INLINE float bounded(float g) {
    const float above = g < -20.0f ? -20.0f : g;
    return above > 20.0f ? 20.0f : above;
  }
  GATEUP_INLINE float value(float g) {
    const float b = bounded(g);
    return logistic(b * fmadd(kCubic, b * b, kRoot), g).product;
  }
  GATEUP_INLINE Value both(float g) {
    const float b = bounded(g);
    const Logistic s = logistic(b * fmadd(kCubic, b * b, kRoot), g);
    const float inner = fmadd(3.0f * kCubic, b * b, kRoot);
    return {s.product, fmadd(g * s.value * s.complement, inner, s.value)};
  }
};

// The comparisons are written so that NaN passes through.
struct Relu : Plain {
  GATEUP_INLINE float value(float g) { return g < 0.0f ? 0.0f : g; }
  GATEUP_INLINE Value both(float g) { return {value(g), 1.0f}; }
  GATEUP_INLINE float d_gate(float gate, float d_act, float slope) {
    return gate <= 0.0f ? 0.0f : d_act * slope;
  }
};

struct Relu2 : Relu {
  GATEUP_INLINE float value(float g) {
    const float r = Relu::value(g);
    return r * r;
  }
  GATEUP_INLINE Value both(float g) {
    const float r = Relu::value(g);
    return {r * r, 2.0f * r};
  }
};

struct Sigmoid : Plain {
  GATEUP_INLINE float value(float g) { return logistic(g, 0.0f).value; }
  GATEUP_INLINE Value both(float g) {
    const Logistic s = logistic(g, 0.0f);
    return {s.value, s.value * s.complement};
  }
};

struct Identity : Plain {
  GATEUP_INLINE float value(float g) { return g; }
  GATEUP_INLINE Value both(float g) { return {g, 1.0f}; }
};

struct GptOss {
  static constexpr float kLimit = 7.0f, kAlpha = 1.702f;

  GATEUP_INLINE float factor(float up) {
    const float above = up < -kLimit ? -kLimit : up;
    return (above > kLimit ? kLimit : above) + 1.0f;
  }
  // torch's clamp passes the gradient on at the limit itself.
  GATEUP_INLINE float d_up(float up, float d_factor) {
    return magnitude_of(up) <= kLimit ? d_factor : 0.0f;
  }
  GATEUP_INLINE float d_gate(float gate, float d_act, float slope) {
    return gate <= kLimit ? d_act * slope : 0.0f;
  }
  GATEUP_INLINE float bounded(float g) { return g > kLimit ? kLimit : g; }
  GATEUP_INLINE float value(float g) {
    const float b = bounded(g);
    return logistic(kAlpha * b, b).product;
  }
  GATEUP_INLINE Value both(float g) {
    const float b = bounded(g);
    const Logistic s = logistic(kAlpha * b, b);
    return {s.product, fmadd(kAlpha, s.product * s.complement, s.value)};
  }
};

}  // namespace
