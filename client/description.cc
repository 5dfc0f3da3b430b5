#include "client/description.h"

#include <sstream>
#include <utility>

namespace mk::client {
namespace {

// "PRECISION:{exact,bf16}": a name, and what a check allows.
void TakeType(const std::string& type, OptionInfo& info) {
  const size_t colon = type.find(':');
  info.value = type.substr(0, colon);
  const size_t open = type.find('{');
  if (open == std::string::npos || !type.ends_with('}')) return;
  std::stringstream list(type.substr(open + 1, type.size() - open - 2));
  for (std::string choice; std::getline(list, choice, ',');) info.choices.push_back(choice);
}

ValueKind KindOf(const OptionInfo& info) {
  if (!info.choices.empty()) return ValueKind::kChoice;
  const std::string& name = info.positional ? info.names[0] : info.value;
  if (name == "MODEL") return ValueKind::kModel;
  if (name == "FILE" || name == "PATH") return ValueKind::kFile;
  return info.value.empty() ? ValueKind::kNone : ValueKind::kAny;
}

OptionInfo DescribeOption(const CLI::Option& option) {
  OptionInfo info;
  info.positional = option.get_positional();
  info.doc = option.get_description();
  info.required = option.get_required();
  info.many = option.get_items_expected_max() > 1 ||
              option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll;
  if (option.get_items_expected_max() > 0) TakeType(option.get_type_name(), info);
  if (info.positional) {
    info.names = {option.get_name(true, false)};
  } else {
    for (const std::string& name : option.get_snames()) info.names.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) info.names.push_back("--" + name);
  }
  info.kind = KindOf(info);
  return info;
}

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
        OptionInfo described = DescribeOption(*option);
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
