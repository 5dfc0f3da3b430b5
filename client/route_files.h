// The files that a run leaves of the experts that were picked: sketch, traces, store of sessions.

#pragma once

#include <string>
#include <vector>

#include "client/look_options.h"
#include "protocol/messages.h"
#include "routing/count_sketch.h"
#include "routing/route_store.h"
#include "routing/route_trace.h"

namespace mk::client {

// Whether layers and experts of a tally are such as a model can have. kInternal.
protocol::Status CheckTally(const protocol::ExpertTally& tally);

// The exact counts of a tally that was checked, as a sketch.
routing::CountSketch SketchOf(const protocol::ExpertTally& tally);

// Adds sessions to a store, one process at a time; makes the store if there is none. Returns it as
// it is now. Errors: a file that is no store, kIoError.
protocol::Result<routing::RouteStore> AppendToStore(const std::string& path,
                                                    std::vector<routing::RouteSession> sessions);

class RouteFiles {
 public:
  explicit RouteFiles(const LookSettings& settings) : settings_(settings) {}

  // Before the run: whether the files can be written, and the store is one.
  protocol::Status Check() const;
  void Take(const protocol::RoutesChunk& routes);
  // At the end of a run that counted: writes what is wanted, each file whole or not at all.
  protocol::Status Write(const protocol::RunDone& done);

 private:
  const LookSettings& settings_;
  std::vector<routing::TraceRecord> records_;
};

}  // namespace mk::client
