// A persistent team of threads that runs one job at a time; the thread that asks is worker 0. Knows nothing of
// programs.
//
// Waiting is adaptive: a worker spins for a while, then parks in the kernel, so that a phase costs a fraction of a
// microsecond while the team is busy and an idle team uses no CPU.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "kernel_table.h"
#include "memory.h"

namespace pelton {

class Team {
 public:
  static constexpr int kMaxThreads = 1024;

  // Throws std::invalid_argument for a count outside [1, kMaxThreads], std::system_error if no thread can be started.
  explicit Team(int num_threads);
  ~Team() { close(); }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int num_threads() const { return num_threads_; }

  // Runs job(worker) once on every worker at once and returns when all are done. A job may not throw and may not call
  // run. Calls from several threads take turns. Throws std::runtime_error after close() or in a forked child, whose
  // workers the fork left behind.
  template <class Job>
  void run(Job&& job) {
    run_erased([](void* context, int worker) { (*static_cast<std::remove_reference_t<Job>*>(context))(worker); }, &job);
  }

  // Runs task(piece, scratch) for every piece of [0, pieces), taken dynamically.
  template <class Task>
  void run_pieces(int64_t pieces, Task&& task) {
    run([&](int worker) {
      for (int64_t piece = take(); piece < pieces; piece = take()) task(piece, scratch(worker));
    });
  }

  // ---- Within a job ----

  // The next piece of the present phase: 0, 1, 2, ... each given to one worker. A phase begins with the job and after
  // each barrier.
  int64_t take() { return next_piece_.fetch_add(1, std::memory_order_relaxed); }
  // Waits until every worker has called it. What they wrote before is seen by all after.
  void barrier(int worker);
  Scratch& scratch(int worker) { return workers_[worker].scratch; }

  // Ends the threads, after the present run. Idempotent.
  void close();

 private:
  using ErasedJob = void (*)(void* context, int worker);

  struct alignas(64) Worker {
    int spin_limit = 1000;
    Scratch scratch{};
  };

  void run_erased(ErasedJob job, void* context);
  void work(int worker);
  void start_threads();
  void end_threads();
  void open_gate();
  void park(uint32_t phase);

  const int num_threads_;
  const pid_t owner_process_;
  bool closed_ = false;
  std::mutex run_mutex_;
  std::vector<Worker> workers_;
  Memory scratch_memory_;
  std::unique_ptr<std::vector<std::thread>> threads_;

  // Set by worker 0 between jobs, published by the barrier.
  ErasedJob job_ = nullptr;  // null: end
  void* context_ = nullptr;

  alignas(64) std::atomic<int64_t> next_piece_{0};
  alignas(64) std::atomic<int32_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
  std::atomic<int32_t> parked_{0};
#if !defined(__linux__)
  std::mutex park_mutex_;
  std::condition_variable park_condition_;
#endif
};

}  // namespace pelton
