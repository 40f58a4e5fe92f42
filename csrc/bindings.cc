// The module pelton._native: the only file that knows Python. One section per room; each checks what Python hands it
// and releases the interpreter while native code works. pelton/_native.pyi says the same for readers and for mypy.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <system_error>

#include "attention_plan.h"
#include "bandwidth.h"
#include "cpu_features.h"
#include "file_read.h"
#include "gguf.h"
#include "levels.h"
#include "memory.h"
#include "pack.h"
#include "piece_merges.h"
#include "program.h"
#include "runner.h"
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
        for (const SelfTestResult& result : self_test(level, SelfTestExtent::kAll))
          out.emplace_back(result.name, result.verdict);
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
          const Buffer& destination, int64_t destination_offset, const std::optional<std::vector<int64_t>>& row_order) {
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

// ---- Text ----

// The pairs are made of the list's own strings: a vocabulary has half a million pairs.
nb::list piece_merges_of(const nb::list& pieces, const std::vector<double>& scores) {
  std::vector<std::string_view> texts;
  texts.reserve(pieces.size());
  for (const nb::handle piece : pieces) {
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(piece.ptr(), &size);
    if (text == nullptr) throw nb::python_error();
    texts.emplace_back(text, static_cast<size_t>(size));
  }
  nb::list out;
  for (const auto& [left, right] : piece_merges(texts, scores)) {
    out.append(nb::make_tuple(nb::borrow(PyList_GET_ITEM(pieces.ptr(), left)),
                              nb::borrow(PyList_GET_ITEM(pieces.ptr(), right))));
  }
  return out;
}

void bind_text(nb::module_& module) { module.def("piece_merges", &piece_merges_of, "pieces"_a, "scores"_a); }

// ---- GGUF headers ----

template <typename T>
T load_as(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

// Raises UnicodeDecodeError, a ValueError, for bytes that are not UTF-8.
nb::object to_str(std::string_view text) {
  nb::object result = nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "strict"));
  if (!result.is_valid()) throw nb::python_error();
  return result;
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
      .def("tensors", &gguf_tensors);
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
      .def(
          "profile", [](Program& self, const StepInput& step) { return self.profile(step.step()); }, "step"_a,
          ReleaseGil());
}

// ---- Runner ----

// Keeps a buffer from being closed while native code points into it.
class OpenBuffer {
 public:
  explicit OpenBuffer(Buffer* buffer) : buffer_(buffer) {
    if (buffer_ != nullptr) ++buffer_->num_views;
  }
  ~OpenBuffer() {
    if (buffer_ != nullptr) --buffer_->num_views;
  }
  OpenBuffer(const OpenBuffer&) = delete;
  OpenBuffer& operator=(const OpenBuffer&) = delete;

  uint8_t* data() const { return buffer_ == nullptr ? nullptr : buffer_->memory.data(); }

 private:
  Buffer* buffer_;
};

// A field of one of the structs in pelton/engine/batch.py.
template <class T>
T field(nb::handle object, const char* name) {
  const nb::object value = nb::getattr(object, name);
  try {
    return nb::cast<T>(value);
  } catch (const nb::cast_error&) {
    throw std::invalid_argument("`" + std::string(name) + "` is `" + nb::repr(value).c_str() + "`");
  }
}

