// The module's definition: what it is made of.
#include "bindings.h"

NB_MODULE(_native, module) {
  pelton::nb::set_leak_warnings(false);  // what a script holds to its very end is no leak
  module.doc() = "The native library of Pelton.";
  pelton::bind_memory(module);
  pelton::bind_team(module);
  pelton::bind_levels(module);
  pelton::bind_gguf(module);
  pelton::bind_weights(module);
  pelton::bind_text(module);
  pelton::bind_program(module);
  pelton::bind_runner(module);
}
