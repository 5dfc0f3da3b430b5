#include "client/map_writer.h"

#include <cstdio>
#include <utility>

namespace mk::client {
namespace {

Json HeadOf(const MapItem& item, const char* status) {
  Json json = {{"index", item.index}};
  if (item.id) json["id"] = *item.id;
  json["status"] = status;
  return json;
}

std::string NoteOf(const MapItem& item, const std::string& text) {
  return "mk: item " + std::to_string(item.index + 1) + ": " + text + "\n";
}

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

std::string TextOf(MapForm form, std::string_view text) {
  return form == MapForm::kNul ? WithoutNul(text) + '\0' : EscapeLine(text) + "\n";
}

}  // namespace

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

bool IsCancelled(const MapOutcome& outcome) {
  if (const auto* done = std::get_if<protocol::RunDone>(&outcome)) {
    return done->finish_reason == "cancelled";
  }
  return std::get<protocol::Error>(outcome).code == protocol::ErrorCode::kCancelled;
}

MapWriter::Answer MapWriter::Render(const MapItem& item, const protocol::RunDone& done) const {
  Answer answer;
  answer.whole = done.finish_reason != "cancelled";
  if (form_ == MapForm::kJson) {
    Json json = HeadOf(item, answer.whole ? "done" : "cancelled");
    json.update(ToJson(done));
    json.erase("rest");  // part of the text
    if (done.options.raw) json.erase("reasoning");
    answer.text = JsonLine(json);
    return answer;
  }
  answer.text = TextOf(form_, done.text);
  for (const std::string& warning : done.warnings) {
    answer.notes += NoteOf(item, "warning: " + warning);
  }
  if (done.trust.degraded) {
    answer.notes += NoteOf(item, "the answer is degraded (see --json, trust)");
  }
  return answer;
}

MapWriter::Answer MapWriter::Render(const MapItem& item, const protocol::Error& error) const {
  Answer answer;
  answer.whole = error.code != protocol::ErrorCode::kCancelled;
  if (form_ == MapForm::kJson) {
    Json json = HeadOf(item, answer.whole ? "failed" : "cancelled");
    json.update(ErrorToJson(error));
    answer.text = JsonLine(json);
    return answer;
  }
  // An empty line keeps the others in their places.
  answer.text = TextOf(form_, "");
  if (answer.whole) {
    answer.notes = NoteOf(item, error.message);
    if (!error.hint.empty()) answer.notes += "  hint: " + error.hint + "\n";
  }
  return answer;
}

void MapWriter::Put(const MapItem& item, const MapOutcome& outcome) {
  Answer answer = std::visit([&](const auto& inner) { return Render(item, inner); }, outcome);
  held_bytes_ += answer.text.size();
  held_.emplace(item.index, std::move(answer));
}

void MapWriter::WriteReady() {
  while (!held_.empty() && held_.begin()->first == next_) {
    const Answer answer = std::move(held_.extract(held_.begin()).mapped());
    held_bytes_ -= answer.text.size();
    ++next_;
    cut_off_ = cut_off_ || (form_ != MapForm::kJson && !answer.whole);
    if (cut_off_) continue;
    output_.Write(answer.text);
    if (!answer.notes.empty()) std::fputs(answer.notes.c_str(), stderr);
  }
}

}  // namespace mk::client
