// Scorecards and comparisons, for people and as JSON.

#pragma once

#include <string>
#include <vector>

#include "client/json_format.h"
#include "protocol/messages.h"

namespace mk::client {

// A table with a column for each model. All were measured on the same texts and tasks.
std::string EvalText(const std::vector<protocol::EvalDone>& models);
// {"schema": "mk-eval-1", "models": [...]}. The same bytes whenever the same is measured.
Json EvalJson(const std::vector<protocol::EvalDone>& models);

std::string CompareText(const protocol::CompareDone& done);
// {"schema": "mk-compare-1", ...}
Json CompareJson(const protocol::CompareDone& done);

// "+0.0123", "-" for none.
std::string SignedText(const std::optional<double>& value, double scale, int decimals);
// Whether what was measured was not the whole model: exit code 4.
bool IsDegraded(const protocol::JobResult& result);

// "story-k3 (exact)"
std::string NameOf(const protocol::EvaluatedModel& model);

}  // namespace mk::client
