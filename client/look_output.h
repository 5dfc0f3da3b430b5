// What a run shows of the model at work: for people, as JSON, and in files.

#pragma once

#include <string>

#include "client/json_format.h"
#include "client/look_options.h"
#include "client/look_text.h"
#include "client/route_files.h"
#include "protocol/messages.h"

namespace mk::client {

class LookOutput {
 public:
  // `keep`: for AddTo(). The settings must live as long.
  LookOutput(const LookSettings& settings, bool keep)
      : settings_(settings), keep_(keep), files_(settings) {}

  // Before the run: see RouteFiles::Check.
  protocol::Status Check() const { return files_.Check(); }
  // What is to be printed now for people; empty: nothing.
  std::string Take(const protocol::Body& body);
  // The same at the end.
  std::string End(const protocol::RunDone& done) const;
  // "lens": [...], "hidden_stats": {...}
  void AddTo(Json& json) const;
  protocol::Status WriteFiles(const protocol::RunDone& done) { return files_.Write(done); }

 private:
  const LookSettings& settings_;
  const bool keep_;
  RouteFiles files_;
  RoutingText routing_;
  Json lens_ = Json::array();
  Json hidden_stats_;
};

}  // namespace mk::client
