// `mk routebuild`: adds recorded runs to a store of sessions.

#include <unistd.h>

#include <string>
#include <vector>

#include "client/commands.h"
#include "client/input.h"
#include "client/json_format.h"
#include "client/printable.h"
#include "client/report.h"
#include "client/route_files.h"

namespace mk::client {
namespace {

using protocol::Fail;
using protocol::Result;

constexpr size_t kMaxTraceBytes = size_t{1} << 30;

Result<routing::RouteSession> ReadSession(const std::string& path) {
  auto bytes = ReadWholeFile(path, kMaxTraceBytes);
  if (!bytes) return Fail(std::move(bytes.error()));
  auto demands = routing::ReadDemands(*bytes);
  if (!demands) {
    demands.error().message = path + ": " + demands.error().message;
    return Fail(std::move(demands.error()));
  }
  return routing::SessionOf(*demands);
}

}  // namespace

int RoutebuildCommand(const Command& command, int argc, char** argv) {
  std::string store;
  std::vector<std::string> traces;
  bool json = false;
  CommandLine line(command);
  line.app().add_option("STORE", store, "Store of sessions; made if there is none")->required();
  line.app()
      .add_option("TRACE", traces, "Recorded runs, a session each: demands, or MKTRC002")
      ->required();
  line.app().add_flag("--json", json, "One JSON object instead of text");
  if (auto code = line.Parse(argc, argv)) return *code;
  // All are read before the store is touched.
  std::vector<routing::RouteSession> sessions;
  for (const std::string& path : traces) {
    auto session = ReadSession(path);
    if (!session) return ReportError(session.error(), json);
    sessions.push_back(std::move(*session));
  }
  auto built = AppendToStore(store, std::move(sessions));
  if (!built) return ReportError(built.error(), json);
  Output output(STDOUT_FILENO);
  if (json) {
    Json list = Json::array();
    for (const routing::RouteSession& session : built->sessions()) {
      list.push_back({{"requests", session.requests},
                      {"layers", session.layers.size()},
                      {"experts", session.experts}});
    }
    output.Write(JsonLine({{"store", store},
                           {"added", traces.size()},
                           {"layers", built->layers()},
                           {"experts", built->experts()},
                           {"sessions", std::move(list)}}));
  } else {
    output.Write(Printable(store) + ": " + std::to_string(built->sessions().size()) +
                 (built->sessions().size() == 1 ? " session, " : " sessions, ") +
                 std::to_string(traces.size()) + " of them new\n");
  }
  return FinishOutput(output, protocol::kExitDone);
}

}  // namespace mk::client
