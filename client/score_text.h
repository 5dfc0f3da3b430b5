// Scores as rows for people.

#pragma once

#include <string>
#include <string_view>

#include "client/table.h"
#include "protocol/messages.h"

namespace mk::client {

// Names of the columns of ScoreRow.
std::string ScoreHead(const Painter& paint);
// "-9.421  4  10.541  0.8493  2/4  Once upon a time"; of `label` what fits into a line.
std::string ScoreRow(const protocol::TextScore& score, std::string_view label,
                     const Painter& paint);

std::string ScoreTokenHead(const Painter& paint);
// "3  ' upon'  -0.021  97.9 %  1", a row for each token, on a terminal with a bar as long as the
// token was unexpected.
std::string ScoreTokenRows(const protocol::ScoreChunk& chunk, const Painter& paint, bool bars);

// The sum of scores: what they would be as one text.
void AddScore(const protocol::TextScore& score, protocol::TextScore& total);

}  // namespace mk::client
