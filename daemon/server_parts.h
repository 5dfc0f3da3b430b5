// What a Server is made of, in the order in which it is made; it is unmade in reverse.

#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "daemon/memory_limit.h"
#include "daemon/prefix_cache.h"
#include "daemon/prefix_disk.h"
#include "daemon/program_file.h"
#include "daemon/server.h"
#include "daemon/watchdog.h"
#include "engine/model/executor.h"

namespace mk::daemon {

// Time that running requests have to end when the daemon is told to leave.
inline constexpr std::chrono::milliseconds kDefaultGrace{3000};

// Sequences that exist at once, for each that decodes in one step.
inline constexpr size_t kActivePerBatch = 4;

// What requests are told when the daemon leaves.
protocol::Error ShuttingDown();

// Bytes that the prefix cache may take in memory, and on disk.
uint64_t PrefixLimit(const Config& config, uint64_t budget);
std::optional<uint64_t> PrefixDiskLimit(const Config& config);
// Bytes that states of sessions may take.
uint64_t SessionLimit(const Config& config, uint64_t budget);

struct Server::Parts {
  explicit Parts(ServerSetup given)
      : setup(std::move(given)),
        ledger(setup.config.memory > 0 ? setup.config.memory : DefaultMemoryBudget()),
        prefix_disk(setup.state_directory + "/prefix", PrefixDiskLimit(setup.config)),
        prefixes(ledger, PrefixLimit(setup.config, ledger.budget()), &prefix_disk),
        session_states(ledger, SessionLimit(setup.config, ledger.budget())) {
    ledger.SetReclaim([this](uint64_t bytes) {
      const uint64_t freed = prefixes.Reclaim(bytes);
      return freed < bytes ? freed + session_states.Reclaim(bytes - freed) : freed;
    });
  }

  ServerSetup setup;
  ProgramFile program = ProgramFile::OfThisProcess();
  int threads = 1;
  SchedulerLimits limits;
  Metrics metrics;
  Ledger ledger;
  PrefixDisk prefix_disk;
  PrefixCache prefixes;
  SessionStates session_states;
  std::atomic<bool> count_experts{false};  // of models that are loaded from now on
  IoQueue events{kIoQueueCapacity};
  std::unique_ptr<Executor> executor;
  std::unique_ptr<Transport> transport;
  std::unique_ptr<ClientTable> clients;
  // Threads from here on: they stop before what they use goes.
  std::unique_ptr<ModelRegistry> registry;
  std::unique_ptr<Scheduler> scheduler;
  std::unique_ptr<Watchdog> watchdog;
  TaskThread aux{"aux", 256};
  TaskThread states{"states", 4096};
  ino_t socket_inode = 0;
  bool owns_socket = false;  // ours to remove in the end
};

}  // namespace mk::daemon
