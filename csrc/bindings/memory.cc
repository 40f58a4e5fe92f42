// Buffers and the ledger.
#include "memory.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include <stdexcept>

#include "bindings.h"

namespace pelton {

Buffer Buffer::allocate(int64_t nbytes, const std::string& owner) {
  if (nbytes < 0) throw std::invalid_argument("nbytes is `" + std::to_string(nbytes) + "`, which is negative");
  return {Memory(static_cast<size_t>(nbytes), owner), 0};
}

void Buffer::close() {
  if (num_views != 0) throw nb::buffer_error("a buffer can't be closed while views of it exist");
  memory.release();
}

uint8_t* Buffer::checked_range(int64_t offset, int64_t nbytes) const {
  const int64_t size = static_cast<int64_t>(memory.bytes());
  if (offset < 0 || nbytes > size || offset > size - nbytes) {
    throw std::out_of_range("`" + std::to_string(nbytes) + "` bytes at offset `" + std::to_string(offset) +
                            "` of a buffer of `" + std::to_string(size) + "`");
  }
  return memory.data() + offset;
}

namespace {

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

}  // namespace

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

}  // namespace pelton
