// A flat program: nodes in order, run by a team in one call. Knows kernels by name only, and nothing of graphs.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernel_table.h"
#include "team.h"

namespace pelton {

class Program {
 public:
  // The team must outlive the program. Throws std::invalid_argument if the level can't be used here.
  Program(Team& team, const std::string& level);

  // Appends a node and returns its index. kernel: "linear", or "avx2/linear" for one of another level. Body nodes
  // (Dim::kTokens) come before head nodes (Dim::kRows). Throws std::invalid_argument for an unknown kernel, too many
  // arguments, or a body node after a head node.
  int add(const std::string& kernel, Dim dim, const std::vector<void*>& pointers, const std::vector<int64_t>& sizes,
          const std::vector<float>& values);
  // The same for a kernel at hand, which must outlive the program.
  int add(const KernelEntry& kernel, const Node& node);

  int num_nodes() const { return static_cast<int>(nodes_.size()); }

  // The body nodes, once per step.
  void run_body(const Step& step) { run(step, 0, num_body_); }
  // The head nodes, over the tile of step.logit_rows[0, num_rows).
  void run_head(const Step& step) { run(step, num_body_, num_nodes()); }
  // Nodes [first, last). Throws std::out_of_range. step.num_threads is set here.
  void run(const Step& step, int first, int last);
  // Runs all nodes one at a time: (kernel, seconds) per node.
  std::vector<std::pair<std::string, double>> profile(const Step& step);

  Team& team() const { return team_; }
  const std::string& level() const { return level_; }

 private:
  struct BoundNode {
    Node node;
    const KernelEntry* kernel;
  };

  void work(const Step& step, int first, int last, int worker);
  int64_t pieces(const Step& step, int index) const;

  Team& team_;
  std::string level_;
  std::vector<BoundNode> nodes_;
  int num_body_ = 0;
};

}  // namespace pelton
