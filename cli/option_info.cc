#include "cli/option_info.h"

#include <sstream>

#include "cli/config_keys.h"

namespace mk::cli {
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
  if (name == "ID") return ValueKind::kJob;
  if (name == "SESSION") return ValueKind::kSession;
  if (name == "FILE" || name == "PATH") return ValueKind::kFile;
  return info.value.empty() ? ValueKind::kNone : ValueKind::kAny;
}

}  // namespace

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
  if (info.positional && info.names[0] == "KEY") {
    for (const ConfigKey& key : ConfigKeys()) info.choices.emplace_back(key.name);
  }
  info.kind = KindOf(info);
  return info;
}

}  // namespace mk::cli
