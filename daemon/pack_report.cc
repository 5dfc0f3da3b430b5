#include "daemon/pack_report.h"

#include <cstdio>
#include <ctime>

#include "daemon/memory_text.h"

namespace mk::daemon {
namespace {

using nlohmann::ordered_json;

std::string TimeText(int64_t nanoseconds) {
  const std::time_t seconds = nanoseconds / 1'000'000'000;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc)};
}

bool IsOld(const PackInfo& info) {
  return info.format == PackFormat::kMkmem1;
}

std::string Marks(const PackInfo& info) {
  if (info.decayed()) return "experimental, decayed";
  return info.experimental() ? "experimental" : "";
}

ordered_json SectionJson(const PackSection& section) {
  ordered_json json;
  json["type"] = SectionTypeName(section.type);
  if (section.layer != kGlobalLayer) json["layer"] = section.layer;
  json["elements"] = StateTypeName(section.element);
  json["dims"] = section.dims;
  json["bytes"] = section.bytes;
  return json;
}

void AddLine(std::string& text, const char* name, const std::string& value) {
  if (value.empty()) return;
  text += "  ";
  text += name;
  text.append(12 - std::char_traits<char>::length(name), ' ');
  text += value + "\n";
}

}  // namespace

ordered_json ToJson(const PackInfo& info) {
  ordered_json json;
  json["format"] = PackFormatName(info.format);
  json["architecture"] = info.architecture;
  json["bytes"] = info.file_bytes;
  if (IsOld(info)) {
    json["layers"] = info.shape.layers;
    json["hidden"] = info.shape.hidden;
    json["vocab"] = info.shape.vocab;
  } else {
    json["fingerprint"] = info.fingerprint;
    json["state_id"] = info.state_id;
    json["tokens"] = info.key.length;
    json["precision"] = PrecisionName(info.key.options.precision);
    json["chunked_prefill"] = info.key.options.chunked_prefill;
    json["created_ns"] = info.created_ns;
  }
  json["has_tokens"] = info.has_tokens();
  json["has_logits"] = info.has_logits();
  json["experimental"] = info.experimental();
  json["decayed"] = info.decayed();
  json["sections"] = ordered_json::array();
  for (const PackSection& section : info.sections) json["sections"].push_back(SectionJson(section));
  return json;
}

std::string ToText(const PackInfo& info) {
  std::string text;
  AddLine(text, "format", std::string(PackFormatName(info.format)));
  if (IsOld(info)) {
    AddLine(text, "model",
            "k3, " + std::to_string(info.shape.layers) + " layers of " +
                std::to_string(info.shape.hidden));
  } else {
    AddLine(text, "model", info.architecture + ", " + info.fingerprint);
    AddLine(text, "state", info.state_id);
    AddLine(text, "tokens", std::to_string(info.key.length));
    AddLine(text, "precision", std::string(PrecisionName(info.key.options.precision)));
    AddLine(text, "created", TimeText(info.created_ns));
  }
  std::string holds = info.has_tokens() ? "state, tokens" : "state";
  if (info.has_logits()) holds += ", logits";
  AddLine(text, "holds", holds);
  AddLine(text, "marks", Marks(info));
  AddLine(text, "size",
          BytesText(info.file_bytes) + " in " + std::to_string(info.sections.size()) + " sections");
  return text;
}

std::string InOneLine(const PackInfo& info) {
  std::string text = info.architecture;
  if (!IsOld(info)) {
    text += ", " + std::to_string(info.key.length) + " tokens, " +
            std::string(PrecisionName(info.key.options.precision));
  }
  text += ", " + BytesText(info.file_bytes);
  if (const std::string marks = Marks(info); !marks.empty()) text += ", " + marks;
  return text;
}

ordered_json ToJson(const PackDifference& difference) {
  ordered_json json;
  json["identical"] = difference.identical;
  json["same_model"] = difference.same_model;
  json["same_precision"] = difference.same_precision;
  json["common_tokens"] = difference.common_tokens;
  json["unmatched_sections"] = difference.unmatched;
  json["sections"] = ordered_json::array();
  for (const SectionDifference& one : difference.sections) {
    ordered_json section = SectionJson(one.section);
    section["different"] = one.different;
    section["largest"] = one.largest;
    section["relative"] = one.relative;
    json["sections"].push_back(std::move(section));
  }
  return json;
}

std::string ToText(const PackDifference& difference) {
  if (difference.identical) return "identical\n";
  std::string text;
  if (!difference.same_model) text += "of different models\n";
  if (!difference.same_precision) text += "of different precisions\n";
  text += "common tokens: " + std::to_string(difference.common_tokens) + "\n";
  if (difference.unmatched > 0) {
    text += std::to_string(difference.unmatched) + " sections have no counterpart of their shape\n";
  }
  for (const SectionDifference& one : difference.sections) {
    if (one.different == 0) continue;
    std::string name = SectionTypeName(one.section.type);
    if (one.section.layer != kGlobalLayer)
      name.append(" ").append(std::to_string(one.section.layer));
    char line[160];
    std::snprintf(line, sizeof line, "%-24s %12llu differ, by at most %.6g, relative %.6g\n",
                  name.c_str(), static_cast<unsigned long long>(one.different), one.largest,
                  one.relative);
    text += line;
  }
  return text;
}

}  // namespace mk::daemon
