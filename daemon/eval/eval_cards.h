// From tasks and texts to units of work, and from their results to scorecards.

#pragma once

#include <array>
#include <string>
#include <vector>

#include "daemon/eval/eval_data.h"
#include "daemon/eval/eval_work.h"
#include "eval/task_score.h"

namespace mk::daemon {

// Tokens that are read of a text from one empty state.
inline constexpr size_t kEvalWindow = 512;

// The units of a document's windows, and what they are of.
struct DocumentUnits {
  size_t first = 0;
  size_t count = 0;
  uint64_t bytes = 0;   // that are scored
  uint64_t hidden = 0;  // of them, those behind tokens that spell nothing
  uint64_t unk = 0;
};

// What a model, or the two sides of units that both read, made of a document.
struct DocumentScore {
  UnitScore sum;
  uint64_t bytes = 0;
  double bits = 0;  // with 8 for every hidden byte
};

// Adds the windows of every document. Each is read behind the id that begins a text; where the
// vocabulary has none, behind the last token of the window before, so that only the very first
// token is not scored. Errors: not_found (no tokenizer), bad_request (text that is not UTF-8).
protocol::Result<std::vector<DocumentUnits>> AddText(const EvalText& text, const EvalModel& model,
                                                     EvalUnit like, EvalWork& work);
// `side`: of units that two models read.
DocumentScore ScoreDocument(const DocumentUnits& document, const EvalWork& work, size_t side);
protocol::TextCard CardOf(const EvalText& text, const std::vector<DocumentUnits>& documents,
                          const EvalWork& work, size_t side);

// Adds the units of every probe and phrasing; the first one's place.
size_t AddTask(const EvalTask& task, size_t model, EvalWork& work);
// `first`: as AddTask gave it.
protocol::TaskCard CardOf(const EvalTask& task, size_t first, const EvalWork& work);

protocol::EvaluatedModel Describe(const EvalModel& model);
// What the units of a model tell of it, Trust above all. Adds to `warnings`.
void AddTrust(const EvalWork& work, size_t model, protocol::EvaluatedModel& told,
              std::vector<std::string>& warnings);

}  // namespace mk::daemon
