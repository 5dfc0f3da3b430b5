#include "client/description.h"

#include <sstream>
#include <utility>

namespace mk::client {
namespace {

std::vector<std::string> LinesOf(const char* text) {
  std::vector<std::string> lines;
  std::stringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line.substr(std::min(line.find_first_not_of(' '), line.size())));
  }
  return lines;
}

}  // namespace

std::vector<CommandInfo> DescribeCommands() {
  std::vector<CommandInfo> all;
  for (Command command : AllCommands()) {
    CommandInfo info{command.name, command.summary, LinesOf(command.examples), {}, {}};
    const Describe describe = [&info](const CLI::App& app) {
      for (const CLI::Option* option : app.get_options()) {
        OptionInfo described = cli::DescribeOption(*option);
        (described.positional ? info.positionals : info.options).push_back(std::move(described));
      }
    };
    command.describe = &describe;
    std::string name = command.name;
    char* arguments[] = {name.data(), nullptr};
    command.run(command, 1, arguments);
    all.push_back(std::move(info));
  }
  return all;
}

}  // namespace mk::client
