#include "client/completion_scripts.h"

#include <vector>

namespace mk::client {
namespace {

std::string Joined(std::span<const std::string> words, std::string_view between) {
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += between;
    text += word;
  }
  return text;
}

// In single quotes, which all three shells take literally but for what is escaped here.
std::string Quoted(const std::string& text, bool fish = false) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'') {
      quoted += fish ? "\\'" : "'\\''";
    } else if (c == '\\' && fish) {
      quoted += "\\\\";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

std::vector<std::string> AllNames(std::span<const OptionInfo> options) {
  std::vector<std::string> names;
  for (const OptionInfo& option : options) {
    names.insert(names.end(), option.names.begin(), option.names.end());
  }
  return names;
}

std::vector<std::string> NamesOf(std::span<const CommandInfo> commands) {
  std::vector<std::string> names;
  for (const CommandInfo& command : commands) names.push_back(command.name);
  return names;
}

// ---------------------------------------------------------------- bash

// The call that completes a value.
std::string BashValue(const OptionInfo& option) {
  switch (option.kind) {
    case ValueKind::kChoice:
      return "_mk_words " + Joined(option.choices, " ");
    case ValueKind::kFile:
      return "_mk_files";
    case ValueKind::kModel:
      return "_mk_models; _mk_files";
    case ValueKind::kJob:
      return "_mk_jobs";
    case ValueKind::kSession:
      return "_mk_sessions";
    default:
      return ":";
  }
}

// Names of models may hold anything: they are compared, never expanded.
constexpr const char* kBashHelpers = R"(# bash completion of mk; made by `mk completions bash`
_mk_words() {
  local word
  for word in "$@"; do
    [[ $word == "$cur"* ]] && COMPREPLY+=("$word")
  done
}
_mk_models() {
  local name
  while IFS= read -r name; do
    [[ $name == "$cur"* ]] && COMPREPLY+=("$name")
  done < <(mk models --names 2>/dev/null)
}
_mk_jobs() {
  local id
  while IFS= read -r id; do
    [[ $id == "$cur"* ]] && COMPREPLY+=("$id")
  done < <(mk jobs --ids 2>/dev/null)
}
_mk_sessions() {
  local name
  while IFS= read -r name; do
    [[ $name == "$cur"* ]] && COMPREPLY+=("$name")
  done < <(mk session ls --names 2>/dev/null)
}
# How many words that are no options stand before the one that is completed.
_mk_place() {
  local word
  place=0
  for word in "${COMP_WORDS[@]:2:COMP_CWORD-2}"; do
    [[ $word == -* ]] || (( ++place ))
  done
}
_mk_files() {
  local name
  while IFS= read -r name; do
    COMPREPLY+=("$name")
  done < <(compgen -f -- "$cur")
  compopt -o filenames 2>/dev/null
}
)";

std::string BashCommand(const CommandInfo& command) {
  std::string text = "    " + command.name + ")\n      case $prev in\n";
  for (const OptionInfo& option : command.options) {
    if (option.kind == ValueKind::kNone) continue;
    text += "        " + Joined(option.names, "|") + ") " + BashValue(option) + "; return ;;\n";
  }
  text += "      esac\n      if [[ $cur == -* ]]; then\n        _mk_words " +
          Joined(AllNames(command.options), " ") + "\n";
  if (command.positionals.size() == 1) {
    text += "      else\n        " + BashValue(command.positionals[0]) + "\n";
  } else if (!command.positionals.empty()) {
    text += "      else\n        local place; _mk_place\n        case $place in\n";
    for (size_t i = 0; i < command.positionals.size(); ++i) {
      // The last one may be given several times.
      const std::string place = i + 1 < command.positionals.size() ? std::to_string(i) : "*";
      text += "          " + place + ") " + BashValue(command.positionals[i]) + " ;;\n";
    }
    text += "        esac\n";
  }
  return text + "      fi ;;\n";
}

// ---------------------------------------------------------------- zsh

