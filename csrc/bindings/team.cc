// The team of threads.
#include "team.h"

#include "bandwidth.h"
#include "bindings.h"

namespace pelton {

void bind_team(nb::module_& module) {
  nb::class_<Team>(module, "Team")
      .def(nb::init<int>(), "num_threads"_a)
      .def_prop_ro("num_threads", &Team::num_threads)
      .def("close", &Team::close, ReleaseGil());
  module.def("read_bandwidth", &read_bandwidth, "team"_a, "nbytes"_a, ReleaseGil());
}

}  // namespace pelton
