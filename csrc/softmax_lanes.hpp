// e^x and tanh for vectors, as softmax and softcap need them.
#pragma once

#include "lanes.hpp"

namespace {

typedef i32 Ints __attribute__((vector_size(sizeof(Lanes))));

// e^x for x <= 0; 0 below -87, where the result would be subnormal (and many times slower to
// handle). NaN stays. The constants are those of exp_bounded.
GATEUP_INLINE Lanes exp_negative(Lanes x) {
  const Lanes lowest = lanes_of(-87.0f), shift = lanes_of(12582912.0f);
  const Lanes bounded = larger(lowest, x);
  const Lanes shifted = fmadd(bounded, lanes_of(1.44269502f), shift);
  const Lanes n = shifted - shift;
  const Lanes upper = fmadd(n, lanes_of(-0.693145751953125f), bounded);
  const Lanes r = fmadd(n, lanes_of(-1.42860677e-06f), upper);
  Lanes p = lanes_of(1.38145406e-3f);
  p = fmadd(p, r, lanes_of(8.36874545e-3f));
  p = fmadd(p, r, lanes_of(4.16683890e-2f));
  p = fmadd(p, r, lanes_of(1.66665211e-1f));
  p = fmadd(p, r, lanes_of(4.99999940e-1f));
  const Lanes y = fmadd(r * r, p, r) + lanes_of(1.0f);
  const Ints k = (Ints)shifted - (Ints)shift;
  const Lanes scaled = (Lanes)((Ints)y + (k << 23));
  return x < lowest ? Lanes{} : scaled;
}

// tanh x = (1 - e) / (1 + e) for e = e^-2|x|; absolute error 1e-7.
GATEUP_INLINE Lanes tanh_of(Lanes x) {
  const Ints sign = (Ints)x & static_cast<i32>(0x80000000u);
  const Lanes magnitude = (Lanes)((Ints)x & 0x7fffffff);
  const Lanes e = exp_negative(magnitude * -2.0f);
  const Lanes t = (1.0f - e) / (1.0f + e);
  return (Lanes)((Ints)t | sign);
}

}  // namespace
