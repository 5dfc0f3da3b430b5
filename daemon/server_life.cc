// The daemon's life around the loop: creation, time, signals, the socket's path, the end.

#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <thread>
#include <utility>

#include "daemon/dirs.h"
#include "daemon/listener.h"
#include "daemon/log.h"
#include "daemon/server_parts.h"
#include "engine/base/atomic_file.h"
#include "protocol/limits.h"

namespace mk::daemon {
namespace {

constexpr auto kTick = std::chrono::seconds(1);
// After the grace time: how long cancelled requests may take to say so.
constexpr auto kLastWords = std::chrono::seconds(10);

int ThreadsOf(const Config& config) {
  if (config.threads > 0) return config.threads;
  const unsigned cores = std::thread::hardware_concurrency();
  return cores > 0 ? static_cast<int>(cores) : 1;
}

SpineCacheOptions SpineCacheOf(const Config& config) {
  SpineCacheOptions options;
  if (!config.spine_cache) return options;
  options.directory = (CacheDirectory() / "spines").string();
  options.limit = config.spine_cache_limit;
  options.smallest = config.spine_cache_smallest;
  options.log = [](std::string_view line) { spdlog::info("spine cache: {}", line); };
  return options;
}

}  // namespace

Result<std::unique_ptr<Server>> Server::Create(ServerSetup setup) {
  auto parts = std::make_unique<Parts>(std::move(setup));
  const Config& config = parts->setup.config;
  Booted& booted = parts->setup.booted;
  if (!parts->events.event().valid()) {
    return Fail(ErrorCode::kIo, "cannot create an eventfd", "raise the limit of open files");
  }
  parts->threads = ThreadsOf(config);
  parts->limits.max_batch = static_cast<size_t>(config.max_batch);
  parts->limits.max_active = 4 * parts->limits.max_batch;
  auto executor = Executor::Create(static_cast<size_t>(parts->threads));
  if (!executor) return Fail(executor.error());
  parts->executor = std::move(*executor);

  const std::string& path = booted.paths.socket;
  parts->socket_inode = PathInode(path);
  auto transport = Transport::Create(std::move(booted.listening), path,
                                     protocol::kLimits.message_bytes, parts->counters);
  if (!transport) return Fail(transport.error());
  parts->transport = std::move(*transport);
  parts->clients = std::make_unique<ClientTable>(*parts->transport, parts->counters);
  // The pid file is for people; that it cannot be written is no reason not to serve.
  if (auto status = WriteFileAtomically(booted.paths.pid, std::to_string(getpid()) + "\n", 0600);
      !status) {
    spdlog::warn("{}", status.error().ToString());
  }

  IoQueue& events = parts->events;
  parts->registry = std::make_unique<ModelRegistry>(
      parts->ledger, parts->counters, LoadWithEngine, [&events](LoadEvent event) {
        std::visit([&events](auto& one) { events.Push(std::move(one)); }, event);
      });
  parts->registry->SetKeepAlive(config.keep_alive);
  parts->registry->SetThreads(parts->threads);
  parts->registry->SetSpineCache(SpineCacheOf(config));
  parts->scheduler = std::make_unique<Scheduler>(
      *parts->executor, parts->counters, parts->ledger,
      [&events](SchedulerEvent event) { events.Push(std::move(event)); }, parts->limits);
  return std::unique_ptr<Server>(new Server(std::move(parts)));
}

Server::~Server() {
  // Producers that wait for room in the queue go on; then the threads can be joined.
  parts_->events.Close();
  parts_->scheduler->Stop();
  parts_->registry->Stop();
  parts_->aux.Stop();
  parts_->jobs.Stop();
}

void Server::TakeSignals() {
  signalfd_siginfo info{};
  while (read(parts_->setup.booted.signals.get(), &info, sizeof info) == sizeof info) {
    if (info.ssi_signo == SIGHUP) {
      ReloadConfig();
    } else if (stop_deadline_) {
      stop_deadline_ = Clock::now();  // asked twice: at once
    } else {
      BeginStop(kDefaultGrace, info.ssi_signo == SIGTERM ? "SIGTERM" : "SIGINT");
    }
  }
}

void Server::ReloadConfig() {
  auto loaded = LoadConfig(parts_->setup.options.config_file);
  if (!loaded) {
    spdlog::error("the config stays as it was: {}", loaded.error().ToString());
    return;
  }
  for (const std::string& warning : loaded->warnings) spdlog::warn("{}", warning);
  core_.config = WithOverrides(std::move(loaded->config), parts_->setup.options);
  if (ThreadsOf(core_.config) != parts_->threads) {
    spdlog::warn("a new number of threads takes effect when the daemon starts anew");
  }
  SetLogLevel(core_.config.log_level);
  parts_->scheduler->SetMaxBatch(static_cast<size_t>(core_.config.max_batch));
  parts_->registry->SetKeepAlive(core_.config.keep_alive);
  parts_->registry->SetSpineCache(SpineCacheOf(core_.config));
  parts_->ledger.SetBudget(core_.config.memory > 0 ? core_.config.memory : DefaultMemoryBudget());
  spdlog::info("read {}", parts_->setup.options.config_file);
}

void Server::Tick(Clock::time_point now) {
  next_tick_ = now + kTick;
  parts_->clients->CheckSilence(now);
  parts_->clients->ForgetIdle(now);
  next_unload_ = parts_->registry->UnloadExpired(now);
  GuardSocketPath();
  ReportToSystemd(now);
  if (!Idle()) idle_since_ = now;
  const auto& idle_exit = parts_->setup.options.idle_exit;
  if (idle_exit && !stop_deadline_ && now - idle_since_ >= *idle_exit) {
    BeginStop(std::chrono::milliseconds(0), "idle");
  }
}

bool Server::Idle() const {
  return parts_->transport->connections() == 0 && parts_->clients->requests().empty();
}

// Cleaners of temporary files and the end of a login session remove sockets under running daemons.
void Server::GuardSocketPath() {
  Booted& booted = parts_->setup.booted;
  if (booted.activated || stop_deadline_) return;
  if (!booted.lock.StillThere()) {
    // The directory may have gone with it.
    if (!protocol::PrepareSocketDirectory(booted.paths.directory)) return;
    auto lock = LockFile::Acquire(booted.paths.lock);
    if (!lock) {
      if (lock.error().code == ErrorCode::kIncompatible) {
        spdlog::error("{} is another daemon's now", booted.paths.lock);
        BeginStop(kDefaultGrace, "another daemon took the place of this one");
      }
      return;
    }
    booted.lock = std::move(*lock);
  }
  if (PathInode(booted.paths.socket) == parts_->socket_inode && parts_->socket_inode != 0) return;
  if (Probe(booted.paths.socket) != ProbeResult::kNobody) return;  // somebody else's: hands off
  auto listening = Listen(booted.paths.socket);
  if (!listening) {
    spdlog::warn("the socket's path is gone: {}", listening.error().ToString());
    return;
  }
  if (auto status = parts_->transport->AddListener(std::move(*listening), booted.paths.socket);
      !status) {
    spdlog::error("{}", status.error().ToString());
    return;
  }
  parts_->socket_inode = PathInode(booted.paths.socket);
  parts_->counters.Add(Counter::kSocketRecreated);
  spdlog::warn("{} had vanished and was made anew", booted.paths.socket);
}

void Server::ReportToSystemd(Clock::time_point now) {
  const std::string status = std::to_string(parts_->registry->entries().size()) + " models, " +
                             std::to_string(parts_->clients->requests().size()) + " requests";
  if (status != systemd_status_) {
    systemd_status_ = status;
    NotifySystemd("STATUS=" + status);
  }
  const auto watchdog = std::chrono::microseconds(WatchdogMicroseconds());
  if (watchdog.count() > 0 && now >= next_watchdog_) {
    next_watchdog_ = now + watchdog / 3;
    NotifySystemd("WATCHDOG=1");
  }
}

void Server::BeginStop(std::chrono::milliseconds grace, const std::string& why) {
  const auto deadline = Clock::now() + grace;
  if (stop_deadline_) {
    stop_deadline_ = std::min(*stop_deadline_, deadline);
    return;
  }
  stop_deadline_ = deadline;
  core_.stopping = true;
  spdlog::info("leaving: {}", why);
  NotifySystemd("STOPPING=1");
  // What has not begun will not.
  std::vector<uint64_t> not_begun;
  for (const auto& [key, request] : parts_->clients->requests()) {
    if (!request->final && !request->started && protocol::InfoOf(request->op).streams) {
      not_begun.push_back(key);
    }
  }
  for (const uint64_t key : not_begun) {
    if (ClientRequest* request = parts_->clients->Find(key)) EndRequest(*request, ShuttingDown());
  }
}

// The grace time is over: what still runs ends with an error.
void Server::HurryStop(Clock::time_point now) {
  if (stop_hurried_) return;
  stop_hurried_ = true;
  std::vector<uint64_t> running;
  for (const auto& [key, request] : parts_->clients->requests()) {
    if (!request->final) running.push_back(key);
  }
  for (const uint64_t key : running) {
    if (ClientRequest* request = parts_->clients->Find(key)) EndRequest(*request, ShuttingDown());
  }
  stop_deadline_ = now + kLastWords;
}

bool Server::MayLeave() const {
  if (parts_->clients->requests().empty()) return true;
  return stop_hurried_ && Clock::now() >= *stop_deadline_;
}

// The socket goes while the lock is still held, so that the next daemon finds a clean place.
void Server::Leave() {
  const Booted& booted = parts_->setup.booted;
  if (!booted.activated && PathInode(booted.paths.socket) == parts_->socket_inode) {
    unlink(booted.paths.socket.c_str());
  }
  unlink(booted.paths.pid.c_str());
  parts_->transport->LingerOnClose();
  spdlog::info("left");
}

}  // namespace mk::daemon
