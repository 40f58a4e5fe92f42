// The table of contents of the native kernels: what a kernel is, and what each instruction-set level exports.
//
// A kernel family is one file in csrc/kernels. It is compiled once per level, with that level's flags and with
// PELTON_LEVEL set to its name, inside `namespace pelton::PELTON_LEVEL`, and exports exactly one symbol:
//     extern "C" const pelton::KernelEntry* pelton_<level>_<family>(int32_t* count);
// Everything else in such a file is in an anonymous namespace, and no inline function of the standard library is
// used there: a weak symbol compiled with AVX-512 flags could be picked by the linker for the whole program.
#pragma once

#include <cstddef>
#include <cstdint>

#include "step.h"

namespace pelton {

// Thread-private working memory, 64-byte aligned, reused by every kernel; contents are undefined on entry.
struct Scratch {
  uint8_t* data;
  size_t bytes;  // kScratchBytes
  int32_t thread;
};
inline constexpr size_t kScratchBytes = size_t{1} << 20;

// One node of a program: a kernel with its arguments. What each entry means is written above each kernel.
struct Node {
  void* pointer[16];
  int64_t size[24];
  float value[8];
  Dim dim;
};

// Computes piece `piece` of [0, pieces(node, step)). Pieces may run at once, in any order, on any thread; a result
// never depends on how the work was cut.
// The number of pieces follows from the node's sizes and the step's counts and contexts alone, never from memory that
// another node writes: threads ask for it before that node has run.
using RunFn = void (*)(const Node& node, const Step& step, int64_t piece, Scratch& scratch);
using PiecesFn = int64_t (*)(const Node& node, const Step& step);

struct KernelEntry {
  const char* name;  // "rms_norm", "linear.q4_0": unique within a level
  RunFn run;
  PiecesFn pieces;
};

using ExportFn = const KernelEntry* (*)(int32_t* count);

#define PELTON_EXPORT_NAME2(level, family) pelton_##level##_##family
#define PELTON_EXPORT_NAME(level, family) PELTON_EXPORT_NAME2(level, family)
#define PELTON_EXPORT_KERNELS(family, entries)                                                       \
  extern "C" const ::pelton::KernelEntry* PELTON_EXPORT_NAME(PELTON_LEVEL, family)(int32_t* count) { \
    *count = static_cast<int32_t>(sizeof(entries) / sizeof((entries)[0]));                           \
    return entries;                                                                                  \
  }

}  // namespace pelton
