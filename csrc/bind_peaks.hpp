// Adds the machine's peaks to the Python module.
#pragma once

#include <nanobind/nanobind.h>

namespace gateup {

void bind_peaks(nanobind::module_& m);

}  // namespace gateup