Sampling read_sampling(nb::handle request) {
  const nb::object params = nb::getattr(request, "sampling");
  Sampling out;
  out.temperature = field<double>(params, "temperature");
  out.top_k = field<int64_t>(params, "top_k");
  out.top_p = field<double>(params, "top_p");
  out.min_p = field<double>(params, "min_p");
  out.repetition_penalty = field<double>(params, "repetition_penalty");
  out.presence_penalty = field<double>(params, "presence_penalty");
  out.frequency_penalty = field<double>(params, "frequency_penalty");
  out.seed = field<uint64_t>(request, "seed");
  out.choice = field<uint32_t>(request, "choice");
  out.min_tokens = field<int64_t>(params, "min_tokens");
  out.stop_token_ids = field<std::vector<int32_t>>(request, "eos_token_ids");
  const auto stop_token_ids = field<std::vector<int32_t>>(params, "stop_token_ids");
  out.stop_token_ids.insert(out.stop_token_ids.end(), stop_token_ids.begin(), stop_token_ids.end());
  for (const auto& [token_id, bias] : field<std::map<int32_t, double>>(params, "logit_bias")) {
    out.logit_bias.emplace_back(token_id, bias);
  }
  out.num_logprobs = field<std::optional<int32_t>>(params, "logprobs").value_or(-1);
  out.num_prompt_logprobs = field<std::optional<int32_t>>(params, "prompt_logprobs").value_or(-1);
  return out;
}

Request read_request(nb::handle request) {
  if (field<int64_t>(request, "position_rows") != 1) throw std::invalid_argument("`position_rows` must be 1");
  if (!nb::getattr(request, "adapter").is_none()) throw std::invalid_argument("`adapter` must be None");
  return {field<std::vector<int32_t>>(request, "token_ids"), field<int64_t>(request, "num_prompt"),
          read_sampling(request)};
}

