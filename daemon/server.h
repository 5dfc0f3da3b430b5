// The server: the I/O thread's loop and the daemon's life after boot.
//
// One poll() for messages, events of other threads, connections, signals and time. Control ops are
// answered here at once; everything else goes to a service, which hands work to another thread.

#pragma once

#include <memory>
#include <optional>
#include <string>

#include "daemon/boot.h"
#include "daemon/config.h"
#include "daemon/core.h"
#include "daemon/jobs/job_service.h"
#include "daemon/look_service.h"
#include "daemon/model_service.h"
#include "daemon/notify.h"
#include "daemon/options.h"
#include "daemon/prefix_service.h"
#include "daemon/run_service.h"
#include "daemon/sessions/session_service.h"
#include "daemon/status.h"
#include "daemon/text_service.h"
#include "daemon/transport.h"

namespace mk::daemon {

struct ServerSetup {
  Booted booted;
  Options options;
  Config config;  // with the options' overrides
  std::string log_file;
  std::string state_directory;
  bool supervised = false;  // systemd starts it anew when it leaves with kExitRestart
  std::string job_folder;
  std::string session_folder;
};

// Exit code of a daemon that systemd is to start anew; the service unit knows it.
inline constexpr int kExitRestart = 75;

class Server {
 public:
  // Everything that can fail fails here; nothing is served before Run().
  static Result<std::unique_ptr<Server>> Create(ServerSetup setup);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Serves until a signal, a stop op or idleness ends it. Returns the exit code.
  int Run();

 private:
  struct Parts;  // what must be made in an order and can fail

  explicit Server(std::unique_ptr<Parts> parts);

  void Poll();
  void ReceiveSome();
  void Dispatch(Incoming& incoming);
  void Control(const std::string& peer, protocol::Request request);
  void Start(const std::string& peer, protocol::Request request);
  void Hello(const std::string& peer, uint64_t id, const protocol::HelloArgs& args);
  void StatusOp(const std::string& peer, uint64_t id);
  void MetricsOp(const std::string& peer, uint64_t id, const protocol::MetricsArgs& args);
  void StopOp(const std::string& peer, uint64_t id, const protocol::StopArgs& args);
  void CancelOp(const std::string& peer, uint64_t id, const protocol::CancelArgs& args);
  void AckOp(const std::string& peer, const protocol::AckArgs& args);
  void TakeEvents();
  void Take(IoEvent event);

  void EndRequest(ClientRequest& request, protocol::Error reason);
  void CancelLost();
  void CancelLate(Clock::time_point now);
  void TakeSignals();
  void ReloadConfig();
  void ApplyConfig(Config config);
  void ReportStatus(Clock::time_point now);
  void Tick(Clock::time_point now);
  void GuardSocketPath();
  bool KeepLock();
  void WatchdogReport(Clock::time_point now);
  bool Idle() const;
  void NoticeReplacement(Clock::time_point now);
  bool HoldsPromises() const;
  int PollMilliseconds(Clock::time_point now) const;

  void BeginStop(std::chrono::milliseconds grace, const std::string& why);
  void EndForShutdown(ClientRequest& request);
  void HurryStop(Clock::time_point now);
  bool MayLeave();
  void Leave();

  std::unique_ptr<Parts> parts_;
  Core core_;
  Identity identity_;
  ModelService models_;
  SessionService sessions_;
  RunService runs_;
  TextService texts_;
  JobService jobs_;
  PrefixService prefixes_;
  LookService looks_;

  std::optional<Clock::time_point> stop_deadline_;  // set: the daemon is leaving
  bool stop_hurried_ = false;                       // what still ran was cancelled
  bool saved_prefixes_ = false;                     // after the last request had ended
  bool unsent_ = false;
  Clock::time_point next_tick_;
  Clock::time_point idle_since_;
  std::optional<Clock::time_point> next_unload_;
  std::string systemd_status_;
  std::string config_error_;  // why the file was not used when it was last reread
  std::string leaving_;       // why the daemon leaves
  bool path_lost_ = false;    // nobody can connect: said once
  bool engine_silent_ = false;
  bool program_replaced_ = false;  // said
  int exit_code_ = 0;
};

}  // namespace mk::daemon
