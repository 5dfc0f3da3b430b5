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
// After that: how long threads that hang may keep the process from ending. All that was promised
// to be saved is saved by then.
constexpr int kSecondsToJoin = 5;
// What systemd is told beyond that.
constexpr int kSecondsToSpare = 5;

// For so long nobody must have been connected before a replaced daemon leaves.
constexpr auto kQuietBeforeRestart = std::chrono::seconds(2);

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

StreamSettings StreamOf(const Config& config) {
  StreamSettings settings;
  settings.mode = config.stream;
  settings.options.budget = config.stream_memory;
  settings.options.policy = config.stream_policy;
  settings.options.io = config.stream_io;
  settings.hot_set_folder = (CacheDirectory() / "experts").string();
  if (!config.stream_prefetch) settings.options.prefetch = {};
  return settings;
}

}  // namespace

uint64_t PrefixLimit(const Config& config, uint64_t budget) {
  if (!config.prefix_cache) return 0;
  return config.prefix_cache_limit > 0 ? config.prefix_cache_limit
                                       : PrefixCache::DefaultLimit(budget);
}

uint64_t SessionLimit(const Config& config, uint64_t budget) {
  return config.session_memory_limit > 0 ? config.session_memory_limit
                                         : SessionStates::DefaultLimit(budget);
}

std::optional<uint64_t> PrefixDiskLimit(const Config& config) {
  if (!config.prefix_cache) return 0;
  if (config.prefix_disk_limit < 0) return std::nullopt;
  return static_cast<uint64_t>(config.prefix_disk_limit);
}

Result<std::unique_ptr<Server>> Server::Create(ServerSetup setup) {
  auto parts = std::make_unique<Parts>(std::move(setup));
  const Config& config = parts->setup.config;
  Booted& booted = parts->setup.booted;
  if (!parts->events.event().valid()) {
    return Fail(ErrorCode::kIo, "cannot create an eventfd", "raise the limit of open files");
  }
  parts->threads = ThreadsOf(config);
  parts->limits.max_batch = static_cast<size_t>(config.max_batch);
  parts->limits.max_active = kActivePerBatch * parts->limits.max_batch;
  auto executor = Executor::Create(static_cast<size_t>(parts->threads));
  if (!executor) return Fail(executor.error());
  parts->executor = std::move(*executor);

  const std::string& path = booted.paths.socket;
  parts->socket_inode = PathInode(path);
  parts->owns_socket = !booted.activated;
  auto transport = Transport::Create(std::move(booted.listening), path,
                                     protocol::kLimits.message_bytes, parts->metrics);
  if (!transport) return Fail(transport.error());
  parts->transport = std::move(*transport);
  parts->clients = std::make_unique<ClientTable>(*parts->transport, parts->metrics);
  // The pid file is for people; that it cannot be written is no reason not to serve.
  if (auto status = WriteFileAtomically(booted.paths.pid, std::to_string(getpid()) + "\n", 0600);
      !status) {
    spdlog::warn("{}", status.error().ToString());
  }

  IoQueue& events = parts->events;
  parts->registry = std::make_unique<ModelRegistry>(
      parts->ledger, parts->metrics,
      [&parts = *parts](const ModelRef& ref, const LoadOptions& options) {
        auto loaded = LoadWithEngine(ref, options);
        if (loaded) {
          loaded->prefixes = parts.prefixes.NewShelf(loaded->model);
          loaded->sessions = parts.session_states.NewShelf();
          if (parts.count_experts.load()) {
            loaded->experts = std::make_shared<ExpertCounter>(loaded->model->info());
          }
        }
        return loaded;
      },
      [&events](LoadEvent event) {
        std::visit([&events](auto& one) { events.Push(std::move(one)); }, event);
      });
  // The loop may wait for that: see MayLeave().
  parts->prefix_disk.SetOnWritten([&events] { events.event().Signal(); });
  parts->count_experts.store(config.count_experts);
  parts->registry->SetKeepAlive(config.keep_alive);
  parts->registry->SetThreads(parts->threads);
  parts->registry->SetSpineCache(SpineCacheOf(config));
  parts->registry->SetStream(StreamOf(config));
  parts->scheduler = std::make_unique<Scheduler>(
      *parts->executor, parts->metrics, parts->ledger,
      [&events](SchedulerEvent event) { events.Push(std::move(event)); }, parts->limits);
  Scheduler& scheduler = *parts->scheduler;
  parts->watchdog = std::make_unique<Watchdog>(
      WatchdogTime(), Watchdog::Engine{[&scheduler] { return scheduler.heartbeat(); },
                                       [&scheduler] { scheduler.Wake(); }});
  return std::unique_ptr<Server>(new Server(std::move(parts)));
}

