#include "client/service_unit.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "client/unit_templates.h"
#include "protocol/utf8.h"

namespace mk::client {
namespace {

using protocol::ErrorCode;
using protocol::Fail;
using protocol::Result;
using protocol::Status;

constexpr std::string_view kSignature = "# Written by `mk service install`, checksum ";
constexpr std::string_view kUsualListen = "ListenStream=%t/microkimi/microkimid.sock";

std::string Checksum(std::string_view text) {
  std::array<char, 17> digits;
  std::snprintf(digits.data(), digits.size(), "%016llx",
                static_cast<unsigned long long>(XXH3_64bits(text.data(), text.size())));
  return digits.data();
}

std::string Signed(const std::string& unit, const std::string& text) {
  const std::string body =
      "# Changes belong into a drop-in, which stays: systemctl --user edit " + unit + "\n" + text;
  return std::string(kSignature) + Checksum(body) + "\n" + body;
}

Status CheckText(const std::string& what, const std::string& text) {
  const bool control = std::any_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
  if (!control && protocol::FindInvalidUtf8(text) == std::string::npos) return {};
  return Fail(ErrorCode::kBadRequest,
              what + " has control characters or is not UTF-8; no unit can name it",
              "use a folder with another name");
}

Status CheckSettings(const UnitSettings& settings) {
  if (Status one = CheckText("the path of microkimid", settings.program); !one) return one;
  // systemd refuses to run such a program, however it is quoted.
  if (settings.program.find_first_of("\"'\\") != std::string::npos) {
    return Fail(ErrorCode::kBadRequest,
                "the path of microkimid has a quote or a backslash; no unit can name it",
                "install it in a folder with another name");
  }
  if (Status one = CheckText("the path of the socket", settings.socket); !one) return one;
  if (settings.socket.ends_with(' ') || settings.socket.ends_with('\\')) {
    return Fail(ErrorCode::kBadRequest,
                "the path of the socket ends with a space or a backslash; no unit can name it",
                "name another socket with --socket");
  }
  for (const auto& [name, value] : settings.environment) {
    if (Status one = CheckText(name, value); !one) return one;
  }
  return {};
}

// '%' begins a specifier in every value.
std::string NoSpecifiers(const std::string& text) {
  std::string plain;
  for (const char c : text) plain += c == '%' ? "%%" : std::string(1, c);
  return plain;
}

// One word of a value that systemd splits at spaces.
std::string Word(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : NoSpecifiers(text)) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

void Replace(std::string& text, std::string_view placeholder, const std::string& value) {
  const size_t at = text.find(placeholder);
  if (at != std::string::npos) text.replace(at, placeholder.size(), value);
}

// The value of the first line `key`=...; "" when there is none.
std::string_view ValueOf(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.starts_with(key) && line.substr(key.size()).starts_with('=')) {
      return line.substr(key.size() + 1);
    }
  }
  return {};
}

// The first word without its quotes and backslashes.
std::string FirstWord(std::string_view value) {
  std::string word;
  char quote = 0;
  for (size_t i = 0; i < value.size(); ++i) {
    const char c = value[i];
    if (c == '\\' && i + 1 < value.size()) {
      word += value[++i];
    } else if (quote != 0 ? c == quote : (c == '"' || c == '\'')) {
      quote = quote != 0 ? '\0' : c;
    } else if (quote == 0 && c == ' ') {
      break;
    } else {
      word += c;
    }
  }
  return word;
}

std::string Expanded(std::string_view value, const std::string& runtime_folder) {
  std::string text;
  for (size_t i = 0; i < value.size(); ++i) {
    const bool specifier = value[i] == '%' && i + 1 < value.size();
    if (specifier && value[i + 1] == 't') {
      text += runtime_folder;
      ++i;
    } else {
      if (specifier && value[i + 1] == '%') ++i;
      text += value[i];
    }
  }
  return text;
}

}  // namespace

Result<UnitTexts> RenderUnits(const UnitSettings& settings) {
  if (Status checked = CheckSettings(settings); !checked) return Fail(std::move(checked.error()));
  UnitTexts texts{kSocketTemplate, kServiceTemplate};
  if (!settings.socket.empty()) {
    Replace(texts.socket, kUsualListen, "ListenStream=" + NoSpecifiers(settings.socket));
  }
  std::string environment;
  for (const auto& [name, value] : settings.environment) {
    environment += "Environment=" + Word(name + "=" + value) + "\n";
  }
  Replace(texts.service, "@MK_DAEMON_COMMAND@", Word(settings.program));
  Replace(texts.service, "@MK_DAEMON_ENVIRONMENT@\n", environment);
  return UnitTexts{Signed(kSocketUnit, texts.socket), Signed(kServiceUnit, texts.service)};
}

UnitAuthor AuthorOf(std::string_view text) {
  if (!text.starts_with(kSignature)) return UnitAuthor::kOther;
  text.remove_prefix(kSignature.size());
  const size_t line = text.find('\n');
  if (line == std::string_view::npos) return UnitAuthor::kEdited;
  return text.substr(0, line) == Checksum(text.substr(line + 1)) ? UnitAuthor::kMk
                                                                 : UnitAuthor::kEdited;
}

std::string ProgramOf(std::string_view service_text) {
  return Expanded(FirstWord(ValueOf(service_text, "ExecStart")), "%t");
}

std::string ListenPathOf(std::string_view socket_text, const std::string& runtime_folder) {
  return Expanded(ValueOf(socket_text, "ListenStream"), runtime_folder);
}

}  // namespace mk::client
