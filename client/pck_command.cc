// `mk pck`

#include <unistd.h>

#include <array>
#include <cstdio>
#include <optional>
#include <string>

#include "client/commands.h"
#include "client/json_format.h"
#include "client/map_entry.h"
#include "client/printable.h"
#include "client/progress.h"
#include "client/report.h"
#include "client/text_table.h"

namespace mk::client {
namespace {

using Align = TextTable::Align;

struct PckSettings {
  AccessOptions access;
  std::string action = "info";
  std::string model;
  bool json = false;
};

std::string Count(uint64_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::string Decimal(double value) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.1f", value);
  return text.data();
}

std::string WhereText(const protocol::PrefixStatus& state) {
  if (state.disk_bytes == 0) return "memory";
  return state.memory_bytes == 0 ? "disk" : "memory, disk";
}

std::string StatesText(const protocol::PrefixModel& model) {
  TextTable table{Align::kRight, Align::kLeft,  Align::kRight, Align::kRight,
                  Align::kRight, Align::kRight, Align::kLeft};
  table.Add({"TOKENS", "PRECISION", "BYTES", "OWN", "ON DISK", "VALUE", "WHERE"});
  const auto bytes = [](uint64_t count) { return count == 0 ? "-" : BytesText(count); };
  for (const protocol::PrefixStatus& state : model.states) {
    table.Add({std::to_string(state.tokens),
               state.precision + (state.chunked_prefill ? "" : ", token by token"),
               bytes(state.memory_bytes), bytes(state.own_bytes), bytes(state.disk_bytes),
               Decimal(state.value), WhereText(state)});
  }
  return table.Text();
}

std::string ModelText(const protocol::PrefixModel& model) {
  const std::string name = model.model.empty() ? model.fingerprint : Printable(model.model);
  std::string text = "\n" + name + (model.loaded ? "" : " (not loaded)") + ": " +
                     Count(model.memory_states, "state") + " in memory, " +
                     Count(model.disk_files, "file") + " of " + BytesText(model.disk_bytes) +
                     " on disk";
  if (model.refused_files > 0) {
    text += ", " + std::to_string(model.refused_files) + " of them refused (.bad)";
  }
  return text + "\n" + (model.states.empty() ? "" : StatesText(model));
}

std::string InfoText(const protocol::PckInfoDone& done) {
  const auto total = [&](const char* key) { return Entry(done.totals, key); };
  std::string text = "memory    " + Count(total("memory_states"), "state") + ", " +
                     BytesText(total("memory_bytes")) + " of " + BytesText(total("memory_limit")) +
                     "\n";
  text += "disk      ";
  text += total("disk_limit") == 0
              ? std::string("off (prefix_disk_limit)")
              : Count(total("disk_files"), "file") + ", " + BytesText(total("disk_bytes")) +
                    " of " + BytesText(total("disk_limit"));
  text += "\nfolder    " + Printable(done.folder) + "\n";
  if (!done.trouble.empty()) text += "not written to disk: " + Printable(done.trouble) + "\n";
  text += "found     " + std::to_string(total("hits")) + " of " +
          Count(total("lookups"), "prompt") + ", " + std::to_string(total("disk_hits")) +
          " of them from disk\n";
  for (const protocol::PrefixModel& model : done.models) text += ModelText(model);
  return text;
}

std::string CleanText(const protocol::PckCleanDone& done) {
  return "forgot " + Count(done.states, "state") + " in memory (" + BytesText(done.bytes) +
         ") and " + Count(done.files, "file") + " on disk (" + BytesText(done.file_bytes) + ")\n";
}

template <typename Done, typename Render>
int Tell(const PckSettings& settings, protocol::Args args, const Render& render) {
  Output output(STDOUT_FILENO);
  auto session = OpenSession(settings.access);
  auto done = session ? AskFor<Done>(*session, std::move(args))
                      : protocol::Result<Done>(protocol::Fail(session.error()));
  if (settings.json) output.Write(JsonLine(done ? ToJson(*done) : ErrorToJson(done.error())));
  if (done && !settings.json) output.Write(render(*done));
  const int written = FinishOutput(output, protocol::kExitDone);
  return done ? written : ReportError(done.error());
}

}  // namespace

int PckCommand(const Command& command, int argc, char** argv) {
  PckSettings settings;
  CommandLine line(command);
  CLI::App& app = line.app();
  app.add_option("ACTION", settings.action,
                 "info: what is kept (the default); clean: forget it, in memory and on disk")
      ->check(OneOf({"info", "clean"}));
  app.add_option("-m,--model", settings.model,
                 "Only of this model: a path, an alias, a name, or digits of its fingerprint")
      ->type_name("MODEL");
  app.add_flag("--json", settings.json, "One JSON object instead of text");
  line.AddAccess(settings.access, false);
  if (auto code = line.Parse(argc, argv)) return *code;
  const std::string model = ModelArgument(settings.model);
  if (settings.action == "info") {
    return Tell<protocol::PckInfoDone>(settings, protocol::PckInfoArgs{model}, InfoText);
  }
  // What is on disk is forgotten whether a daemon runs or not.
  settings.access.autostart = true;
  return Tell<protocol::PckCleanDone>(settings, protocol::PckCleanArgs{model}, CleanText);
}

}  // namespace mk::client