Server::~Server() {
  // Producers that wait for room in the queue go on; then the threads can be joined.
  parts_->events.Close();
  jobs_.Stop();
  parts_->scheduler->Stop();
  parts_->registry->Stop();
  parts_->aux.Stop();
  parts_->states.Stop();
  parts_->prefix_disk.Stop();
}

void Server::TakeSignals() {
  signalfd_siginfo info{};
  while (read(parts_->setup.booted.signals.get(), &info, sizeof info) == sizeof info) {
    if (info.ssi_signo == SIGHUP) {
      ReloadConfig();
    } else if (stop_deadline_) {
      spdlog::info("asked twice: leaving at once");
      stop_deadline_ = Clock::now();
    } else {
      BeginStop(kDefaultGrace, info.ssi_signo == SIGTERM ? "SIGTERM" : "SIGINT");
    }
  }
}

void Server::ReloadConfig() {
  NotifyReloading();
  const std::string& file = parts_->setup.options.config_file;
  auto loaded = LoadConfig(file);
  if (loaded) {
    for (const std::string& warning : loaded->warnings) spdlog::warn("{}", warning);
    ApplyConfig(WithOverrides(std::move(loaded->config), parts_->setup.options));
    config_error_.clear();
  } else {
    config_error_ = loaded.error().ToString();
    spdlog::error("the config stays as it was: {}", config_error_);
  }
  NotifySystemd("READY=1");
  ReportStatus(Clock::now());
}

void Server::ApplyConfig(Config config) {
  std::string changed;
  for (const cli::ConfigKey* key : ChangedKeys(core_.config, config)) {
    changed += (changed.empty() ? "" : ", ") + std::string(key->name);
    if (!key->live) spdlog::warn("the new {} counts from the next start on: mk restart", key->name);
  }
  // What the threads that run were made with stays in force, and is shown.
  config.threads = core_.config.threads;
  core_.config = std::move(config);
  SetLogLevel(core_.config.log_level);
  core_.limits.max_batch = static_cast<size_t>(core_.config.max_batch);
  core_.limits.max_active = kActivePerBatch * core_.limits.max_batch;
  parts_->scheduler->SetBatch(core_.limits.max_batch, core_.limits.max_active);
  parts_->registry->SetKeepAlive(core_.config.keep_alive);
  parts_->count_experts.store(core_.config.count_experts);
  parts_->registry->SetSpineCache(SpineCacheOf(core_.config));
  parts_->registry->SetStream(StreamOf(core_.config));
  jobs_.ApplyConfig();
  sessions_.ApplyConfig();
  parts_->ledger.SetBudget(core_.config.memory > 0 ? core_.config.memory : DefaultMemoryBudget());
  parts_->prefixes.SetLimit(PrefixLimit(core_.config, parts_->ledger.budget()));
  parts_->session_states.SetLimit(SessionLimit(core_.config, parts_->ledger.budget()));
  parts_->prefix_disk.SetLimit(PrefixDiskLimit(core_.config));
  spdlog::info("read {}: {}", parts_->setup.options.config_file,
               changed.empty() ? "nothing changed" : "changed " + changed);
}

