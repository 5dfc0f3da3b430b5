// `mk map`

#include <unistd.h>

#include "client/commands.h"
#include "client/input.h"
#include "client/map_flow.h"
#include "client/map_item.h"
#include "client/map_runs.h"
#include "client/report.h"
#include "client/unique_fd.h"

namespace mk::client {
namespace {

protocol::Result<UniqueFd> OpenInput(const std::string& path) {
  if (path == "-") return UniqueFd();
  return OpenForReading(path);
}

}  // namespace

int MapCommand(const Command& command, int argc, char** argv) {
  MapSettings settings;
  if (auto code = ParseMapSettings(command, argc, argv, settings)) return *code;
  auto input = OpenInput(settings.file);
  if (!input) return ReportError(input.error());
  const int fd = *input ? input->get() : STDIN_FILENO;
  RecordReader reader(fd, settings.file == "-" ? "standard input" : settings.file,
                      SeparatorOf(settings.input), MostBytesOf(settings.input));
  MapRuns work(settings);
  return RunMap(settings.flow, work, reader, BytesLeft(fd));
}

}  // namespace mk::client
