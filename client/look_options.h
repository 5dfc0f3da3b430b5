// The options of `mk run` that look into the model at work.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/command_line.h"
#include "protocol/messages.h"

namespace mk::client {

struct LookSettings {
  bool lens = false;
  bool hidden_stats = false;
  bool debug_routing = false;
  // Files; empty: none.
  std::string sketch;
  std::string trace;
  std::string demands;
  std::string store;

  // Whether the text of an answer makes way for what is shown.
  bool shows() const { return lens || hidden_stats || debug_routing; }
  // Whether they are made of what routers picked, token by token.
  bool need_routes() const {
    return debug_routing || !trace.empty() || !demands.empty() || !store.empty();
  }
  bool has_files() const {
    return !sketch.empty() || !trace.empty() || !demands.empty() || !store.empty();
  }
};

// "0,4,8-12" as ascending numbers, each once. Errors: usage.
protocol::Result<std::vector<uint32_t>> ParseLayers(const std::string& text);

// What CLI11 fills in before it becomes a request. It must live until Parse() is over.
class LookOptions {
 public:
  // --logit-lens, --logit-lens-all, --hidden-stats, --debug-routing, --cms, --trace,
  // --demand-trace, --routes-store, and those of AddLens
  void AddAll(CommandLine& line);
  // --lens-top, --lens-layers
  void AddLens(CommandLine& line);
  // Completes `args`. Errors: usage.
  protocol::Status Take(protocol::RunArgs& args, LookSettings& settings) const;
  // The same for a lens after every token.
  protocol::Status TakeLens(protocol::RunArgs& args) const;

 private:
  bool last_ = false;
  bool all_ = false;
  uint64_t top_ = 0;
  std::string layers_;
  LookSettings given_;
};

}  // namespace mk::client
