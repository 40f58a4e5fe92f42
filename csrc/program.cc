#include "program.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <stdexcept>

#include "levels.h"

namespace pelton {
namespace {

template <class T, size_t kCount>
void fill(T (&target)[kCount], const std::vector<T>& source, const std::string& kernel, const char* what) {
  if (source.size() > kCount) {
    throw std::invalid_argument("`" + kernel + "` was given " + std::to_string(source.size()) + " " + what +
                                ", a node holds " + std::to_string(kCount));
  }
  std::copy(source.begin(), source.end(), target);
}

}  // namespace

Program::Program(Team& team, const std::string& level) : team_(team), level_(level) { require_level(level); }

int Program::add(const std::string& kernel, Dim dim, const std::vector<void*>& pointers,
                 const std::vector<int64_t>& sizes, const std::vector<float>& values) {
  const size_t slash = kernel.find('/');
  const std::string level = slash == std::string::npos ? level_ : kernel.substr(0, slash);
  const std::string name = slash == std::string::npos ? kernel : kernel.substr(slash + 1);
  require_level(level);
  const KernelEntry* entry = find_kernel(level, name);
  if (entry == nullptr) throw std::invalid_argument("level `" + level + "` has no kernel `" + name + "`");
  Node node{};
  node.dim = dim;
  fill(node.pointer, pointers, kernel, "pointers");
  fill(node.size, sizes, kernel, "sizes");
  fill(node.value, values, kernel, "values");
  return add(*entry, node);
}

int Program::add(const KernelEntry& kernel, const Node& node) {
  if (node.dim == Dim::kTokens && num_body_ != num_nodes()) {
    throw std::invalid_argument("body node `" + std::string(kernel.name) + "` comes after a head node");
  }
  nodes_.push_back({node, &kernel});
  if (node.dim == Dim::kTokens) ++num_body_;
  return num_nodes() - 1;
}

int64_t Program::pieces(const Step& step, int index) const {
  return nodes_[index].kernel->pieces(nodes_[index].node, step);
}

void Program::run(const Step& step, int first, int last) {
  if (first < 0 || last > num_nodes() || first > last) {
    throw std::out_of_range("nodes `" + std::to_string(first) + "` to `" + std::to_string(last) + "` of a program of " +
                            std::to_string(num_nodes()));
  }
  Step counted = step;
  counted.num_threads = team_.num_threads();
  team_.run([&](int worker) { work(counted, first, last, worker); });
}

// One phase per node: its pieces, then a barrier. Nodes of one piece that follow each other are one phase together:
// whoever takes it runs them in order, and the barriers between them are saved.
void Program::work(const Step& step, int first, int last, int worker) {
  Scratch& scratch = team_.scratch(worker);
  for (int index = first; index < last;) {
    const int64_t count = pieces(step, index);
    int end = index + 1;
    if (count <= 1) {
      while (end < last && pieces(step, end) <= 1) ++end;
      if (team_.take() == 0) {
        for (int i = index; i < end; ++i) {
          if (pieces(step, i) == 1) nodes_[i].kernel->run(nodes_[i].node, step, 0, scratch);
        }
      }
    } else {
      const BoundNode& bound = nodes_[index];
      for (int64_t piece = team_.take(); piece < count; piece = team_.take()) {
        bound.kernel->run(bound.node, step, piece, scratch);
      }
    }
    if (end < last) team_.barrier(worker);  // the team's run ends with one
    index = end;
  }
}

std::vector<std::pair<std::string, double>> Program::profile(const Step& step) {
  using Clock = std::chrono::steady_clock;
  std::vector<std::pair<std::string, double>> out;
  for (int index = 0; index < num_nodes(); ++index) {
    const Clock::time_point start = Clock::now();
    run(step, index, index + 1);
    out.emplace_back(nodes_[index].kernel->name, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return out;
}

}  // namespace pelton
