// The module pelton._native: the only file that knows Python. One section per room; each checks what Python hands it
// and releases the interpreter while native code works. pelton/_native.pyi says the same for readers and for mypy.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "attention_plan.h"
#include "bandwidth.h"
#include "cpu_features.h"
#include "levels.h"
#include "memory.h"
#include "program.h"
#include "step_input.h"
#include "team.h"

namespace nb = nanobind;
using namespace nb::literals;
using ReleaseGil = nb::call_guard<nb::gil_scoped_release>;

namespace pelton {
namespace {

// ---- Memory ----

// A Memory that knows how many Python views look into it.
struct Buffer {
  Memory memory;
  int num_views = 0;

  static Buffer allocate(int64_t nbytes, const std::string& owner) {
    if (nbytes < 0) throw std::invalid_argument("nbytes is `" + std::to_string(nbytes) + "`, which is negative");
    return {Memory(static_cast<size_t>(nbytes), owner), 0};
  }

  void close() {
    if (num_views != 0) throw nb::buffer_error("a buffer can't be closed while views of it exist");
    memory.release();
  }
};

int get_view(PyObject* self, Py_buffer* view, int flags) {
  Buffer* buffer = nb::inst_ptr<Buffer>(self);
  if (buffer->memory.data() == nullptr) {
    PyErr_SetString(PyExc_BufferError, "the buffer is closed");
    return -1;
  }
  const Py_ssize_t nbytes = static_cast<Py_ssize_t>(buffer->memory.bytes());
  if (PyBuffer_FillInfo(view, self, buffer->memory.data(), nbytes, /*readonly=*/0, flags) != 0) return -1;
  ++buffer->num_views;
  return 0;
}

void release_view(PyObject* self, Py_buffer*) { --nb::inst_ptr<Buffer>(self)->num_views; }

PyType_Slot buffer_slots[] = {
    {Py_bf_getbuffer, reinterpret_cast<void*>(get_view)},
    {Py_bf_releasebuffer, reinterpret_cast<void*>(release_view)},
    {0, nullptr},
};

void bind_memory(nb::module_& module) {
  nb::class_<Buffer>(module, "Buffer", nb::type_slots(buffer_slots))
      .def("__init__",
           [](Buffer* self, int64_t nbytes, const std::string& owner) {
             new (self) Buffer(Buffer::allocate(nbytes, owner));
           },
           "nbytes"_a, "owner"_a)
      .def_prop_ro("address", [](const Buffer& self) { return reinterpret_cast<uintptr_t>(self.memory.data()); })
      .def_prop_ro("nbytes", [](const Buffer& self) { return self.memory.bytes(); })
      .def("close", &Buffer::close);
  module.def("memory_ledger", &memory_ledger);
}

// ---- Team ----

void bind_team(nb::module_& module) {
  nb::class_<Team>(module, "Team")
      .def(nb::init<int>(), "num_threads"_a)
      .def_prop_ro("num_threads", &Team::num_threads)
      .def("close", &Team::close, ReleaseGil());
  module.def("read_bandwidth", &read_bandwidth, "team"_a, "nbytes"_a, ReleaseGil());
}

// ---- Levels ----

void bind_levels(nb::module_& module) {
  module.def("cpu_features", [] {
    std::map<std::string, bool> out;
    for (const CpuFeature& feature : cpu_features()) out[feature.name] = feature.present;
    return out;
  });
  module.def("levels", [] {
    std::vector<std::tuple<std::string, bool, std::string>> out;
    for (const LevelStatus& status : levels()) out.emplace_back(status.name, status.usable, status.reason);
    return out;
  });
  module.def(
      "kernels",
      [](const std::string& level) {
        std::vector<std::string> out;
        for (const KernelEntry& entry : kernels(level)) out.emplace_back(entry.name);
        return out;
      },
      "level"_a);
}

// ---- Attention ----

void bind_attention(nb::module_& module) {
  module.def(
      "attention_workspace_bytes",
      [](int64_t max_tokens, int64_t max_context, int64_t num_threads, int64_t heads, int64_t kv_heads,
         int64_t head_dim) {
        if (max_tokens < 1 || max_context < 1 || num_threads < 1 || heads < 1 || kv_heads < 1 || head_dim < 1) {
          throw std::invalid_argument("a workspace's sizes are at least 1");
        }
        return attention_workspace_bytes(max_tokens, max_context, num_threads, heads, kv_heads, head_dim);
      },
      "max_tokens"_a, "max_context"_a, "num_threads"_a, "heads"_a, "kv_heads"_a, "head_dim"_a);
}

// ---- Program ----

Dim checked_dim(int dim) {
  if (dim != 0 && dim != 1) throw std::invalid_argument("dim is `" + std::to_string(dim) + "`, not 0 or 1");
  return static_cast<Dim>(dim);
}

using SequenceTuple = std::tuple<int32_t, int32_t, int32_t, std::vector<std::vector<uint32_t>>>;

void make_step_input(StepInput* self, std::vector<int32_t> token_ids, std::vector<int32_t> positions,
                     const std::vector<SequenceTuple>& sequences, std::vector<int32_t> logit_rows,
                     const Buffer* kv_pool) {
  std::vector<StepInput::Sequence> owned;
  for (const auto& [first_row, num_rows, context, tables] : sequences) {
    owned.push_back({first_row, num_rows, context, tables});
  }
  const bool has_pool = kv_pool != nullptr;
  new (self) StepInput(std::move(token_ids), std::move(positions), std::move(owned), std::move(logit_rows),
                       has_pool ? kv_pool->memory.data() : nullptr, has_pool ? kv_pool->memory.bytes() : 0);
}

void bind_program(nb::module_& module) {
  nb::class_<StepInput>(module, "StepInput")
      .def("__init__", &make_step_input, "token_ids"_a, "positions"_a, "sequences"_a, "logit_rows"_a,
           "kv_pool"_a.none(), nb::keep_alive<1, 6>());
  nb::class_<Program>(module, "Program")
      .def(nb::init<Team&, const std::string&>(), "team"_a, "level"_a, nb::keep_alive<1, 2>())
      .def(
          "add",
          [](Program& self, const std::string& kernel, int dim, const std::vector<uintptr_t>& pointers,
             const std::vector<int64_t>& sizes, const std::vector<float>& values) {
            std::vector<void*> addresses;
            for (const uintptr_t pointer : pointers) addresses.push_back(reinterpret_cast<void*>(pointer));
            return self.add(kernel, checked_dim(dim), addresses, sizes, values);
          },
          "kernel"_a, "dim"_a, "pointers"_a, "sizes"_a, "values"_a)
      .def(
          "run",
          [](Program& self, const StepInput& step, int first, int last) {
            self.run(step.step(), first, last == -1 ? self.num_nodes() : last);
          },
          "step"_a, "first"_a = 0, "last"_a = -1, ReleaseGil())
      .def("profile", [](Program& self, const StepInput& step) { return self.profile(step.step()); }, "step"_a,
           ReleaseGil());
}

}  // namespace
}  // namespace pelton

NB_MODULE(_native, module) {
  module.doc() = "The native library of Pelton.";
  pelton::bind_memory(module);
  pelton::bind_team(module);
  pelton::bind_levels(module);
  pelton::bind_attention(module);
  pelton::bind_program(module);
}
