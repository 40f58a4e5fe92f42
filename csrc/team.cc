#include "team.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

namespace pelton {
namespace {

// Bounds of the adaptive wait, in pauses (20 to 70 ns each). A fixed limit is wrong in one case or the other: alone on
// its core a worker should never park, beside another process it should park at once.
constexpr int kMinSpin = 50;
constexpr int kMaxSpin = 4000;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");  // yield is a no-op on most cores
#endif
}

int checked_count(int num_threads) {
  if (num_threads < 1 || num_threads > Team::kMaxThreads) {
    throw std::invalid_argument("num_threads is `" + std::to_string(num_threads) + "`, not between 1 and " +
                                std::to_string(Team::kMaxThreads));
  }
  return num_threads;
}

void name_thread(int worker) {
  const std::string name = "pelton-" + std::to_string(worker);
#if defined(__linux__)
  pthread_setname_np(pthread_self(), name.c_str());
#elif defined(__APPLE__)
  pthread_setname_np(name.c_str());
#endif
}

}  // namespace

Team::Team(int num_threads)
    : num_threads_(checked_count(num_threads)),
      owner_process_(getpid()),
      workers_(num_threads),
      scratch_memory_(kScratchBytes * num_threads, "scratch"),
      threads_(std::make_unique<std::vector<std::thread>>()) {
  for (int worker = 0; worker < num_threads_; ++worker) {
    workers_[worker].scratch = {scratch_memory_.data() + kScratchBytes * worker, kScratchBytes, worker};
  }
  start_threads();
}

void Team::start_threads() {
  // Signals are for the threads that the program knows of: workers inherit a mask that blocks all.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    threads_->reserve(num_threads_ - 1);
    for (int worker = 1; worker < num_threads_; ++worker) threads_->emplace_back(&Team::work, this, worker);
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    const int missing = num_threads_ - 1 - static_cast<int>(threads_->size());
    arrived_.fetch_add(missing, std::memory_order_acq_rel);  // for those that will never come to the first barrier
    end_threads();
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Team::work(int worker) {
  name_thread(worker);
  for (;;) {
    barrier(worker);  // a job stands
    if (job_ == nullptr) return;
    job_(context_, worker);
    barrier(worker);  // the job is done
  }
}

void Team::run_erased(ErasedJob job, void* context) {
  if (getpid() != owner_process_) {
    throw std::runtime_error("a team can't be used after a fork: its threads stayed in the parent process");
  }
  const std::lock_guard<std::mutex> lock(run_mutex_);
  if (closed_) throw std::runtime_error("the team is closed");
  job_ = job;
  context_ = context;
  barrier(0);
  job(context, 0);
  barrier(0);
}

void Team::close() {
  if (getpid() != owner_process_) {
    threads_.release();  // they do not exist here; ending them would wait for ever
    return;
  }
  const std::lock_guard<std::mutex> lock(run_mutex_);
  if (closed_) return;
  closed_ = true;
  end_threads();
}

void Team::end_threads() {
  job_ = nullptr;
  barrier(0);
  for (std::thread& thread : *threads_) thread.join();
  threads_->clear();
}

void Team::barrier(int worker) {
  const uint32_t phase = phase_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_threads_) {
    open_gate();
    return;
  }
  int& limit = workers_[worker].spin_limit;
  for (int spin = 0; spin < limit; ++spin) {
    if (phase_.load(std::memory_order_acquire) != phase) {
      limit = std::min(limit + limit / 16, kMaxSpin);
      return;
    }
    pause();
  }
  limit = std::max(limit / 2, kMinSpin);
  park(phase);
}

// The last to arrive resets the counters before it lets the others go: nobody else touches them in between, so no
// further barrier is needed.
void Team::open_gate() {
  arrived_.store(0, std::memory_order_relaxed);
  next_piece_.store(0, std::memory_order_relaxed);
  // Sequentially consistent against park(): either the sleeper is seen here, or it sees the new phase there.
#if defined(__linux__)
  phase_.fetch_add(1, std::memory_order_seq_cst);
  if (parked_.load(std::memory_order_seq_cst) != 0) {
    syscall(SYS_futex, &phase_, FUTEX_WAKE_PRIVATE, num_threads_, nullptr, nullptr, 0);
  }
#else
  {
    const std::lock_guard<std::mutex> lock(park_mutex_);
    phase_.fetch_add(1, std::memory_order_seq_cst);
  }
  if (parked_.load(std::memory_order_seq_cst) != 0) park_condition_.notify_all();
#endif
}

void Team::park(uint32_t phase) {
  parked_.fetch_add(1, std::memory_order_seq_cst);
#if defined(__linux__)
  static_assert(sizeof(phase_) == sizeof(uint32_t), "a futex is one 32-bit word");
  while (phase_.load(std::memory_order_seq_cst) == phase) {
    syscall(SYS_futex, &phase_, FUTEX_WAIT_PRIVATE, phase, nullptr, nullptr, 0);
  }
#else
  {
    std::unique_lock<std::mutex> lock(park_mutex_);
    park_condition_.wait(lock, [&] { return phase_.load(std::memory_order_seq_cst) != phase; });
  }
#endif
  parked_.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace pelton
