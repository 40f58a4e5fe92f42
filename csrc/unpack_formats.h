// Single rows out of panels, for kernels: no file, no standard library, one definition for all levels.
#pragma once

#include "formats.h"

namespace pelton {

// The k values of one lane of a panel, dequantised as the format defines.
void unpack_lane(Format format, const uint8_t* panel, int64_t k, int lane, float* values);

}  // namespace pelton