std::vector<uint32_t> read_mask(nb::handle work) {
  const nb::object mask = nb::getattr(work, "token_mask");
  if (mask.is_none()) return {};
  const auto bytes = nb::cast<nb::bytes>(mask);
  if (bytes.size() == 0 || bytes.size() % sizeof(uint32_t) != 0) {
    throw std::invalid_argument("`token_mask` has `" + std::to_string(bytes.size()) + "` bytes");
  }
  std::vector<uint32_t> out(bytes.size() / sizeof(uint32_t));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

SlotWork read_work(nb::handle work) {
  SlotWork out;
  out.slot = field<int64_t>(work, "slot");
  out.num_computed = field<int64_t>(work, "num_computed");
  out.num_tokens = field<int64_t>(work, "num_tokens");
  out.new_blocks = field<std::vector<std::vector<uint32_t>>>(work, "new_blocks");
  out.reset = field<bool>(work, "reset");
  const nb::object freed_blocks = nb::getattr(work, "freed_blocks");
  if (!freed_blocks.is_none()) out.freed_blocks = field<std::vector<int64_t>>(work, "freed_blocks");
  out.sample = field<bool>(work, "sample");
  out.prompt_logprobs_from = field<std::optional<int64_t>>(work, "prompt_logprobs_from").value_or(-1);
  out.token_mask = read_mask(work);
  return out;
}

nb::tuple to_tuple(const Logprobs& logprobs) {
  nb::list token_ids, values;
  for (int32_t i = 0; i < logprobs.count; ++i) {
    token_ids.append(logprobs.token_ids[i]);
    values.append(logprobs.values[i]);
  }
  return nb::make_tuple(token_ids, values, logprobs.rank);
}

nb::tuple to_tuple(const SlotOutcome& outcome) {
  nb::object logprobs = nb::none(), prompt_logprobs = nb::none();
  if (outcome.logprobs.has_value()) logprobs = to_tuple(*outcome.logprobs);
  if (!outcome.prompt_logprobs.empty()) {
    nb::list list;
    for (const Logprobs& position : outcome.prompt_logprobs) list.append(to_tuple(position));
    prompt_logprobs = list;
  }
  return nb::make_tuple(outcome.slot, outcome.token_id, logprobs, prompt_logprobs, outcome.error);
}

// A Runner with what it points into. The mutex is never held while waiting for the interpreter.
struct BoundRunner {
  OpenBuffer kv_pool, logits;
  std::mutex mutex;
  Runner runner;

  BoundRunner(Program& program, RunnerLimits limits, Buffer* kv_pool_buffer, Buffer& logits_buffer, LogitsView view)
      : kv_pool(kv_pool_buffer), logits(&logits_buffer), runner(program, std::move(limits), kv_pool.data(), view) {}

  void enter(nb::handle request) {
    const auto slot = field<int64_t>(request, "slot");
    Request read = read_request(request);
    const std::lock_guard<std::mutex> lock(mutex);
    runner.enter(slot, std::move(read));
  }

  void release(int64_t slot) {
    const std::lock_guard<std::mutex> lock(mutex);
    runner.release(slot);
  }

  nb::list step(const nb::list& work) {
    std::vector<SlotWork> read;
    read.reserve(work.size());
    for (const nb::handle item : work) read.push_back(read_work(item));
    std::vector<SlotOutcome> outcomes;
    {
      const nb::gil_scoped_release no_gil;
      const std::lock_guard<std::mutex> lock(mutex);
      outcomes = runner.step(read);
    }
    nb::list out;
    for (const SlotOutcome& outcome : outcomes) out.append(to_tuple(outcome));
    return out;
  }
};

// The tile of logits at `offset` bytes of a buffer, rows `stride` floats apart.
LogitsView view_logits(const Buffer& buffer, int64_t offset, int64_t stride, int64_t vocab_size) {
  constexpr int64_t kFloat = sizeof(float);
  const auto num_floats = static_cast<int64_t>(buffer.memory.bytes()) / kFloat;
  if (offset < 0 || offset % kFloat != 0 || offset / kFloat > num_floats || vocab_size < 1 || stride < vocab_size ||
      stride > (num_floats - offset / kFloat) / kHeadRows) {
    throw std::invalid_argument("`logits` does not hold a tile of " + std::to_string(kHeadRows) + " rows, `" +
                                std::to_string(stride) + "` floats apart, at `" + std::to_string(offset) + "`");
  }
  return {reinterpret_cast<const float*>(buffer.memory.data() + offset), stride};
}

void make_runner(BoundRunner* self, Program& program, Buffer* kv_pool, Buffer& logits, int64_t logits_offset,
                 int64_t logits_stride, const std::vector<std::pair<int64_t, std::optional<int64_t>>>& cache_groups,
                 int64_t num_slots, int64_t max_model_len, int64_t max_num_tokens, int64_t vocab_size) {
  RunnerLimits limits{num_slots, max_model_len, max_num_tokens, vocab_size, 0, {}};
  if (kv_pool != nullptr) limits.kv_pool_bytes = static_cast<int64_t>(kv_pool->memory.bytes());
  for (const auto& [block_bytes, window] : cache_groups) {
    limits.cache_groups.push_back({block_bytes, window.value_or(0)});
  }
  const LogitsView view = view_logits(logits, logits_offset, logits_stride, vocab_size);
  new (self) BoundRunner(program, std::move(limits), kv_pool, logits, view);
}

void bind_runner(nb::module_& module) {
  nb::class_<BoundRunner>(module, "Runner")
      .def("__init__", &make_runner, "program"_a, "kv_pool"_a.none(), "logits"_a, nb::kw_only(), "logits_offset"_a,
           "logits_stride"_a, "cache_groups"_a, "num_slots"_a, "max_model_len"_a, "max_num_tokens"_a, "vocab_size"_a,
           nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>())
      .def("enter", &BoundRunner::enter, "request"_a)
      .def("release", &BoundRunner::release, "slot"_a)
      .def("step", &BoundRunner::step, "work"_a);
}

}  // namespace
}  // namespace pelton

NB_MODULE(_native, module) {
  module.doc() = "The native library of Pelton.";
  pelton::bind_memory(module);
  pelton::bind_team(module);
  pelton::bind_levels(module);
  pelton::bind_gguf(module);
  pelton::bind_weights(module);
  pelton::bind_text(module);
  pelton::bind_attention(module);
  pelton::bind_program(module);
  pelton::bind_runner(module);
}
