// The runner: requests and work as the dataclasses of pelton/engine/batch.py, results as tuples.
#include "runner.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "bindings.h"

namespace pelton {
namespace {

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

using CacheGroupTuple = std::tuple<int64_t, std::optional<int64_t>, int64_t>;

void make_runner(BoundRunner* self, Program& program, Buffer* kv_pool, Buffer& logits, int64_t logits_offset,
                 int64_t logits_stride, const std::vector<CacheGroupTuple>& cache_groups, int64_t num_slots,
                 int64_t max_model_len, int64_t max_num_tokens, int64_t vocab_size) {
  RunnerLimits limits{num_slots, max_model_len, max_num_tokens, vocab_size, 0, {}};
  if (kv_pool != nullptr) limits.kv_pool_bytes = static_cast<int64_t>(kv_pool->memory.bytes());
  for (const auto& [block_bytes, window, num_states] : cache_groups) {
    limits.cache_groups.push_back({block_bytes, window.value_or(0), num_states});
  }
  const LogitsView view = view_logits(logits, logits_offset, logits_stride, vocab_size);
  new (self) BoundRunner(program, std::move(limits), kv_pool, logits, view);
}

}  // namespace

void bind_runner(nb::module_& module) {
  nb::class_<BoundRunner>(module, "Runner")
      .def("__init__", &make_runner, "program"_a, "kv_pool"_a.none(), "logits"_a, nb::kw_only(), "logits_offset"_a,
           "logits_stride"_a, "cache_groups"_a, "num_slots"_a, "max_model_len"_a, "max_num_tokens"_a, "vocab_size"_a,
           nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>())
      .def("enter", &BoundRunner::enter, "request"_a)
      .def("release", &BoundRunner::release, "slot"_a)
      .def("step", &BoundRunner::step, "work"_a);
}

}  // namespace pelton
