// Adds the products with packed matrices to the Python module.
#pragma once

#include <nanobind/nanobind.h>

namespace gateup {

void bind_matrix(nanobind::module_& m);

}  // namespace gateup
