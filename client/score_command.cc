// `mk score`

#include <unistd.h>

#include "client/commands.h"
#include "client/input.h"
#include "client/map_flow.h"
#include "client/map_item.h"
#include "client/report.h"
#include "client/score_work.h"

namespace mk::client {
namespace {

int ScoreRecords(const ScoreSettings& settings) {
  UniqueFd file;
  if (settings.file != "-") {
    auto opened = OpenForReading(settings.file);
    if (!opened) return ReportError(opened.error());
    file = std::move(*opened);
  }
  const int fd = file ? file.get() : STDIN_FILENO;
  RecordReader reader(fd, file ? settings.file : "standard input", SeparatorOf(settings.input),
                      MostBytesOf(settings.input));
  ScoreWork work(settings);
  return RunMap(settings.flow, work, reader, BytesLeft(fd));
}

}  // namespace

int ScoreCommand(const Command& command, int argc, char** argv) {
  ScoreSettings settings;
  if (auto code = ParseScoreSettings(command, argc, argv, settings)) return *code;
  if (settings.records) return ScoreRecords(settings);
  RecordReader reader(settings.given.size());
  ScoreWork work(settings);
  return RunMap(settings.flow, work, reader, 0);
}

}  // namespace mk::client
