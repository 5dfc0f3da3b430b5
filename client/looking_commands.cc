// `mk ping`, `mk status`, `mk ps`, `mk metrics`, `mk models`, `mk version`: they look and never
// start a daemon.

#include <unistd.h>

#include <array>
#include <cstdio>

#include "client/commands.h"
#include "client/job_text.h"
#include "client/json_format.h"
#include "client/map_entry.h"
#include "client/models_text.h"
#include "client/printable.h"
#include "client/progress.h"
#include "client/report.h"

namespace mk::client {
namespace {

// Options of a command that only looks.
struct Looking {
  AccessOptions access;
  bool json = false;
};

using AddOptions = std::function<void(CLI::App&)>;

std::optional<int> ParseLooking(const Command& command, int argc, char** argv, Looking& looking,
                                const AddOptions& add = {}) {
  CommandLine line(command);
  line.app().add_flag("--json", looking.json, "One JSON object instead of text");
  if (add) add(line.app());
  line.AddAccess(looking.access, false);
  return line.Parse(argc, argv);
}

int LookingError(const protocol::Error& error, bool json) {
  if (json) {
    Output output(STDOUT_FILENO);
    output.Write(JsonLine(ErrorToJson(error)));
    FinishOutput(output, protocol::kExitFailed);
  }
  return ReportError(error);
}

// Text in a column: padded, or left as it is when it is longer.
std::string Column(std::string text, size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text + "  ";
}

std::string Seconds(uint64_t milliseconds_) {
  return DurationText(static_cast<double>(milliseconds_) / 1e3);
}

std::string ModelLine(const protocol::ModelStatus& model) {
  const bool loading = model.state == "loading";
  std::string text = "  " + Column(model.state, 8) + Column(model.architecture, 11) +
                     Column(BytesText(model.file_bytes), 9) +
                     Column(Joined(loading ? model.preparing : model.precisions), 13) +
                     Column(Printable(model.path), 0);
  if (loading) {
    text += std::to_string(static_cast<int>(model.progress * 100)) + " %";
  } else {
    text += model.users == 0 ? "idle for " + Seconds(model.idle_ms)
                             : std::to_string(model.users) + " in use";
    if (!model.preparing.empty()) text += ", preparing " + Joined(model.preparing);
  }
  return text + "\n";
}

std::string RequestLine(const protocol::RequestStatus& request) {
  std::array<char, 160> numbers;
  std::snprintf(numbers.data(), numbers.size(), "prompt %llu/%llu, %llu tokens, %.1f tok/s",
                static_cast<unsigned long long>(request.prompt_done),
                static_cast<unsigned long long>(request.prompt_total),
                static_cast<unsigned long long>(request.generated), request.tokens_per_second);
  return "  " + Column(request.op, 8) + Column(request.phase, 8) + Column(numbers.data(), 40) +
         Column("since " + Seconds(request.age_ms), 12) + Printable(request.client) + "\n";
}

std::string JobLine(const protocol::JobStatus& job) {
  return "  " + Column(job.kind, 8) + Column(job.state, 8) +
         Column(JobProgressText(job) + (job.eta_ms ? ", " + JobEtaText(job) + " left" : ""), 40) +
         Column("since " + Seconds(job.age_ms), 12) + job.id + "\n";
}

// For what the ledger's bytes are promised: ": models 11 MiB, prefixes 300 KiB".
std::string LedgerText(const std::map<std::string, uint64_t>& memory) {
  std::string text;
  for (const auto& [name, bytes] : memory) {
    if (bytes == 0 || name == "budget" || name == "used" || name == "resident") continue;
    text += (text.empty() ? ": " : ", ") + Printable(name) + " " + BytesText(bytes);
  }
  return text;
}

// "12 states, 3 MiB; on disk 20, 40 MiB; 7 of 9 prompts began with one, 2 with one of the disk"
std::string PrefixesText(const protocol::StatusDone& status) {
  const auto count = [&](const char* name) { return std::to_string(Entry(status.counters, name)); };
  return count("prefix_states") + " states, " + BytesText(Entry(status.memory, "prefixes")) +
         "; on disk " + count("prefix_disk_states") + ", " +
         BytesText(Entry(status.counters, "prefix_disk_bytes")) + "; " + count("prefix_hits") +
         " of " + count("prefix_lookups") + " prompts began with one, " +
         count("prefix_disk_hits") + " from disk";
}

std::string StatusText(const protocol::StatusDone& status) {
  std::string text = "microkimid " + status.build_id + ", pid " + std::to_string(status.pid) +
                     ", up " + Seconds(status.uptime_ms) + (status.stopping ? ", stopping" : "") +
                     "\n";
  text += "socket    " + Printable(status.socket) + "\n";
  const std::string journal =
      status.journal_unit.empty() ? "standard error" : "journal of " + status.journal_unit;
  text += "log       " + Printable(status.log.empty() ? journal : status.log) + "\n";
  if (Entry(status.counters, "program_replaced") > 0) {
    text += "program   another one is in its place since it started; `mk restart` starts that\n";
  }
  text += "threads   " + std::to_string(status.threads) + ", batch of up to " +
          std::to_string(status.max_batch) + "\n";
  text += "precision " + status.precision + ", where a run asks for no other\n";
  text += "memory    " + BytesText(Entry(status.memory, "used")) + " of " +
          BytesText(Entry(status.memory, "budget")) + LedgerText(status.memory) + "\n";
  text += "prefixes  " + PrefixesText(status) + "\n";
  text += "models    " + std::to_string(status.models.size()) + "\n";
  for (const auto& model : status.models) text += ModelLine(model);
  text += "requests  " + std::to_string(status.requests.size()) + "\n";
  for (const auto& request : status.requests) text += RequestLine(request);
  text += "jobs      " + std::to_string(status.jobs.size()) + "\n";
  for (const auto& job : status.jobs) text += JobLine(job);
  if (!status.jobs_trouble.empty()) {
    text += "  not saved, they end with the daemon: " + Printable(status.jobs_trouble) + "\n";
  }
  return text;
}

// Asks and prints; `args` makes the question and `render` the text, `add` adds options.
template <typename Done, typename MakeArgs, typename Render>
int LookFor(const Command& command, int argc, char** argv, const MakeArgs& args,
            const Render& render, const AddOptions& add = {}) {
  Looking looking;
  if (auto code = ParseLooking(command, argc, argv, looking, add)) return *code;
  auto session = OpenSession(looking.access);
  if (!session) return LookingError(session.error(), looking.json);
  auto done = AskFor<Done>(*session, args(looking));
  if (!done) return LookingError(done.error(), looking.json);
  Output output(STDOUT_FILENO);
  output.Write(looking.json ? JsonLine(ToJson(*done)) : render(*done));
  return FinishOutput(output, protocol::kExitDone);
}

template <typename Done, typename Args, typename Render>
int Look(const Command& command, int argc, char** argv, const Args& args, const Render& render,
         const AddOptions& add = {}) {
  return LookFor<Done>(
      command, argc, argv, [&args](const Looking&) { return args; }, render, add);
}

}  // namespace

int PingCommand(const Command& command, int argc, char** argv) {
  return Look<protocol::PingDone>(command, argc, argv, protocol::PingArgs{},
                                  [](const protocol::PingDone& done) {
                                    return "microkimid answers: pid " + std::to_string(done.pid) +
                                           ", up " + Seconds(done.uptime_ms) + "\n";
                                  });
}

int StatusCommand(const Command& command, int argc, char** argv) {
  return Look<protocol::StatusDone>(command, argc, argv, protocol::StatusArgs{}, StatusText);
}

int PsCommand(const Command& command, int argc, char** argv) {
  Looking looking;
  if (auto code = ParseLooking(command, argc, argv, looking)) return *code;
  auto session = OpenSession(looking.access);
  if (!session) return LookingError(session.error(), looking.json);
  auto status = AskFor<protocol::StatusDone>(*session, protocol::StatusArgs{});
  if (!status) return LookingError(status.error(), looking.json);
  Output output(STDOUT_FILENO);
  output.Write(looking.json ? JsonLine(LoadedJson(*status)) : LoadedText(*status));
  return FinishOutput(output, protocol::kExitDone);
}

int MetricsCommand(const Command& command, int argc, char** argv) {
  return LookFor<protocol::MetricsDone>(
      command, argc, argv,
      [](const Looking& looking) {
        return protocol::MetricsArgs{looking.json ? "families" : "text"};
      },
      [](const protocol::MetricsDone& done) { return done.text; });
}

int ModelsCommand(const Command& command, int argc, char** argv) {
  bool names = false;
  const auto render = [&](const protocol::ModelsDone& done) {
    return names ? NamesText(done) : ModelsText(done);
  };
  return Look<protocol::ModelsDone>(
      command, argc, argv, protocol::ModelsArgs{}, render, [&](CLI::App& app) {
        app.add_flag("--names", names, "Only the names, one per line")->excludes("--json");
      });
}

int VersionCommand(const Command& command, int argc, char** argv) {
  Looking looking;
  if (auto code = ParseLooking(command, argc, argv, looking)) return *code;
  Json json = {{"client",
                {{"build_id", std::string(protocol::BuildId())},
                 {"protocol_min", protocol::kProtocolMin},
                 {"protocol_max", protocol::kProtocolMax}}}};
  std::string text = "mk " + std::string(protocol::BuildId()) + ", protocol " +
                     std::to_string(protocol::kProtocolMax) + "\n";
  // The daemon's, if one runs; a version that it does not share is what one wants to see here.
  auto session = OpenSession(looking.access);
  auto hello = session ? session->Hello(After(kControlTimeout))
                       : protocol::Result<protocol::HelloDone>(protocol::Fail(session.error()));
  if (hello) {
    json["daemon"] = ToJson(*hello);
    text += "microkimid " + hello->build_id + ", protocol " + std::to_string(hello->protocol) +
            ", pid " + std::to_string(hello->pid) + "\n";
  } else if (hello.error().code == protocol::ErrorCode::kUnsupportedVersion) {
    return LookingError(hello.error(), looking.json);
  } else {
    json["daemon"] = nullptr;
    text += "microkimid: " + hello.error().message + "\n";
  }
  Output output(STDOUT_FILENO);
  output.Write(looking.json ? JsonLine(json) : text);
  return FinishOutput(output, protocol::kExitDone);
}

}  // namespace mk::client
