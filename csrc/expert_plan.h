// Which rows of a step go to which expert: what `experts_plan` writes and the expert products read.
//
// An entry is one row's choice of one expert, numbered row * num_chosen + place of the choice. The plan lists entries
// by expert, within an expert in rising order, so that what follows depends on the rows alone.
#pragma once

#include <cstdint>

namespace pelton {
namespace {

struct ExpertPlan {
  // starts[e] .. starts[e + 1]: the expert's part of entries.
  int32_t* starts;
  int32_t* entries;

  ExpertPlan(void* workspace, int64_t num_experts)
      : starts(static_cast<int32_t*>(workspace)), entries(starts + num_experts + 1) {}
};

}  // namespace
}  // namespace pelton
