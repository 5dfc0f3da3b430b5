#include "client/score_work.h"

#include <unistd.h>

#include <utility>

#include "client/json_read.h"
#include "client/map_answer.h"
#include "client/map_item.h"
#include "client/report.h"
#include "client/request_check.h"
#include "client/score_text.h"
#include "protocol/request_fields.h"

namespace mk::client {
namespace {

using protocol::Fail;
using protocol::ScoreItem;
using protocol::Status;

constexpr size_t kDepth = protocol::kLimits.depth;

Status ReadObject(const std::string& text, MapItem& item, ScoreItem& scored) {
  if (JsonDepth(text) > kDepth) {
    return Fail(UsageError("the JSON is nested too deeply",
                           "at most " + std::to_string(kDepth) + " levels"));
  }
  const Json object = Json::parse(text, nullptr, false);
  if (!object.is_object()) {
    return Fail(UsageError("not a JSON object", "each line is one: {\"text\": \"...\"}"));
  }
  for (const auto& [name, value] : object.items()) {
    if (name == "id") {
      item.id = value;
      continue;
    }
    const auto assigned = AssignField(name, value, scored);
    if (!assigned) {
      return Fail(UsageError("unknown field \"" + name + "\"",
                             "a text has text, context, ids, context_ids and id"));
    }
    if (!*assigned) return Fail(UsageError("the value of \"" + name + "\" is of the wrong type"));
  }
  return {};
}

Status ReadRecord(MapForm form, Record& record, MapItem& item, ScoreItem& scored) {
  if (record.too_long) {
    return Fail(UsageError("longer than " + std::to_string(MostBytesOf(form)) + " bytes",
                           "give a shorter text"));
  }
  if (form == MapForm::kJson) return ReadObject(record.bytes, item, scored);
  // Lines that were written elsewhere.
  if (form == MapForm::kLines && record.bytes.ends_with('\r')) record.bytes.pop_back();
  if (record.bytes.empty()) return Fail(UsageError("the text is empty", "give some text"));
  scored.text = std::move(record.bytes);
  return {};
}

// What stands for a text in its row.
std::string LabelOf(const MapItem& item) {
  const auto& args = std::get<protocol::ScoreArgs>(item.args);
  if (args.texts.empty()) return {};
  const ScoreItem& scored = args.texts.front();
  if (scored.text) return *scored.text;
  return std::to_string(scored.ids ? scored.ids->size() : 0) + " ids";
}

template <typename T>
Json Joined(const std::vector<protocol::ScoreChunk>& chunks,
            std::vector<T> protocol::ScoreChunk::*list) {
  Json all = Json::array();
  for (const protocol::ScoreChunk& chunk : chunks) {
    for (const T& one : chunk.*list) all.push_back(one);
  }
  return all;
}

}  // namespace

ScoreWork::ScoreWork(const ScoreSettings& settings)
    : settings_(settings),
      paint_(IsFancyTerminal(STDOUT_FILENO)),
      terminal_(IsFancyTerminal(STDOUT_FILENO)) {}

bool ScoreWork::IsBlank(const Record& record) const {
  return settings_.records && mk::client::IsBlank(settings_.input, record);
}

MapItem ScoreWork::Read(uint64_t index, Record record) {
  MapItem item;
  item.index = index;
  protocol::ScoreArgs args = settings_.args;
  Status read;
  if (settings_.records) {
    ScoreItem scored;
    read = ReadRecord(settings_.input, record, item, scored);
    if (scored.text && scored.context.empty()) scored.context = settings_.context;
    if (read && !scored.text && !settings_.context.empty()) {
      read = Fail(
          UsageError("--context is of texts, not of ids", "give \"context_ids\" beside \"ids\""));
    }
    args.texts = {std::move(scored)};
  } else {
    args.texts = {settings_.given[index]};
  }
  item.args = std::move(args);
  if (read) read = CheckRequest(item.args);
  if (!read) item.error = std::move(read.error());
  return item;
}

uint64_t ScoreWork::Take(const MapItem& item, const protocol::Body& body) {
  const auto* chunk = std::get_if<protocol::ScoreChunk>(&body);
  if (chunk == nullptr) return 0;
  const size_t tokens = chunk->ids.size();
  const bool whole = chunk->pieces.size() == tokens && chunk->logprobs.size() == tokens &&
                     chunk->ranks.size() == tokens;
  if (!whole) return 0;  // no daemon of ours says that
  chunks_[item.index].push_back(*chunk);
  return 0;
}

std::string ScoreWork::JsonOf(const MapItem& item, const protocol::ScoreDone& done,
                              const std::vector<protocol::ScoreChunk>& chunks) const {
  Json json = MapHead(item, "done");
  json.update(ToJson(done.texts.front()));
  json["ids"] = Joined(chunks, &protocol::ScoreChunk::ids);
  json["pieces"] = Joined(chunks, &protocol::ScoreChunk::pieces);
  json["logprobs"] = Joined(chunks, &protocol::ScoreChunk::logprobs);
  json["ranks"] = Joined(chunks, &protocol::ScoreChunk::ranks);
  Json rest = ToJson(done);
  rest.erase("texts");
  json.update(rest);
  return JsonLine(json);
}

MapAnswer ScoreWork::RenderScore(const MapItem& item, const protocol::ScoreDone& done) {
  MapAnswer answer;
  const std::vector<protocol::ScoreChunk> chunks = std::move(chunks_[item.index]);
  chunks_.erase(item.index);
  const protocol::TextScore& score = done.texts.front();
  scores_[item.index] = score;
  answer.degraded = done.trust.degraded;
  answer.tokens = score.tokens;
  if (settings_.json) {
    answer.text = JsonOf(item, done, chunks);
    return answer;
  }
  if (settings_.tokens) {
    if (terminal_) answer.text += ScoreTokenHead(paint_);
    for (const auto& chunk : chunks) answer.text += ScoreTokenRows(chunk, paint_, terminal_);
  }
  const bool head = terminal_ && (settings_.tokens || item.index == 0);
  if (head) answer.text += ScoreHead(paint_);
  answer.text += ScoreRow(score, LabelOf(item), paint_);
  for (const std::string& warning : done.warnings) {
    answer.notes += MapNote(item, "warning: " + warning);
  }
  return answer;
}

MapAnswer ScoreWork::Render(const MapItem& item, const protocol::Body& outcome) {
  if (const auto* done = std::get_if<protocol::ScoreDone>(&outcome)) {
    if (done->texts.size() == 1) return RenderScore(item, *done);
  }
  chunks_.erase(item.index);
  const auto* error = std::get_if<protocol::Error>(&outcome);
  const protocol::Error wrong{
      protocol::ErrorCode::kInternal, "the daemon gave another request's answer", {}, {}};
  MapAnswer answer = MapFailure(item, error != nullptr ? *error : wrong, settings_.json);
  // An empty line keeps the others in their places.
  if (!settings_.json && !settings_.flow.alone) answer.text = "\n";
  if (settings_.flow.alone) answer.notes.clear();  // it is the command's own error
  return answer;
}

std::string ScoreWork::Totals() {
  if (scores_.empty() || (scores_.size() == 1 && !settings_.json)) return {};
  protocol::TextScore total;
  for (const auto& [index, score] : scores_) AddScore(score, total);
  if (!settings_.json) {
    return ScoreRow(total, "total of " + std::to_string(scores_.size()) + " texts", paint_);
  }
  Json json = ToJson(total);
  json["texts"] = scores_.size();
  return JsonLine(Json{{"total", json}});
}

}  // namespace mk::client