// Of a text between brackets or colons of a specification.
std::string ZshText(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string ZshAction(const OptionInfo& option) {
  switch (option.kind) {
    case ValueKind::kChoice:
      return "(" + Joined(option.choices, " ") + ")";
    case ValueKind::kFile:
      return "_files";
    case ValueKind::kModel:
      return "_mk_models";
    case ValueKind::kJob:
      return "_mk_jobs";
    case ValueKind::kSession:
      return "_mk_sessions";
    default:
      return " ";
  }
}

std::string ZshOption(const OptionInfo& option) {
  std::string text;
  for (const std::string& name : option.names) {
    // "--max-new=": a value may follow with = or as the next word; "-n+": or stand directly behind.
    const bool is_long = name.starts_with("--");
    std::string spec = option.many ? "*" : "(" + Joined(option.names, " ") + ")";
    spec += name;
    if (option.kind != ValueKind::kNone) spec += is_long ? "=" : "+";
    spec += "[" + ZshText(option.doc) + "]";
    if (option.kind != ValueKind::kNone) {
      spec += ":" + ZshText(option.value) + ":" + ZshAction(option);
    }
    text += "        " + Quoted(spec) + " \\\n";
  }
  return text;
}

std::string ZshCommand(const CommandInfo& command) {
  std::string text = "    " + command.name + ")\n      _arguments -s -S \\\n";
  for (const OptionInfo& option : command.options) text += ZshOption(option);
  for (const OptionInfo& one : command.positionals) {
    const std::string spec =
        std::string(one.many ? "*" : "") + ":" + ZshText(one.names[0]) + ":" + ZshAction(one);
    text += "        " + Quoted(spec) + " \\\n";
  }
  return text + "        && return ;;\n";
}

// ---------------------------------------------------------------- fish

std::string FishValue(const OptionInfo& option) {
  switch (option.kind) {
    case ValueKind::kNone:
      return "";
    case ValueKind::kChoice:
      return " -x -a " + Quoted(Joined(option.choices, " "), true);
    case ValueKind::kFile:
      return " -r -F";
    case ValueKind::kModel:
      return " -r -F -a '(mk models --names 2>/dev/null)'";
    case ValueKind::kJob:
      return " -x -a '(mk jobs --ids 2>/dev/null)'";
    case ValueKind::kSession:
      return " -x -a '(mk session ls --names 2>/dev/null)'";
    case ValueKind::kAny:
      return " -x";
  }
  return "";
}

std::string FishCommand(const CommandInfo& command) {
  const std::string seen = "complete -c mk -n '__fish_seen_subcommand_from " + command.name + "'";
  std::string text;
  for (const OptionInfo& option : command.options) {
    text += seen;
    for (const std::string& name : option.names) {
      text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
    }
    text += FishValue(option) + " -d " + Quoted(option.doc, true) + "\n";
  }
  for (const OptionInfo& one : command.positionals) {
    // Without -x and -r: there is no option that the value belongs to.
    if (one.kind == ValueKind::kFile) text += seen + " -F\n";
    if (one.kind == ValueKind::kModel) {
      text += seen + " -F -a '(mk models --names 2>/dev/null)'\n";
    }
    if (one.kind == ValueKind::kJob) text += seen + " -a '(mk jobs --ids 2>/dev/null)'\n";
    if (one.kind == ValueKind::kSession) {
      text += seen + " -a '(mk session ls --names 2>/dev/null)'\n";
    }
    if (one.kind == ValueKind::kChoice) {
      text += seen + " -a " + Quoted(Joined(one.choices, " "), true) + "\n";
    }
  }
  return text;
}

}  // namespace

std::string BashCompletions(std::span<const CommandInfo> commands) {
  const std::string names = Joined(NamesOf(commands), " ");
  std::string text = kBashHelpers;
  text +=
      "_mk() {\n"
      "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
      "  COMPREPLY=()\n"
      "  # --option=value comes as three words.\n"
      "  if [[ $cur == = ]]; then\n"
      "    cur=\n"
      "  elif [[ $prev == = ]]; then\n"
      "    prev=${COMP_WORDS[COMP_CWORD-2]}\n"
      "  fi\n"
      "  if (( COMP_CWORD == 1 )); then\n"
      "    _mk_words " +
      names + " help --help --version\n" +
      "    return\n"
      "  fi\n"
      "  case ${COMP_WORDS[1]} in\n"
      "    help) _mk_words " +
      names + " ;;\n";
  for (const CommandInfo& command : commands) text += BashCommand(command);
  return text + "  esac\n}\ncomplete -F _mk mk\n";
}

std::string ZshCompletions(std::span<const CommandInfo> commands) {
  std::string text =
      "#compdef mk\n"
      "# zsh completion of mk; made by `mk completions zsh`\n"
      "_mk_models() {\n"
      "  local -a names\n"
      "  names=(${(f)\"$(mk models --names 2>/dev/null)\"})\n"
      "  _alternative 'models:model:compadd -a names' 'files:file:_files'\n"
      "}\n"
      "_mk_jobs() {\n"
      "  local -a ids\n"
      "  ids=(${(f)\"$(mk jobs --ids 2>/dev/null)\"})\n"
      "  compadd -a ids\n"
      "}\n"
      "_mk_sessions() {\n"
      "  local -a names\n"
      "  names=(${(f)\"$(mk session ls --names 2>/dev/null)\"})\n"
      "  compadd -a names\n"
      "}\n"
      "_mk() {\n"
      "  local -a commands\n"
      "  commands=(\n";
  for (const CommandInfo& command : commands) {
    text += "    " + Quoted(command.name + ":" + ZshText(command.summary)) + "\n";
  }
  text +=
      "    'help:Show the help of a command'\n"
      "  )\n"
      "  if (( CURRENT == 2 )); then\n"
      "    _describe command commands\n"
      "    return\n"
      "  fi\n"
      "  local name=$words[2]\n"
      "  shift words\n"
      "  (( CURRENT-- ))\n"
      "  case $name in\n"
      "    help) _describe command commands ;;\n";
  for (const CommandInfo& command : commands) text += ZshCommand(command);
  return text +
         "  esac\n}\n"
         "# Sourced, or called by the completion system as the function of this file.\n"
         "if [[ $funcstack[1] == _mk ]]; then\n  _mk \"$@\"\nelse\n  compdef _mk mk\nfi\n";
}

std::string FishCompletions(std::span<const CommandInfo> commands) {
  std::string text =
      "# fish completion of mk; made by `mk completions fish`\n"
      "complete -c mk -f\n"
      "complete -c mk -n __fish_use_subcommand -l help -d 'Show the commands'\n"
      "complete -c mk -n __fish_use_subcommand -l version -d 'Show the version'\n"
      "complete -c mk -n __fish_use_subcommand -a help -d 'Show the help of a command'\n"
      "complete -c mk -n '__fish_seen_subcommand_from help' -a " +
      Quoted(Joined(NamesOf(commands), " "), true) + "\n";
  for (const CommandInfo& command : commands) {
    text += "complete -c mk -n __fish_use_subcommand -a " + command.name + " -d " +
            Quoted(command.summary, true) + "\n";
    text += FishCommand(command);
  }
  return text;
}

}  // namespace mk::client
