// Programs, and what one step is told.
#include "program.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "attention_plan.h"
#include "bindings.h"
#include "step_input.h"

namespace pelton {
namespace {

Dim checked_dim(int dim) {
  if (dim != 0 && dim != 1) throw std::invalid_argument("dim is `" + std::to_string(dim) + "`, not 0 or 1");
  return static_cast<Dim>(dim);
}

using SequenceTuple = std::tuple<int32_t, int32_t, int32_t, std::vector<std::vector<uint32_t>>>;

void make_step_input(StepInput* self, std::vector<int32_t> token_ids, std::vector<int32_t> positions,
                     const std::vector<SequenceTuple>& sequences, std::vector<int32_t> logit_rows,
                     const Buffer* kv_pool, const std::vector<int64_t>& num_states) {
  std::vector<StepInput::Sequence> owned;
  for (const auto& [first_row, num_rows, context, tables] : sequences) {
    owned.push_back({first_row, num_rows, context, tables});
  }
  const bool has_pool = kv_pool != nullptr;
  new (self) StepInput(std::move(token_ids), std::move(positions), std::move(owned), std::move(logit_rows),
                       has_pool ? kv_pool->memory.data() : nullptr, has_pool ? kv_pool->memory.bytes() : 0, num_states);
}

}  // namespace

void bind_program(nb::module_& module) {
  nb::class_<StepInput>(module, "StepInput")
      .def("__init__", &make_step_input, "token_ids"_a, "positions"_a, "sequences"_a, "logit_rows"_a,
           "kv_pool"_a.none(), "num_states"_a = std::vector<int64_t>(), nb::keep_alive<1, 6>());
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

}  // namespace pelton
