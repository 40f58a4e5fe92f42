// The packing table by format number, for kernels that read single rows out of panels.
#pragma once

#include "formats.h"

namespace pelton {

struct PackFormat;
const PackFormat& pack_format(Format format);

}  // namespace pelton
