#include "daemon/shadow_tool.h"

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "daemon/memory_text.h"
#include "daemon/tool_output.h"
#include "engine/shadow/shadow_file.h"
#include "protocol/error.h"

namespace mk::daemon {
namespace {

using nlohmann::ordered_json;

std::string Number(double value) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.4f", value);
  return text.data();
}

std::string FormatOf(const ShadowInfo& info) {
  return std::string(ShadowFormatName(info.version));
}

std::string InfoText(const ShadowFile& file) {
  const ShadowInfo& info = file.info();
  std::string text = file.path() + ": " + FormatOf(info) + ", " +
                     std::to_string(info.layers.size()) + " layers of " +
                     std::to_string(info.experts) + " experts, " + BytesText(info.file_bytes()) +
                     "\n";
  text += "per matrix  " + std::to_string(info.matrix_bytes()) + " bytes for " +
          std::to_string(size_t{info.groups} * kVq1Group) + " weights, " +
          Number(info.stages / 2.0) + " bits each\n";
  text += "layers      " + std::to_string(info.layers.front()) + " to " +
          std::to_string(info.layers.back()) + "\n";
  if (info.version == 1) return text + "model       not told\n";
  text += "model       " + info.fingerprint + "\n";
  return text + "error       " + Number(info.relative_error) + ", gain " + Number(info.gain) + "\n";
}

ordered_json InfoJson(const ShadowFile& file) {
  const ShadowInfo& info = file.info();
  ordered_json json = {{"schema", 1},
                       {"path", file.path()},
                       {"format", FormatOf(info)},
                       {"layers", info.layers},
                       {"experts", info.experts},
                       {"weights_per_matrix", size_t{info.groups} * kVq1Group},
                       {"stages", info.stages},
                       {"file_bytes", info.file_bytes()}};
  if (info.version == 1) return json;
  json["fingerprint"] = info.fingerprint;
  json["relative_error"] = info.relative_error;
  json["gain"] = info.gain;
  return json;
}

}  // namespace

int ShadowTool(int argc, const char* const* argv) {
  std::string path;
  bool json = false;
  CLI::App app("What `mk shadow --info` runs", "microkimid shadow");
  app.add_option("FILE", path)->required();
  app.add_flag("--json", json);
  CLI11_PARSE(app, argc, argv);
  const Result<ShadowFile> file = ShadowFile::Open(path);
  if (!file) return ReportFailure(file.error());
  return PrintOut(json ? InfoJson(*file).dump() + "\n" : InfoText(*file));
}

}  // namespace mk::daemon