void Server::Tick(Clock::time_point now) {
  next_tick_ = now + kTick;
  parts_->clients->CheckSilence(now);
  parts_->clients->ForgetIdle(now);
  next_unload_ = parts_->registry->UnloadExpired(now);
  jobs_.Tick(now);
  const auto idle = core_.config.session_idle;
  if (idle.count() >= 0) parts_->session_states.DropUnused(now - idle);
  GuardSocketPath();
  ReportStatus(now);
  if (!Idle()) idle_since_ = now;
  const auto idle_exit = core_.config.idle_exit;
  if (idle_exit.count() >= 0 && !stop_deadline_ && now - idle_since_ >= idle_exit) {
    BeginStop(kDefaultGrace, "nobody needed it for so long");
  }
  NoticeReplacement(now);
}

// What was loaded to stay; the next daemon would not have it.
bool Server::HoldsPromises() const {
  const auto& entries = parts_->registry->entries();
  return std::any_of(entries.begin(), entries.end(),
                     [](const auto& entry) { return entry.second->keep_alive.count() < 0; });
}

// After an update: says that this is the old program and, where systemd starts the new one, makes
// way for it as soon as nobody would notice.
void Server::NoticeReplacement(Clock::time_point now) {
  const bool replaced = parts_->program.Look(now);
  if (replaced && !program_replaced_) {
    spdlog::warn("another program is at {} now; `mk restart` starts it", parts_->program.path());
  }
  program_replaced_ = replaced;
  if (!replaced || !parts_->setup.supervised || stop_deadline_ || HoldsPromises()) return;
  if (now - idle_since_ < kQuietBeforeRestart) return;
  exit_code_ = kExitRestart;
  BeginStop(kDefaultGrace, "its program was replaced and it has nothing to do");
}

bool Server::Idle() const {
  return parts_->transport->connections() == 0 && parts_->clients->requests().empty() &&
         jobs_.idle();
}

// Cleaners of temporary files and the end of a login session remove lock and socket under running
// daemons. False: the lock is not ours now.
bool Server::KeepLock() {
  Booted& booted = parts_->setup.booted;
  if (booted.lock.StillThere()) return true;
  // The directory may have gone with it.
  Status status;
  if (auto made = protocol::PrepareSocketDirectory(booted.paths.directory); !made) {
    status = Fail(ErrorCode::kIo, made.error().message);
  } else if (auto lock = LockFile::Acquire(booted.paths.lock); lock) {
    booted.lock = std::move(*lock);
    return true;
  } else if (lock.error().code == ErrorCode::kIncompatible) {
    BeginStop(kDefaultGrace, booted.paths.lock + " is another daemon's now");
    return false;
  } else {
    status = Fail(lock.error());
  }
  if (!path_lost_) spdlog::error("nobody can connect any more: {}", status.error().ToString());
  path_lost_ = true;
  return false;
}

void Server::GuardSocketPath() {
  if (stop_deadline_ || !KeepLock()) return;
  path_lost_ = false;
  const std::string& path = parts_->setup.booted.paths.socket;
  if (PathInode(path) == parts_->socket_inode && parts_->socket_inode != 0) return;
  switch (Probe(path)) {
    case ProbeResult::kNobody:
      break;
    case ProbeResult::kLive:
      // systemd, when its socket unit starts, takes the path away from whoever has it. The daemon
      // that it starts waits for our lock.
      return BeginStop(kDefaultGrace, "another program listens on " + path + " now");
    case ProbeResult::kForeign:
      return;  // no socket: hands off
  }
  auto listening = Listen(path);
  if (!listening) {
    spdlog::warn("the socket's path is gone: {}", listening.error().ToString());
    return;
  }
  if (auto status = parts_->transport->AddListener(std::move(*listening), path); !status) {
    spdlog::error("{}", status.error().ToString());
    return;
  }
  parts_->socket_inode = PathInode(path);
  parts_->metrics.Add(Counter::kSocketRecreated);
  spdlog::warn("{} had vanished and was made anew{}", path,
               parts_->owns_socket ? ""
                                   : "; systemd's own one is out of reach until"
                                     " `systemctl --user restart microkimid.socket`");
  parts_->owns_socket = true;
}

