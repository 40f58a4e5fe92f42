// Programs of made-up kernels: order, phases, arguments and errors.
#include "program.h"

#include <atomic>
#include <stdexcept>

#include "check.h"

using pelton::Dim;
using pelton::KernelEntry;
using pelton::Node;
using pelton::Program;
using pelton::Scratch;
using pelton::Step;
using pelton::Team;

namespace {

// size[0] pieces. Adds size[1] to its share of size[3] values, each of which the node before left at size[2].
void run_chain(const Node& node, const Step&, int64_t piece, Scratch&) {
  auto* out = static_cast<int64_t*>(node.pointer[0]);
  auto* wrong = static_cast<std::atomic<int64_t>*>(node.pointer[1]);
  for (int64_t i = piece; i < node.size[3]; i += node.size[0]) {
    if (out[i] != node.size[2]) wrong->fetch_add(1);
    out[i] += node.size[1];
  }
}

int64_t chain_pieces(const Node& node, const Step&) { return node.size[0]; }

void run_count_rows(const Node& node, const Step& step, int64_t, Scratch&) {
  *static_cast<int64_t*>(node.pointer[0]) += step.rows(node.dim) + 1000 * step.num_threads;
}

int64_t one_piece(const Node&, const Step&) { return 1; }

const KernelEntry kChain = {"chain", run_chain, chain_pieces};
const KernelEntry kCountRows = {"count_rows", run_count_rows, one_piece};

}  // namespace

TEST(program_runs_tiny_nodes_in_order) {
  constexpr int64_t kValues = 16;
  const int64_t pieces[] = {16, 1, 1, 3, 1, 2, 1, 1, 1, 5};
  for (const int num_threads : {1, 2, 4}) {
    Team team(num_threads);
    Program program(team, "generic");
    int64_t out[kValues] = {};
    std::atomic<int64_t> wrong{0};
    int64_t value = 0;
    for (int i = 0; i < 400; ++i) {
      Node node{};
      node.pointer[0] = out;
      node.pointer[1] = &wrong;
      node.size[0] = pieces[i % 10];
      node.size[1] = i % 3 + 1;
      node.size[2] = value;
      node.size[3] = kValues;
      value += node.size[1];
      program.add(kChain, node);
    }
    for (int run = 0; run < 5; ++run) {
      for (int64_t& x : out) x = 0;
      program.run_body(Step{});
      CHECK(wrong == 0);
      for (const int64_t x : out) CHECK(x == value);
    }
  }
}

TEST(program_runs_body_and_head_apart) {
  Team team(2);
  Program program(team, "generic");
  int64_t body = 0, head = 0;
  Node node{};
  node.pointer[0] = &body;
  node.dim = Dim::kTokens;
  CHECK(program.add(kCountRows, node) == 0);
  node.pointer[0] = &head;
  node.dim = Dim::kRows;
  CHECK(program.add(kCountRows, node) == 1);
  Step step{};
  step.num_tokens = 7;
  step.num_rows = 3;
  program.run_body(step);
  CHECK(body == 2007 && head == 0);
  program.run_head(step);
  CHECK(body == 2007 && head == 2003);
  const auto profile = program.profile(step);
  CHECK(profile.size() == 2 && profile[1].first == "count_rows" && profile[1].second >= 0);
  CHECK(body == 4014 && head == 4006);
}

TEST(program_skips_nodes_without_pieces) {
  Team team(2);
  Program program(team, "generic");
  const Node node{};  // size[0] is 0: no pieces, and run_chain would dereference null
  for (int i = 0; i < 3; ++i) program.add(kChain, node);
  program.run_body(Step{});
  CHECK(program.num_nodes() == 3);
}

TEST(program_refuses_what_can_not_be) {
  Team team(1);
  CHECK_THROWS(Program(team, "no such level"), std::invalid_argument);
  Program program(team, "generic");
  CHECK_THROWS(program.add("no such kernel", Dim::kTokens, {}, {}, {}), std::invalid_argument);
  Node node{};
  node.dim = Dim::kRows;
  program.add(kChain, node);
  node.dim = Dim::kTokens;
  CHECK_THROWS(program.add(kChain, node), std::invalid_argument);
  CHECK_THROWS(program.run(Step{}, 0, 2), std::out_of_range);
  CHECK_THROWS(program.run(Step{}, -1, 1), std::out_of_range);
  CHECK_THROWS(program.run(Step{}, 1, 0), std::out_of_range);
}
