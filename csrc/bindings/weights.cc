// Packed weights: sizes, reading and unpacking.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

#include "bindings.h"
#include "file_read.h"
#include "pack.h"
#include "weight_reads.h"

namespace pelton {
namespace {

using RowOrder = std::optional<std::vector<int64_t>>;

// WeightReads with the buffers that it will write.
class BoundWeightReads {
 public:
  void add_matrix(const std::string& format, int fd, int64_t offset, int64_t n, int64_t k, Buffer& destination,
                  int64_t destination_offset, RowOrder row_order, std::optional<int64_t> file_rows) {
    const PackShape shape(format, n, k);
    uint8_t* target = destination.checked_range(destination_offset, shape.packed_bytes());
    reads_.add_matrix(shape, {fd, offset}, target, std::move(row_order).value_or(std::vector<int64_t>()),
                      file_rows.value_or(n));
    buffers_.push_back(&destination);
  }

  void add_vector(const std::string& format, int fd, int64_t offset, int64_t count, Buffer& destination,
                  int64_t destination_offset, RowOrder row_order, std::optional<int64_t> file_rows, float factor,
                  float summand) {
    const VectorShape shape(format, count), stored(format, file_rows.value_or(count));
    if (destination_offset % 4 != 0) throw std::invalid_argument("destination_offset is not a multiple of 4");
    uint8_t* target = destination.checked_range(destination_offset, shape.target_bytes());
    reads_.add_vector(shape, {fd, offset}, reinterpret_cast<float*>(target),
                      std::move(row_order).value_or(std::vector<int64_t>()), stored.count, factor, summand);
    buffers_.push_back(&destination);
  }

  void run(Team& team) {
    std::vector<OpenBuffer> open;
    for (Buffer* buffer : buffers_) {
      if (buffer->memory.data() == nullptr) throw nb::buffer_error("a destination is closed");
      open.emplace_back(buffer);
    }
    const nb::gil_scoped_release release;
    reads_.run(team);
  }

  std::optional<int64_t> failed() const { return reads_.failed(); }

 private:
  WeightReads reads_;
  std::vector<Buffer*> buffers_;
};

Buffer unpack_to_buffer(const std::string& format, const Buffer& source, int64_t offset, int64_t n, int64_t k) {
  const PackShape shape(format, n, k);
  const uint8_t* packed = source.checked_range(offset, shape.packed_bytes());
  Buffer out = Buffer::allocate(n * k * static_cast<int64_t>(sizeof(float)), "unpacked");
  unpack(shape, packed, reinterpret_cast<float*>(out.memory.data()));
  return out;
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

}  // namespace

void bind_weights(nb::module_& module) {
  nb::register_exception_translator(translate_read_errors);
  module.attr("PANEL_ROWS") = kPanelLanes;
  module.def(
      "packed_bytes",
      [](const std::string& format, int64_t n, int64_t k) { return PackShape(format, n, k).packed_bytes(); },
      "format"_a, "n"_a, "k"_a);
  module.def("unpack", &unpack_to_buffer, "format"_a, "source"_a, "offset"_a, "n"_a, "k"_a);
  nb::class_<BoundWeightReads>(module, "WeightReads")
      .def(nb::init<>())
      .def("add_matrix", &BoundWeightReads::add_matrix, "format"_a, "fd"_a, "offset"_a, "n"_a, "k"_a, "destination"_a,
           "destination_offset"_a, "row_order"_a = nb::none(), "file_rows"_a = nb::none(), nb::keep_alive<1, 7>())
      .def("add_vector", &BoundWeightReads::add_vector, "format"_a, "fd"_a, "offset"_a, "count"_a, "destination"_a,
           "destination_offset"_a, "row_order"_a = nb::none(), "file_rows"_a = nb::none(), "factor"_a = 1.0f,
           "summand"_a = 0.0f, nb::keep_alive<1, 6>())
      .def("run", &BoundWeightReads::run, "team"_a)
      .def_prop_ro("failed", &BoundWeightReads::failed);
}

}  // namespace pelton
