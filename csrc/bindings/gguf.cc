// GGUF headers as Python values.
#include "gguf.h"

#include <nanobind/stl/string.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <system_error>
#include <utility>

#include "bindings.h"
#include "file_read.h"
#include "strings.h"
#include "text/unicode.h"

namespace pelton {
namespace {

template <typename T>
T load_as(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

nb::object gguf_scalar(const gguf::Header& header, const gguf::Value& value) {
  using gguf::ValueType;
  const uint8_t* bytes = header.data(value);
  switch (value.type) {
    case ValueType::kU8:
      return nb::int_(load_as<uint8_t>(bytes));
    case ValueType::kI8:
      return nb::int_(load_as<int8_t>(bytes));
    case ValueType::kU16:
      return nb::int_(load_as<uint16_t>(bytes));
    case ValueType::kI16:
      return nb::int_(load_as<int16_t>(bytes));
    case ValueType::kU32:
      return nb::int_(load_as<uint32_t>(bytes));
    case ValueType::kI32:
      return nb::int_(load_as<int32_t>(bytes));
    case ValueType::kU64:
      return nb::int_(load_as<uint64_t>(bytes));
    case ValueType::kI64:
      return nb::int_(load_as<int64_t>(bytes));
    case ValueType::kF32:
      return nb::float_(load_as<float>(bytes));
    case ValueType::kF64:
      return nb::float_(load_as<double>(bytes));
    case ValueType::kBool:
      return nb::bool_(*bytes != 0);
    case ValueType::kString:
      return to_str(header.strings(value)[0]);
    case ValueType::kArray:
      break;
  }
  throw nb::type_error("an array is not a scalar");
}

// Strings become a list; numbers stay packed, in a memoryview with their type's format character.
nb::object gguf_array(const gguf::Header& header, const gguf::Value& value) {
  static constexpr const char* kFormats[] = {"B", "b", "H", "h", "I", "i", "f", "?", nullptr, nullptr, "Q", "q", "d"};
  if (value.element == gguf::ValueType::kString) {
    nb::list result;
    for (std::string_view text : header.strings(value)) result.append(to_str(text));
    return result;
  }
  nb::bytes copy(reinterpret_cast<const char*>(header.data(value)), value.count * gguf::ElementBytes(value.element));
  nb::object view = nb::steal(PyMemoryView_FromObject(copy.ptr()));
  return view.attr("cast")(kFormats[static_cast<uint32_t>(value.element)]);
}

nb::object gguf_value(const gguf::Header& header, const std::string& key) {
  const gguf::Value* value = header.find(key);
  if (value == nullptr) throw nb::key_error(key.c_str());
  return value->type == gguf::ValueType::kArray ? gguf_array(header, *value) : gguf_scalar(header, *value);
}

// The array at `key`, its elements' bytes in the header; None if there is none or it is of another type.
nb::object gguf_strings(const nb::object& self, const std::string& key) {
  const auto& header = nb::cast<const gguf::Header&>(self);
  const gguf::Value* value = header.find(key);
  const bool is_array = value != nullptr && value->type == gguf::ValueType::kArray;
  if (!is_array || value->element != gguf::ValueType::kString) return nb::none();
  Strings strings{header.strings(*value), self};
  for (const std::string_view text : strings.views) {
    if (!text::is_utf8(text)) to_str(text);
  }
  return nb::cast(std::move(strings));
}

nb::list gguf_tensors(const gguf::Header& header) {
  nb::list result;
  for (const gguf::Tensor& tensor : header.tensors()) {
    nb::list shape;
    for (int32_t i = tensor.num_dimensions - 1; i >= 0; --i) shape.append(tensor.dimensions[i]);
    result.append(
        nb::make_tuple(to_str(tensor.name), nb::tuple(shape), tensor.type->name, tensor.offset, tensor.nbytes));
  }
  return result;
}

void open_gguf(gguf::Header* self, int fd) {
  try {
    nb::gil_scoped_release release;
    struct stat status;
    if (fstat(fd, &status) != 0) throw std::system_error(errno, std::generic_category());
    new (self) gguf::Header(static_cast<uint64_t>(status.st_size), [fd](uint64_t offset, uint8_t* to, size_t bytes) {
      const int result = read_exactly(fd, to, bytes, static_cast<int64_t>(offset));
      if (result > 0) throw std::system_error(result, std::generic_category());
      return result != kEndOfFile;
    });
  } catch (const gguf::MalformedError& error) {
    throw nb::value_error(error.what());
  } catch (const gguf::UnsupportedError& error) {
    PyErr_SetString(PyExc_NotImplementedError, error.what());
    throw nb::python_error();
  } catch (const std::system_error& error) {
    errno = error.code().value();
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
  }
}

}  // namespace

void bind_gguf(nb::module_& module) {
  nb::class_<gguf::Header>(module, "GgufHeader")
      .def("__init__", &open_gguf, "fd"_a)
      .def_prop_ro("version", &gguf::Header::version)
      .def_prop_ro("data_offset", &gguf::Header::data_offset)
      .def("keys",
           [](const gguf::Header& header) {
             nb::list result;
             for (std::string_view key : header.keys()) result.append(to_str(key));
             return result;
           })
      .def("value", &gguf_value, "key"_a)
      .def("strings", &gguf_strings, "key"_a)
      .def("tensors", &gguf_tensors);
}

}  // namespace pelton