void Server::ReportStatus(Clock::time_point now) {
  std::string status;
  if (const auto silence = parts_->watchdog->silence(now); silence.count() > 0) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(silence).count();
    status = "the engine has not answered for " + std::to_string(seconds) + " s; ";
  }
  status += leaving_.empty() ? "" : "leaving: " + leaving_ + "; ";
  status += StatusLine(core_);
  if (program_replaced_) status += "; its program was replaced: mk restart";
  if (!config_error_.empty()) status += "; the config file is not used: " + config_error_;
  if (status == systemd_status_) return;
  systemd_status_ = status;
  NotifySystemd("STATUS=" + status);
}

void Server::WatchdogReport(Clock::time_point now) {
  if (parts_->watchdog->Due(now)) NotifySystemd("WATCHDOG=1");
  const bool silent = parts_->watchdog->silence(now).count() > 0;
  if (silent && !engine_silent_) {
    spdlog::error("the engine does not answer; systemd will hear no more until it does");
  }
  if (!silent && engine_silent_) spdlog::warn("the engine answers again");
  engine_silent_ = silent;
}

void Server::BeginStop(std::chrono::milliseconds grace, const std::string& why) {
  const auto deadline = Clock::now() + grace;
  if (stop_deadline_) {
    stop_deadline_ = std::min(*stop_deadline_, deadline);
    return;
  }
  stop_deadline_ = deadline;
  core_.stopping = true;
  leaving_ = why;
  spdlog::info("leaving: {}", why);
  // systemd kills what takes longer to stop than it was told to expect.
  const auto longest = std::chrono::ceil<std::chrono::seconds>(grace + kLastWords) +
                       std::chrono::seconds(kSecondsToJoin + kSecondsToSpare);
  NotifySystemd("STOPPING=1\nEXTEND_TIMEOUT_USEC=" +
                std::to_string(std::chrono::microseconds(longest).count()));
  ReportStatus(Clock::now());
  jobs_.Interrupt();
  parts_->prefixes.SaveValuable();
  // What has not begun will not.
  std::vector<uint64_t> not_begun;
  for (const auto& [key, request] : parts_->clients->requests()) {
    // Those who watch a job are told how it ends.
    const bool watches = request->op == protocol::Op::kJobAttach;
    if (!request->final && !request->started && !watches && protocol::InfoOf(request->op).streams) {
      not_begun.push_back(key);
    }
  }
  for (const uint64_t key : not_begun) {
    if (ClientRequest* request = parts_->clients->Find(key)) EndForShutdown(*request);
  }
}

void Server::EndForShutdown(ClientRequest& request) {
  parts_->metrics.Add(Counter::kStoppedShutdown);
  EndRequest(request, ShuttingDown());
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
    if (ClientRequest* request = parts_->clients->Find(key)) EndForShutdown(*request);
  }
  stop_deadline_ = now + kLastWords;
}

bool Server::MayLeave() {
  const auto now = Clock::now();
  if (stop_hurried_ && now >= *stop_deadline_) return true;
  if (!parts_->clients->requests().empty() || !jobs_.idle() || parts_->clients->AnswersWait()) {
    return false;
  }
  // What the last runs left is written too, as long as there is time.
  if (!saved_prefixes_) {
    saved_prefixes_ = true;
    parts_->prefixes.SaveValuable();
  }
  return stop_hurried_ || now >= *stop_deadline_ || !parts_->prefix_disk.writing();
}

// The socket goes while the lock is still held, so that the next daemon finds a clean place.
void Server::Leave() {
  const Booted& booted = parts_->setup.booted;
  if (parts_->owns_socket && PathInode(booted.paths.socket) == parts_->socket_inode) {
    unlink(booted.paths.socket.c_str());
  }
  unlink(booted.paths.pid.c_str());
  parts_->transport->LingerOnClose();
  spdlog::info("left");
  signal(SIGALRM, [](int) { _exit(0); });
  alarm(kSecondsToJoin);
}

}  // namespace mk::daemon
