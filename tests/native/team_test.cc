// The team: every piece once, phases in order, callers in turn, no work in a forked child.
#include "team.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>
#include <thread>

#include "check.h"

using pelton::Scratch;
using pelton::Team;

TEST(team_takes_every_piece_once) {
  for (const int num_threads : {1, 2, 4}) {
    Team team(num_threads);
    for (const int64_t pieces : {0, 1, 2, 3, 1000}) {
      std::vector<std::atomic<int>> taken(pieces);
      team.run_pieces(pieces, [&](int64_t piece, Scratch&) { taken[piece].fetch_add(1); });
      for (const auto& count : taken) CHECK(count == 1);
    }
  }
}

TEST(team_phases_see_all_of_the_phase_before) {
  constexpr int kPhases = 2000;
  for (const int num_threads : {1, 2, 4}) {
    Team team(num_threads);
    std::vector<int64_t> done(num_threads * 16,
                              0);  // one cache line per worker; plain memory: the barrier publishes it
    std::atomic<int> wrong{0};
    team.run([&](int worker) {
      for (int phase = 0; phase < kPhases; ++phase) {
        for (int other = 0; other < num_threads; ++other) {
          if (done[other * 16] != phase) wrong.fetch_add(1);
        }
        team.barrier(worker);
        done[worker * 16] += 1;
        team.barrier(worker);
      }
    });
    CHECK(wrong == 0);
  }
}

TEST(team_counts_pieces_from_zero_in_every_phase) {
  constexpr int kPhases = 1000, kPieces = 7;
  Team team(4);
  std::vector<std::atomic<int>> taken(kPhases * kPieces);
  team.run([&](int worker) {
    for (int phase = 0; phase < kPhases; ++phase) {
      std::atomic<int>* const counts = &taken[phase * kPieces];
      for (int64_t piece = team.take(); piece < kPieces; piece = team.take()) counts[piece].fetch_add(1);
      team.barrier(worker);
    }
  });
  for (const auto& count : taken) CHECK(count == 1);
}

TEST(team_gives_each_worker_its_own_scratch) {
  Team team(4);
  uint8_t* scratch[4] = {};
  team.run([&](int worker) {
    const Scratch& own = team.scratch(worker);
    scratch[worker] = own.data;
    for (size_t i = 0; i < own.bytes; i += 4096) own.data[i] = static_cast<uint8_t>(worker);
  });
  for (int worker = 0; worker < 4; ++worker) {
    CHECK(reinterpret_cast<uintptr_t>(scratch[worker]) % 64 == 0);
    for (size_t i = 0; i < pelton::kScratchBytes; i += 4096) CHECK(scratch[worker][i] == worker);
  }
}

TEST(team_callers_take_turns) {
  Team team(2);
  std::atomic<int> inside{0}, overlaps{0};
  const auto call = [&] {
    for (int i = 0; i < 300; ++i) {
      team.run([&](int worker) {
        if (worker == 0 && inside.fetch_add(1) != 0) overlaps.fetch_add(1);
        team.barrier(worker);
        if (worker == 0) inside.fetch_sub(1);
      });
    }
  };
  std::thread first(call), second(call);
  first.join();
  second.join();
  CHECK(overlaps == 0);
}

TEST(team_refuses_impossible_counts) {
  CHECK_THROWS(Team(0), std::invalid_argument);
  CHECK_THROWS(Team(-1), std::invalid_argument);
  CHECK_THROWS(Team(Team::kMaxThreads + 1), std::invalid_argument);
}

TEST(team_can_be_closed_twice_and_not_used_again) {
  Team team(3);
  team.close();
  team.close();
  CHECK_THROWS(team.run([](int) {}), std::runtime_error);
}

TEST(team_of_a_parent_is_refused_in_a_forked_child) {
  Team team(2);
  team.run([](int) {});
  const pid_t child = fork();
  if (child == 0) {
    bool refused = false;
    try {
      team.run([](int) {});
    } catch (const std::runtime_error&) {
      refused = true;
    }
    team.close();  // must not wait for threads that do not exist
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  team.run([](int) {});
}
