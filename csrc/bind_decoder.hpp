#pragma once

#include <nanobind/nanobind.h>

namespace gateup {

// Adds Decoder and DecoderCache to the module.
void bind_decoder(nanobind::module_& m);

}  // namespace gateup
