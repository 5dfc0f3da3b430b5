#include "client/map_runs.h"

#include "client/map_answer.h"
#include "client/map_item.h"
#include "client/run_report.h"

namespace mk::client {
namespace {

// NUL ends a text here, so that it cannot be part of one.
std::string WithoutNul(std::string_view text) {
  std::string clean;
  for (const char c : text) {
    if (c == '\0') {
      clean += "\xEF\xBF\xBD";  // U+FFFD
    } else {
      clean += c;
    }
  }
  return clean;
}

std::string EscapeLine(std::string_view text) {
  std::string line;
  line.reserve(text.size() + 1);
  for (const char c : text) {
    switch (c) {
      case '\n':
        line += "\\n";
        break;
      case '\r':
        line += "\\r";
        break;
      case '\\':
        line += "\\\\";
        break;
      default:
        line += c;
    }
  }
  return line;
}

std::string TextOf(MapForm form, std::string_view text) {
  return form == MapForm::kNul ? WithoutNul(text) + '\0' : EscapeLine(text) + "\n";
}

}  // namespace

bool MapRuns::IsBlank(const Record& record) const {
  return mk::client::IsBlank(settings_.input, record);
}

MapItem MapRuns::Read(uint64_t index, Record record) {
  return ReadItem(settings_, index, std::move(record));
}

uint64_t MapRuns::Take(const MapItem&, const protocol::Body& body) {
  return std::holds_alternative<protocol::TokenChunk>(body) ? 1 : 0;
}

MapAnswer MapRuns::RenderDone(const MapItem& item, const protocol::RunDone& done) const {
  MapAnswer answer;
  answer.whole = done.finish_reason != "cancelled";
  answer.degraded = done.trust.degraded;
  if (settings_.output == MapForm::kJson) {
    Json json = MapHead(item, answer.whole ? "done" : "cancelled");
    json.update(RunDoneJson(done));
    answer.text = JsonLine(json);
    return answer;
  }
  answer.text = TextOf(settings_.output, done.text);
  for (const std::string& warning : done.warnings) {
    answer.notes += MapNote(item, "warning: " + warning);
  }
  if (done.trust.degraded) {
    answer.notes += MapNote(item, "the answer is degraded (see --json, trust)");
  }
  return answer;
}

MapAnswer MapRuns::Render(const MapItem& item, const protocol::Body& outcome) {
  if (const auto* done = std::get_if<protocol::RunDone>(&outcome)) return RenderDone(item, *done);
  MapAnswer answer =
      MapFailure(item, std::get<protocol::Error>(outcome), settings_.output == MapForm::kJson);
  // An empty line keeps the others in their places.
  if (settings_.output != MapForm::kJson) answer.text = TextOf(settings_.output, "");
  return answer;
}

}  // namespace mk::client
