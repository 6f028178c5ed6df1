#pragma once

#include <nanobind/nanobind.h>

namespace gateup {

// Adds dense_linear and dense_gated_mlp: weights where torch keeps them.
void bind_dense(nanobind::module_& m);

}  // namespace gateup
