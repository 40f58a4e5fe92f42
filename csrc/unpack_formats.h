// Values out of panels: no file, no standard library, one definition for all levels.
#pragma once

#include "formats.h"

namespace pelton {

// rows: 16 rows of k floats; null is not wanted. Bitwise what the format's dequantisation gives in float32.
void unpack_panel(Format format, const uint8_t* panel, int64_t k, float* const* rows);

// The k values of one lane of a panel.
void unpack_lane(Format format, const uint8_t* panel, int64_t k, int lane, float* values);

}  // namespace pelton
