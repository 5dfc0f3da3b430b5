#include "client/score_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <numbers>

#include "client/logprob_text.h"
#include "client/look_text.h"

namespace mk::client {
namespace {

constexpr size_t kLabelColumns = 40;
constexpr size_t kTextColumns = 20;
// A bar has a column for every bit of surprise.
constexpr double kLongestBar = 24;

template <typename... T>
std::string Format(const char* format, T... values) {
  std::array<char, 64> text;
  std::snprintf(text.data(), text.size(), format, values...);
  return text.data();
}

std::string OrDash(const char* format, const std::optional<double>& value) {
  return value ? Format(format, *value) : "-";
}

std::string Bar(double logprob) {
  const double bits = std::clamp(-logprob / std::numbers::ln2, 0.0, kLongestBar);
  std::string bar;
  for (int i = 0; i < static_cast<int>(bits + 0.5); ++i) bar += "\u2588";
  return bar;
}

Color ColorOf(uint32_t rank) {
  if (rank == 1) return Color::kGreen;
  return rank <= 10 ? Color::kYellow : Color::kRed;
}

TableRow& Numbers(TableRow& row, std::array<std::string, 5> cells, Color color) {
  constexpr std::array<size_t, 5> kWidths = {12, 8, 11, 10, 10};
  for (size_t i = 0; i < cells.size(); ++i) row.Right(cells[i], kWidths[i], color);
  return row;
}

}  // namespace

std::string ScoreHead(const Painter& paint) {
  TableRow row(paint, 0);
  Numbers(row, {"nats", "tokens", "perplexity", "bits/byte", "top-1"}, Color::kDim);
  return row.Rest("text", Cut::kEnd, Color::kDim).Take() + "\n";
}

std::string ScoreRow(const protocol::TextScore& score, std::string_view label,
                     const Painter& paint) {
  TableRow row(paint, 0);
  const auto tokens = static_cast<unsigned long long>(score.tokens);
  const auto top1 = static_cast<unsigned long long>(score.top1);
  Numbers(row,
          {Format("%.4f", score.logprob), Format("%llu", tokens), OrDash("%.4f", score.perplexity),
           OrDash("%.4f", score.bits_per_byte), Format("%llu/%llu", top1, tokens)},
          Color::kNone);
  const std::string shown = Printable(label);
  const bool fits = DisplayWidth(shown) <= kLabelColumns;
  return row.Rest(fits ? shown : Fitted(shown, kLabelColumns)).Take() + "\n";
}

std::string ScoreTokenHead(const Painter& paint) {
  TableRow row(paint, 0);
  row.Right("#", 6, Color::kDim).Right("id", 7, Color::kDim);
  row.Left("token", kTextColumns, Color::kDim).Right("nats", 9, Color::kDim);
  return row.Right("p", 8, Color::kDim).Right("rank", 7, Color::kDim).Take() + "\n";
}

std::string ScoreTokenRows(const protocol::ScoreChunk& chunk, const Painter& paint, bool bars) {
  std::string text;
  for (size_t i = 0; i < chunk.ids.size(); ++i) {
    TableRow row(paint, 0);
    const Color color = ColorOf(chunk.ranks[i]);
    row.Right(std::to_string(chunk.index + i + 1), 6).Right(std::to_string(chunk.ids[i]), 7);
    row.Left(QuotedOr(chunk.pieces[i], chunk.ids[i]), kTextColumns, color);
    row.Right(Format("%.4f", chunk.logprobs[i]), 9).Right(LogprobPercent(chunk.logprobs[i]), 8);
    row.Right(std::to_string(chunk.ranks[i]), 7, color);
    if (bars) row.Rest(Bar(chunk.logprobs[i]), Cut::kEnd, color);
    text += row.Take() + "\n";
  }
  return text;
}

void AddScore(const protocol::TextScore& score, protocol::TextScore& total) {
  total.logprob += score.logprob;
  total.tokens += score.tokens;
  total.context_tokens += score.context_tokens;
  total.bytes += score.bytes;
  total.top1 += score.top1;
  total.top5 += score.top5;
  total.unk += score.unk;
  if (total.tokens > 0) {
    total.perplexity = std::exp(-total.logprob / static_cast<double>(total.tokens));
  }
  if (total.bytes > 0) {
    total.bits_per_byte = -total.logprob / (std::numbers::ln2 * static_cast<double>(total.bytes));
  }
}

}  // namespace mk::client
