// The memory read rate that decoding can hope for, measured.
#pragma once

#include <cstddef>

#include "team.h"

namespace pelton {

// Bytes per second at which the team reads `bytes` of memory from start to end: the best of three passes. Throws
// std::invalid_argument for less than 1 MiB, MemoryRefused.
double read_bandwidth(Team& team, size_t bytes);

}  // namespace pelton
