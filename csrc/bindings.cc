// The module pelton._native: the only file that knows Python. One section per room; each checks what Python hands it
// and releases the interpreter while native code works. pelton/_native.pyi says the same for readers and for mypy.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "bandwidth.h"
#include "cpu_features.h"
#include "file_read.h"
#include "levels.h"
#include "memory.h"
#include "pack.h"
#include "program.h"
#include "self_test.h"
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
      .def(
          "__init__",
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
  module.def(
      "self_test",
      [](const std::string& level) {
        std::vector<std::pair<std::string, std::string>> out;
        for (const SelfTestResult& result : self_test(level)) out.emplace_back(result.name, result.verdict);
        return out;
      },
      "level"_a);
}

// ---- Weights ----

// The part of a buffer that a native function will write or read.
uint8_t* checked_range(const Buffer& buffer, int64_t offset, int64_t nbytes) {
  const int64_t size = static_cast<int64_t>(buffer.memory.bytes());
  if (offset < 0 || nbytes > size || offset > size - nbytes) {
    throw std::out_of_range("`" + std::to_string(nbytes) + "` bytes at offset `" + std::to_string(offset) +
                            "` of a buffer of `" + std::to_string(size) + "`");
  }
  return buffer.memory.data() + offset;
}

void pack(Team& team, const std::string& format, int fd, int64_t offset, int64_t n, int64_t k,
          const Buffer& destination, int64_t destination_offset,
          const std::optional<std::vector<int64_t>>& row_order) {
  const PackShape shape(format, n, k);
  uint8_t* target = checked_range(destination, destination_offset, shape.packed_bytes());
  const nb::gil_scoped_release release;
  pack_from_file(team, shape, fd, offset, target, row_order.value_or(std::vector<int64_t>()));
}

Buffer unpack_to_buffer(const std::string& format, const Buffer& source, int64_t offset, int64_t n, int64_t k) {
  const PackShape shape(format, n, k);
  const uint8_t* packed = checked_range(source, offset, shape.packed_bytes());
  Buffer out = Buffer::allocate(n * k * static_cast<int64_t>(sizeof(float)), "unpacked");
  unpack(shape, packed, reinterpret_cast<float*>(out.memory.data()));
  return out;
}

void read_floats_to_buffer(const std::string& format, int fd, int64_t offset, int64_t count, const Buffer& destination,
                           int64_t destination_offset) {
  if (count < 0 || count > PTRDIFF_MAX / 4) throw std::invalid_argument("count is `" + std::to_string(count) + "`");
  if (destination_offset % 4 != 0) throw std::invalid_argument("destination_offset is not a multiple of 4");
  uint8_t* target = checked_range(destination, destination_offset, count * 4);
  const nb::gil_scoped_release release;
  read_floats(format, fd, offset, count, reinterpret_cast<float*>(target));
}

void translate_read_errors(const std::exception_ptr& error, void*) {
  try {
    std::rethrow_exception(error);
  } catch (const EndOfFile& end) {
    PyErr_SetString(PyExc_EOFError, end.what());
  } catch (const std::system_error& system) {
    errno = system.code().value();
    PyErr_SetFromErrno(PyExc_OSError);
  }
}

void bind_weights(nb::module_& module) {
  nb::register_exception_translator(translate_read_errors);
  module.def(
      "packed_bytes",
      [](const std::string& format, int64_t n, int64_t k) { return PackShape(format, n, k).packed_bytes(); },
      "format"_a, "n"_a, "k"_a);
  module.def("pack", &pack, "team"_a, "format"_a, "fd"_a, "offset"_a, "n"_a, "k"_a, "destination"_a,
             "destination_offset"_a, "row_order"_a = nb::none());
  module.def("unpack", &unpack_to_buffer, "format"_a, "source"_a, "offset"_a, "n"_a, "k"_a);
  module.def("read_floats", &read_floats_to_buffer, "format"_a, "fd"_a, "offset"_a, "count"_a, "destination"_a,
             "destination_offset"_a);
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
      .def(
          "profile", [](Program& self, const StepInput& step) { return self.profile(step.step()); }, "step"_a,
          ReleaseGil());
}

}  // namespace
}  // namespace pelton

NB_MODULE(_native, module) {
  module.doc() = "The native library of Pelton.";
  pelton::bind_memory(module);
  pelton::bind_team(module);
  pelton::bind_levels(module);
  pelton::bind_weights(module);
  pelton::bind_program(module);
}
