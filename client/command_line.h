// The command line of one command: CLI11, with our texts for help and errors.

#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "client/access.h"
#include "protocol/messages.h"

namespace mk::client {

// Is shown the command line of a command, all its options added.
using Describe = std::function<void(const CLI::App&)>;

// One entry of `mk --help`.
struct Command {
  const char* name;
  const char* summary;
  const char* examples;  // lines for the end of `mk NAME --help`
  int (*run)(const Command& command, int argc, char** argv);
  const Describe* describe = nullptr;  // set: run() shows its command line and does nothing else
};

struct RealRange {
  double low = 0;
  double high = 0;
  bool above_low = false;  // low itself is excluded
};

// Refuses what is none of the names, and says which one may have been meant.
CLI::Validator OneOf(std::vector<std::string> names);

class CommandLine {
 public:
  explicit CommandLine(const Command& command);

  CLI::App& app() { return app_; }
  // An option whose value is a whole number; "-1", "1e3" and numbers out of range are errors.
  void AddNumber(const std::string& names, uint64_t& value, const std::string& doc,
                 uint64_t low = 0, uint64_t high = UINT64_MAX);
  void AddNumber(const std::string& names, std::optional<uint64_t>& value, const std::string& doc,
                 uint64_t low = 0, uint64_t high = UINT64_MAX);
  // An option whose value is a finite number in decimal.
  void AddReal(const std::string& names, double& value, const std::string& doc, RealRange range);
  // An option that may be given several times, one value each time: what follows is left alone.
  CLI::Option* AddRepeated(const std::string& names, std::vector<std::string>& values,
                           const std::string& doc);
  // --socket, and --no-autostart where a daemon would be started.
  void AddAccess(AccessOptions& access, bool autostart);
  // --precision; `doc` says of what.
  void AddPrecision(std::string& precision, const std::string& doc);
  // --priority.
  void AddPriority(std::string& priority);
  // --stream, --no-stream, --stream-ram.
  void AddStream(protocol::StreamWish& stream);
  // --model, --vocab, --tokenizer-file.
  void AddModel(protocol::ModelSelector& model);

  // Nothing: go on. Otherwise the exit code: help was printed, or an error (an option with an empty
  // value is one), or all that was wanted is the description.
  std::optional<int> Parse(int argc, char** argv);

 private:
  std::optional<int> RefuseEmptyValues();
  int RefuseExtras();

  const std::string name_;
  const Describe* const describe_;
  CLI::App app_;
  bool no_autostart_ = false;
  AccessOptions* access_ = nullptr;
};

// Makes what a user named on the command line absolute: the daemon runs elsewhere.
std::string AbsolutePath(const std::string& path);
// A model: a path when it has a '/' or names a file here that ends in ".bin"; else a name.
std::string ModelArgument(const std::string& text);
void MakeAbsolute(protocol::ModelSelector& model);

// A memory pack: a path when it has a '/' or ends in ".mkmem"; else the name of one that the daemon
// keeps.
std::string PackArgument(const std::string& text);

// "90", "1.5s", "250ms", "10m", "2h" as milliseconds; bare numbers are seconds.
protocol::Result<uint64_t> ParseDurationMs(const std::string& text);

}  // namespace mk::client
