// `mk routes`

#include <unistd.h>

#include "client/chat.h"
#include "client/commands.h"
#include "client/expert_source.h"
#include "client/picture_file.h"
#include "client/report.h"
#include "client/routes_picture.h"

namespace mk::client {

int RoutesCommand(const Command& command, int argc, char** argv) {
  ExpertSource source(64);
  PictureFile file;
  CommandLine line(command);
  source.Add(line);
  file.Add(line);
  if (auto code = line.Parse(argc, argv)) return *code;
  protocol::Status taken = file.Check();
  if (taken) taken = source.Take(line);
  if (!taken) return ReportError(taken.error());

  Output output(STDOUT_FILENO);
  auto counted = source.Count(output, true);
  if (!counted) return ReportError(counted.error());
  const std::string model = ModelName(counted->model);
  const std::string svg = Draw(RoutesPicture{model, counted->about, std::move(counted->tally)});
  if (auto written = file.Write(svg, "Experts of " + model, output); !written) {
    return ReportError(written.error());
  }
  output.Write(file.Told(svg));
  return FinishOutput(output, protocol::kExitDone);
}

}  // namespace mk::client
